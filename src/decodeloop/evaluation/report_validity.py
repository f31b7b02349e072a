"""Whether a run may be believed, and what it may claim: the banner above everything else."""

from __future__ import annotations

from dataclasses import dataclass, replace

from decodeloop.evaluation.arms import Run, faults
from decodeloop.evaluation.results import Mode, Results

LEAST_BLOCKS = 8


@dataclass(frozen=True, slots=True)
class Validity:
    """faults: why the run is invalid. caveats: what a reader must know all the same."""

    faults: tuple[str, ...]
    caveats: tuple[str, ...]

    @property
    def valid(self) -> bool:
        return not self.faults


def validity(results: Results) -> Validity:
    """The gates of every level, over the arms that should say the same: lossy ones may differ, which is a caveat."""
    plan = results.plan
    lossy = {arm.label for arm in plan.arms if arm.lossless is False}
    bad, known = [], []
    for level in plan.levels:
        if not results.complete_blocks(level):
            known.append(f"level {level:g}: no block was finished; it is in no figure")
            continue
        run = results.run(level)
        alike = Run({arm: blocks for arm, blocks in run.turns.items() if arm not in lossy})
        own = faults(alike)
        bad += [f"level {level:g}: {fault}" for fault in own]
        known += [f"level {level:g}: {fault} (not held to say the same)" for fault in faults(run) if fault not in own]
        blocks = len(results.complete_blocks(level))
        if blocks < LEAST_BLOCKS:
            known.append(f"level {level:g}: {blocks} of at least {LEAST_BLOCKS} blocks: intervals are wide or missing")
    if not any(results.complete_blocks(level) for level in plan.levels):
        bad.append("no block was finished")
    return Validity(tuple(bad), (*_mode(plan.mode), *known, *_unsure(results)))


def without_loops(results: Results) -> Results:
    """The same requests without those whose answer loops for any arm: loops flatter every drafter that copies."""
    looping = {r.id for r in results.requests if r.loops}
    return replace(results, requests=tuple(r for r in results.requests if r.id not in looping))


def _mode(mode: Mode) -> tuple[str, ...]:
    if mode is Mode.SYNTHETIC:
        return ("synthetic acceptance: not lossless, and no saving may be claimed from it",)
    if mode is Mode.SIMULATED:
        return ("simulated: what a model of the machine says, not what a machine did",)
    return ()


def _unsure(results: Results) -> list[str]:
    said = []
    if any(not r.exact_chunks for r in results.requests):
        said.append("some servers tell no token counts per piece: tokens of a piece are estimated there")
    if any(arm.reset == "none" and not results.cold(arm.label) for arm in results.plan.arms):
        said.append("prefix caches were not emptied between turns for every configuration")
    return said
