"""How much to draft and to verify, each step, from measured cost and calibrated acceptance.

One mechanism; policies differ in their aim (what a token and a millisecond are worth) and their guard.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from decodeloop.policy import PolicySettings
from decodeloop.policy.aim import Aim
from decodeloop.policy.allocate import IntArray
from decodeloop.policy.beliefs import Beliefs
from decodeloop.policy.choosing import Choosing
from decodeloop.policy.cliff import cliff
from decodeloop.policy.cost import StepCosts
from decodeloop.policy.cost_start import CostStart, scannable
from decodeloop.policy.fixed import verify_all
from decodeloop.policy.guard import Guard
from decodeloop.policy.non_anticipating import Yardstick, bound_rows, yardstick
from decodeloop.policy.options import AdaptiveOptions
from decodeloop.policy.overrides import Choice, plan_of
from decodeloop.policy.paid import PaidDrafting
from decodeloop.policy.sizing import Step
from decodeloop.types import (
    CostModel,
    Decision,
    DecodeRequest,
    FloatArray,
    Knowledge,
    Load,
    Plan,
    Reason,
    Scores,
    StepRecord,
)

STALE_PLAIN_STEPS = 4096  # without a plain step at this load, its time is asked anew
MODEST_LEN, MODEST_LOAD = 3, 4  # while costs are unknown: so much, up to this load
WHOLE = (Reason.FORCED, Reason.PROBE)  # verified as drafted
TYPICAL_CONTEXT = 256  # of the cliff's batches, until some were seen


@dataclass(frozen=True, slots=True)
class _Open:
    """The step between plan and allocate."""

    step: Step
    bound: Yardstick | None


class AdaptivePolicy:
    """Owns its beliefs, its costs and its guard; everything else is computed from them anew at every step."""

    learns = True

    def __init__(
        self,
        name: str,
        settings: PolicySettings,
        options: AdaptiveOptions,
        cost: CostModel | None,
        *,
        aim: Aim,
        guard: Guard,
    ) -> None:
        self._name, self._settings, self._options = name, settings, options
        self._aim, self._guard = aim, guard
        self._costs: StepCosts | None = None if cost is None else scannable(cost)
        self._start = CostStart()
        self._beliefs = Beliefs(settings.max_draft_len, frozenset(options.free_drafters))
        self._choosing = Choosing(settings, self._beliefs, guard, aim.reason)
        self._paid = PaidDrafting(self._beliefs)
        self._open: _Open | None = None
        self._reasons: Counter[Reason] = Counter()
        self._context_tokens = float(TYPICAL_CONTEXT)
        self._gain = 1.0  # of the last decisions over plain, as predicted

    def plan(self, load: Load, requests: Sequence[DecodeRequest]) -> Plan:
        self._open = None
        self._aim.meet(requests)
        if self._costs is None or not requests:
            modest = MODEST_LEN if load.running <= MODEST_LOAD and not load.waiting else 0
            return plan_of(self._choosing.modest(request, modest) for request in requests)
        step = Step(load, requests, self._beliefs.tracks, self._costs, self._aim, self._guard)
        choices = self._choosing.choices(step)
        if self._plain_is_stale(step, choices):
            choices = [self._choosing.plain(choice) for choice in choices]
        if any(choice.drafter not in self._beliefs.free for choice in choices if choice.draft_len):
            choices = self._paid.settle(step, choices, self._choosing.free_choices(step, choices))
        self._open = _Open(step, self._bound(step, choices))
        return plan_of(choices)

    def allocate(self, plan: Plan, scores: Scores) -> Decision:
        if self._open is None or self._open.step.rows != len(plan.draft_lens):
            return verify_all(plan, scores)
        step, bound = self._open.step, self._open.bound
        drafted = np.array([min(n, len(v)) for n, v in zip(plan.draft_lens, scores.values, strict=True)], dtype=int)
        if not drafted.any():
            plain, plain_ms = (0,) * step.rows, self._predicted(step, step.plain_ms)
            return Decision(plain, _why_undrafted(plan, plain), float(step.rows), plain_ms, Knowledge.PREFIX)
        within = np.arange(self._settings.max_draft_len) < drafted[:, None]
        survival = np.where(within, self._beliefs.calibrated(step.requests, plan.drafters, scores), 0.0)
        whole = np.array([reason in WHOLE for reason in plan.reasons])
        certain = np.where(whole, drafted, 0)
        if bound is not None:
            certain = np.where(bound.rows & ~whole, bound.cut(survival, drafted, scores.knowledge), certain)
            whole = whole | bound.rows
        step = self._with_certain(step, plan, survival, certain)
        free = np.where(whole[:, None], 0.0, survival)
        found = step.solve(free, int(drafted[~whole].sum()))
        lens = np.where(whole, certain, found.verify_lens)
        self._gain += 0.05 * (found.tokens / found.ms * step.plain_ms / max(step.rows, 1) - self._gain)
        return Decision(
            tuple(int(length) for length in lens),
            self._why(step, plan, drafted, lens, survival),
            found.tokens,
            self._predicted(step, found.ms),
            self._options.verifier_admits,
        )

    def observe(self, record: StepRecord) -> None:
        self._reasons.update(row.reason for row in record.rows)
        caught_up = self._beliefs.read(record)
        self._beliefs.observe(record)
        if self._costs is None:
            self._costs = self._start.observe(record)
            return
        self._costs.observe(record, self._beliefs.free, caught_up)
        self._aim.observe(record, self._beliefs.tracks)
        rows = len(record.rows)
        if rows:
            self._context_tokens += 0.01 * (record.load.context_tokens / rows - self._context_tokens)
            prompt = sum(row.prefill_tokens for row in record.rows)
            plain = sum(not row.prefill_tokens for row in record.rows)
            plain_ms = self._costs.step_ms(prompt + plain, record.load.context_tokens, rows)
            spent_ms = record.step_ms - min(record.draft_ms, self._costs.free_draft_ms(rows))
            self._guard.observe(record, spent_ms, plain_ms)
            promised = self._guard.interference()
            if plain_ms > 0.0 and np.isfinite(promised):
                self._beliefs.tracks.credit(record, (1.0 - promised) * spent_ms / plain_ms)

    def describe(self) -> Mapping[str, Any]:
        return {
            "policy": self._name,
            "max_draft_len": self._settings.max_draft_len,
            "cost": self._start.describe() if self._costs is None else self._costs.describe(),
            **self._beliefs.describe(),
            "cliff": self._cliffs(),
            "aim": self._aim.describe(),
            "guard": self._guard.describe(),
            "gain_predicted": round(self._gain, 4),
            "reasons": {str(reason): count for reason, count in list(self._reasons.items())},
        }

    def _bound(self, step: Step, choices: Sequence[Choice]) -> Yardstick | None:
        """Fixed now, before anything is drawn, for drafts whose length may not know them."""
        drafters = [choice.drafter for choice in choices]
        rows = bound_rows(drafters, self._options.verifier_admits, self._beliefs.free)
        if not rows.any():
            return None
        lens = np.array([choice.draft_len for choice in choices])
        expected = self._beliefs.survival(step.requests, drafters)
        survival = np.where(np.arange(expected.shape[1]) < lens[:, None], expected, 0.0)
        drafted = int(lens.sum())
        priced = self._with_drafting(step, plan_of(choices))
        planned = priced.solve(survival, drafted)
        terms = priced.terms(priced.items(survival), drafted)
        return yardstick(rows, planned, priced.ms(drafted), terms.objective.price(planned.score))

    def _with_drafting(self, step: Step, plan: Plan) -> Step:
        """The step once the plan's paid drafters have run."""
        assert self._costs is not None
        depths: dict[str, tuple[int, int]] = {}
        for name, length in zip(plan.drafters, plan.draft_lens, strict=True):
            if name is not None and name not in self._beliefs.free:
                depth, count = depths.get(name, (0, 0))
                depths[name] = max(depth, length), count + 1
        spent = sum(self._costs.draft_ms(name, depth, count) for name, (depth, count) in depths.items())
        return replace(step, spent_ms=spent)

    def _with_certain(self, step: Step, plan: Plan, survival: FloatArray, certain: IntArray) -> Step:
        """The step with the lengths that are no longer open."""
        step = self._with_drafting(step, plan)
        if not certain.any():
            return step
        expected = np.where(np.arange(survival.shape[1]) < certain[:, None], survival, 0.0).sum(axis=1)
        return replace(step, certain=expected, certain_tokens=int(certain.sum()))

    def _why(
        self, step: Step, plan: Plan, drafted: IntArray, lens: IntArray, survival: FloatArray
    ) -> tuple[Reason, ...]:
        reasons = list(_why_undrafted(plan, drafted))
        for i in np.flatnonzero(drafted).tolist():
            if lens[i] == 0 and plan.reasons[i] not in WHOLE:
                reasons[i] = self._choosing.why_not(step, step.requests[i], float(survival[i, 0]))
            elif lens[i] < drafted[i] and plan.reasons[i] is step.requests[i].cap:
                reasons[i] = self._aim.reason  # the cap was not what stopped it
        return tuple(reasons)

    def _plain_is_stale(self, step: Step, choices: Sequence[Choice]) -> bool:
        """Long unseen, the plain step that everything is compared with is asked again, if the guard affords it."""
        if not any(choice.draft_len for choice in choices):
            return False
        plain_tokens = step.rows + step.load.prefill_tokens
        if step.costs.staleness(plain_tokens, step.load.context_tokens, step.sequences) < STALE_PLAIN_STEPS:
            return False
        forgone_ms = max(self._gain - 1.0, 0.0) * step.plain_ms
        if not self._guard.affords(forgone_ms):
            return False
        self._guard.spend(forgone_ms)
        return True

    def _predicted(self, step: Step, ms: float) -> float:
        return ms + step.costs.free_draft_ms(step.sequences)

    def _cliffs(self) -> list[dict[str, Any]]:
        """Of every class and free drafter that something is known of."""
        if self._costs is None:
            return []
        context = round(self._context_tokens)
        return [
            {
                "tenant": entry["tenant"],
                "class": entry["class"],
                "drafter": entry["drafter"],
                **cliff(self._costs, np.array(entry["survival"]), context, self._settings.draft_len),
            }
            for entry in self._beliefs.acceptance.describe()
            if entry["drafter"] in self._beliefs.free
        ]


def _why_undrafted(plan: Plan, drafted: Sequence[int] | IntArray) -> tuple[Reason, ...]:
    """The plan's reasons; a planned draft that came out empty says so."""
    return tuple(
        Reason.NO_PROPOSAL if planned and not length else reason
        for planned, length, reason in zip(plan.draft_lens, drafted, plan.reasons, strict=True)
    )
