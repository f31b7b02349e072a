"""Serving configurations measured side by side: interleaved blocks, and what makes a run invalid.

A block gives every arm the same work, forwards and then backwards (A B B A; A B C C B A), so that a machine that drifts
during the block drifts for all alike. Blocks are stored as they come in, and a run that was interrupted goes on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

Serve = Callable[[int], "Measurement"]  # block number -> what serving that block's work took

LAG_SHARE = 0.05  # of TTFT p50: a client slower than that measures itself
ALPHA = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One arm serving a block's work once.

    seconds: of serving, ramps left out. ttft_ms, tpot_ms, output_tokens: one entry a finished request, in the same
    order. client_lag_ms: how late each request was sent. met: requests that met their objectives.
    """

    tokens: int
    seconds: float
    requests: int
    errors: int = 0
    ttft_ms: tuple[float, ...] = ()
    tpot_ms: tuple[float, ...] = ()
    output_tokens: tuple[int, ...] = ()
    client_lag_ms: tuple[float, ...] = ()
    met: int = 0

    @property
    def rate(self) -> float:
        """Output tokens a second."""
        return self.tokens / self.seconds if self.seconds > 0.0 else 0.0


def order(arms: Sequence[str], block: int) -> list[str]:
    """Each arm twice, mirrored; the next block begins with the next arm."""
    start = block % len(arms)
    turned = [*arms[start:], *arms[:start]]
    return [*turned, *reversed(turned)]


@dataclass(slots=True)
class Run:
    """What was measured: arm -> block -> the arm's two turns."""

    turns: dict[str, dict[int, list[Measurement]]] = field(default_factory=dict)

    def add(self, arm: str, block: int, measured: Measurement) -> None:
        self.turns.setdefault(arm, {}).setdefault(block, []).append(measured)

    def missing(self, arms: Sequence[str], blocks: int) -> Iterator[tuple[int, str]]:
        """The (block, arm) turns still to take, in order. A block that was begun is begun again."""
        for block in range(blocks):
            if all(len(self.turns.get(arm, {}).get(block, ())) >= 2 for arm in arms):
                continue
            for arm in arms:
                self.turns.get(arm, {}).pop(block, None)
            for arm in order(arms, block):
                yield block, arm

    def rates(self, arm: str) -> list[float]:
        """Tokens a second per block, both turns together."""
        return [
            sum(turn.tokens for turn in turns) / sum(turn.seconds for turn in turns)
            for _, turns in sorted(self.turns[arm].items())
        ]

    def all(self, arm: str) -> list[Measurement]:
        return [turn for _, turns in sorted(self.turns[arm].items()) for turn in turns]

    def to_json(self) -> dict[str, Any]:
        return {
            arm: {str(block): [asdict(turn) for turn in turns] for block, turns in blocks.items()}
            for arm, blocks in self.turns.items()
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Run:
        """Raises ValueError when `data` is not what to_json gives."""
        run = cls()
        try:
            for arm, blocks in data.items():
                for block, turns in blocks.items():
                    number = int(block)
                    for turn in turns:
                        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in turn.items()}
                        run.add(arm, number, Measurement(**values))
        except (TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"not a run: {error}") from error
        return run


def measure(
    arms: Mapping[str, Serve], blocks: int, *, run: Run | None = None, save: Callable[[Run], None] | None = None
) -> Run:
    """Serve `blocks` blocks with every arm. run: an earlier one to go on with. save: called after each whole block."""
    if len(arms) < 2:
        raise ValueError("a comparison needs at least two arms")
    run = run or Run()
    names = list(arms)
    last = None
    for block, arm in run.missing(names, blocks):
        if save is not None and last not in (None, block):
            save(run)
        run.add(arm, block, arms[arm](block))
        last = block
    if save is not None and last is not None:
        save(run)
    return run


def faults(run: Run) -> list[str]:
    """Why the run says nothing about its arms; empty when it may be believed."""
    found = []
    for arm in run.turns:
        lag = [ms for turn in run.all(arm) for ms in turn.client_lag_ms]
        ttft = [ms for turn in run.all(arm) for ms in turn.ttft_ms]
        if lag and ttft and float(np.quantile(lag, 0.99)) > LAG_SHARE * float(np.median(ttft)):
            found.append(f"{arm}: the client was late by more than 5 % of the median time to first token")
    arms = list(run.turns)
    pairs = [(a, b) for i, a in enumerate(arms) for b in arms[i + 1 :]]
    for a, b in pairs:
        if _errors_differ(run.all(a), run.all(b), ALPHA / len(pairs)):
            found.append(f"{a} and {b}: their error rates differ")
        lens = [[n for turn in run.all(arm) for n in turn.output_tokens] for arm in (a, b)]
        if all(lens) and _distributions_differ(lens[0], lens[1], ALPHA / len(pairs)):
            found.append(f"{a} and {b}: their output lengths differ")
    return found


def _errors_differ(one: Sequence[Measurement], other: Sequence[Measurement], alpha: float) -> bool:
    """Two proportions, pooled z-test."""
    bad = [sum(turn.errors for turn in turns) for turns in (one, other)]
    all_ = [sum(turn.requests for turn in turns) for turns in (one, other)]
    if not all(all_) or not sum(bad):
        return False
    pooled = sum(bad) / sum(all_)
    error = math.sqrt(pooled * (1.0 - pooled) * (1.0 / all_[0] + 1.0 / all_[1]))
    difference = abs(bad[0] / all_[0] - bad[1] / all_[1])
    return error > 0.0 and math.erfc(difference / error / math.sqrt(2.0)) < alpha


def _distributions_differ(one: Sequence[int], other: Sequence[int], alpha: float) -> bool:
    """Two-sample Kolmogorov-Smirnov, asymptotic."""
    a, b = np.sort(np.array(one)), np.sort(np.array(other))
    points = np.union1d(a, b)
    gaps = np.searchsorted(a, points, side="right") / len(a) - np.searchsorted(b, points, side="right") / len(b)
    effective = math.sqrt(len(a) * len(b) / (len(a) + len(b)))
    return bool(np.abs(gaps).max() * effective > math.sqrt(-0.5 * math.log(alpha / 2.0)))
