"""What clients told of answers, as `decodeloop economics --events` reads it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from decodeloop.gateway.store.events import ToldEvent
from decodeloop.governance.ledger import LedgerRow

__all__ = ["event_lines"]


def event_lines(events: Iterable[ToldEvent], rows: Iterable[LedgerRow]) -> Iterator[dict[str, Any]]:
    """An event's arm: what its client said, else the pool that answered its request, or most of its session's."""
    pools: dict[tuple[str, str], str] = {}
    sessions: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for row in rows:
        if row.entry == 0:
            pools[row.identity.organization, row.request_id] = row.pool
            if row.task:
                sessions[row.identity.organization, row.task][row.pool] += 1
    for event in events:
        of = event.organization
        most = sessions[of, event.session_id].most_common(1) if event.session_id else []
        arm = event.arm or pools.get((of, event.request_id), "") or (most[0][0] if most else "")
        yield {
            "at": datetime.fromtimestamp(event.at_s, UTC).isoformat(),
            "event": event.event,
            **({"request_id": event.request_id} if event.request_id else {}),
            **({"session_id": event.session_id} if event.session_id else {}),
            "arm": arm,
            "organization": of,
            "user": event.user_name,
            "agent": event.agent,
        }
