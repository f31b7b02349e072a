"""Drafters that cost time: how deep they draft, and for whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from decodeloop.policy.allocate import depth_scores, drafts_of
from decodeloop.policy.beliefs import Beliefs
from decodeloop.policy.overrides import Choice
from decodeloop.policy.sizing import Step
from decodeloop.types import FloatArray, Reason

RESUME_HORIZON = 32.0  # steps over which reading what was missed must pay
SETTLED = (Reason.FORCED, Reason.PROBE)


class PaidDrafting:
    """Joint depth: F_d(B) / (T_draft(d) + T(B)) over every depth d and every B, against leaving the drafter out."""

    def __init__(self, beliefs: Beliefs) -> None:
        self._beliefs = beliefs

    def settle(self, step: Step, choices: list[Choice], fallbacks: Sequence[Choice]) -> list[Choice]:
        """The choices with their paid drafts sized. fallbacks: what each request does without a paid drafter."""
        names = {choice.drafter for choice in choices if choice.reason not in SETTLED}
        for name in sorted(name for name in names if name is not None and name not in self._beliefs.free):
            choices = self._settle_one(step, choices, fallbacks, name)
        return choices

    def _settle_one(self, step: Step, choices: list[Choice], fallbacks: Sequence[Choice], name: str) -> list[Choice]:
        rows = [i for i, choice in enumerate(choices) if choice.drafter == name and choice.reason not in SETTLED]
        without = [fallbacks[i] if i in rows else choice for i, choice in enumerate(choices)]
        plain = step.solve_many(
            expected_survival(self._beliefs, step, without), sum(choice.draft_len for choice in without)
        )

        survival, depths = expected_survival(self._beliefs, step, choices), max(choices[i].draft_len for i in rows)
        drafted = sum(choice.draft_len for choice in choices)
        draft_ms = np.array([step.costs.draft_ms(name, depth, len(rows)) for depth in range(depths + 1)])
        draft_ms[1:] += step.costs.catch_up_ms(name, unread(step, name, rows)) / RESUME_HORIZON
        paid = np.zeros(step.rows, dtype=bool)
        paid[rows] = True
        items = step.items(survival)
        terms = step.terms(items, drafted)
        items = replace(items, weights=terms.weights)
        ms = step.ms(drafted, drafts_of(survival))
        scores = depth_scores(items, paid, ms, draft_ms, terms.objective)
        depth = int(np.argmax(scores[1:])) + 1
        if scores[depth] > plain.score:
            cut = np.where(paid[:, None] & (np.arange(survival.shape[1]) >= depth), 0.0, survival)
            chosen = replace(step, spent_ms=step.spent_ms + float(draft_ms[depth])).solve_many(cut, drafted)
            if chosen.score > plain.score:
                return [
                    (choice._replace(draft_len=min(choice.draft_len, depth)) if chosen.verify_lens[i] else without[i])
                    if i in rows
                    else choice
                    for i, choice in enumerate(choices)
                ]
        undrafted = depth_scores(items, paid, ms, np.zeros(depths + 1), terms.objective)
        costly = bool(undrafted.max() > plain.score * (1.0 + 1e-9))
        return [_for_its_cost(choice) if costly and i in rows else choice for i, choice in enumerate(without)]


def unread(step: Step, name: str, rows: Sequence[int]) -> int:
    """Tokens that the drafter has not read of these requests, in all."""
    return sum(max(step.requests[i].context_tokens - step.tracks[i].read.get(name, 0), 0) for i in rows)


def expected_survival(beliefs: Beliefs, step: Step, choices: Sequence[Choice]) -> FloatArray:
    """[N, K] before drafting, 0 beyond each choice's length."""
    survival = beliefs.foreseen(step.pairs, [choice.drafter for choice in choices])
    lens = np.array([choice.draft_len for choice in choices])
    within: FloatArray = np.where(np.arange(survival.shape[1]) < lens[:, None], survival, 0.0)
    return within


def _for_its_cost(choice: Choice) -> Choice:
    return choice if choice.draft_len or choice.reason in SETTLED else choice._replace(reason=Reason.OFF_COST)
