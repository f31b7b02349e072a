"""Drafters that cost time and have not been worth it for a while are left out of most steps.

Weighing one takes about a millisecond, which is a fifth of a fast step. What it would decide hardly changes while load
and costs don't, so where nobody was given to it PATIENT times it is weighed in every 2nd step, 4th, .. at last in every
LONGEST-th. Learned apart for every octave of requests; a try (`probing`) wakes it, since that may change its cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from decodeloop.policy.bounded import make_room
from decodeloop.policy.overrides import SILENCE, Choice
from decodeloop.types import DecodeRequest, Reason, SpeculationMode

PATIENT, LONGEST = 8, 32
NOBODY: frozenset[str] = frozenset()


@dataclass(slots=True)
class _Rest:
    until: int = 0  # this step
    period: int = 1
    in_vain: int = 0

    def heed(self, now: int, *, plays: bool) -> None:
        if plays:
            self.period, self.in_vain = 1, 0
            return
        self.in_vain += 1
        if self.in_vain >= PATIENT:
            self.period = min(2 * self.period, LONGEST)
            self.until = now + self.period


class Resting:
    """Owns who rests. reason: why, for the requests that nobody else drafts for."""

    def __init__(self) -> None:
        self._rests: dict[tuple[str, int], _Rest] = {}
        self.reason = SILENCE.reason

    def names(self, now: int, requests: Sequence[DecodeRequest]) -> AbstractSet[str]:
        """Who is left out of the step of these requests."""
        octave = len(requests).bit_length()
        names = {name for request in requests for name in request.drafters}
        resting = [name for name in names if (rest := self._rests.get((name, octave))) and now < rest.until]
        return frozenset(resting) if resting else NOBODY

    def heed(self, now: int, paid: AbstractSet[str], choices: Sequence[Choice]) -> None:
        """Of the drafters `paid` that were weighed for them, who plays in these choices?"""
        playing = {choice.drafter for choice in choices if choice.draft_len}
        for name in paid:
            key = name, len(choices).bit_length()
            if key not in self._rests:
                make_room(self._rests, key)
                self._rests[key] = _Rest()
            self._rests[key].heed(now, plays=name in playing)
        costly = any(choice.reason is Reason.OFF_COST for choice in choices)
        self.reason = Reason.OFF_COST if costly else SILENCE.reason


def without(request: DecodeRequest, resting: AbstractSet[str]) -> DecodeRequest:
    """As if those that rest were not there. A caller's own choice stays."""
    asked = request.speculation
    if asked.mode is not SpeculationMode.AUTO or asked.drafter is not None or resting.isdisjoint(request.drafters):
        return request
    return replace(request, drafters=tuple(name for name in request.drafters if name not in resting))
