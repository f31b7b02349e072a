"""Files that callers upload and that batches write, on disk: the data, and beside it what it is."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from decodeloop.types import RequestRefused

__all__ = ["FileStore", "StoredFile", "lines_of"]

_ID = re.compile(r"file-[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """created_s: Unix time."""

    id: str
    organization: str
    filename: str
    purpose: str
    created_s: float
    bytes: int

    def shown(self) -> dict[str, object]:
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.bytes,
            "created_at": int(self.created_s),
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
        }


class FileStore:
    def __init__(self, directory: Path, most: int) -> None:
        self._directory, self._most = directory, most
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)

    def add(self, data: bytes, *, organization: str, filename: str, purpose: str, now_s: float) -> StoredFile:
        """Raises RequestRefused when its organization has too many."""
        if sum(1 for _ in self.of(organization)) >= self._most:
            raise RequestRefused(
                f"there are {self._most} files already; delete some", status=429, code="too_many_files"
            )
        stored = StoredFile(f"file-{uuid.uuid4().hex}", organization, filename, purpose, now_s, len(data))
        write_whole(self.path(stored.id), data)
        write_whole(self._about(stored.id), msgspec.json.encode(asdict(stored)))
        return stored

    def find(self, id: str, organization: str) -> StoredFile:
        """Raises RequestRefused with 404: others' files are as good as none."""
        found = self._read(self._about(id)) if _ID.fullmatch(id) else None
        if found is None or found.organization != organization:
            raise RequestRefused(f"no file {id[:60]!r}", status=404, param="file_id", code="file_not_found")
        return found

    def of(self, organization: str) -> Iterator[StoredFile]:
        """Latest first."""
        found = [each for path in self._directory.glob("file-*.json") if (each := self._read(path)) is not None]
        mine = [each for each in found if each.organization == organization]
        yield from sorted(mine, key=lambda each: (-each.created_s, each.id))

    def remove(self, id: str, organization: str) -> None:
        self.find(id, organization)
        self._about(id).unlink(missing_ok=True)
        self.path(id).unlink(missing_ok=True)

    def path(self, id: str) -> Path:
        return self._directory / f"{id}.data"

    def _about(self, id: str) -> Path:
        return self._directory / f"{id}.json"

    def _read(self, path: Path) -> StoredFile | None:
        try:
            return msgspec.json.decode(path.read_bytes(), type=StoredFile)
        except (OSError, msgspec.MsgspecError):
            return None


def write_whole(path: Path, data: bytes) -> None:
    """Either all of it is there afterwards, or what was there before."""
    beside = path.with_suffix(f"{path.suffix}.{uuid.uuid4().hex}.new")
    with beside.open("wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    beside.replace(path)


def lines_of(path: Path) -> list[bytes]:
    """Its complete lines; a last one that was cut off by a crash is none."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    *lines, _ = data.split(b"\n")
    return [line for line in lines if line.strip()]
