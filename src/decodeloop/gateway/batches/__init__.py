"""OpenAI's batch API: files of requests that are answered when nobody else is waiting."""

from __future__ import annotations

from dataclasses import dataclass, fields

__all__ = ["BatchSettings"]


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """directory: for files and the state of batches; None: there are none."""

    directory: str | None = None
    at_once: int = 8  # lines answered at the same time, of all batches
    yield_above: int = 4  # other requests in flight, above which no line is begun
    max_file_mb: int = 100
    max_lines: int = 50_000
    max_open: int = 32  # batches of one organization that aren't over
    max_files: int = 1000  # of one organization
    window_s: float = 86_400.0  # a batch that isn't done by then expires

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "directory" and value <= 0:
                raise ValueError(f"{field.name} must be above 0")
