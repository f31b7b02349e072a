"""How much to draft and to verify, each step, from measured cost and calibrated acceptance.

One mechanism; policies differ in their aim (what a token and a millisecond are worth) and their guard.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from decodeloop.policy import PolicySettings
from decodeloop.policy.aim import Aim
from decodeloop.policy.allocate import drafts_of
from decodeloop.policy.beliefs import Beliefs
from decodeloop.policy.choosing import Choosing
from decodeloop.policy.cliff import cliffs
from decodeloop.policy.cost import StepCosts
from decodeloop.policy.cost_start import CostStart, scannable
from decodeloop.policy.few import Survival, padded
from decodeloop.policy.fixed import verify_all
from decodeloop.policy.guard import Guard
from decodeloop.policy.non_anticipating import Yardstick, bound_rows, yardstick
from decodeloop.policy.options import AdaptiveOptions
from decodeloop.policy.overrides import Choice, is_silent, plan_of, silent_plan
from decodeloop.policy.paid import PaidDrafting, expected_survival
from decodeloop.policy.plainly import foretold_ms, plain_ms
from decodeloop.policy.probing import PROBE_DEPTH, Probing
from decodeloop.policy.resting import NOBODY, Resting, without
from decodeloop.policy.sizing import Step
from decodeloop.policy.tracks import Track
from decodeloop.types import (
    CostModel,
    Decision,
    DecodeRequest,
    IntArray,
    Knowledge,
    Load,
    Plan,
    Reason,
    Scores,
    StepRecord,
)

MODEST_LEN, MODEST_LOAD = 3, 4  # while costs are unknown: so much, up to this load
LEARN_EVERY = 8  # steps
PLAIN_TEACHES, FIRST_STEPS = 32, 64  # one in so many plain steps is learned from, after the first
WHOLE = frozenset((Reason.FORCED, Reason.PROBE))  # verified as drafted
TYPICAL_CONTEXT = 256  # of the cliff's batches, until some were seen


@dataclass(frozen=True, slots=True)
class _Open:
    """The step between plan and allocate."""

    step: Step
    bound: Yardstick | None
    drafts: list[Survival] | None  # survival of the plan's drafts, where they exist already


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
        self._probing, self._resting = Probing(self._beliefs, guard), Resting()
        self._open: _Open | None = None
        self._reasons: Counter[Reason] = Counter()
        self._unread: list[tuple[StepRecord, list[Track]]] = []  # with the tracks of their rows
        self._seen = 0
        self._all_free = False  # of the last step's drafters
        self._quiet_ms: float | None = None  # expected of a step without a proposal
        self._context_tokens = float(TYPICAL_CONTEXT)
        self._gain = 1.0  # of the last decisions over plain, as predicted

    def plan(self, load: Load, requests: Sequence[DecodeRequest]) -> Plan:
        self._open = self._quiet_ms = None
        self._aim.meet(requests)
        if self._costs is None or not requests:
            modest = MODEST_LEN if load.running <= MODEST_LOAD and not load.waiting else 0
            return plan_of(self._choosing.modest(request, modest) for request in requests)
        self._all_free = self._beliefs.free.issuperset(requests[0].drafters)
        may_rest = not self._all_free and self._settings.drafter is None  # who is preferred has no stand-ins
        resting = self._resting.names(self._seen, requests) if may_rest else NOBODY
        if all(is_silent(request, resting) for request in requests):
            self._quiet_ms = self._plain_ms(self._costs, load, len(requests))
            return silent_plan(len(requests), self._resting.reason if resting else Reason.NO_PROPOSAL)
        if resting:
            requests = [without(request, resting) for request in requests]
        tracks = self._beliefs.tracks.of(requests)
        self._beliefs.tracks.spare(tracks, min(self._guard.interference(len(requests)), 1.0))
        step = Step(load, requests, tracks, self._costs, self._aim, self._guard, self._settings.max_draft_len)
        chosen = self._choosing.choices(step)
        choices, drafts = chosen.choices, chosen.drafts
        if self._probing.wants_plain(self._seen, step, choices, self._gain):
            choices, drafts = [self._choosing.plain(choice) for choice in choices], None
        if any(choice.drafter not in self._beliefs.free for choice in choices if choice.draft_len):
            choices = self._paid.settle(step, choices, self._choosing.free_choices(step, choices))
            drafts = None
        if self._settings.max_draft_len >= PROBE_DEPTH and not self._all_free:
            probed = self._probing.drafters(self._seen, step, choices)
            choices, drafts = probed, drafts if probed is choices else None
            self._resting.heed(self._seen, set(requests[0].drafters) - self._beliefs.free - resting, choices)
        self._open = _Open(step, self._bound(step, choices), drafts)
        return plan_of(choices)

    def allocate(self, plan: Plan, scores: Scores) -> Decision:
        if self._quiet_ms is not None and not any(plan.draft_lens):
            rows = len(plan.draft_lens)
            return Decision(plan.draft_lens, plan.reasons, float(rows), self._quiet_ms, Knowledge.PREFIX)
        if self._open is None or self._open.step.rows != len(plan.draft_lens):
            return verify_all(plan, scores)
        step, bound = self._open.step, self._open.bound
        drafted = [min(planned, len(said)) for planned, said in zip(plan.draft_lens, scores.values, strict=True)]
        if not any(drafted):
            plain_ms = self._predicted(step, step.plain_ms)
            return Decision(tuple(drafted), _why_undrafted(plan, drafted), float(step.rows), plain_ms, Knowledge.PREFIX)
        drafts = self._open.drafts
        if drafts is None or tuple(drafted) != plan.draft_lens:
            said = [values[:length].tolist() for values, length in zip(scores.values, drafted, strict=True)]
            drafts = self._beliefs.drafted(self._beliefs.played(step.pairs, plan.drafters), said)
        step = self._with_drafting(step, plan)
        settled = self._settled(plan, drafts, scores.knowledge, bound)
        if settled is None:
            found = step.solve(drafts)
            lens = found.verify_lens.tolist()
        else:
            step = step.verifying(drafts, np.maximum(settled, 0))
            found = step.solve([own if length < 0 else () for own, length in zip(drafts, settled, strict=True)])
            lens = np.where(settled >= 0, settled, found.verify_lens).tolist()
        self._gain += 0.05 * (found.tokens / found.ms * step.plain_ms / step.rows - self._gain)
        reasons = self._why(step, plan, lens, drafts)
        ms, gain_ms = self._predicted(step, found.ms), step.gain_ms(found)
        return Decision(tuple(lens), reasons, found.tokens, ms, self._settings.verifier_admits, gain_ms)

    def observe(self, record: StepRecord) -> None:
        """Learn, several steps at a time: between two steps of the model every touch of our own data is a cold one."""
        self._seen += 1
        self._aim.follow(record)
        if self._seen % PLAIN_TEACHES and self._is_uneventful(record):
            self._reasons[record.rows[0].reason] += len(record.rows)
            self._beliefs.tracks.rest()
            self._guard.rest(record.step_ms)
            return
        self._reasons.update(row.reason for row in record.rows)
        tracks = self._beliefs.tracks.of(record.rows)
        self._book(record, tracks)
        if not self._all_free:
            self._probing.observe(self._seen, record)
        self._unread.append((record, tracks))
        if len(self._unread) >= min(LEARN_EVERY, 1 + self._seen // 16):
            unread, self._unread = self._unread, []
            for each in unread:
                self._learn(*each)

    def _is_uneventful(self, record: StepRecord) -> bool:
        """Nobody was even asked, nor read a prompt: like the last step and the next."""
        if self._quiet_ms is None or self._seen <= FIRST_STEPS or not record.rows:
            return False
        return not record.load.prefill_tokens and not any(row.shadow_match for row in record.rows)

    def _learn(self, record: StepRecord, tracks: Sequence[Track]) -> None:
        caught_up = self._beliefs.read(record, tracks)
        self._beliefs.observe(record, tracks)
        if self._costs is None:
            self._costs = self._start.observe(record)
            return
        self._costs.observe(record, self._beliefs.free, caught_up)
        self._aim.observe(record)
        if record.rows:
            own = record.load.context_tokens / len(record.rows)
            self._context_tokens += 0.01 * (own - self._context_tokens)
            self._guard.observe(record, plain_ms(self._costs, record))

    def _book(self, record: StepRecord, tracks: Sequence[Track]) -> None:
        """What requests have gained, and lost to each other's drafts: at once, since the next step may spend it."""
        promised = self._guard.interference(len(record.rows))
        if self._costs is None or not record.rows or not math.isfinite(promised):
            return
        slowness = 1.0
        free = self._beliefs.free
        if any(row.verify_len or (row.draft_len and row.drafter not in free) for row in record.rows):
            ms = record.predicted_ms or record.step_ms  # a machine that is slow for a moment is nobody's fault
            slowness = max(ms / foretold_ms(self._costs, record), 1.0)
        self._beliefs.tracks.credit(record, tracks, slowness, promised)

    def describe(self) -> Mapping[str, Any]:
        return {
            "policy": self._name,
            "max_draft_len": self._settings.max_draft_len,
            "cost": self._start.describe() if self._costs is None else self._costs.describe(),
            **self._beliefs.describe(),
            "cliff": [] if self._costs is None else self._cliffs(self._costs),
            "aim": self._aim.describe(),
            "guard": {**self._guard.describe(), "probes": self._probing.describe(self._seen)},
            "gain_predicted": round(self._gain, 4),
            "reasons": {str(reason): count for reason, count in self._reasons.copy().items()},
        }

    def _cliffs(self, costs: StepCosts) -> list[dict[str, Any]]:
        believed = [e for e in self._beliefs.acceptance.describe() if e["drafter"] in self._beliefs.free]
        return cliffs(costs, believed, round(self._context_tokens), self._settings.draft_len)

    def _bound(self, step: Step, choices: Sequence[Choice]) -> Yardstick | None:
        """Fixed now, before anything is drawn, for drafts whose length may not know them."""
        if self._settings.verifier_admits >= Knowledge.SELF:
            return None
        drafters = [choice.drafter for choice in choices]
        known = [request.proposals for request in step.requests]
        rows = bound_rows(drafters, self._settings.verifier_admits, self._options.free_drafters, known)
        if not rows.any():
            return None
        survival, drafted = expected_survival(self._beliefs, step, choices), sum(c.draft_len for c in choices)
        priced = self._with_drafting(step, plan_of(choices))
        planned = priced.solve_many(survival, drafted)
        terms = priced.terms(priced.items(survival), drafted)
        return yardstick(rows, planned, priced.ms(drafted, drafts_of(survival)), terms.objective.price(planned.score))

    def _settled(
        self, plan: Plan, drafts: Sequence[Survival], knowledge: Knowledge, bound: Yardstick | None
    ) -> IntArray | None:
        """[N] verify lengths that are not open to choice, -1 where they are; None: all are."""
        if bound is None and WHOLE.isdisjoint(plan.reasons):
            return None
        drafted = np.array(list(map(len, drafts)))
        settled = np.full(len(drafted), -1)
        if bound is not None:
            survival = padded(drafts, self._settings.max_draft_len)
            settled = np.where(bound.rows, bound.cut(survival, drafted, knowledge), settled)
        return np.where([reason in WHOLE for reason in plan.reasons], drafted, settled)

    def _with_drafting(self, step: Step, plan: Plan) -> Step:
        """The step once the plan's paid drafters have run."""
        depths: dict[str, tuple[int, int]] = {}
        for name, length in zip(plan.drafters, plan.draft_lens, strict=True):
            if name is not None and name not in self._beliefs.free:
                depth, count = depths.get(name, (0, 0))
                depths[name] = max(depth, length), count + 1
        spent = sum(step.costs.draft_ms(name, depth, count) for name, (depth, count) in depths.items())
        return replace(step, spent_ms=spent) if spent else step

    def _why(self, step: Step, plan: Plan, lens: Sequence[int], drafts: Sequence[Survival]) -> tuple[Reason, ...]:
        reasons = list(_why_undrafted(plan, list(map(len, drafts))))
        for i, (own, verified) in enumerate(zip(drafts, lens, strict=True)):
            if own and not verified and reasons[i] not in WHOLE:
                reasons[i] = self._choosing.why_not(step, own[0])
            elif verified < len(own) and reasons[i] is step.requests[i].cap:
                reasons[i] = self._aim.reason  # the cap was not what stopped it
        return tuple(reasons)

    def _plain_ms(self, costs: StepCosts, load: Load, rows: int) -> float:
        """Expected, free drafting included."""
        sequences = max(load.running, rows)
        ms = costs.step_ms(rows + load.prefill_tokens, load.context_tokens, sequences)
        return ms + costs.free_draft_ms(sequences)

    def _predicted(self, step: Step, ms: float) -> float:
        return ms + step.costs.free_draft_ms(step.sequences)


def _why_undrafted(plan: Plan, drafted: Sequence[int]) -> tuple[Reason, ...]:
    """The plan's reasons; a planned draft that came out empty says so."""
    return tuple(
        Reason.NO_PROPOSAL if planned and not length else reason
        for planned, length, reason in zip(plan.draft_lens, drafted, plan.reasons, strict=True)
    )
