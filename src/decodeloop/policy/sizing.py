"""The step at hand as an allocation problem: what its tokens may earn, what they cost, what must not happen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from decodeloop.policy.aim import Aim, Market, Terms
from decodeloop.policy.allocate import RATE, Allocation, Items, allocate, best_score, drafts_of
from decodeloop.policy.cost import StepCosts
from decodeloop.policy.fair import Bound, allocate_fairly
from decodeloop.policy.few import Survival, allocate_few, padded
from decodeloop.policy.guard import Guard
from decodeloop.policy.tracks import Track
from decodeloop.policy.weighed import allocate_weighed, best_rate
from decodeloop.types import DecodeRequest, FloatArray, IntArray, Load

WORTH_MARGIN = 0.9  # for what `least_worth` leaves out: requests of shorter context cost a little less
LEAST_GAIN, MOST_GAIN = 0.01, 0.05  # of a plain step: bounds on what a verified draft must be expected to gain
FEW_TOKENS = 256  # drafted ones that are sooner ranked one by one than as arrays
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

    @cached_property
    def decoding_ms(self) -> float:
        """The same without the prompts."""
        if not self.load.prefill_tokens:
            return self.plain_ms
        return self.costs.step_ms(self.rows, self.load.context_tokens, self.sequences)

    def verifying(self, drafts: Sequence[Survival], lens: IntArray) -> Step:
        """The step in which so much of the drafts is verified in any case. lens: [N]."""
        certain = np.array([sum(own[:length]) for own, length in zip(drafts, lens, strict=True)], dtype=np.float64)
        return replace(self, certain=certain, certain_tokens=int(lens.sum()))

    def gain_ms(self, found: Allocation) -> float:
        """What its tokens beyond plain ones would have taken plainly, less what they take now."""
        if found.gain_ms is not None:
            return found.gain_ms
        return (found.tokens - self.rows) * self.decoding_ms / self.rows - (found.ms - self.plain_ms)

    @cached_property
    def least_worth(self) -> float:
        """A first draft token less likely than this can't pay for its verification, whatever comes with it.

        B tokens bring at most B times the likeliest first token, and cost what they add to the step and the least gain
        at the rate of decoding plainly, which is the least that a millisecond is worth.
        """
        most = self.rows * self.depth
        if not most:
            return 0.0
        plain_ms, *ms = self._few_ms(self.rows + self.load.prefill_tokens, most, 1)
        gain = 1.0 + self.least_gain
        a_token_ms = min((gain * each - plain_ms) / count for count, each in enumerate(ms, 1))
        return WORTH_MARGIN * a_token_ms * self.rows / self.decoding_ms

    @cached_property
    def least_gain(self) -> float:
        """The share of plain speed that verifying must gain: less is within what step times are known to."""
        return min(max(self.costs.uncertainty(), LEAST_GAIN), MOST_GAIN)

    @property
    def edges(self) -> Sequence[float] | None:
        """[N] by what each request's `least_worth` is divided, since its tokens are worth more or time is; None: 1."""
        return self.aim.edges(self.requests, self.decoding_ms)

    @cached_property
    def credit(self) -> FloatArray:
        """[N] tokens beyond their bound that the requests have had, and may lose to each other now."""
        usable: FloatArray = np.maximum(np.array([track.credit for track in self.tracks]), 0.0)
        return usable

    def ms(self, drafted: int, drafts: int) -> FloatArray:
        """[drafted + 1] time of the whole step when 0, 1, .. tokens of `drafts` drafts are verified besides the certain
        ones."""
        return self._step_ms(self.rows + self.load.prefill_tokens, drafted, drafts)

    def solve(self, drafts: Sequence[Survival]) -> Allocation:
        """The best verify lengths. drafts: [N] survival of what is drafted."""
        drafted = sum(map(len, drafts))
        if drafted > FEW_TOKENS or self.certain is not None or self.spent_ms or self._extra_ms is not None:
            return self.solve_many(padded(drafts, self.depth), drafted)
        count, credit = len(drafts) - drafts.count(()), [max(track.credit, 0.0) for track in self.tracks]

        def rate(weights: FloatArray | None) -> float:
            if weights is None:
                unbound = Bound(self.plain_ms, 1.0)
                return allocate_few(drafts, self._few_ms(self.rows, drafted, count), RATE, unbound, credit).score
            return best_rate(drafts, weights.tolist(), self._few_ms(self.rows, drafted, count))

        terms = self.aim.terms(self.requests, self._market(rate))
        ms = self._few_ms(self.rows + self.load.prefill_tokens, drafted, count)
        if terms.weights is not None:
            if self._bound.budget < 1.0:
                return self._best(self.items(padded(drafts, self.depth)), drafted, terms)
            return self._weighed(drafts, terms.weights.tolist(), ms, terms)
        found = allocate_few(drafts, ms, terms.objective, self._bound, credit)
        rows = float(self.rows)
        return self._worthwhile(found, self._nothing(rows, ms[0], terms), found.tokens - rows, terms)

    def solve_many(self, survival: FloatArray, drafted: int) -> Allocation:
        """The same in arrays. survival: [N, K], of which `drafted` positions exist."""
        items = self.items(survival)
        return self._best(items, drafted, self.terms(items, drafted))

    def terms(self, items: Items, drafted: int) -> Terms:
        return self.aim.terms(self.requests, self._market(lambda weights: self._rate(items, drafted, weights)))

    def items(self, survival: FloatArray) -> Items:
        return Items(survival, None, self._extra_ms, self.certain, self.credit)

    @cached_property
    def _extra_ms(self) -> FloatArray | None:
        """[N] what tokens cost beyond the average: told apart by the length of their context, where it matters."""
        contexts, each_ms = [request.context_tokens for request in self.requests], self.costs.token_context_ms()
        if self.rows == 1 or each_ms * (max(contexts) - min(contexts)) <= EXTRA_MATTERS * self.plain_ms:
            return None
        extra: FloatArray = each_ms * (np.array(contexts, dtype=np.float64) - sum(contexts) / self.rows)
        return extra

    @property
    def _bound(self) -> Bound:
        """One alone is in nobody's way."""
        return Bound(self.plain_ms, 1.0 if self.rows == 1 else min(self.guard.interference(self.rows), 1.0))

    def _market(self, rate: Callable[[FloatArray | None], float]) -> Market:
        return Market(rate, self.rows / self.plain_ms, self.load.prefill_tokens > 0)

    def _rate(self, items: Items, drafted: int, weights: FloatArray | None) -> float:
        ms = self._step_ms(self.rows, drafted, drafts_of(items.survival))
        return best_score(replace(items, weights=weights), ms)

    def _best(self, items: Items, drafted: int, terms: Terms) -> Allocation:
        if terms.weights is not None:
            items = replace(items, weights=terms.weights)
        ms, bound = self.ms(drafted, drafts_of(items.survival)), self._bound
        if bound.budget >= 1.0:
            found = allocate(items, ms, terms.objective)
        else:
            found = allocate_fairly(items, ms, bound.plain_ms, bound.budget, terms.objective)
        verified = np.arange(items.survival.shape[1]) < found.verify_lens[:, None]
        tokens, score = float(items.least_tokens.sum()), float(terms.objective.score(items.plain_value, float(ms[0])))
        nothing = Allocation(np.zeros(self.rows, np.int64), tokens, float(ms[0]), score, score)
        return self._worthwhile(found, nothing, float(np.where(verified, items.values, 0.0).sum()), terms)

    def _weighed(
        self, drafts: Sequence[Survival], weights: Sequence[float], ms: Sequence[float], terms: Terms
    ) -> Allocation:
        found = allocate_weighed(drafts, weights, ms, terms.objective)
        lens = found.verify_lens.tolist()
        value = sum(w * sum(own[:length]) for w, own, length in zip(weights, drafts, lens, strict=True))
        return self._worthwhile(found, self._nothing(sum(weights), ms[0], terms), value, terms)

    def _nothing(self, value: float, ms: float, terms: Terms) -> Allocation:
        """Where nothing is verified and nothing certain."""
        score = terms.objective.score(value, ms)
        return Allocation(np.zeros(self.rows, np.int64), float(self.rows), ms, score, score)

    def _worthwhile(self, found: Allocation, nothing: Allocation, value: float, terms: Terms) -> Allocation:
        """`found`, which adds `value` to verifying nothing more, unless that is too little to be sure that it gains."""
        price = terms.objective.price(nothing.score)
        gained = value - price * (found.ms - nothing.ms)
        if gained < self.least_gain * price * found.ms:
            return nothing
        return found if terms.weights is None else replace(found, gain_ms=gained / price)

    def _few_ms(self, least: int, drafted: int, drafts: int) -> list[float]:
        """As _step_ms, in plain numbers, with nothing certain or spent."""
        ms = self.costs.step_ms_from(least, drafted + 1, self.load.context_tokens, self.sequences)
        beside_ms = self.costs.speculating_ms(drafts)
        return [ms[0]] + [each + beside_ms for each in ms[1:]]

    def _step_ms(self, least: int, drafted: int, drafts: int) -> FloatArray:
        """[drafted + 1] beside `least` tokens that are not drafted."""
        tokens = np.arange(least, least + drafted + 1) + self.certain_tokens
        ms = self.spent_ms + self.costs.step_ms_many(tokens, self.load.context_tokens, self.sequences)
        ms[0 if self.certain_tokens else 1 :] += self.costs.speculating_ms(drafts)
        return ms
