"""Who drafts for a request, and how much at most, before anything is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from decodeloop.policy import PolicySettings
from decodeloop.policy.beliefs import Beliefs
from decodeloop.policy.guard import Guard, Stand
from decodeloop.policy.hedge import Draw
from decodeloop.policy.overrides import Choice, choose, override
from decodeloop.policy.sizing import Step
from decodeloop.types import DecodeRequest, Reason, SpeculationMode


class Choosing:
    """Free drafters propose as much as is allowed (it costs nothing); `allocate` decides what is verified."""

    def __init__(self, settings: PolicySettings, beliefs: Beliefs, guard: Guard, reason: Reason) -> None:
        self._settings, self._beliefs, self._guard, self._reason = settings, beliefs, guard, reason
        self._draw = Draw()

    def choices(self, step: Step) -> list[Choice]:
        return [self._choice(step, request) for request in step.requests]

    def free_choices(self, step: Step, choices: Sequence[Choice]) -> list[Choice]:
        """What each request does if no paid drafter runs."""
        return [
            self._without_paid(step, request, choice) for request, choice in zip(step.requests, choices, strict=True)
        ]

    def modest(self, request: DecodeRequest, draft_len: int) -> Choice:
        """A fixed length, as far as the caller wants it."""
        asked = request.speculation.draft_len
        wanted = draft_len if asked is None else min(draft_len, asked)
        reason = Reason.FIXED if draft_len else Reason.OFF_LOAD
        return override(request, self._settings) or choose(wanted, reason, request, self._settings)

    def plain(self, choice: Choice) -> Choice:
        """A plain step to see what one takes; what callers force stays."""
        return choice if choice.reason is Reason.FORCED or not choice.draft_len else Choice(0, None, Reason.PROBE)

    def why_not(self, step: Step, request: DecodeRequest, survival: float) -> Reason:
        """Why a draft whose first token survives with this probability isn't verified: would it be at load 1?"""
        return Reason.OFF_LOAD if survival > step.alone_growth else Reason.OFF_ACCEPTANCE

    def _choice(self, step: Step, request: DecodeRequest) -> Choice:
        fixed = override(request, self._settings)
        if fixed is not None:
            return fixed
        asked = request.speculation.draft_len
        wanted = self._settings.max_draft_len if asked is None else asked
        choice = choose(wanted, self._reason, request, self._settings)
        if not choice.draft_len:
            return choice
        if self._guard.stand((request.tenant, request.request_class)) is Stand.OFF:
            return Choice(0, None, Reason.OFF_COST)
        candidates = self._candidates(request)
        if len(candidates) > 1:
            rewards = [self._reward(step, request, name) for name in candidates]
            choice = replace(choice, drafter=self._draw.pick(candidates, rewards))
        return choice

    def _without_paid(self, step: Step, request: DecodeRequest, choice: Choice) -> Choice:
        if not choice.draft_len or choice.drafter in self._beliefs.free or choice.reason is Reason.FORCED:
            return choice
        free = [name for name in self._candidates(request) if name in self._beliefs.free]
        if free:
            best = max(free, key=lambda name: self._beliefs.expected_reward(request, name))
            return replace(choice, drafter=best)
        survival = self._beliefs.survival([request], [choice.drafter])
        return Choice(0, None, self.why_not(step, request, float(survival[0, 0])))

    def _candidates(self, request: DecodeRequest) -> Sequence[str]:
        """The caller's drafter, else the operator's, else all that could serve."""
        asked = request.speculation.drafter
        if asked is not None and request.speculation.mode is SpeculationMode.AUTO:
            return (asked,)
        return (self._settings.drafter,) if self._settings.drafter in request.drafters else request.drafters

    def _reward(self, step: Step, request: DecodeRequest, name: str) -> float:
        """Accepted tokens a step, less those that plain decoding would have produced while it drafted."""
        reward = self._beliefs.expected_reward(request, name)
        if name in self._beliefs.free:
            return reward
        depth = min(1 + round(reward), self._settings.max_draft_len)
        return reward - step.costs.draft_ms(name, depth, step.rows) / step.plain_ms
