"""The sampler's law: what the shipped verifier draws without a draft, over seeds, against exact p from real logits.

Byte equality says that speculative = plain; this says that plain = p. Beside each position's law, that draws at other
positions, under other seeds and for other choices are independent of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from decodeloop.evaluation.lossless.contingency import CELLS, Evidence, against_law, detectable
from decodeloop.evaluation.lossless.outcome import Check, Control, Power
from decodeloop.speculation import NO_DRAFT, Verifier
from decodeloop.speculation.drawing import PlainSampling
from decodeloop.speculation.sampling import Distribution, RequestChance
from decodeloop.types import FloatArray, IntArray

CATCHES = 0.99  # the probability that the stated deviation is caught with
CONTROL = 1.5  # times the detectable deviation: what the control puts in
_AT_ONCE = 64  # draws
_SIDE = 5  # likeliest tokens a side of a table of pairs


@dataclass(frozen=True, slots=True)
class Row:
    """p after a prompt, shaped by a request. logits, sampling: what it comes of, if it comes of nothing else."""

    prompt: tuple[int, ...]
    p: Distribution
    logits: FloatArray | None = None
    sampling: PlainSampling | None = None


Draw = Callable[[Row, Sequence[tuple[RequestChance, int]]], Sequence[int]]  # (noise, position) -> token, of each


@dataclass(frozen=True, slots=True)
class _Single:
    """TargetRows of one row."""

    p: Distribution
    at: int

    def __getitem__(self, i: int) -> Distribution:
        return self.p

    def position(self, i: int) -> int:
        return self.at + i


def drawing(verifier: Verifier) -> Draw:
    """What the verifier says without a draft."""
    return lambda row, asked: [
        verifier.judge(NO_DRAFT, _Single(row.p, position), chance).emitted[0] for chance, position in asked
    ]


def check_sampler(
    draw: Draw,
    rows: Sequence[Row],
    *,
    draws: int,
    alpha: float,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Check:
    """draws: seeds a row. alpha: of the whole check, spread evenly over its four tests."""
    drawn = [
        _drawn(draw, row, draws, lambda done, i=i: progress(i * draws + done, len(rows) * draws))  # type: ignore[misc]
        for i, row in enumerate(rows)
    ]
    each = alpha / 4
    tests = _tests(rows, drawn)
    catches = detectable(draws, groups=len(rows), alpha=each, power=CATCHES, two_samples=False)
    worst = min(tests, key=lambda name: tests[name].p_value)
    return Check(
        name="sampler",
        claim="without a draft, tokens are drawn from exact p, independently over positions, seeds and choices",
        passed=tests[worst].p_value >= each,
        found=f"least of four p-values {tests[worst].p_value:.3g} ({worst}), over {len(rows)} rows of {draws} draws",
        measured={f"p_value_{name}": test.p_value for name, test in tests.items()},
        power=(
            Power(
                deviation=f"total variation of a row's {CELLS} likeliest tokens",
                size=catches,
                probability=CATCHES,
                samples=draws * len(rows),
                false_failure_rate=alpha,
            ),
        ),
        controls=_controls(rows, drawn, min(1.0, CONTROL * catches), each),
    )


def _drawn(draw: Draw, row: Row, draws: int, progress: Callable[[int], None]) -> IntArray:
    """[3, draws]: at a position, at the next, and at the first for another choice. Seeds count from 0."""
    at = len(row.prompt)
    found = np.empty((3, draws), dtype=np.int64)
    for start in range(0, draws, _AT_ONCE):
        seeds = range(start, min(draws, start + _AT_ONCE))
        for place, (position, choice) in enumerate(((at, 0), (at + 1, 0), (at, 1))):
            asked = [(RequestChance.of(seed, row.prompt, choice), position) for seed in seeds]
            found[place, start : start + len(seeds)] = draw(row, asked)
        progress(seeds.stop)
    return found


def _tests(rows: Sequence[Row], drawn: Sequence[IntArray]) -> dict[str, Evidence]:
    """Seeds are paired 0 with 1, 2 with 3: each draw in one pair only."""
    laws = [_law(row.p) for row in rows]
    sides = [_side(row.p) for row in rows]
    return {
        "law": against_law((Counter(d[0].tolist()), law) for d, law in zip(drawn, laws, strict=True)),
        "positions": _pairs(sides, [(d[0], d[1]) for d in drawn]),
        "choices": _pairs(sides, [(d[0], d[2]) for d in drawn]),
        "seeds": _pairs(sides, [(d[0][0:-1:2], d[0][1::2]) for d in drawn]),
    }


def _law(p: Distribution) -> dict[Hashable, float]:
    probs = p.probs
    return {int(token): float(probs[token]) for token in np.argsort(-probs, kind="stable")[:CELLS]}


def _side(p: Distribution) -> dict[int, float]:
    probs = p.probs
    likely = np.argsort(-probs, kind="stable")[:_SIDE]
    return {**{int(token): float(probs[token]) for token in likely}, -1: float(1.0 - probs[likely].sum())}


def _pairs(sides: Sequence[Mapping[int, float]], pairs: Sequence[tuple[IntArray, IntArray]]) -> Evidence:
    def groups() -> list[tuple[Counter[Hashable], dict[Hashable, float]]]:
        found = []
        for side, (one, other) in zip(sides, pairs, strict=True):
            law: dict[Hashable, float] = {(a, b): pa * pb for a, pa in side.items() for b, pb in side.items()}
            both = zip(one.tolist(), other.tolist(), strict=True)
            counts: Counter[Hashable] = Counter((a if a in side else -1, b if b in side else -1) for a, b in both)
            found.append((counts, law))
        return found

    return against_law(groups())


def _controls(rows: Sequence[Row], drawn: Sequence[IntArray], share: float, alpha: float) -> tuple[Control, Control]:
    """Draws moved from the rarer half of p to its likeliest token, as much as `share`; and noise used twice."""
    rng = np.random.default_rng(0)
    greedy, twice = [], []
    for row, tokens in zip(rows, drawn, strict=True):
        moved = tokens.copy()
        likeliest = row.p.likeliest
        others = np.flatnonzero(tokens[0] != likeliest)
        count = min(len(others), round(share * tokens.shape[1]))
        moved[0, rng.permutation(others)[:count]] = likeliest
        greedy.append(moved)
        twice.append(np.stack([tokens[0], tokens[0], tokens[2]]))
    law, positions = _tests(rows, greedy)["law"], _tests(rows, twice)["positions"]
    return (
        Control(f"{share:.1%} of draws made the likeliest token", law.p_value < alpha, f"p-value {law.p_value:.2g}"),
        Control("noise used at two positions", positions.p_value < alpha, f"p-value {positions.p_value:.2g}"),
    )
