"""Tables in PostgreSQL, and what one settlement or idempotency key does to them.

`settled` holds charges alone; counters are those plus open reservations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from decodeloop.gateway.store import SETTLING_S, Idempotency, Recalled, Refusal, Reserved
from decodeloop.gateway.store.columns import ADDED, COLUMNS, NAMES, from_values, read_holds
from decodeloop.governance.ledger import LedgerRow, Outcome, charge_of, correction
from decodeloop.governance.quota import Hold, charged
from decodeloop.types import Usage

__all__ = ["ADD", "SCHEMA_LOCK", "SELECT", "TABLES", "Settled", "entry_of", "keep", "recall", "taken"]

_COLUMNS = ", ".join(f"{name} {kind} NOT NULL" for name, kind, _ in COLUMNS)
SELECT = f"SELECT {', '.join(NAMES)}, holds FROM ledger"
ADD = """INSERT INTO settled VALUES ($1, $2, $3, $4)
          ON CONFLICT (counter, slice) DO UPDATE SET used = settled.used + excluded.used"""
_LATER = " ".join(f"ALTER TABLE ledger ADD COLUMN IF NOT EXISTS {name} text NOT NULL DEFAULT '';" for name in ADDED)
TABLES = f"""
CREATE TABLE IF NOT EXISTS ledger ({_COLUMNS}, holds text NOT NULL, PRIMARY KEY (request_id, entry));
{_LATER}
CREATE INDEX IF NOT EXISTS ledger_ended ON ledger (ended_s);
CREATE TABLE IF NOT EXISTS settled (counter text NOT NULL, slice bigint NOT NULL, used bigint NOT NULL,
    until_s double precision NOT NULL, PRIMARY KEY (counter, slice));
CREATE TABLE IF NOT EXISTS reservations (id text PRIMARY KEY, instance text NOT NULL, body text NOT NULL,
    holds text NOT NULL);
CREATE TABLE IF NOT EXISTS idempotency (owner text NOT NULL, key text NOT NULL, digest bytea NOT NULL,
    request_id text NOT NULL UNIQUE, at_s double precision NOT NULL, PRIMARY KEY (owner, key));
CREATE TABLE IF NOT EXISTS answers (request_id text PRIMARY KEY, organization text NOT NULL,
    at_s double precision NOT NULL, size bigint NOT NULL, body bytea NOT NULL);
CREATE INDEX IF NOT EXISTS answers_of ON answers (organization, at_s);
CREATE TABLE IF NOT EXISTS instances (id text PRIMARY KEY, seen_s double precision NOT NULL);
CREATE TABLE IF NOT EXISTS records (kind text NOT NULL, id text NOT NULL, body text NOT NULL, PRIMARY KEY (kind, id));
CREATE TABLE IF NOT EXISTS revision (value bigint NOT NULL);
INSERT INTO revision SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM revision);
CREATE TABLE IF NOT EXISTS fence (generation text NOT NULL);
INSERT INTO fence SELECT '' WHERE NOT EXISTS (SELECT 1 FROM fence);
"""
SCHEMA_LOCK = 0x6465636F  # of all gateways that start at once, one makes the tables


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of a reservation: what its holds were charged (None: it held nothing), and a correction's
    differences, with the copy of the counters that doesn't have them yet."""

    amounts: tuple[int, ...] | None
    differences: tuple[Hold, ...] = ()
    generation: str = ""


async def taken(db: Any, named: Idempotency, id: str, now_s: float) -> Reserved | None:
    """Take the key for the request; else why not."""
    while True:
        got = await db.fetchval(
            "INSERT INTO idempotency VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING RETURNING 1",
            named.owner,
            named.key,
            named.digest,
            id,
            now_s,
        )
        if got is not None:
            return None
        found = await _holder(db, named)
        if found is not None:  # else it was given back meanwhile
            return found


async def _holder(db: Any, named: Idempotency) -> Reserved | None:
    """Who has the key; None: nobody."""
    found = await db.fetchrow(
        """SELECT digest, request_id, EXISTS (SELECT 1 FROM reservations WHERE id = request_id) AS is_open
           FROM idempotency WHERE owner = $1 AND key = $2""",
        named.owner,
        named.key,
    )
    if found is None:
        return None
    digest, earlier, is_open = found
    if digest != named.digest:
        return Reserved(refusal=Refusal.MISMATCH, earlier=earlier)
    return Reserved(refusal=Refusal.IN_FLIGHT if is_open else Refusal.USED, earlier=earlier)


async def recall(db: Any, named: Idempotency, now_s: float) -> Recalled:
    taken = await _holder(db, named)
    if taken is None or taken.refusal is not Refusal.USED:
        return Recalled() if taken is None else Recalled(taken.refusal, taken.earlier)
    kept = await db.fetchval("SELECT body FROM answers WHERE request_id = $1", taken.earlier)
    if kept is not None:
        return Recalled(Refusal.USED, taken.earlier, bytes(kept))
    found = await db.fetchrow(f"{SELECT} WHERE request_id = $1 AND entry = 0", taken.earlier)
    entered = None if found is None else from_values(tuple(found))
    if entered is not None and entered.outcome is Outcome.ESTIMATED:
        return Recalled(Refusal.IN_FLIGHT, taken.earlier, estimate=entered)
    lately = entered is not None and entered.ended_s > now_s - SETTLING_S
    return Recalled(Refusal.IN_FLIGHT if lately else Refusal.USED, taken.earlier)


async def keep(db: Any, named: Idempotency, request_id: str, answer: bytes, now_s: float, *, room: int) -> None:
    """room: bytes of all answers of the organization."""
    if len(answer) > room:
        return
    kept = await db.fetchval(
        """INSERT INTO answers SELECT request_id, $4, $5, $6, $7 FROM idempotency
           WHERE owner = $1 AND key = $2 AND request_id = $3 ON CONFLICT DO NOTHING RETURNING 1""",
        named.owner,
        named.key,
        request_id,
        named.organization,
        now_s,
        len(answer),
        answer,
    )
    if kept is not None:
        await db.execute(
            """DELETE FROM answers WHERE request_id IN (SELECT request_id FROM (
                   SELECT request_id, sum(size) OVER (ORDER BY at_s DESC, request_id) AS newer FROM answers
                   WHERE organization = $1) AS aged WHERE newer > $2)""",
            named.organization,
            room,
        )


async def entry_of(
    db: Any, row: LedgerRow, held: Sequence[Hold] | None
) -> tuple[LedgerRow | None, tuple[Hold, ...], Settled]:
    """What a settlement enters into the ledger (None: nothing), with what its counters are charged."""
    charge = charge_of(row.price, row.usage)
    if held is not None:
        real = charged(held, charge)
        return row, real, Settled(tuple(hold.amount for hold in real))
    entries = await db.fetch(f"{SELECT} WHERE request_id = $1 ORDER BY entry", row.request_id)
    if not entries:  # it was served while nothing could be reserved; or it never came to be
        return (row if row.usage != Usage() else None), (), Settled(None)
    first, assumed = from_values(tuple(entries[0])), read_holds(entries[0]["holds"])
    before = tuple(hold.amount for hold in assumed)
    if len(entries) > 1 or first.outcome is not Outcome.ESTIMATED:
        return None, (), Settled(before)
    difference = tuple(
        replace(after, amount=after.amount - hold.amount)
        for hold, after in zip(assumed, charged(assumed, charge), strict=True)
    )
    generation = await db.fetchval("SELECT generation FROM fence FOR SHARE")  # the copy that won't have it
    return correction(first, row, entry=1), difference, Settled(before, difference, generation)
