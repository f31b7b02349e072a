"""What a target under test is asked, and what it says: the same for an engine in this process and for an endpoint."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from decodeloop.evaluation.workloads.workload import Workload

Progress = Callable[[int, int], None]  # done, of all
Token = int | str  # an id, or its text where the target tells no ids
SEED_STEP = 1_000_000  # seeds of a sample lie in a range of their own
END = ""  # where an answer that ended has no token


class Arm(StrEnum):
    PLAIN = "plain"
    SERVED = "served"  # as the target decides
    FORCED = "forced"  # speculating whatever the load, where the target can be told to


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """messages: a chat. seed: None leaves it to the target."""

    messages: tuple[Mapping[str, str], ...]
    temperature: float
    max_tokens: int
    seed: int | None = None

    def key(self, arm: Arm, at_once: int, round: int) -> str:
        """Names the answer among all that a certification collects."""
        fields = [list(map(dict, self.messages)), self.temperature, self.max_tokens, self.seed]
        return sha256(json.dumps([fields, arm, at_once, round], sort_keys=True).encode()).hexdigest()[:24]


@dataclass(frozen=True, slots=True)
class Answer:
    """accepted, drafted: of its speculation; None where the target doesn't tell."""

    tokens: tuple[Token, ...]
    accepted: int | None = None
    drafted: int | None = None

    def padded(self, length: int) -> tuple[Token, ...]:
        return (*self.tokens[:length], *[END] * (length - len(self.tokens)))


class Target(Protocol):
    def answers(self, asks: Sequence[Ask], arm: Arm, at_once: int) -> list[Answer]:
        """In the order asked, at most `at_once` of them at a time. Raises OSError or ValueError when one fails."""
        ...


def prompts(workload: Workload) -> list[tuple[Mapping[str, str], ...]]:
    """The workload's texts as chats. Raises ValueError when it has none (traces know only lengths)."""
    found: list[tuple[Mapping[str, str], ...]] = []
    for request in workload.requests:
        if request.prompt is not None:
            found.append(({"role": "user", "content": request.prompt},))
        elif request.messages:
            texts = [(str(m.get("role", "user")), m.get("content")) for m in request.messages]
            found.append(tuple({"role": role, "content": text} for role, text in texts if isinstance(text, str)))
    if not found:
        raise ValueError(f"workload {workload.name}: no request has a text")
    return found


class Journal:
    """Answers that were collected, in a file: an interrupted certification goes on where it stopped."""

    def __init__(self, path: Path) -> None:
        """Raises OSError where `path` can't be written. A torn last line is forgotten."""
        self._found: dict[str, Any] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            for line in path.read_bytes().splitlines():
                try:
                    key, value = json.loads(line)
                except ValueError:
                    continue
                self._found[key] = value
        self.path, self._file = path, path.open("a", encoding="utf-8")
        self._file.write("\n" if self._found else "")

    def __len__(self) -> int:
        return len(self._found)

    def get(self, key: str) -> Any:
        return self._found.get(key)

    def put(self, rows: Iterator[tuple[str, Any]]) -> None:
        for key, value in rows:
            self._found[key] = value
            self._file.write(json.dumps([key, value]) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class Remembering:
    """A Target whose answers are kept in a journal, and asked for a batch at a time."""

    def __init__(self, target: Target, journal: Journal, *, batch: int = 64) -> None:
        self._target, self._journal, self._batch = target, journal, batch

    def collect(
        self,
        asks: Sequence[Ask],
        arm: Arm,
        *,
        at_once: int,
        round: int = 0,
        progress: Progress = lambda done, total: None,
    ) -> list[Answer]:
        """round: tells apart answers to the same ask that are meant to be drawn anew."""
        keys = [ask.key(arm, at_once, round) for ask in asks]
        missing = [i for i, key in enumerate(keys) if self._journal.get(key) is None]
        for start in range(0, len(missing), self._batch):
            progress(len(asks) - len(missing) + start, len(asks))
            chosen = missing[start : start + self._batch]
            got = self._target.answers([asks[i] for i in chosen], arm, at_once)
            self._journal.put(
                (keys[i], [list(answer.tokens), answer.accepted, answer.drafted])
                for i, answer in zip(chosen, got, strict=True)
            )
        progress(len(asks), len(asks))
        return [Answer(tuple(tokens), *rest) for tokens, *rest in map(self._journal.get, keys)]


@dataclass(frozen=True, slots=True)
class Sampling:
    """Many answers to each ask, with seeds of their own."""

    source: Remembering
    asks: Sequence[Ask]
    samples: int
    at_once: int

    def drawn(self, arm: Arm, stream: int, progress: Progress) -> list[list[Answer]]:
        """[asks][samples]. stream: keeps the seeds of one sample apart from all others'."""
        every = [replace(ask, seed=stream * SEED_STEP + i) for ask in self.asks for i in range(self.samples)]
        answers = self.source.collect(every, arm, at_once=self.at_once, round=stream, progress=progress)
        return [answers[start : start + self.samples] for start in range(0, len(every), self.samples)]
