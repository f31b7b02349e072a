"""The step at hand as an allocation problem: what its tokens may earn, what they cost, what must not happen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from decodeloop.policy.aim import Aim, Market, Terms
from decodeloop.policy.allocate import Allocation, Items, Objective, allocate, drafts_of
from decodeloop.policy.cost import StepCosts
from decodeloop.policy.fair import allocate_fairly
from decodeloop.policy.guard import Guard
from decodeloop.policy.tracks import Track
from decodeloop.types import DecodeRequest, FloatArray, Load

WORTH_MARGIN = 0.9  # for what `least_worth` leaves out: requests of shorter context cost a little less
LEAST_GAIN, MOST_GAIN = 0.01, 0.05  # of a plain step: bounds on what a verified draft must be expected to gain
FEW_TOKENS = 64  # drafted ones that are sooner ranked one by one than as arrays
EXTRA_MATTERS = 0.01  # of the plain step: how much contexts must differ in cost before requests are told apart


@dataclass(frozen=True)
class Step:
    """A step being decided. certain: [N] expected accepted tokens of the `certain_tokens` verified in any case."""

    load: Load
    requests: Sequence[DecodeRequest]
    tracks: Sequence[Track]
    costs: StepCosts
    aim: Aim
    guard: Guard
    depth: int = 0  # the most that may be verified of a draft
    certain: FloatArray | None = None
    certain_tokens: int = 0
    spent_ms: float = 0.0  # on drafting, whatever is verified

    @property
    def pairs(self) -> list[tuple[DecodeRequest, Track]]:
        return list(zip(self.requests, self.tracks, strict=True))

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

    def gain_ms(self, found: Allocation) -> float:
        """What its tokens beyond plain ones would have taken plainly, less what they take now."""
        if found.gain_ms is not None:
            return found.gain_ms
        decoding_ms = self.plain_ms
        if self.load.prefill_tokens:
            decoding_ms = self.costs.step_ms(self.rows, self.load.context_tokens, self.sequences)
        return (found.tokens - self.rows) * decoding_ms / self.rows - (found.ms - self.plain_ms)

    @cached_property
    def least_worth(self) -> float:
        """A first draft token less likely than this can't pay for its verification, whatever comes with it.

        B tokens bring at most B times the likeliest first token, and cost what they add to the step and the least gain
        at the rate of decoding plainly, which is the least that a millisecond is worth.
        """
        most = self.rows * self.depth
        if not most:
            return 0.0
        ms = self.ms(most, 1)
        plain_ms = self.plain_ms
        if self.load.prefill_tokens:
            plain_ms = self.costs.step_ms(self.rows, self.load.context_tokens, self.sequences)
        a_token_ms = float((((1.0 + self.least_gain) * ms[1:] - ms[0]) / np.arange(1, most + 1)).min())
        return WORTH_MARGIN * a_token_ms * self.rows / plain_ms

    @cached_property
    def least_gain(self) -> float:
        """The share of plain speed that verifying must gain: less is within what step times are known to."""
        return min(max(self.costs.uncertainty(), LEAST_GAIN), MOST_GAIN)

    @cached_property
    def heaviest(self) -> float:
        """How much more a token of somebody in this step may be worth than of someone without an objective."""
        return self.aim.heaviest()

    @cached_property
    def credit(self) -> FloatArray:
        """[N] tokens beyond their bound that the requests have had, and may lose to each other now."""
        usable: FloatArray = np.maximum(np.array([track.credit for track in self.tracks]), 0.0)
        return usable

    def ms(self, drafted: int, drafts: int) -> FloatArray:
        """[drafted + 1] time of the whole step when 0, 1, .. tokens of `drafts` drafts are verified besides the certain
        ones."""
        return self._step_ms(self.rows + self.load.prefill_tokens, drafted, drafts)

    def terms(self, items: Items, drafted: int) -> Terms:
        def rate(weights: FloatArray | None) -> float:
            return allocate(
                replace(items, weights=weights), self._step_ms(self.rows, drafted, drafts_of(items.survival))
            ).score

        return self.aim.terms(self.requests, Market(rate, self.rows / self.plain_ms, self.load.prefill_tokens > 0))

    def items(self, survival: FloatArray) -> Items:
        """Requests are told apart by the length of their context only where it matters."""
        if self.rows == 1:
            return Items(survival, None, None, self.certain, self.credit)
        contexts, each_ms = [request.context_tokens for request in self.requests], self.costs.token_context_ms()
        if each_ms * (max(contexts) - min(contexts)) <= EXTRA_MATTERS * self.plain_ms:
            return Items(survival, None, None, self.certain, self.credit)
        extra = each_ms * (np.array(contexts, dtype=np.float64) - sum(contexts) / self.rows)
        return Items(survival, None, extra, self.certain, self.credit)

    def solve(self, survival: FloatArray, drafted: int) -> Allocation:
        """The best verify lengths. survival: [N, K], of which `drafted` positions exist."""
        items = self.items(survival)
        terms = self.terms(items, drafted)
        alike = terms.weights is None and items.extra_ms is None and self.certain is None and not self.spent_ms
        if alike and drafted <= FEW_TOKENS:
            few = self._few(survival.tolist(), terms.objective)
            if few is not None:
                return few
        if terms.weights is not None:
            items = replace(items, weights=terms.weights)
        budget, ms = self.guard.interference(), self.ms(drafted, drafts_of(survival))
        if math.isinf(budget) or self.rows == 1:  # one alone is in nobody's way
            found = allocate(items, ms, terms.objective)
        else:
            found = allocate_fairly(items, ms, self.plain_ms, budget, terms.objective)
        return self._worthwhile(found, items, float(ms[0]), terms.objective)

    def _worthwhile(self, found: Allocation, items: Items, plain_ms: float, objective: Objective) -> Allocation:
        """`found`, unless it gains too little over verifying nothing more to be sure that it gains."""
        if not found.verify_lens.any():
            return found
        value = items.plain_value
        score = float(objective.score(value, plain_ms))
        price = objective.price(score)
        verified = np.arange(items.survival.shape[1]) < found.verify_lens[:, None]
        gained = float(np.where(verified, items.values, 0.0).sum()) - price * (found.ms - plain_ms)
        if gained >= self.least_gain * price * found.ms:
            return found if items.weights is None else replace(found, gain_ms=gained / price)
        return Allocation(np.zeros(self.rows, np.int64), float(items.least_tokens.sum()), plain_ms, score, score)

    def _few(self, survival: Sequence[Sequence[float]], objective: Objective) -> Allocation | None:
        """The best lengths for few tokens; None where that would slow somebody below the bound. Between two steps of
        a model arrays take several times as long to make and to call upon as these few numbers."""
        ranked = sorted((p for own in survival for p in own if p > 0.0), reverse=True)
        plain = self.rows + self.load.prefill_tokens
        beside_ms = self.costs.speculating_ms(sum(own[0] > 0.0 for own in survival))
        value = best_value = float(self.rows)
        best, best_ms = 0, self.plain_ms
        plain_score = score = float(objective.score(value, best_ms))
        step_ms, context, sequences = self.costs.step_ms, self.load.context_tokens, self.sequences
        for count, gain in enumerate(ranked, 1):
            value += gain
            ms = beside_ms + step_ms(plain + count, context, sequences)
            mine = objective.score(value, ms)
            if mine > score:
                best, best_value, best_ms, score = count, value, ms, mine
        if best_ms > self._harmless_ms:
            return None
        price = objective.price(plain_score)
        if best_value - self.rows - price * (best_ms - self.plain_ms) < self.least_gain * price * best_ms:
            best, best_value, best_ms, score = 0, float(self.rows), self.plain_ms, plain_score
        lens = _prefixes(survival, best, ranked[best - 1]) if best else [0] * self.rows
        return Allocation(np.array(lens), best_value, best_ms, score, score)

    @property
    def _harmless_ms(self) -> float:
        """Up to here nobody is slowed beyond the bound, whatever comes of the drafts; one alone is in nobody's way."""
        budget = self.guard.interference()
        if math.isinf(budget) or self.rows == 1:
            return math.inf
        return self.plain_ms * (1.0 + max(min(track.credit for track in self.tracks), 0.0)) / (1.0 - budget)

    def _step_ms(self, least: int, drafted: int, drafts: int) -> FloatArray:
        """[drafted + 1] beside `least` tokens that are not drafted."""
        tokens = np.arange(least, least + drafted + 1) + self.certain_tokens
        ms = self.spent_ms + self.costs.step_ms_many(tokens, self.load.context_tokens, self.sequences)
        ms[0 if self.certain_tokens else 1 :] += self.costs.speculating_ms(drafts)
        return ms


def _prefixes(survival: Sequence[Sequence[float]], total: int, last: float) -> list[int]:
    """[N] how many of the `total` largest survivals, of which `last` is the least, each row holds; ties go to the first
    rows."""
    lens = [sum(p > last for p in own) for own in survival]
    left = total - sum(lens)
    for i, own in enumerate(survival):
        taken = min(left, own.count(last))
        lens[i] += taken
        left -= taken
    return lens
