"""Block verification (Sun et al. 2403.10444): judge the block as a whole; never fewer tokens than token by token."""

from __future__ import annotations

from decodeloop.speculation import TargetRows
from decodeloop.speculation.block import Draft, Verdict
from decodeloop.speculation.sampling import Chance, Distribution
from decodeloop.speculation.verifiers.residual import likelihood_ratio, residual
from decodeloop.types import Knowledge


class BlockVerifier:
    """Keep the longest x_<=i whose coin falls under h_i; then recover from norm((P_i p - q)+), or add a bonus token.

    P_0 = 1, P_i = min(1, P_{i-1} p(x_i)/q(x_i)). At the last submitted token h = P; before it h = R/(R + 1 - P) with
    R the mass of (P_i p - q_{i+1})+. "Last" is what was submitted for this verdict, however long the draft was.
    """

    admits = Knowledge.PREFIX
    shares_noise = False

    def judge(self, draft: Draft, rows: TargetRows, chance: Chance) -> Verdict:
        last = len(draft.chain().tokens)
        start = rows.position(0)
        reaches, targets = reaches_of(draft, rows)
        for i in range(len(reaches) - 1, 0, -1):
            keep = reaches[i] if i == last else inner_keep(draft, i, reaches[i], targets[i])
            if chance.accept(keep, rows.position(i - 1), start):
                break
        else:
            i = 0
        rest = targets[i].probs if i == last else residual(targets[i], draft, i, reaches[i])[0]
        return Verdict(i, (*draft.tokens[:i], chance.draw(rest, rows.position(i), start)))


def reaches_of(draft: Draft, rows: TargetRows) -> tuple[list[float], list[Distribution]]:
    """P_0.. and the rows after each, as far as P > 0: beyond, h is 0 and there is no row to ask for."""
    reaches, targets = [1.0], [rows[0]]
    for i in range(len(draft.tokens)):
        reach = min(1.0, reaches[i] * likelihood_ratio(targets[i], draft, i))
        if reach == 0.0:
            break
        reaches.append(reach)
        targets.append(rows[i + 1])
    return reaches, targets


def inner_keep(draft: Draft, i: int, reach: float, p: Distribution) -> float:
    """h_i; 1 where p = q and everything was kept so far."""
    mass = residual(p, draft, i, reach)[1]
    return 1.0 if mass + 1.0 - reach == 0.0 else mass / (mass + 1.0 - reach)
