"""Idempotency keys and the answers kept under them, as steps of an SQLite transaction."""

from __future__ import annotations

import sqlite3

from decodeloop.gateway.store import SETTLING_S, Idempotency, Recalled, Refusal, Reserved
from decodeloop.gateway.store.columns import NAMES, from_values
from decodeloop.governance.ledger import Outcome

__all__ = ["keep", "recall", "taken"]

Connection = sqlite3.Connection

_SELECT = f"SELECT {', '.join(NAMES)}, holds FROM ledger"


def taken(db: Connection, named: Idempotency) -> Reserved | None:
    """Who has the key; None: nobody."""
    found = db.execute(
        "SELECT digest, request_id FROM idempotency WHERE owner = ? AND key = ?", (named.owner, named.key)
    ).fetchone()
    if found is None:
        return None
    digest, earlier = found
    if digest != named.digest:
        return Reserved(refusal=Refusal.MISMATCH, earlier=earlier)
    is_open = db.execute("SELECT 1 FROM reservations WHERE id = ?", (earlier,)).fetchone()
    return Reserved(refusal=Refusal.IN_FLIGHT if is_open else Refusal.USED, earlier=earlier)


def recall(db: Connection, named: Idempotency, now_s: float) -> Recalled:
    holder = taken(db, named)
    if holder is None or holder.refusal is not Refusal.USED:
        return Recalled() if holder is None else Recalled(holder.refusal, holder.earlier)
    kept = db.execute("SELECT body FROM answers WHERE request_id = ?", (holder.earlier,)).fetchone()
    if kept is not None:
        return Recalled(Refusal.USED, holder.earlier, kept[0])
    found = db.execute(f"{_SELECT} WHERE request_id = ? AND entry = 0", (holder.earlier,)).fetchone()
    entered = None if found is None else from_values(found)
    if entered is not None and entered.outcome is Outcome.ESTIMATED:
        return Recalled(Refusal.IN_FLIGHT, holder.earlier, estimate=entered)
    lately = entered is not None and entered.ended_s > now_s - SETTLING_S
    return Recalled(Refusal.IN_FLIGHT if lately else Refusal.USED, holder.earlier)


def keep(db: Connection, named: Idempotency, request_id: str, answer: bytes, now_s: float, *, room: int) -> None:
    """room: bytes of all answers of the organization."""
    has_it = db.execute(
        "SELECT 1 FROM idempotency WHERE owner = ? AND key = ? AND request_id = ?", (named.owner, named.key, request_id)
    ).fetchone()
    if has_it is None or len(answer) > room:
        return
    db.execute(
        "INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?)",
        (request_id, named.organization, now_s, len(answer), answer),
    )
    db.execute(
        """DELETE FROM answers WHERE request_id IN (SELECT request_id FROM (
               SELECT request_id, sum(size) OVER (ORDER BY at_s DESC, request_id) AS newer FROM answers
               WHERE organization = ?) WHERE newer > ?)""",
        (named.organization, room),
    )
