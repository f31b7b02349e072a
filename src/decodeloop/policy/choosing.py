"""Who drafts for a request, and how much at most, before anything is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np

from decodeloop.policy import PolicySettings
from decodeloop.policy.beliefs import Beliefs
from decodeloop.policy.few import Survival
from decodeloop.policy.guard import Guard, Stand
from decodeloop.policy.heard import Proposal
from decodeloop.policy.hedge import Draw
from decodeloop.policy.overrides import SILENCE, Choice, choose, is_silent, override
from decodeloop.policy.sizing import Step
from decodeloop.policy.tracks import Affinity
from decodeloop.types import DecodeRequest, Reason, SpeculationMode

STAYS = 4  # steps that a drafter which can't be heard beforehand stays with a request
GROWTH_STEPS = 1024  # calls for which one answer is good enough
WORTH_STEPS = 64  # steps for which the least worth of a proposal is good enough
LISTEN = 16  # every so many steps, proposals that aren't worth verifying are played all the same


@dataclass(frozen=True, slots=True)
class Chosen:
    """drafts: [N] survival of what is played, if all of it has been proposed already; else None."""

    choices: list[Choice]
    drafts: list[Survival] | None


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
        forced = any(choice.reason is Reason.FORCED for choice in choices)
        open_rows = [i for i, c in enumerate(choices) if c.draft_len and c.reason is not Reason.FORCED]
        worth = 0.0 if self._turn % LISTEN == 0 else self._worth(step)
        all_heard, played = not forced, list[tuple[int, Proposal]]()
        for row, proposals in zip(open_rows, self._heard(step, open_rows), strict=True):
            mine = self._settle(step, choices, row, [each for each in proposals if each.first >= worth])
            if mine is not None:
                played.append((row, mine))
            elif choices[row].draft_len:
                all_heard = False
            elif proposals:
                choices[row] = Choice(0, None, self.why_not(step, max(each.first for each in proposals)))
        return Chosen(choices, self._calibrated(choices, played) if all_heard else None)

    def _calibrated(self, choices: Sequence[Choice], played: Sequence[tuple[int, Proposal]]) -> list[Survival]:
        """[N] survival of the proposals that are played, as far as they are."""
        drafts: list[Survival] = [()] * len(choices)
        for row, mine in played:
            drafts[row] = self._beliefs.calibrated(mine.affinity, mine.said, choices[row].draft_len)
        return drafts

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

    def _heard(self, step: Step, rows: Sequence[int]) -> list[list[Proposal]]:
        """What was said that may be played, per row."""
        said: list[tuple[int, str, Sequence[float]]] = []
        for place, row in enumerate(rows):
            request = step.requests[row]
            for name in self._candidates(request):
                proposal = request.proposals.get(name)
                if proposal is not None:
                    self._beliefs.free.add(name)
                    if len(proposal):
                        said.append((place, name, proposal))
        whose = [(step.requests[rows[place]], step.tracks[rows[place]]) for place, _, _ in said]
        affinities = self._beliefs.played(whose, [name for _, name, _ in said])
        heard: list[list[Proposal]] = [[] for _ in rows]
        for (place, name, proposal), affinity in zip(said, affinities, strict=True):
            assert affinity is not None
            (first,) = self._beliefs.calibrated(affinity, proposal, 1)
            heard[place].append(Proposal(name, affinity, proposal, first))
        return heard

    def _settle(self, step: Step, choices: list[Choice], row: int, worthy: Sequence[Proposal]) -> Proposal | None:
        """Settle in `choices` who drafts for the row. worthy: the proposals that are worth a look. Returns the one that
        is played; None: nobody drafts, or somebody who hasn't been heard."""
        request, choice = step.requests[row], choices[row]
        silent = [name for name in self._candidates(request) if name not in request.proposals]
        if silent:
            name = self._pick(step, row, {proposal.drafter: proposal.value for proposal in worthy}, silent)
            played = next((proposal for proposal in worthy if proposal.drafter == name), None)
            if played is None:
                choices[row] = replace(choice, drafter=name)
                return None
        elif worthy:
            played = worthy[0] if len(worthy) == 1 else max(worthy, key=attrgetter("value"))
        else:
            choices[row] = SILENCE
            return None
        length = min(choice.draft_len, len(played.said))
        if length != choice.draft_len or played.drafter != choice.drafter:
            choices[row] = Choice(length, played.drafter, choice.reason)
        return played

    def _worth(self, step: Step) -> float:
        """step.least_worth, which hardly changes from step to step."""
        load = step.load
        key = step.rows, load.running, load.prefill_tokens, load.context_tokens.bit_length()
        if key not in self._worths:
            self._worths[key] = step.least_worth
        return self._worths[key] / step.heaviest

    def _pick(self, step: Step, row: int, rewards: dict[str, float], silent: Sequence[str]) -> str:
        """By Hedge among those heard and those not, who enter it by their record.

        A drafter that nobody can hear beforehand stays with a request for a few steps.
        """
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
