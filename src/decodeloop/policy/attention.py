"""Whom the free drafters are asked for in a step, and whom not: by what asking has brought and what it has cost.

Asking takes time whatever is said: looking up, deciding, learning. Where that buys too little, a sequence is asked at
every 2nd, 4th, .. step only; a draft worth verifying wakes it. Resting sequences are asked in the same steps, so that
the others are plain from end to end. Of a class that hardly ever pays, one sequence in SCOUTS is asked in its first
LATE steps: reading a prompt is most of what asking costs. A class that has paid and stops is given a second look first,
of as many askings as have paid (SECOND_LOOK at most): whether it has changed is told by its labels (`drift`), which end
with the asking. What pays depends on how many sequences share a step, and on whether most are of a kind: who drafts
among others may slow them but little. So all is learned apart for every octave of sequences and for classes among their
own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from decodeloop.policy.bounded import make_room
from decodeloop.types import Decision, RequestClass, Speculation, SpeculationMode

RESTS = (4, 8, 16, 32)  # steps, at most, of a class that PAYS, PAYS_LESS, pays HARDLY, less; powers of two
PATIENT, HURRIED = 8, 2  # askings in vain before a rest, of a class that PAYS and of others
PAYS, PAYS_LESS, HARDLY = 1.75, 1.2, 0.5  # what an asking brings, in what it costs
MOST_PAID = 20.0  # a single one counts for no more
UNKNOWN, UNKNOWN_WEIGHT = 2.0, 4.0  # what asking is taken to bring in a class that nobody knows; askings that is worth
MEMORY = 128.0  # askings
SCOUTS, LATE = 8, 256
SECOND_LOOK, LOOKING = 4096, 2  # askings; steps between them
STEP_MS, SEQUENCE_MS = 0.25, 0.05  # what asking is taken to cost, a step and a sequence, until it was measured
KEPT, OUTLYING = 0.95, 4.0  # of the measured costs, a step; times what was expected: a reading says no more than that


class Asked(Protocol):
    """A request, as far as asking goes."""

    @property
    def request_class(self) -> RequestClass: ...

    @property
    def speculation(self) -> Speculation: ...


class Running(Protocol):
    """A sequence that decodes."""

    @property
    def id(self) -> int: ...

    @property
    def organization(self) -> str: ...

    @property
    def request(self) -> Asked: ...


@dataclass(slots=True)
class _Costs:
    """asking_ms: of one sequence. resting_ms: drafting and overhead of a step in which nobody is asked, once seen."""

    asking_ms: float
    resting_ms: float | None = None

    def see(self, asked: int, ms: float) -> None:
        if not asked:
            resting = ms if self.resting_ms is None else min(ms, OUTLYING * self.resting_ms)
            self.resting_ms = resting if self.resting_ms is None else KEPT * self.resting_ms + (1.0 - KEPT) * resting
        elif self.resting_ms is not None:
            own = min(max(ms - self.resting_ms, 0.0) / asked, OUTLYING * self.asking_ms)
            self.asking_ms = max(KEPT * self.asking_ms + (1.0 - KEPT) * own, 1e-3)


@dataclass(slots=True)
class _Look:
    """askings: that have paid, and have not been spent on a second look at the class, which is due once it pays nowhere
    any more: neither among its own nor among others."""

    askings: int = 0
    places: dict[bool, _Class] = field(default_factory=dict)  # among its own, and not

    def heed(self, paid: float, *, earned: bool) -> None:
        """earned: by this asking. That a class is yet unknown and asked for that is no reason to look at it twice."""
        if paid >= PAYS_LESS:
            self.askings = min(self.askings + earned, SECOND_LOOK)
        elif self.due:
            self.askings -= 1

    @property
    def due(self) -> bool:
        return self.askings > 0 and all(place.paid < PAYS_LESS for place in self.places.values())


@dataclass(slots=True)
class _Class:
    """paid: what an asking has brought, in what it costs, discounted. begun: sequences that began at rest."""

    look: _Look
    paid: float = UNKNOWN
    askings: float = UNKNOWN_WEIGHT
    begun: int = 0

    def add(self, paid: float) -> None:
        self.askings = min(self.askings + 1.0, MEMORY)
        self.paid += (min(paid, MOST_PAID) - self.paid) / self.askings
        self.look.heed(self.paid, earned=paid >= PAYS_LESS)

    def begin(self, now: int, octave: int) -> _Rest:
        """A new sequence of the class, in step `now`."""
        if self.paid >= PAYS_LESS:
            return _Rest(octave, now, 1)
        if self.paid >= HARDLY or self.look.due:
            period = min(RESTS[0], self.longest_period)
            return _Rest(octave, _next(now, period), period)
        self.begun += 1
        return _Rest(octave, now + LATE if self.begun % SCOUTS else _next(now, RESTS[-1]), RESTS[-1])

    @property
    def patience(self) -> int:
        return PATIENT if self.paid >= PAYS else HURRIED

    @property
    def longest_period(self) -> int:
        if self.look.due:
            return LOOKING
        return RESTS[sum(self.paid < enough for enough in (PAYS, PAYS_LESS, HARDLY))]


Kind = tuple[str, RequestClass]  # organization, class


@dataclass(slots=True)
class _Rest:
    """A sequence is asked in step `due`, then at every `period`-th. in_vain: askings since something was verified."""

    octave: int
    due: int
    period: int
    in_vain: int = 0


@dataclass(slots=True)
class _Octave:
    """What was learned in steps of about as many sequences."""

    costs: _Costs
    looks: dict[Kind, _Look] = field(default_factory=dict)

    def class_of(self, kind: Kind, *, among_its_own: bool) -> _Class:
        look = self.looks.get(kind)
        if look is None:
            make_room(self.looks, kind)
            look = self.looks[kind] = _Look()
        found = look.places.get(among_its_own)
        if found is None:
            found = look.places[among_its_own] = _Class(look)
        return found


class Attention:
    """Owns how often each sequence's drafters are asked."""

    def __init__(self) -> None:
        self._now, self._octave = 0, 0
        self._seen: Sequence[Running] = ()  # in the last step
        self._next_due = 0  # of those: the step before which nobody is
        self._most: Kind | None = None  # the kind of half of them or more
        self._rests: dict[int, _Rest] = {}  # by sequence
        self._octaves: dict[int, _Octave] = {}

    def due(self, sequences: Sequence[Running]) -> list[int]:
        """The indices of those to ask in the step that begins; who wants no speculation is never asked."""
        self._now += 1
        if tuple(sequences) != self._seen:
            self._meet(sequences)
        elif self._now < self._next_due:
            return []
        now, due = self._now, []
        self._next_due = now + LATE
        for i, sequence in enumerate(sequences):
            if wants_none(sequence):
                continue
            asked_at = self._rests[sequence.id].due
            if now >= asked_at:
                due.append(i)
            self._next_due = min(self._next_due, max(asked_at, now + 1))
        return due

    def _meet(self, sequences: Sequence[Running]) -> None:
        """Others run than in the last step: how many they are, of what kinds, and how the new ones begin."""
        self._seen = tuple(sequences)
        kind, count = Counter(map(_kind, sequences)).most_common(1)[0] if sequences else (None, 0)
        self._most = kind if 2 * count >= len(sequences) else None
        self._octave = max(len(sequences) - 1, 0).bit_length()
        if self._octave not in self._octaves:
            self._octaves[self._octave] = _Octave(_Costs(SEQUENCE_MS + STEP_MS / max(len(sequences), 1)))
        for sequence in sequences:
            rest = self._rests.get(sequence.id)
            if (rest is None or rest.octave != self._octave) and not wants_none(sequence):
                self._rests[sequence.id] = self._class_of(sequence).begin(self._now, self._octave)

    def heed(self, sequences: Sequence[Running], asked: Sequence[int], decision: Decision) -> None:
        """What was verified in the end of those that were asked. asked: indices of `sequences`."""
        lens, gain_ms = decision.verify_lens, decision.gain_ms
        share_ms = None if gain_ms is None else gain_ms / max(sum(length > 0 for length in lens), 1)
        for i in asked:
            self.learn(sequences[i], heeded=lens[i] > 0, gain_ms=share_ms)

    def learn(self, sequence: Running, *, heeded: bool, gain_ms: float | None) -> None:
        """The sequence was asked for. heeded: whether anything of its draft was verified. gain_ms: what that is
        expected to save over plain decoding; None: enough."""
        octave, rest = self._octaves[self._octave], self._rests[sequence.id]
        own = self._class_of(sequence)
        if not heeded:
            own.add(0.0)
            rest.in_vain += 1
            if rest.in_vain >= own.patience:
                rest.period = min(2 * rest.period, own.longest_period)
        else:
            own.add(MOST_PAID if gain_ms is None else max(gain_ms, 0.0) / octave.costs.asking_ms)
            rest.period, rest.in_vain = 1, 0
        rest.due = _next(self._now, rest.period)

    def took(self, asked: int, ms: float) -> None:
        """Drafting and overhead of a step of decoding alone in which `asked` sequences were asked for, in vain."""
        self._octaves[self._octave].costs.see(asked, ms)

    def finish(self, sequence: Running) -> None:
        self._rests.pop(sequence.id, None)
        self._seen = ()

    def _class_of(self, sequence: Running) -> _Class:
        kind = _kind(sequence)
        return self._octaves[self._octave].class_of(kind, among_its_own=kind == self._most)


def wants_none(sequence: Running) -> bool:
    """Its caller wants no speculation."""
    return sequence.request.speculation.mode is SpeculationMode.OFF


def _kind(sequence: Running) -> Kind:
    return sequence.organization, sequence.request.request_class


def _next(now: int, period: int) -> int:
    """The next step after `now` in which sequences of that period are asked."""
    return (now // period + 1) * period
