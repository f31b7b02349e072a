"""Verifiers with known bugs: what enumeration must catch in a verifier, whatever decides about the draft's length."""

from __future__ import annotations

from decodeloop.speculation import Draft, TargetRows, Verdict
from decodeloop.speculation.sampling import Chance
from decodeloop.speculation.verifiers.block import BlockVerifier, inner_keep, reaches_of
from decodeloop.speculation.verifiers.residual import residual
from decodeloop.types import Knowledge


class InnerRuleAtTheEnd(BlockVerifier):
    """Treats the last submitted token as an inner one, because the draft went on before it was cut."""

    def __init__(self, whole: Draft) -> None:
        self.whole = whole

    def judge(self, draft: Draft, rows: TargetRows, chance: Chance) -> Verdict:
        last, start = len(draft.tokens), rows.position(0)
        reaches, targets = reaches_of(draft, rows)
        for i in range(len(reaches) - 1, 0, -1):
            if chance.accept(inner_keep(self.whole, i, reaches[i], targets[i]), rows.position(i - 1), start):
                rest = targets[i].probs if i == last else residual(targets[i], draft, i, reaches[i])[0]
                return Verdict(i, (*draft.tokens[:i], chance.draw(rest, rows.position(i), start)))
        return Verdict(0, (chance.draw(residual(targets[0], draft, 0)[0], rows.position(0), start),))


class ResidualOfRejection(BlockVerifier):
    """Keeps as a block does, recovers as token-wise rejection does."""

    def judge(self, draft: Draft, rows: TargetRows, chance: Chance) -> Verdict:
        last, start = len(draft.tokens), rows.position(0)
        reaches, targets = reaches_of(draft, rows)
        for i in range(len(reaches) - 1, 0, -1):
            keep = reaches[i] if i == last else inner_keep(draft, i, reaches[i], targets[i])
            if chance.accept(keep, rows.position(i - 1), start):
                rest = targets[i].probs if i == last else residual(targets[i], draft, i)[0]
                return Verdict(i, (*draft.tokens[:i], chance.draw(rest, rows.position(i), start)))
        return Verdict(0, (chance.draw(residual(targets[0], draft, 0)[0], rows.position(0), start),))


class Pinned:
    """Accepts each drafted token with a set probability, whatever p and q are: acceptance for benchmarks, not text.

    What vLLM calls `rejection_sample_method: synthetic`. At 1 it says what the drafter says.
    """

    admits = Knowledge.PREFIX
    shares_noise = False

    def __init__(self, acceptance: float) -> None:
        self._acceptance = acceptance

    def judge(self, draft: Draft, rows: TargetRows, chance: Chance) -> Verdict:
        start = rows.position(0)
        for i in range(len(draft.chain().tokens)):
            if rows[i].prob(draft.tokens[i]) == 0.0 or not chance.accept(self._acceptance, rows.position(i), start):
                return Verdict(i, (*draft.tokens[:i], chance.draw(rows[i].probs, rows.position(i), start)))
        last = len(draft.tokens)
        return Verdict(last, (*draft.tokens, chance.draw(rows[last].probs, rows.position(last), start)))


class KeepsAll:
    """Says whatever was drafted."""

    admits = Knowledge.SELF
    shares_noise = True

    def judge(self, draft: Draft, rows: TargetRows, chance: Chance) -> Verdict:
        last = len(draft.chain().tokens)
        return Verdict(last, (*draft.tokens, chance.coupled(rows[last], rows.position(last))))
