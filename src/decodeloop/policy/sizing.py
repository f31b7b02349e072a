"""The step at hand as an allocation problem: what its tokens may earn, what they cost, what must not happen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from decodeloop.policy.aim import Aim, Market, Terms
from decodeloop.policy.allocate import Allocation, Items, allocate, allocate_fairly
from decodeloop.policy.cost import StepCosts
from decodeloop.policy.guard import Guard
from decodeloop.policy.tracks import Tracks
from decodeloop.types import DecodeRequest, FloatArray, Load

EXTRA_MATTERS = 0.01  # of the plain step: how much contexts must differ in cost before requests are told apart


@dataclass(frozen=True)
class Step:
    """A step being decided. certain: [N] expected accepted tokens of the `certain_tokens` verified in any case."""

    load: Load
    requests: Sequence[DecodeRequest]
    tracks: Tracks
    costs: StepCosts
    aim: Aim
    guard: Guard
    certain: FloatArray | None = None
    certain_tokens: int = 0
    spent_ms: float = 0.0  # on drafting, whatever is verified

    @property
    def rows(self) -> int:
        return len(self.requests)

    @property
    def sequences(self) -> int:
        return max(self.load.running, self.rows)

    @cached_property
    def plain_ms(self) -> float:
        """The step with nothing drafted or verified."""
        return self.costs.step_ms(self.rows + self.load.prefill_tokens, self.load.context_tokens, self.sequences)

    @cached_property
    def alone_growth(self) -> float:
        """By what share one more token slows a step of a single request."""
        context = round(self.load.context_tokens / self.sequences)
        plain, verifying = self.costs.step_ms_many(np.array([1, 2]), context, 1)
        return float(verifying / plain) - 1.0

    @cached_property
    def credit(self) -> FloatArray:
        """[N] tokens beyond their bound that the requests have had, and may lose to each other now."""
        credits = [self.tracks.of(request.tenant, request.request_id).credit for request in self.requests]
        usable: FloatArray = np.maximum(np.array(credits), 0.0)
        return usable

    def ms(self, drafted: int) -> FloatArray:
        """[drafted + 1] time of the whole step when 0, 1, .. draft tokens are verified besides the certain ones."""
        return self.spent_ms + self._step_ms(self.rows + self.load.prefill_tokens + self.certain_tokens, drafted)

    def terms(self, items: Items, drafted: int) -> Terms:
        def rate(weights: FloatArray | None) -> float:
            decoding = self.spent_ms + self._step_ms(self.rows + self.certain_tokens, drafted)
            return allocate(replace(items, weights=weights), decoding).score

        return self.aim.terms(self.requests, self.tracks, Market(rate, self.load.prefill_tokens > 0))

    def items(self, survival: FloatArray) -> Items:
        """Requests are told apart by the length of their context only where it matters."""
        contexts = np.array([request.context_tokens for request in self.requests], dtype=np.float64)
        extra = self.costs.token_context_ms() * (contexts - contexts.mean())
        matters = extra.max() - extra.min() > EXTRA_MATTERS * self.plain_ms
        return Items(survival, None, extra if matters else None, self.certain, self.credit)

    def solve(self, survival: FloatArray, drafted: int) -> Allocation:
        """The best verify lengths. survival: [N, K], of which `drafted` positions exist."""
        items = self.items(survival)
        terms = self.terms(items, drafted)
        items = replace(items, weights=terms.weights)
        budget = self.guard.interference()
        if np.isinf(budget):
            return allocate(items, self.ms(drafted), terms.objective)
        return allocate_fairly(items, self.ms(drafted), self.plain_ms, budget, terms.objective)

    def _step_ms(self, least: int, drafted: int) -> FloatArray:
        tokens = np.arange(least, least + drafted + 1)
        return self.costs.step_ms_many(tokens, self.load.context_tokens, self.sequences)
