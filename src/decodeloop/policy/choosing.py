"""Who drafts for a request, and how much at most, before anything is drawn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
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
from decodeloop.policy.tracks import Affinity, Track
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
        self._least_worths: dict[tuple[int, int, int, int], float] = {}

    def choices(self, step: Step) -> Chosen:
        self._turn += 1
        if self._turn % WORTH_STEPS == 0:
            self._least_worths.clear()
        choices = [SILENCE if is_silent(request) else self._imposed(request) for request in step.requests]
        worths = self._worths(step) if self._turn % LISTEN else repeat(0.0)
        all_heard, drafts = True, list[Survival]()
        for row, (choice, worth) in enumerate(zip(choices, worths, strict=False)):
            draft: Survival = ()
            if choice.reason is Reason.FORCED:
                all_heard = False
            elif choice.draft_len:
                choices[row], draft = self._settle(step, row, choice, worth)
                all_heard = all_heard and len(draft) == choices[row].draft_len
            drafts.append(draft)
        return Chosen(choices, drafts if all_heard else None)

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

    def _heard(self, request: DecodeRequest, track: Track) -> tuple[list[Proposal], list[str]]:
        """What was said that may be played, and who was not asked."""
        heard, silent = list[Proposal](), list[str]()
        for name in self._candidates(request):
            said = request.proposals.get(name)
            if said is None:
                silent.append(name)
                continue
            self._beliefs.free.add(name)
            if len(said):
                affinity = self._beliefs.affinity(track, request, name)
                heard.append(Proposal(name, said, self._beliefs.meaning(affinity, said)))
        return heard, silent

    def _settle(self, step: Step, row: int, choice: Choice, worth: float) -> tuple[Choice, Survival]:
        """Who drafts for the row, and the survival of that draft if it has been proposed already; else ().

        worth: a proposal whose first token is less likely is not worth a look.
        """
        heard, silent = self._heard(step.requests[row], step.tracks[row])
        worthy = [proposal for proposal in heard if proposal.meaning.first >= worth]
        if silent:
            name = self._pick(step, row, {proposal.drafter: proposal.value for proposal in worthy}, silent)
            played = next((proposal for proposal in worthy if proposal.drafter == name), None)
            if played is None:
                return choice._replace(drafter=name), ()
        elif worthy:
            played = worthy[0] if len(worthy) == 1 else max(worthy, key=attrgetter("value"))
        elif heard:
            return Choice(0, None, self.why_not(step, max(proposal.meaning.first for proposal in heard))), ()
        else:
            return SILENCE, ()
        length = min(choice.draft_len, len(played.said))
        return Choice(length, played.drafter, choice.reason), played.meaning.survival(length)

    def _worths(self, step: Step) -> Iterable[float]:
        """For each request. step.least_worth hardly changes from step to step."""
        load = step.load
        key = step.rows, load.running, load.prefill_tokens, load.context_tokens.bit_length()
        least = self._least_worths.get(key)
        if least is None:
            least = self._least_worths[key] = step.least_worth
        edges = step.edges
        return repeat(least) if edges is None else [least / edge for edge in edges]

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
            return choice._replace(drafter=free[int(np.argmax(foreseen))])
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
