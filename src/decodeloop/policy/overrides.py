"""What a caller asked of speculation, and what caps leave of it. Every policy starts here."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import NamedTuple

from decodeloop.policy import PolicySettings
from decodeloop.types import DecodeRequest, Plan, Reason, SpeculationMode

__all__ = ["SILENCE", "Choice", "ceiling", "choose", "drafter_for", "is_silent", "override", "plan_of", "silent_plan"]


class Choice(NamedTuple):
    """One request's part of a Plan. draft_len 0 has no drafter."""

    draft_len: int
    drafter: str | None
    reason: Reason


SILENCE = Choice(0, None, Reason.NO_PROPOSAL)


def override(request: DecodeRequest, settings: PolicySettings) -> Choice | None:
    """What the caller's mode decides over any policy's head; None: the policy is free to choose.

    off: nothing, ever (denied, where the caller may not speculate). force: the length asked for (the policy's maximum
    when none was), as far as the caps allow.
    """
    asked = request.speculation
    if asked.mode is SpeculationMode.AUTO:
        return None
    if asked.mode is SpeculationMode.OFF:
        return Choice(0, None, Reason.DENIED if asked.denied else Reason.OFF_USER)
    wanted = settings.max_draft_len if asked.draft_len is None else asked.draft_len
    forced = choose(wanted, Reason.FORCED, request, settings)
    return Choice(forced.draft_len, forced.drafter, Reason.FORCED) if forced.draft_len else forced


def ceiling(request: DecodeRequest, settings: PolicySettings) -> int:
    """The most that may be drafted for the request: the policy's maximum and the engine's room."""
    return max(0, min(settings.max_draft_len, request.max_draft_len))


def drafter_for(request: DecodeRequest, settings: PolicySettings) -> str | None:
    """The caller's drafter, else the operator's, else the engine's first. None: nothing can draft for it now.

    A caller who named a drafter gets that one or none.
    """
    if request.speculation.drafter is not None:
        return request.speculation.drafter if request.speculation.drafter in request.drafters else None
    if settings.drafter in request.drafters:
        return settings.drafter
    return request.drafters[0] if request.drafters else None


def choose(wanted: int, reason: Reason, request: DecodeRequest, settings: PolicySettings) -> Choice:
    """`wanted` tokens for `reason`, or what caps leave of them for the cap's reason."""
    if wanted <= 0:
        return Choice(0, None, reason)
    drafter = drafter_for(request, settings)
    if drafter is None:
        return Choice(0, None, Reason.NO_PROPOSAL)
    draft_len = min(wanted, ceiling(request, settings))
    if request.cap is not None and request.max_draft_len < min(wanted, settings.max_draft_len):
        reason = request.cap
    return Choice(draft_len, drafter if draft_len else None, reason)


def is_silent(request: DecodeRequest, resting: AbstractSet[str] = frozenset()) -> bool:
    """Nothing is imposed on it, and whoever could draft for it rests or was asked and has nothing to say."""
    proposals, asked = request.proposals, request.speculation
    if asked.mode is not SpeculationMode.AUTO or len(proposals) + len(resting) < len(request.drafters):
        return False
    if any(proposals.values()) or (resting and asked.drafter is not None):
        return False
    return all(name in proposals or name in resting for name in request.drafters)


def plan_of(choices: Iterable[Choice]) -> Plan:
    columns = tuple(zip(*choices, strict=True))
    return Plan(*columns) if columns else Plan((), (), ())


@lru_cache(maxsize=256)
def silent_plan(rows: int, reason: Reason) -> Plan:
    """Of requests for which nobody has anything to say."""
    return plan_of([SILENCE._replace(reason=reason)] * rows)
