"""Who drafts for a request, and how much at most, before anything is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from decodeloop.policy import PolicySettings
from decodeloop.policy.beliefs import Beliefs
from decodeloop.policy.guard import Guard, Stand
from decodeloop.policy.heard import Heard, Proposal
from decodeloop.policy.hedge import Draw
from decodeloop.policy.overrides import SILENCE, Choice, choose, is_silent, override
from decodeloop.policy.sizing import Step
from decodeloop.policy.tracks import Affinity
from decodeloop.types import DecodeRequest, FloatArray, Reason, SpeculationMode

STAYS = 4  # steps that a drafter which can't be heard beforehand stays with a request
GROWTH_STEPS = 1024  # calls for which one answer is good enough
WORTH_STEPS = 16  # steps for which the least worth of a proposal is good enough
LISTEN = 16  # every so many steps, proposals that aren't worth verifying are played all the same


@dataclass(frozen=True, slots=True)
class Chosen:
    """survival: [N, K] of the drafts that are played, if all of them have been proposed already; else None."""

    choices: list[Choice]
    survival: FloatArray | None


class Choosing:
    """Free drafters propose as much as is allowed (it costs nothing); `allocate` decides what is verified.

    A proposal whose first token is too unlikely to pay for its verification, whatever comes with it, is left at once:
    most steps of most texts have no better one, and should not pay for finding that out. Every LISTEN-th step it is
    played all the same, so that what such proposals are worth goes on being learned.
    """

    def __init__(self, settings: PolicySettings, beliefs: Beliefs, guard: Guard, reason: Reason) -> None:
        self._settings, self._beliefs, self._guard, self._reason = settings, beliefs, guard, reason
        self._draw = Draw()
        self._growth, self._growth_age = 0.0, GROWTH_STEPS
        self._turn = 0
        self._worths: dict[tuple[int, int, int, int], float] = {}

    def choices(self, step: Step) -> Chosen:
        self._turn += 1
        if self._turn % WORTH_STEPS == 0:
            self._worths.clear()
        choices = [SILENCE if is_silent(request) else self._imposed(request) for request in step.requests]
        rows = [row for row, choice in enumerate(choices) if choice.draft_len and choice.reason is not Reason.FORCED]
        if not rows:
            return Chosen(choices, None)
        heard = self._heard(step, rows)
        played, all_heard = self._settle(step, choices, rows, heard)
        if not all_heard or any(choice.reason is Reason.FORCED for choice in choices):
            return Chosen(choices, None)
        survival = np.zeros((step.rows, self._beliefs.max_draft_len))
        for row, place in played.items():
            length = choices[row].draft_len
            survival[row, :length] = heard.survival[place, :length]
        return Chosen(choices, survival)

    def free_choices(self, step: Step, choices: Sequence[Choice]) -> list[Choice]:
        """What each request does if no paid drafter runs."""
        return [self._without_paid(step, i, c) if self._is_paid(c) else c for i, c in enumerate(choices)]

    def modest(self, request: DecodeRequest, draft_len: int) -> Choice:
        """A fixed length, as far as the caller wants it."""
        asked = request.speculation.draft_len
        wanted = draft_len if asked is None else min(draft_len, asked)
        reason = Reason.FIXED if draft_len else Reason.OFF_LOAD
        return override(request, self._settings) or choose(wanted, reason, request, self._settings)

    def plain(self, choice: Choice) -> Choice:
        """A plain step to see what one takes; what callers force stays."""
        return choice if choice.reason is Reason.FORCED or not choice.draft_len else Choice(0, None, Reason.PROBE)

    def why_not(self, step: Step, survival: float) -> Reason:
        """Why a draft whose first token survives with this probability isn't verified: would it be at load 1?"""
        return Reason.OFF_LOAD if survival > self._alone_growth(step) else Reason.OFF_ACCEPTANCE

    def _alone_growth(self, step: Step) -> float:
        """By what share one more token slows a step of a single request: hardly changes, so asked now and then."""
        self._growth_age += 1
        if self._growth_age > GROWTH_STEPS:
            context = round(step.load.context_tokens / step.sequences)
            plain, verifying = step.costs.step_ms(1, context, 1), step.costs.step_ms(2, context, 1)
            self._growth, self._growth_age = verifying / plain - 1.0, 0
        return self._growth

    def _imposed(self, request: DecodeRequest) -> Choice:
        """What the caller's mode, the caps and the guard leave: nothing, what is forced, or the most to choose from."""
        fixed = override(request, self._settings)
        if fixed is not None:
            return fixed
        asked = request.speculation.draft_len
        wanted = self._settings.max_draft_len if asked is None else asked
        choice = choose(wanted, self._reason, request, self._settings)
        if choice.draft_len and self._guard.stand((request.tenant, request.request_class)) is Stand.OFF:
            return Choice(0, None, Reason.OFF_COST)
        return choice

    def _heard(self, step: Step, rows: Sequence[int]) -> Heard:
        """What may be played for these requests of what was said."""
        proposed = []
        for row in rows:
            request = step.requests[row]
            for name in self._candidates(request):
                said = request.proposals.get(name)
                if said is not None:
                    self._beliefs.free.add(name)
                if said:
                    proposed.append(Proposal(row, name, said))
        return self._beliefs.heard(step.pairs, proposed, 0.0 if self._turn % LISTEN == 0 else self._worth(step))

    def _settle(
        self, step: Step, choices: list[Choice], rows: Sequence[int], heard: Heard
    ) -> tuple[dict[int, int], bool]:
        """Settle in `choices` who drafts for `rows`. Returns row -> the proposal that is played, and whether all that
        is played has been proposed already."""
        best, value, likeliest = heard.best(), heard.value, heard.likeliest()
        played, all_heard = {}, True
        for row in rows:
            request = step.requests[row]
            silent = [name for name in self._candidates(request) if name not in request.proposals]
            name = None
            if silent:
                own = heard.worthy(row)
                name = self._pick(step, row, {drafter: value[place] for drafter, place in own.items()}, silent)
                place = own.get(name)
            else:
                place = best.get(row)
            if place is not None:
                played[row], proposal = place, heard.proposals[place]
                length = min(choices[row].draft_len, len(proposal.said))
                choices[row] = Choice(length, proposal.drafter, choices[row].reason)
            elif name is not None:
                choices[row], all_heard = replace(choices[row], drafter=name), False
            else:
                choices[row] = self._unheard(step, likeliest.get(row))
        return played, all_heard

    def _unheard(self, step: Step, likeliest: float | None) -> Choice:
        """Nothing was said that is worth it. likeliest: survival of the likeliest first token; None: there is none."""
        return SILENCE if likeliest is None else Choice(0, None, self.why_not(step, likeliest))

    def _worth(self, step: Step) -> float:
        """step.least_worth, which hardly changes from step to step."""
        load = step.load
        key = step.rows, load.running, load.prefill_tokens, load.context_tokens.bit_length()
        if key not in self._worths:
            self._worths[key] = step.least_worth
        return self._worths[key] / step.heaviest

    def _pick(self, step: Step, row: int, rewards: dict[str, float], silent: Sequence[str]) -> str:
        """The best of those heard, unless there are others: then by Hedge, which those not heard enter by their record.

        A drafter that nobody can hear beforehand stays with a request for a few steps.
        """
        if not silent:
            return max(rewards, key=lambda name: rewards[name])
        if len(silent) == 1 and not rewards:
            return silent[0]
        request, track = step.requests[row], step.tracks[row]
        track.stays -= 1
        stays = track.drafter
        if stays is not None and stays in silent and track.stays > 0 and not rewards:
            return stays
        for name in silent:
            rewards[name] = self._reward(step, name, self._beliefs.affinity(track, request, name))
        picked = self._draw.pick(list(rewards), list(rewards.values()))
        track.drafter, track.stays = picked, STAYS
        return picked

    def _is_paid(self, choice: Choice) -> bool:
        return choice.draft_len > 0 and choice.drafter not in self._beliefs.free and choice.reason is not Reason.FORCED

    def _without_paid(self, step: Step, row: int, choice: Choice) -> Choice:
        request, track = step.requests[row], step.tracks[row]
        free = [name for name in self._candidates(request) if name in self._beliefs.free]
        free = [name for name in free if request.proposals.get(name, (1.0,))]
        if free:
            foreseen = self._beliefs.foreseen([(request, track)] * len(free), free).sum(axis=1)
            return replace(choice, drafter=free[int(np.argmax(foreseen))])
        survival = self._beliefs.foreseen([(request, track)], [choice.drafter])
        return Choice(0, None, self.why_not(step, float(survival[0, 0])))

    def _candidates(self, request: DecodeRequest) -> Sequence[str]:
        """The caller's drafter, else the operator's, else all that could serve."""
        asked = request.speculation.drafter
        if asked is not None and request.speculation.mode is SpeculationMode.AUTO:
            return (asked,)
        return (self._settings.drafter,) if self._settings.drafter in request.drafters else request.drafters

    def _reward(self, step: Step, name: str, affinity: Affinity) -> float:
        """By the record; paid drafting costs the tokens that plain decoding would have produced meanwhile."""
        reward = self._beliefs.expected_reward(affinity)
        if name in self._beliefs.free:
            return reward
        depth = min(1 + round(reward), self._settings.max_draft_len)
        return reward - step.costs.draft_ms(name, depth, step.rows) / step.plain_ms
