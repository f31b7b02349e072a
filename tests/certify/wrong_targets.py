"""A target of a few words that decodes by speculation, rightly or wrongly: what a certificate must tell apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from decodeloop.evaluation.lossless.answers import Answer, Arm
from decodeloop.evaluation.lossless.tables import TableRows
from decodeloop.speculation import Draft, Verifier


class Dice:
    """A Chance that is simply random, and what the rules beside it ask."""

    def __init__(self, seed):
        self._rng = np.random.default_rng(seed)

    def choose(self, probs):
        return int(np.searchsorted(np.cumsum(probs), self._rng.random() * np.sum(probs), side="right"))

    def accept(self, probability, position, start):
        return self._rng.random() < probability

    def draw(self, probs, position, start):
        return self.choose(probs)

    def draft(self, q, position, start):
        return self.choose(q.probs)

    def coupled(self, p, position):
        return self.choose(p.probs)


@dataclass
class Simulated:
    """A Target. table: p, the same after every context. rows: how its verifier sees a draft's rows."""

    table: dict
    drafting: Callable[[Dice], Draft]
    verifier: Verifier
    rows: Callable = TableRows

    def answers(self, asks, arm, at_once):
        return [self._answer(ask, arm) for ask in asks]

    def _answer(self, ask, arm):
        dice, said, accepted = Dice([ask.seed, arm is Arm.PLAIN]), (), 0
        while len(said) < ask.max_tokens:
            if arm is Arm.PLAIN:
                said += (dice.choose(self.table[()].probs),)
                continue
            draft = self.drafting(dice)
            verdict = self.verifier.judge(draft, self.rows(self.table, draft.tokens), dice)
            said += verdict.emitted
            accepted += verdict.accepted
        return Answer(said[: ask.max_tokens], accepted, accepted)
