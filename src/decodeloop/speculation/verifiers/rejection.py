"""Token-wise rejection (Leviathan et al. 2211.17192, Chen et al. 2302.01318)."""

from __future__ import annotations

from decodeloop.speculation import TargetRows
from decodeloop.speculation.block import Draft, Verdict
from decodeloop.speculation.sampling import Chance
from decodeloop.speculation.verifiers.residual import likelihood_ratio, residual
from decodeloop.types import Knowledge


class RejectionVerifier:
    """Keep x_i with probability min(1, p/q); at the first rejection recover a token from norm((p - q)+)."""

    admits = Knowledge.PREFIX
    shares_noise = False

    def judge(self, draft: Draft, rows: TargetRows, chance: Chance) -> Verdict:
        last = len(draft.chain().tokens)
        start = rows.position(0)
        for i in range(last):
            p = rows[i]
            if not chance.accept(likelihood_ratio(p, draft, i), rows.position(i), start):
                recovered = chance.draw(residual(p, draft, i)[0], rows.position(i), start)
                return Verdict(i, (*draft.tokens[:i], recovered))
        bonus = chance.draw(rows[last].probs, rows.position(last), start)
        return Verdict(last, (*draft.tokens, bonus))
