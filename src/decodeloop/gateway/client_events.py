"""POST /v1/events: what became of answers, told by whoever showed them to people."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any

import orjson
from msgspec import Meta, Struct

from decodeloop.gateway.exchange import Exchange
from decodeloop.gateway.identity import Authenticator
from decodeloop.gateway.settings import Limits
from decodeloop.gateway.store import StoreUnavailable
from decodeloop.gateway.store.events import EventRecords, ToldEvent
from decodeloop.gateway.wire.body import checked, read_object, shown
from decodeloop.governance.settings import EventSettings
from decodeloop.types import Identity, RequestRefused

__all__ = ["KINDS", "ClientEvents", "EventBody"]

OF_REQUESTS = ("suggestion_shown", "suggestion_accepted", "suggestion_rejected")
OF_TASKS = ("task_started", "task_completed", "task_abandoned")
KINDS = (*OF_REQUESTS, *OF_TASKS)
DAY_S = 86400.0
AHEAD_S = 300.0  # that a client's clock may be
MINUTE_S = 60.0

Name = Annotated[str, Meta(min_length=1, max_length=255)]


class OneEvent(Struct, forbid_unknown_fields=True):
    event: Annotated[str, Meta(extra_json_schema={"enum": KINDS})] = ""
    request_id: Name | None = None
    session_id: Name | None = None
    at: Annotated[str, Meta(extra_json_schema={"format": "date-time"})] | None = None
    arm: Annotated[str, Meta(max_length=64)] = ""


class EventBody(OneEvent, forbid_unknown_fields=True):
    """One event, or many as `events`."""

    events: Annotated[list[OneEvent], Meta(min_length=1, max_length=100)] | None = None


@dataclass(slots=True)
class Pace:
    """How many events each identity has told in this minute, to this gateway."""

    most: int
    _minute: int = 0
    _told: Counter[Identity] = field(default_factory=Counter)

    def take(self, identity: Identity, count: int, now_s: float) -> None:
        """Raises RequestRefused where it is too many."""
        minute = int(now_s // MINUTE_S)
        if minute != self._minute:
            self._minute, self._told = minute, Counter()
        if self._told[identity] + count > self.most:
            raise RequestRefused(
                f"{self.most} events a minute are taken of one identity",
                status=429,
                code="rate_limit_exceeded",
                retry_after_s=(minute + 1) * MINUTE_S - now_s,
            )
        self._told[identity] += count


class ClientEvents:
    """clock: Unix seconds."""

    def __init__(
        self,
        records: EventRecords,
        settings: EventSettings,
        authenticator: Authenticator,
        limits: Limits,
        clock: Callable[[], float],
    ) -> None:
        self._records, self._settings, self._authenticator = records, settings, authenticator
        self._limits, self._clock = limits, clock
        self._pace = Pace(settings.per_minute)

    async def __call__(self, exchange: Exchange) -> None:
        identity = self._authenticator.identify(exchange)
        raw = await exchange.read_json(self._limits)
        body: EventBody = checked(read_object(raw, max_depth=self._limits.max_json_depth), EventBody)
        if body.events is not None and (body.event or body.request_id or body.session_id or body.at or body.arm):
            raise RequestRefused("give one event, or many as `events`, not both", param="events")
        given = [body] if body.events is None else body.events
        self._pace.take(identity, len(given), self._clock())
        told = [
            self._event(identity, each, "" if body.events is None else f"events.{place}.")
            for place, each in enumerate(given)
        ]
        try:
            refused = await self._add(identity, told)
        except StoreUnavailable:
            raise RequestRefused("events can't be kept now; try again", status=503, code="books_unavailable") from None
        await exchange.respond(200, orjson.dumps({"accepted": len(told) - len(refused), "refused": refused}))

    async def _add(self, identity: Identity, told: list[ToldEvent]) -> list[dict[str, Any]]:
        """What was not taken, and why."""
        ids = sorted({each.request_id for each in told if each.event in OF_REQUESTS})
        known = await self._records.known(identity.organization, ids) if ids else frozenset()
        good = [each for each in told if each.event in OF_TASKS or each.request_id in known]
        if good:
            await self._records.add(good, most=self._settings.max_events)
        return [
            {"index": place, "why": f"no request {each.request_id!r} was answered to your organization"}
            for place, each in enumerate(told)
            if each not in good
        ]

    def _event(self, identity: Identity, one: OneEvent, place: str) -> ToldEvent:
        if one.event not in KINDS:
            raise RequestRefused(
                f"{place}event: no {shown(one.event)}; choose from {', '.join(KINDS)}", param=f"{place}event"
            )
        needed = "session_id" if one.event in OF_TASKS else "request_id"
        if getattr(one, needed) is None:
            raise RequestRefused(f"a {one.event} event needs its {needed}", param=f"{place}{needed}")
        now_s = self._clock()
        return ToldEvent(
            at_s=now_s if one.at is None else self._at(one.at, now_s, f"{place}at"),
            told_s=now_s,
            organization=identity.organization,
            user_name=identity.user,
            agent=identity.agent,
            event=one.event,
            request_id=one.request_id or "",
            session_id=one.session_id or "",
            arm=one.arm,
        )

    def _at(self, text: str, now_s: float, param: str) -> float:
        try:
            at = datetime.fromisoformat(text)
            at_s = at.timestamp() if at.tzinfo is not None else math.nan
        except (ValueError, OverflowError, OSError):
            at_s = math.nan
        if math.isnan(at_s):
            raise RequestRefused(f"{param} must be a time like 2026-11-30T10:00:00Z", param=param)
        if not now_s - DAY_S * self._settings.most_days <= at_s <= now_s + AHEAD_S:
            raise RequestRefused(
                f"{param} lies more than {self._settings.most_days:g} days back, or ahead", param=param
            )
        return at_s
