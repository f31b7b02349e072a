"""Answers given before, for requests that can have no other: same words, same seed, same organization."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from decodeloop.gateway.settings import AnswerCacheSettings
from decodeloop.gateway.wire.envelope import Envelope
from decodeloop.gateway.wire.events import event_data
from decodeloop.governance.capability import Place
from decodeloop.types import Usage

__all__ = ["CACHE_POOL", "AnswerCache", "Kept", "is_determined"]

CACHE_POOL = "cache"  # what prices and the ledger call it
LABELS = ("metadata", "user", "request_id", "safety_identifier", "prompt_cache_key", "store", "service_tier")


@dataclass(frozen=True, slots=True)
class Kept:
    """parts: the response's body, or a stream's events as they were sent. place: where it was made. id: its own."""

    parts: tuple[bytes, ...]
    is_stream: bool
    usage: Usage
    place: Place
    id: str
    until_s: float

    def said_as(self, id: str) -> tuple[bytes, ...]:
        """The parts of an answer that is called `id`."""
        if not self.id:
            return self.parts
        new = msgspec.json.encode(id)
        old = [prefix + msgspec.json.encode(self.id) for prefix in (b'"id":', b'"id": ')]
        return tuple(part.replace(old[0], b'"id":' + new).replace(old[1], b'"id": ' + new) for part in self.parts)

    @property
    def size(self) -> int:
        return sum(map(len, self.parts)) + 512


def is_determined(envelope: Envelope) -> bool:
    """Whether asking again would give the same again: nothing is drawn, or from a seed that the caller gave."""
    seed = envelope.body.get("seed")
    return envelope.temperature == 0.0 or (isinstance(seed, int) and seed >= 0)


class _Named(msgspec.Struct):
    id: str = ""


def _id_of(parts: tuple[bytes, ...], *, is_stream: bool) -> str:
    """ "" where it has none."""
    first: bytes | None = parts[0] if parts else None
    if first is not None and is_stream:
        first = event_data(first.partition(b"\n\n")[0] + b"\n\n")
    try:
        return msgspec.json.decode(first or b"{}", type=_Named).id
    except msgspec.MsgspecError:
        return ""


class AnswerCache:
    """By organization and all of a body that matters; the longest unused go first. clock: monotonic seconds."""

    def __init__(self, settings: AnswerCacheSettings, clock: Callable[[], float]) -> None:
        self._most, self._ttl_s, self._clock = settings.max_mb << 20, settings.ttl_s, clock
        self._kept: OrderedDict[bytes, Kept] = OrderedDict()
        self.bytes = 0
        self.hits = 0
        self.misses = 0

    @property
    def enabled(self) -> bool:
        return self._most > 0

    def key(self, organization: str, path: str, body: Mapping[str, Any]) -> bytes:
        told = {name: value for name, value in body.items() if name not in LABELS}
        canonical = msgspec.json.encode([organization, path, told], order="deterministic")
        return hashlib.sha256(canonical).digest()

    def get(self, key: bytes) -> Kept | None:
        kept = self._kept.get(key)
        if kept is not None and kept.until_s <= self._clock():
            self._drop(key)
            kept = None
        if kept is None:
            self.misses += 1
            return None
        self._kept.move_to_end(key)
        self.hits += 1
        return kept

    def put(self, key: bytes, parts: tuple[bytes, ...], usage: Usage, place: Place, *, is_stream: bool) -> None:
        """An answer that alone is more than a tenth of the room is not kept."""
        kept = Kept(parts, is_stream, usage, place, _id_of(parts, is_stream=is_stream), self._clock() + self._ttl_s)
        if kept.size > self._most // 10:
            return
        if key in self._kept:
            self._drop(key)
        self._kept[key] = kept
        self.bytes += kept.size
        while self.bytes > self._most:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: bytes) -> None:
        self.bytes -= self._kept.pop(key).size
