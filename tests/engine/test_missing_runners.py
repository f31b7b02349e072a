"""A machine that lacks what a runner needs: its user is told what to install, and served by the one that is there."""

import subprocess
import sys
import time
from dataclasses import replace

import pytest

from compiler import needs_compiled
from decodeloop.cli import main
from decodeloop.engine import kernels
from decodeloop.engine.ask import ask
from decodeloop.engine.build import build_engine, choose_runner
from decodeloop.engine.models.sources import open_checkpoint
from decodeloop.engine.settings import EngineSettings
from decodeloop.types import Request, SamplingParams
from tiny import tiny_hf

SETTINGS = EngineSettings(threads=1, max_context=128, kv_memory_mb=4)

LOAD_WITHOUT = """
import sys
sys.modules[{lacking!r}] = None
try:
    {load}
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("lacking", "load", "advice"),
    [
        (
            "torch",
            "from decodeloop.engine.runners import runners; runners.load('torch')",
            "torch is not installed: pip install 'decodeloop[torch]'",
        ),
        (
            "decodeloop.engine.kernels._native",
            "from decodeloop.engine import kernels; kernels.load()",
            "reinstall decodeloop where a C++ compiler is found",
        ),
    ],
)
def test_what_is_missing_is_named(lacking, load, advice):
    script = LOAD_WITHOUT.format(lacking=lacking, load=load)
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert advice in said


def test_a_command_without_its_runner_ends_with_one_line(monkeypatch, capsys):
    def lack():
        raise ImportError("torch is not installed")

    monkeypatch.setattr(main, "app", lack)
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == "decodeloop: torch is not installed\n"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return open_checkpoint(tiny_hf("llama", tmp_path_factory.mktemp("models"), vocab_size=320))


def test_where_a_compiler_is_the_native_runner_serves(checkpoint):
    needs_compiled()
    choice = choose_runner(checkpoint, SETTINGS)
    assert (choice.runner.info.name, dict(choice.refusals)) == ("native", {})


@pytest.fixture
def without_kernels(monkeypatch):
    monkeypatch.setitem(sys.modules, kernels.MODULE, None)


@pytest.mark.usefixtures("without_kernels")
def test_without_the_compiled_module_torch_serves_and_says_why(checkpoint):
    choice = choose_runner(checkpoint, SETTINGS)
    assert choice.runner.info.name == "torch"
    assert list(choice.refusals) == ["native"]
    assert "C++ compiler" in choice.refusals["native"]
    engine = build_engine(checkpoint, SETTINGS, clock=time.monotonic, runner=choice.runner)
    engine.worker.start()
    try:
        asked = Request(id="1", model="tiny", prompt="the cat", params=SamplingParams(max_tokens=5), seed=1)
        (answer,) = ask(engine, [asked], at_once=1)
    finally:
        engine.close(10.0)
    assert answer.error is None
    assert answer.usage.completion == 5


@pytest.mark.usefixtures("without_kernels")
def test_without_the_compiled_module_asking_for_it_is_an_error(checkpoint):
    with pytest.raises(ImportError, match="C\\+\\+ compiler"):
        choose_runner(checkpoint, replace(SETTINGS, runner="native"))
