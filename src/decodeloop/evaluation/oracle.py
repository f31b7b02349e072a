"""How much of what could be won is won: a clairvoyant oracle, the best that can be known beforehand, and a policy.

All three serve the same texts on the same measured costs, so that

    gap = information (the oracle knows what will be accepted) + regret (a policy knows less, or does worse, than
          the best rule that sees what policies see)

`Oracle` verifies exactly what will be accepted. `Informed` sees drafts' confidence and the past, has learned from the
whole record what they mean, and allocates exactly. Both are scored at a price of time that is raised until it is what
they earn (Dinkelbach), which maximises tokens over time in the long run and not step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle

import numpy as np

from decodeloop.evaluation.acceptance import CLASS_INDEX, Texts
from decodeloop.evaluation.fleet import Batch, Decided, Limits, Outcome, Rule
from decodeloop.evaluation.foresight import Foresight
from decodeloop.evaluation.simulate import Fleet, simulate_closed
from decodeloop.evaluation.workload import Arrival
from decodeloop.policy.allocate import Items, Priced, allocate, drafts_of
from decodeloop.policy.cost_start import scannable, speculating_ms
from decodeloop.policy.fair import allocate_fairly
from decodeloop.types import CostModel, FloatArray

ROUNDS = 4  # of raising the price


@dataclass(frozen=True, slots=True)
class Oracle:
    """Clairvoyant; it pays for drafting where it verifies anything. price: tokens a ms."""

    cost: CostModel
    price: float
    drafting_ms: float = 0.0

    def decide(self, batch: Batch) -> Decided:
        right = batch.drafts.right
        ms = _ms(self.cost, batch, int(right.sum()), int(np.count_nonzero(right)))
        best = int(np.argmax(len(right) + np.arange(len(ms)) - self.price * ms))
        lens, spare = right.copy(), int(right.sum()) - best
        for i in np.argsort(right, kind="stable").tolist():  # which tokens are left out is the same to the step
            cut = min(spare, int(lens[i]))
            lens[i] -= cut
            spare -= cut
        return Decided(lens, self.drafting_ms if lens.any() else 0.0)

    def observe(self, batch: Batch, decided: Decided, outcome: Outcome) -> None:
        """It knows already."""


@dataclass(frozen=True, slots=True)
class Informed:
    """The best allocation by what is known before the verdict. interference: as of the policy it is compared with."""

    cost: CostModel
    foresight: Foresight
    price: float
    interference: float | None = None
    drafting_ms: float = 0.0

    def decide(self, batch: Batch) -> Decided:
        survival = self.foresight.survival(batch)
        items, ms = Items(survival), _ms(self.cost, batch, int(np.count_nonzero(survival)), drafts_of(survival))
        if self.interference is None or len(survival) == 1:
            return Decided(allocate(items, ms, Priced(self.price)).verify_lens, self.drafting_ms)
        found = allocate_fairly(items, ms, float(ms[0]), self.interference, Priced(self.price))
        return Decided(found.verify_lens, self.drafting_ms)

    def observe(self, batch: Batch, decided: Decided, outcome: Outcome) -> None:
        """It has learned from everything already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Rates in tokens a second of one cell: texts of a class (or a mix) at a load."""

    plain: float
    oracle: float
    informed: float
    policy: float

    @property
    def information(self) -> float:
        """Share of the oracle's rate that nobody can have beforehand."""
        return 1.0 - self.informed / self.oracle

    @property
    def regret(self) -> float:
        """Share of the best causal rate that the policy leaves; below 0 where it does better than that rule."""
        return 1.0 - self.policy / self.informed

    def to_json(self) -> dict[str, float]:
        rates = {"plain": self.plain, "oracle": self.oracle, "informed": self.informed, "policy": self.policy}
        return {
            **{f"{name}_tokens_per_s": round(rate, 2) for name, rate in rates.items()},
            "information": round(self.information, 4),
            "regret": round(self.regret, 4),
        }


@dataclass(frozen=True, slots=True)
class Cell:
    """Texts served at a constant load, one after another. ramp_s: left out, while policies begin to learn."""

    texts: Texts
    arrivals: Sequence[Arrival]
    cost: CostModel
    load: int
    seconds: float
    ramp_s: float
    limits: Limits = Limits(32, 128, 256)

    def rate(self, rule: Callable[[], Rule]) -> float:
        """Tokens a second."""
        fleet = Fleet(replicas=1, cost=self.cost, rule=rule, acceptance=self.texts, limits=self.limits)
        stream: Iterator[Arrival] = cycle(self.arrivals)
        clients = [next(stream) for _ in range(self.load)]
        found, _ = simulate_closed(fleet, clients, seconds=self.seconds, ramp_s=self.ramp_s, following=stream)
        return found.tokens_per_s

    def best(self, rule: Callable[[float], Rule]) -> float:
        """The best rate over prices of time, from plain's up; prices in tokens a ms."""
        price = best = 0.0
        for _ in range(ROUNDS):
            found = self.rate(lambda price=price: rule(price))  # type: ignore[misc]
            best = max(best, found)
            if abs(found / 1e3 - price) < 1e-3 * price:
                break
            price = found / 1e3
        return best


def gap(
    cell: Cell,
    *,
    plain: Callable[[], Rule],
    policy: Callable[[], Rule],
    foresight: Foresight,
    interference: float | None,
    drafting_ms: float = 0.0,
) -> Gap:
    """drafting_ms: of a step, for the oracle and the informed rule; the policy pays its own.

    Never to draft is open to both of them, and to the oracle whatever is open to the informed.
    """
    undrafted = cell.rate(plain)
    oracle = cell.best(lambda price: Oracle(cell.cost, price, drafting_ms))
    informed = cell.best(lambda price: Informed(cell.cost, foresight, price, interference, drafting_ms))
    informed = max(informed, undrafted)
    return Gap(
        plain=undrafted,
        oracle=max(oracle, informed),
        informed=informed,
        policy=cell.rate(policy),
    )


def cell_of(arrivals: Sequence[Arrival], wanted: str) -> list[Arrival]:
    """The arrivals of one class, or all of them, in turn by class, for "mixed"."""
    if wanted != "mixed":
        return [arrival for arrival in arrivals if arrival.request_class == wanted]
    queues: dict[int, list[Arrival]] = {}
    for arrival in arrivals:
        queues.setdefault(CLASS_INDEX[arrival.request_class], []).append(arrival)
    rounds = max(len(queue) for queue in queues.values())
    return [queue[i % len(queue)] for i in range(rounds) for queue in queues.values()]


def _ms(cost: CostModel, batch: Batch, most: int, drafts: int) -> FloatArray:
    tokens = batch.prefill + len(batch.requests) + np.arange(most + 1)
    ms = scannable(cost).step_ms_many(tokens, batch.context, batch.sequences)
    ms[1:] += speculating_ms(cost, drafts)
    return ms
