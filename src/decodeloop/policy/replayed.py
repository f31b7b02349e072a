"""What a replay adds up to: throughput, time per token of each class, and how much of it nobody measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from decodeloop.types import Reason, RequestClass, StepRow


@dataclass(frozen=True, slots=True)
class StepTold:
    """A step's decoding rows and time, as recorded or as replayed.

    blind: [N] whether the record has no draft where the policy might have drafted. verified: [N] what it would have
    verified, further than the rows know. guesses: row index -> accepted tokens that nobody judged.
    """

    rows: Sequence[StepRow]
    ms: float
    blind: Sequence[bool] = ()
    verified: Sequence[int] = ()
    guesses: Mapping[int, float] = field(default_factory=dict)


@dataclass(slots=True)
class ClassTold:
    """rows: decoding rows. row_ms: step time, summed over them. tokens: before stops and caps."""

    rows: int = 0
    row_ms: float = 0.0
    tokens: float = 0.0
    verified: int = 0
    guessed: float = 0.0
    blind: int = 0

    @property
    def tpot_ms(self) -> float:
        """Time per output token that a request sees, prompts that share its steps included."""
        return self.row_ms / self.tokens if self.tokens else 0.0

    def add(self, told: StepTold, i: int) -> None:
        row, guess = told.rows[i], told.guesses.get(i, 0.0)
        self.rows += 1
        self.row_ms += told.ms
        self.tokens += row.accepted + 1 + guess
        self.verified += told.verified[i] if told.verified else row.verify_len
        self.guessed += guess
        self.blind += told.blind[i] if told.blind else 0

    def to_json(self) -> dict[str, float]:
        return {
            "rows": self.rows,
            "tokens": round(self.tokens, 2),
            "tpot_ms": round(self.tpot_ms, 4),
            "verified_per_row": round(self.verified / self.rows, 4) if self.rows else 0.0,
            "guessed_share": round(self.guessed / self.tokens, 4) if self.tokens else 0.0,
            "blind_share": round(self.blind / self.rows, 4) if self.rows else 0.0,
        }


@dataclass(slots=True)
class Replayed:
    """All steps under one policy."""

    steps: int = 0
    ms: float = 0.0
    total: ClassTold = field(default_factory=ClassTold)
    classes: dict[RequestClass, ClassTold] = field(default_factory=dict)
    reasons: Counter[Reason] = field(default_factory=Counter)

    def add(self, told: StepTold) -> None:
        self.steps += 1
        self.ms += told.ms
        for i, row in enumerate(told.rows):
            self.total.add(told, i)
            self.classes.setdefault(row.request_class, ClassTold()).add(told, i)
            self.reasons[row.reason] += 1

    @property
    def tokens(self) -> float:
        return self.total.tokens

    @property
    def verified(self) -> int:
        return self.total.verified

    @property
    def rate(self) -> float:
        """Tokens a ms."""
        return self.tokens / self.ms if self.ms else 0.0

    @property
    def guessed_share(self) -> float:
        """Of the tokens: accepted ones that nobody had judged."""
        return self.total.guessed / self.tokens if self.tokens else 0.0

    @property
    def blind_share(self) -> float:
        """Of the rows: without a recorded draft, where the policy might have drafted."""
        return self.total.blind / self.total.rows if self.total.rows else 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "ms": round(self.ms, 3),
            "tokens_per_s": round(1e3 * self.rate, 3),
            **self.total.to_json(),
            "classes": {str(name): told.to_json() for name, told in self.classes.items()},
            "reasons": {str(reason): count for reason, count in self.reasons.items()},
        }


@dataclass(frozen=True, slots=True)
class Replay:
    """measured: the record and its own times. recorded: the record by the cost model's times. replayed: the policy."""

    measured: Replayed
    recorded: Replayed
    replayed: Replayed

    @property
    def speedup(self) -> float:
        """Of the replayed policy against the recorded one, by the cost model."""
        return self.replayed.rate / self.recorded.rate if self.recorded.rate else 0.0

    @property
    def time_error(self) -> float:
        """Of the cost model: its total time for the recorded steps over the measured one, less 1."""
        return self.recorded.ms / self.measured.ms - 1.0 if self.measured.ms else 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "measured": self.measured.to_json(),
            "recorded": self.recorded.to_json(),
            "replayed": self.replayed.to_json(),
            "speedup": round(self.speedup, 4),
            "time_error": round(self.time_error, 4),
        }
