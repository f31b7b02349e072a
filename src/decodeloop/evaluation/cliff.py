"""Where speculation stops paying: every load and mix of requests, every arm, in mirrored blocks.

`sweep` works on anything that can serve a cell with all arms (endpoints, an engine, a function); `Findings` says what
the blocks came to. Blocks go round all cells before the next one begins, so that a sweep that runs out of time has seen
every cell equally often, and can go on later.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from decodeloop.evaluation.arms import Measurement, Run
from decodeloop.evaluation.statistics import (
    AgainstBest,
    Logs,
    NeverSlower,
    Ratio,
    against_best,
    cliff,
    log_ratios,
    never_slower,
    ratio_of,
)

MIXED = "mixed"


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """load: requests that run at once. mix: the class they are of, or MIXED."""

    load: int
    mix: str

    def __str__(self) -> str:
        return f"{self.load} {self.mix}"

    @classmethod
    def parse(cls, text: str) -> Cell:
        load, _, mix = text.partition(" ")
        if not load.isdigit() or not mix:
            raise ValueError(f"no cell: {text!r}; expected a load and a mix, like '4 code_edit'")
        return cls(int(load), mix)


# (cell, arms, turn) -> what serving that turn's work took each of them. How they share the time is the server's to say:
# one after the other, mirrored from turn to turn, or a slice of each by turns.
Serve = Callable[[Cell, Sequence[str], int], Mapping[str, Measurement]]


@dataclass(slots=True)
class Sweep:
    """What was measured so far."""

    runs: dict[Cell, Run] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {str(cell): run.to_json() for cell, run in self.runs.items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Sweep:
        """Raises ValueError when `data` is not what to_json gives."""
        return cls({Cell.parse(text): Run.from_json(run) for text, run in data.items()})


def grid(loads: Sequence[int], mixes: Sequence[str]) -> list[Cell]:
    """Every load with every mix; a mix of one request is no mix."""
    return [Cell(load, mix) for mix in mixes for load in loads if mix != MIXED or load > 1]


def sweep(
    serve: Serve,
    cells: Sequence[Cell],
    arms: Sequence[str],
    blocks: int,
    *,
    found: Sweep | None = None,
    save: Callable[[Sweep], None] = lambda _: None,
    told: Callable[[Cell, int], None] = lambda cell, block: None,
    out_of_time: Callable[[], bool] = lambda: False,
) -> Sweep:
    """Measure `blocks` blocks of every cell, two turns each.

    found: an earlier sweep to go on with. save: called after each block of a cell. told: before each. out_of_time:
    asked before each; what has been measured until then is returned.
    """
    found = found or Sweep()
    for block in range(blocks):
        for cell in cells:
            run = found.runs.setdefault(cell, Run())
            if not any(True for _ in run.missing(arms, block + 1)):
                continue
            if out_of_time():
                return found
            told(cell, block)
            for turn in (2 * block, 2 * block + 1):
                for arm, measured in serve(cell, arms, turn).items():
                    run.add(arm, block, measured)
            save(found)
    return found


@dataclass(frozen=True, slots=True)
class Findings:
    """ours against plain: per cell, jointly. cliffs: arm -> mix -> (last load that gains, first that loses).

    against_best: per cell, ours against the best fixed length, chosen on the other half of the blocks.
    against: ours against each other arm over all cells, geometric mean with the weights given.
    """

    never_slower: NeverSlower
    ratios: Mapping[str, Mapping[Cell, Ratio]]
    cliffs: Mapping[str, Mapping[str, tuple[int | None, int | None]]]
    against_best: Mapping[Cell, AgainstBest]
    against: Mapping[str, Ratio]


def conclude(
    found: Sweep,
    *,
    ours: str,
    plain: str = "off",
    fixed: Sequence[str] = (),
    weights: Mapping[str, float] | None = None,
    level: float = 0.95,
) -> Findings:
    """What the blocks say. weights: mix -> its weight in `against` (1 where missing).

    Raises ValueError when nothing was measured.
    """
    cells = {cell: whole for cell, run in sorted(found.runs.items()) if (whole := _whole(run)) is not None}
    if not cells:
        raise ValueError("no block of any cell was completed")
    arms = list(next(iter(cells.values())).turns)
    rates = {cell: {arm: run.rates(arm) for arm in arms} for cell, run in cells.items()}
    logs = {arm: {cell: log_ratios(own[arm], own[plain]) for cell, own in rates.items()} for arm in arms}
    ratios = {
        arm: {cell: ratio_of(own, level=level, cells=len(cells)) for cell, own in logs[arm].items()}
        for arm in arms
        if arm != plain
    }
    return Findings(
        never_slower({str(cell): own for cell, own in logs[ours].items()}, level=level),
        ratios,
        {arm: _cliffs(own) for arm, own in ratios.items()},
        {
            cell: against_best(own[ours], {arm: own[arm] for arm in fixed}, level=level)
            for cell, own in rates.items()
            if fixed and len(own[ours]) >= 4
        },
        {
            arm: _weighted({c: logs[ours][c] - logs[arm][c] for c in cells}, weights or {}, level)
            for arm in arms
            if arm != ours
        },
    )


def summary(findings: Findings) -> dict[str, Any]:
    """The last line of a cliff run."""
    claim = findings.never_slower
    best = [value.ratio.ratio for value in findings.against_best.values()]
    return {
        "worst": _named(claim.worst, claim.cells[claim.worst]),
        "best": _named(claim.best, claim.cells[claim.best]),
        "geomean": round(claim.geometric_mean, 4),
        "inconclusive": list(claim.inconclusive),
        "never_slower": claim.holds,
        "against_best_fixed": round(math.exp(float(np.mean(np.log(best)))), 4) if best else None,
        "against": {arm: _rounded(ratio) for arm, ratio in findings.against.items()},
        "cliffs": findings.cliffs,
    }


def _whole(run: Run) -> Run | None:
    """The blocks that every arm has served twice; None: there is none."""
    counts = [{block for block, turns in blocks.items() if len(turns) >= 2} for blocks in run.turns.values()]
    kept = set.intersection(*counts) if counts else set()
    if not kept:
        return None
    return Run({arm: {block: blocks[block] for block in kept} for arm, blocks in run.turns.items()})


def _cliffs(ratios: Mapping[Cell, Ratio]) -> dict[str, tuple[int | None, int | None]]:
    mixes = dict.fromkeys(cell.mix for cell in ratios)
    return {mix: cliff({cell.load: r for cell, r in ratios.items() if cell.mix == mix}) for mix in mixes}


def _weighted(logs: Mapping[Cell, Logs], weights: Mapping[str, float], level: float) -> Ratio:
    """Over cells, each block's weighted mean being one observation. Only blocks that every cell has."""
    blocks = min(len(own) for own in logs.values())
    shares = np.array([weights.get(cell.mix, 1.0) for cell in logs])
    stacked = np.stack([own[:blocks] for own in logs.values()])
    return ratio_of(shares @ stacked / shares.sum(), level=level)


def _named(name: str, ratio: Ratio) -> dict[str, Any]:
    cell = Cell.parse(name)
    return {"load": cell.load, "class": cell.mix, **_rounded(ratio)}


def _rounded(ratio: Ratio) -> dict[str, Any]:
    finite = math.isfinite(ratio.high)
    return {
        "ratio": round(ratio.ratio, 4),
        "low": round(ratio.low, 4),
        "high": round(ratio.high, 4) if finite else None,
    }
