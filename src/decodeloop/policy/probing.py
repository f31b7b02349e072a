"""What is not seen any more is asked anew: the plain step, and drafters that cost time.

Who was left out may have become fast, or good. It is tried on one request, FIRST_WAIT steps after it last played, after
a try in vain as many steps later, then twice as many for every further one, and never before time has paid for the last
one: what takes 40 ms in steps of 5 is tried at most every 800 steps. A try that surprises or pays for itself is
followed by the next. So who is worth it again is back within LONGEST_WAIT steps or those that pay for a try, whichever
are more, plus the tries that it takes to believe it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from decodeloop.policy.beliefs import Beliefs
from decodeloop.policy.bounded import make_room
from decodeloop.policy.guard import Guard
from decodeloop.policy.lost_time import LOST_SHARE
from decodeloop.policy.overrides import Choice
from decodeloop.policy.paid import SETTLED, unread
from decodeloop.policy.sizing import Step
from decodeloop.types import DecodeRequest, Reason, SpeculationMode, StepRecord

STALE_PLAIN_STEPS = 4096  # without a plain step at this load, its time is asked anew
STALENESS_STEPS = 16  # after which that is looked at again
PROBE_DEPTH = 2
FIRST_WAIT, LONGEST_WAIT = 512, 2048  # steps
SURPRISE = 0.5  # of what a probe was expected to take: less is a reason for the next
MOST_AT_ONCE = 16  # probes without a wait


@dataclass(slots=True)
class _Probes:
    """Of one drafter. due: the step from which on it is tried. wait: before that, after the last try.

    expected_ms, plain_ms, ms: of the last try, what it was expected to take beside a plain step of so long, and took.
    """

    due: int
    wait: int = FIRST_WAIT // 2
    at_once: int = 0
    expected_ms: float = 0.0
    plain_ms: float = 1.0
    ms: float = 0.0

    def took(self, now: int, ms: float, plain_steps: float) -> None:
        """plain_steps: saved by what was accepted of the try."""
        self.ms = ms
        pays = plain_steps * self.plain_ms > ms
        if (ms < SURPRISE * self.expected_ms or pays) and self.at_once < MOST_AT_ONCE:
            self.due, self.wait, self.at_once = now + 1, FIRST_WAIT // 2, self.at_once + 1
        else:
            self.wait, self.at_once = min(2 * self.wait, LONGEST_WAIT), 0
            self.due = now + self.wait

    @property
    def paid_steps(self) -> int:
        """Those that pay for the last try."""
        return math.ceil(self.ms / (LOST_SHARE * self.plain_ms))


class Probing:
    """Owns when each was last asked, and what came of it. now: steps that have passed."""

    def __init__(self, beliefs: Beliefs, guard: Guard) -> None:
        self._beliefs, self._guard = beliefs, guard
        self._probes: dict[str, _Probes] = {}

    def wants_plain(self, now: int, step: Step, choices: Sequence[Choice], gain: float) -> bool:
        """Is the plain step, which everything is compared with, long unseen? gain: over plain, forgone in one."""
        if now % STALENESS_STEPS or not any(choice.draft_len for choice in choices):
            return False
        plain_tokens = step.rows + step.load.prefill_tokens
        if step.costs.staleness(plain_tokens, step.load.context_tokens, step.sequences) < STALE_PLAIN_STEPS:
            return False
        if not self._guard.affords_probe():
            return False
        self._guard.spend(max(gain - 1.0, 0.0) * step.plain_ms)
        return True

    def drafters(self, now: int, step: Step, choices: list[Choice]) -> list[Choice]:
        """The choices, in one of which a drafter is tried, if one is due and the guard affords it."""
        playing = {choice.drafter for choice in choices}
        known = {name for request in step.requests for name in request.drafters}
        for name in sorted(known - self._beliefs.free - playing):
            if now >= self._of(name, now).due and self._guard.affords_probe():
                rows = [i for i, choice in enumerate(choices) if _may_probe(step.requests[i], choice, name)]
                if rows:
                    return self._tried(self._of(name, now), step, choices, rows, name)
        return choices

    def observe(self, now: int, record: StepRecord) -> None:
        """What a try took in fact is known at once."""
        for row in record.rows:
            name = row.drafter
            if name is None or not row.draft_len or name in self._beliefs.free:
                continue
            own = self._of(name, now)
            if row.reason is Reason.PROBE:
                self._guard.spend(record.draft_ms - own.expected_ms)
                own.took(now, record.draft_ms, row.accepted / len(record.rows))
            else:
                self._probes[name] = _Probes(now + FIRST_WAIT)

    def describe(self, now: int) -> list[dict[str, Any]]:
        """Per paid drafter: what the last try took, and within how many steps it is tried again."""
        return [
            {
                "drafter": name,
                "probe_ms": round(own.ms, 3),
                "again_within_steps": max(own.due - now, own.paid_steps),
            }
            for name, own in list(self._probes.items())
        ]

    def _of(self, name: str, now: int) -> _Probes:
        if name not in self._probes:
            make_room(self._probes, name)
            self._probes[name] = _Probes(now + FIRST_WAIT)
        return self._probes[name]

    def _tried(self, own: _Probes, step: Step, choices: list[Choice], rows: Sequence[int], name: str) -> list[Choice]:
        row = min(rows, key=lambda i: unread(step, name, [i]))
        cost = step.costs.draft_ms(name, PROBE_DEPTH, 1)
        cost += step.costs.catch_up_ms(name, unread(step, name, [row]))
        own.expected_ms, own.plain_ms = cost, step.plain_ms
        self._guard.spend(cost)
        return [Choice(PROBE_DEPTH, name, Reason.PROBE) if i == row else choice for i, choice in enumerate(choices)]


def _may_probe(request: DecodeRequest, choice: Choice, name: str) -> bool:
    """A request that leaves all to the policy and has room."""
    asked = request.speculation
    return (
        name in request.drafters
        and asked.mode is SpeculationMode.AUTO
        and asked.drafter in (None, name)
        and asked.draft_len is None
        and choice.reason not in SETTLED
        and request.max_draft_len >= PROBE_DEPTH
    )
