"""Coupled (Gumbel) verification (Daliri, Musco, Suresh 2408.07978): say what the target says."""

from __future__ import annotations

from decodeloop.speculation import TargetRows
from decodeloop.speculation.block import Draft, Verdict
from decodeloop.speculation.sampling import Chance
from decodeloop.types import Knowledge


class CoupledVerifier:
    """The target's token at a position is a function of its distribution and the request's noise there.

    So the output doesn't depend on the draft, its length, or who chose them.
    """

    admits = Knowledge.SELF
    shares_noise = True

    def judge(self, draft: Draft, rows: TargetRows, chance: Chance) -> Verdict:
        emitted: list[int] = []
        for i, token in enumerate(draft.chain().tokens):
            emitted.append(chance.coupled(rows[i], rows.position(i)))
            if emitted[i] != token:
                return Verdict(i, tuple(emitted))
        last = len(draft.tokens)
        emitted.append(chance.coupled(rows[last], rows.position(last)))
        return Verdict(last, tuple(emitted))
