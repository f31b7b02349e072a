"""What is remembered of each running request."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from decodeloop.policy.bounded import make_room
from decodeloop.types import DecodeRequest, RequestClass, StepRecord, StepRow

CAPACITY = 4096  # requests; the least recently seen is forgotten first
OWN_KEPT = 0.5 ** (1 / 16)  # a draft: half of a request's record is of its last 16
OWN_WEIGHT = 1.0  # information that its class's record counts for beside the request's own
STANDING, GRAIN = 3.0, 0.125  # logits: the most, either way; finer says nothing, and equals are calibrated once
REWARD_KEPT = 1.0 - 1.0 / 12.0  # a step
LEAST_CREDIT, MOST_CREDIT = -4.0, 8.0  # tokens
FIRST_CREDIT = 0.0  # tokens, of a class that nobody knows
MOST_SLACK = 1.0  # tokens of credit that come of not having been slowed as far as is allowed, not of a gain
TYPICAL_KEPT = 1.0 - 1.0 / 256.0  # of a class's typical credit, a step of one request


class Affinity:
    """How a drafter does for one request.

    standing: by how many logits its acceptance exceeds its class's, shrunk towards 0 (one scoring step).
    rewards, steps: discounted, for Hedge.
    leaf, generation: its row among the learned ones, and when that was looked up.
    """

    __slots__ = ("_information", "_surprise", "generation", "leaf", "rewards", "standing", "steps")

    def __init__(self) -> None:
        self._surprise = self._information = self.standing = self.rewards = self.steps = 0.0
        self.leaf = self.generation = -1

    def score(self, surprise: float, information: float) -> None:
        """A draft had `surprise` more tokens accepted than its class led to expect at the positions it reached.

        information: the variance of that number.
        """
        self._surprise = self._surprise * OWN_KEPT + surprise
        self._information = self._information * OWN_KEPT + information
        shift = self._surprise / (self._information + OWN_WEIGHT)
        self.standing = GRAIN * round(min(max(shift, -STANDING), STANDING) / GRAIN)

    def reward(self, tokens: float) -> None:
        self.rewards = self.rewards * REWARD_KEPT + tokens
        self.steps = self.steps * REWARD_KEPT + 1.0


class Track:
    """One request."""

    __slots__ = ("affinities", "credit", "drafter", "read", "rested", "stays")

    def __init__(self) -> None:
        self.affinities: dict[str, Affinity] = {}  # by drafter
        self.drafter: str | None = None  # the one chosen last, and for how many more steps
        self.stays = 0
        self.read: dict[str, int] = {}  # paid drafter -> tokens it has read
        self.credit = 0.0  # tokens beyond what it was promised by now; may be a debt
        self.rested = 0  # resting steps of all, up to which this one's are booked


class Tracks:
    """A new request begins with what its class has in credit typically: whose kind has its share of the gain by and by
    can wait for it, whose hasn't can't."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._tracks: OrderedDict[tuple[str, str], Track] = OrderedDict()
        self._typical: dict[tuple[str, RequestClass], float] = {}
        self._rested = 0

    def rest(self) -> None:
        """A step passed in which nobody was looked at."""
        self._rested += 1

    def of(self, requests: Sequence[DecodeRequest | StepRow]) -> list[Track]:
        """Each request's track, begun now if it is new."""
        return [self._one(request) for request in requests]

    def _one(self, request: DecodeRequest | StepRow) -> Track:
        key = request.tenant, request.request_id
        track = self._tracks.get(key)
        if track is None:
            if len(self._tracks) >= self._capacity:
                self._tracks.popitem(last=False)
            track = self._tracks[key] = Track()
            track.rested = self._rested
            typical = self._typical.get((request.tenant, request.request_class), FIRST_CREDIT)
            track.credit = typical if typical > MOST_SLACK else min(typical, 0.0)  # slack is the request's own
        else:
            self._tracks.move_to_end(key)
        return track

    def spare(self, tracks: Sequence[Track], budget: float) -> None:
        """Book resting steps: in each of its own, a request might have lost `budget` tokens to the others."""
        for track in tracks:
            if track.rested == self._rested:
                continue
            tokens, track.rested = budget * (self._rested - track.rested), self._rested
            track.credit += max(min(tokens, MOST_SLACK - track.credit), 0.0)

    def credit(self, record: StepRecord, tracks: Sequence[Track], slowness: float, budget: float) -> None:
        """Book a step that took `slowness` times a plain one. tracks: of the record's rows. budget: the share of plain
        speed that a request may lose."""
        for row, track in zip(record.rows, tracks, strict=True):
            if row.emitted + row.discarded and not row.prefill_tokens:
                credit = track.credit + row.accepted + 1 - slowness
                credit += min(budget * slowness, max(MOST_SLACK - credit, 0.0))
                track.credit = min(max(credit, LEAST_CREDIT), MOST_CREDIT)
                key = row.tenant, row.request_class
                typical = self._typical.get(key)
                if typical is None:
                    make_room(self._typical, key)
                    typical = FIRST_CREDIT
                self._typical[key] = track.credit + TYPICAL_KEPT * (typical - track.credit)
