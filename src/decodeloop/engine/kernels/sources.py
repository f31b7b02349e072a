"""What the compiled kernels are built from. An editable installation doesn't build them again when it changes."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

SOURCES = Path(__file__).parent / "src"
PATTERNS = ("*.cpp", "*.h")


def digest(sources: Path = SOURCES) -> str | None:
    """What CMakeLists.txt gives the module it builds of `sources`; None where there are none, as in a wheel."""
    files = {file.relative_to(sources).as_posix(): file for pattern in PATTERNS for file in sources.rglob(pattern)}
    if not files:
        return None
    lines = [f"{name} {sha256(files[name].read_bytes()).hexdigest()}\n" for name in sorted(files)]
    return sha256("".join(lines).encode()).hexdigest()
