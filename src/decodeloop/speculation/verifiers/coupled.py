"""Coupled (Gumbel) verification (Daliri, Musco, Suresh 2408.07978): say what the target says."""

from __future__ import annotations

from decodeloop.speculation import TargetRows
from decodeloop.speculation.block import Draft, Verdict
from decodeloop.speculation.sampling import Chance
from decodeloop.types import Knowledge


class CoupledVerifier:
    """The target's token at a position is a function of its distribution and the request's noise there.

    So the output doesn't depend on the draft, its length, its shape, or who chose them. Of a tree it follows the child
    that is the target's token; at temperature 0 that is the longest path of argmaxes.
    """

    admits = Knowledge.SELF
    shares_noise = True

    def judge(self, draft: Draft, rows: TargetRows, chance: Chance) -> Verdict:
        emitted: list[int] = []
        path: list[int] = []
        row = 0
        while True:
            emitted.append(chance.coupled(rows[row], rows.position(row)))
            accepted = draft.child(row - 1, emitted[-1])
            if accepted is None:
                return Verdict(len(path), tuple(emitted), None if draft.parents is None else tuple(path))
            path.append(accepted)
            row = accepted + 1
