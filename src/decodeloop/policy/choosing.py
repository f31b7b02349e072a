"""Who drafts for a request, and how much at most, before anything is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from decodeloop.policy import PolicySettings
from decodeloop.policy.beliefs import Beliefs
from decodeloop.policy.guard import Guard, Stand
from decodeloop.policy.hedge import Draw
from decodeloop.policy.overrides import Choice, choose, override
from decodeloop.policy.sizing import Step
from decodeloop.policy.tracks import Affinity, Track
from decodeloop.types import DecodeRequest, Reason, SpeculationMode

STAYS = 4  # steps that a drafter stays with a request
GROWTH_STEPS = 1024  # calls for which one answer is good enough


class Choosing:
    """Free drafters propose as much as is allowed (it costs nothing); `allocate` decides what is verified."""

    def __init__(self, settings: PolicySettings, beliefs: Beliefs, guard: Guard, reason: Reason) -> None:
        self._settings, self._beliefs, self._guard, self._reason = settings, beliefs, guard, reason
        self._draw = Draw()
        self._growth, self._growth_age = 0.0, GROWTH_STEPS

    def choices(self, step: Step) -> list[Choice]:
        """A drafter stays with a request for a few steps, unless it has said what it would propose now."""
        due = [i for i, (request, track) in enumerate(step.pairs) if track.stays <= 0 or request.proposals]
        rewards = self._rewards(step, due)
        return [
            self._choice(request, track, rewards.get(i))
            for i, (request, track) in enumerate(zip(step.requests, step.tracks, strict=True))
        ]

    def free_choices(self, step: Step, choices: Sequence[Choice]) -> list[Choice]:
        """What each request does if no paid drafter runs."""
        rewards = self._rewards(step, [i for i, choice in enumerate(choices) if self._is_paid(choice)])
        return [self._without_paid(step, i, choice, rewards.get(i)) for i, choice in enumerate(choices)]

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

    def _is_paid(self, choice: Choice) -> bool:
        return choice.draft_len > 0 and choice.drafter not in self._beliefs.free and choice.reason is not Reason.FORCED

    def _choice(self, request: DecodeRequest, track: Track, rewards: Mapping[str, float] | None) -> Choice:
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
        if rewards is not None:
            track.drafter, track.stays = self._draw.pick(list(rewards), list(rewards.values())), STAYS
        track.stays -= 1
        if track.drafter in self._candidates(request):
            choice = Choice(choice.draft_len, track.drafter, choice.reason)
        return choice

    def _without_paid(self, step: Step, i: int, choice: Choice, rewards: Mapping[str, float] | None) -> Choice:
        if not self._is_paid(choice):
            return choice
        free = {name: reward for name, reward in (rewards or {}).items() if name in self._beliefs.free}
        if free:
            return replace(choice, drafter=max(free, key=lambda name: free[name]))
        survival = self._beliefs.foreseen([step.pairs[i]], [choice.drafter])
        return Choice(0, None, self.why_not(step, float(survival[0, 0])))

    def _candidates(self, request: DecodeRequest) -> Sequence[str]:
        """The caller's drafter, else the operator's, else all that could serve."""
        asked = request.speculation.drafter
        if asked is not None and request.speculation.mode is SpeculationMode.AUTO:
            return (asked,)
        return (self._settings.drafter,) if self._settings.drafter in request.drafters else request.drafters

    def _rewards(self, step: Step, rows: Sequence[int]) -> dict[int, dict[str, float]]:
        """Of `rows` that have a choice, per drafter: accepted tokens a step, less what drafting costs.

        A drafter that has proposed already is judged by its proposal, the others by their record.
        """
        rewards: dict[int, dict[str, float]] = {}
        spoken: list[tuple[int, str]] = []
        for i in rows:
            request, track = step.requests[i], step.tracks[i]
            candidates = self._candidates(request)
            if len(candidates) > 1:
                affinities = [(name, self._beliefs.affinity(track, request, name)) for name in candidates]
                rewards[i] = {name: self._reward(step, name, affinity) for name, affinity in affinities}
                spoken += [(i, name) for name in candidates if name in request.proposals]
        if spoken:
            foreseen = self._beliefs.foreseen([step.pairs[i] for i, _ in spoken], [name for _, name in spoken])
            for (i, name), tokens in zip(spoken, foreseen.sum(axis=1).tolist(), strict=True):
                rewards[i][name] = tokens
        return rewards

    def _reward(self, step: Step, name: str, affinity: Affinity) -> float:
        """By the record; paid drafting costs the tokens that plain decoding would have produced meanwhile."""
        reward = self._beliefs.expected_reward(affinity)
        if name in self._beliefs.free:
            return reward
        depth = min(1 + round(reward), self._settings.max_draft_len)
        return reward - step.costs.draft_ms(name, depth, step.rows) / step.plain_ms
