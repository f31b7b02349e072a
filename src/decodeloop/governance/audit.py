"""An append-only chain of what was decided: each entry is sealed together with the one before it.

Any edit, deletion, insertion or reordering breaks the chain where it happened; a cut end contradicts the head, which is
kept apart from the chain. With a keyed seal nobody without the key can make a chain that verifies.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from decodeloop.types import Identity

__all__ = [
    "START",
    "Entry",
    "Fault",
    "Head",
    "Seal",
    "chained",
    "head_line",
    "plain_seal",
    "read_head",
    "sealed",
    "verify",
]

Seal = Callable[[bytes], str]

START = "0" * 64  # what the first entry is chained to


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """kind: request, denial, admin or system. content: what was said, where grant and caller consent to keep it."""

    at_s: float
    kind: str
    identity: Identity = Identity()
    request_id: str = ""
    capability: str = ""  # what was exercised: model, pool, overrides
    decision: str = ""
    reason: str = ""
    regime: str = ""
    certificate: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    content: Any = None


@dataclass(frozen=True, slots=True)
class Head:
    """The last entry of a chain: how many there are, and its seal."""

    count: int = 0
    seal: str = START


@dataclass(frozen=True, slots=True)
class Fault:
    """Where a chain is not what was written, and what is wrong. place counts entries from 1."""

    place: int
    what: str


def plain_seal(body: bytes) -> str:
    """SHA-256: shows accidents and careless edits."""
    return hashlib.sha256(body).hexdigest()


def sealed(key: str) -> Seal:
    """HMAC-SHA-256 with `key`: shows forgery too, to whoever has the key."""
    secret = key.encode()
    return lambda body: hmac.new(secret, body, hashlib.sha256).hexdigest()


def chained(entry: Entry, head: Head, seal: Seal) -> tuple[str, Head]:
    """The entry's line after `head`, and the new head."""
    who = entry.identity
    value: dict[str, Any] = {
        "seq": head.count + 1,
        "at": entry.at_s,
        "kind": entry.kind,
        "who": [who.organization, who.user, who.agent, who.capability, who.key_id],
        "request_id": entry.request_id,
        "capability": entry.capability,
        "decision": entry.decision,
        "reason": entry.reason,
        "regime": entry.regime,
        "certificate": entry.certificate,
        "details": dict(entry.details),
        "content": entry.content,
        "previous": head.seal,
    }
    body = _canonical(value)
    own = seal(body)
    return f'{body.decode()[:-1]},"seal":"{own}"}}', Head(head.count + 1, own)


def head_line(head: Head, seal: Seal) -> str:
    value = {"count": head.count, "seal": head.seal}
    return _canonical({**value, "sealed": seal(_canonical(value))}).decode()


def read_head(line: str, seal: Seal) -> Head:
    """Raises ValueError: no head, or not sealed by this key."""
    try:
        value = json.loads(line)
        head = Head(int(value["count"]), str(value["seal"]))
        given = str(value["sealed"])
    except (ValueError, KeyError, TypeError):
        raise ValueError("the head is not readable") from None
    if not hmac.compare_digest(seal(_canonical({"count": head.count, "seal": head.seal})), given):
        raise ValueError("the head's seal is wrong: it was changed, or sealed with another key")
    return head


def verify(lines: Iterable[str], seal: Seal, head: Head | None = None) -> tuple[Head, Fault | None]:
    """How far the chain holds, and the first fault. A chain may be longer than `head`, never shorter or other."""
    got = Head()
    for line in lines:
        place = got.count + 1
        fault = _fault(line, got, seal)
        if fault is not None:
            return got, Fault(place, fault)
        got = Head(place, json.loads(line)["seal"])
        if head is not None and head.count == got.count and head.seal != got.seal:
            return got, Fault(place, "this is not the entry that the head was written for")
    if head is not None and got.count < head.count:
        return got, Fault(got.count + 1, f"the end is cut off: {head.count} entries were written, {got.count} are here")
    return got, None


def _fault(line: str, before: Head, seal: Seal) -> str | None:
    try:
        value = json.loads(line)
        own = value.pop("seal")
        number, previous = value["seq"], value["previous"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return "this is no entry"
    if not hmac.compare_digest(seal(_canonical(value)), str(own)):
        return "its content is not what was sealed"
    if number != before.count + 1:
        return f"number {number} stands where {before.count + 1} belongs: entries are missing or moved"
    if previous != before.seal:
        return "it does not follow from the entry before it"
    return None


def _canonical(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
