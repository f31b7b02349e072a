"""What is remembered of each running request."""

from __future__ import annotations

import math
from collections import OrderedDict

from decodeloop.policy.hedge import MEMORY, Record
from decodeloop.types import StepRecord

CAPACITY = 4096  # requests; the least recently seen is forgotten first
OWN_MEMORY = 0.5 ** (1 / 16)  # kept a draft: half of a request's record is of its last 16
OWN_WEIGHT = 4.0  # tokens of its class that a new request is taken to have produced
STANDING = 2.0  # in logarithms, either way

LEAST_CREDIT, MOST_CREDIT = -4.0, 8.0  # tokens


class Track:
    """One request: how it fares against its class, which drafters suit it, what its objective lacks."""

    __slots__ = ("_expected", "_hits", "behind", "credit", "missed", "rewards")

    def __init__(self) -> None:
        self._hits: dict[str, float] = {}
        self._expected: dict[str, float] = {}
        self.rewards = Record(MEMORY)
        self.missed: dict[str, int] = {}  # paid drafter -> tokens it has not read
        self.behind = 0.0  # tokens behind its TPOT objective (interactive)
        self.credit = 0.0  # tokens beyond what it was promised by now; may be a debt

    def standing(self, drafter: str) -> float:
        """log of accepted over expected, shrunk towards 0."""
        hits, expected = self._hits.get(drafter, 0.0), self._expected.get(drafter, 0.0)
        ratio = math.log((hits + OWN_WEIGHT) / (expected + OWN_WEIGHT))
        return min(max(ratio, -STANDING), STANDING)

    def score(self, drafter: str, hits: float, expected: float) -> None:
        """A draft had `hits` accepted where its class led to expect `expected`, at the positions it reached."""
        self._hits[drafter] = self._hits.get(drafter, 0.0) * OWN_MEMORY + hits
        self._expected[drafter] = self._expected.get(drafter, 0.0) * OWN_MEMORY + expected


class Tracks:
    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._tracks: OrderedDict[tuple[str, str], Track] = OrderedDict()

    def of(self, tenant: str, request_id: str) -> Track:
        """The request's track, begun now if it is new."""
        key = tenant, request_id
        track = self._tracks.get(key)
        if track is None:
            if len(self._tracks) >= self._capacity:
                self._tracks.popitem(last=False)
            track = self._tracks[key] = Track()
        else:
            self._tracks.move_to_end(key)
        return track

    def credit(self, record: StepRecord, due: float) -> None:
        """Book a step in which every request was due `due` tokens."""
        for row in record.rows:
            if row.emitted + row.discarded and not row.prefill_tokens:
                track = self.of(row.tenant, row.request_id)
                track.credit = min(max(track.credit + row.accepted + 1 - due, LEAST_CREDIT), MOST_CREDIT)
