"""Whom the free drafters are asked for in a step, and whom not.

Asking costs time whatever is said: looking up, deciding, learning. Where nothing that is said is worth verifying that
buys nothing, so such a sequence is asked at every 2nd, 4th, .. step only; a draft worth verifying wakes it. Resting
sequences are asked in the same steps, so that the others are plain from end to end. Of a class that is hardly ever
heeded, one sequence in SCOUTS is asked in its first LATE steps: reading a prompt is most of what asking costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decodeloop.engine.sequence import Sequence as EngineSequence
from decodeloop.types import RequestClass, SpeculationMode

REST, LONGER_REST, LONGEST_REST = 4, 8, 16  # steps, at most, where a class is heeded OFTEN, SELDOM, less; powers of two
PATIENT, HURRIED = 8, 2  # askings in vain before a rest, of a class that is heeded OFTEN and of one that is not
OFTEN, SELDOM, HARDLY = 0.15, 0.08, 0.03  # shares of a class's askings that were heeded
SCOUTS, LATE = 8, 256
UNKNOWN, UNKNOWN_WEIGHT = 0.5, 4.0  # the share of a class that nobody knows, in askings
MEMORY = 128.0  # askings
MAX_CLASSES = 1024


@dataclass(slots=True)
class _Class:
    """heeded: share of its askings that led to something verified, discounted. begun: sequences that began at rest."""

    heeded: float = UNKNOWN
    askings: float = UNKNOWN_WEIGHT
    begun: int = 0

    def add(self, heeded: bool) -> None:
        self.askings = min(self.askings + 1.0, MEMORY)
        self.heeded += (heeded - self.heeded) / self.askings

    def begin(self, now: int) -> _Rest:
        """A new sequence of the class, in step `now`."""
        if self.heeded >= SELDOM:
            return _Rest(now, 1)
        if self.heeded >= HARDLY:
            return _Rest(_next(now, REST), REST)
        self.begun += 1
        return _Rest(now + LATE if self.begun % SCOUTS else _next(now, LONGEST_REST), LONGEST_REST)

    @property
    def patience(self) -> int:
        return PATIENT if self.heeded >= OFTEN else HURRIED

    @property
    def longest_period(self) -> int:
        return REST if self.heeded >= OFTEN else LONGER_REST if self.heeded >= SELDOM else LONGEST_REST


@dataclass(slots=True)
class _Rest:
    """A sequence is asked in step `due`, then at every `period`-th. in_vain: askings since something was verified."""

    due: int
    period: int
    in_vain: int = 0


class Attention:
    """Owns how often each sequence's drafters are asked."""

    def __init__(self) -> None:
        self._now = 0
        self._rests: dict[int, _Rest] = {}  # by sequence
        self._classes: dict[tuple[str, RequestClass], _Class] = {}

    def due(self, sequences: Sequence[EngineSequence]) -> list[int]:
        """The indices of those to ask in the step that begins; who wants no speculation is never asked."""
        self._now += 1
        now, rests = self._now, self._rests
        due = []
        for i, sequence in enumerate(sequences):
            rest = rests.get(sequence.id)
            if rest is None:
                rest = rests[sequence.id] = self._class_of(sequence).begin(now)
            if now >= rest.due and sequence.request.speculation.mode is not SpeculationMode.OFF:
                due.append(i)
        return due

    def learn(self, sequence: EngineSequence, *, heeded: bool) -> None:
        """The sequence was asked for, and something of its draft was verified, or nothing."""
        own, rest = self._class_of(sequence), self._rests[sequence.id]
        own.add(heeded)
        if heeded:
            rest.period, rest.in_vain = 1, 0
        else:
            rest.in_vain += 1
            if rest.in_vain >= own.patience:
                rest.period = min(2 * rest.period, own.longest_period)
        rest.due = _next(self._now, rest.period)

    def finish(self, sequence: EngineSequence) -> None:
        self._rests.pop(sequence.id, None)

    def _class_of(self, sequence: EngineSequence) -> _Class:
        key = sequence.organization, sequence.request.request_class
        found = self._classes.get(key)
        if found is None:
            if len(self._classes) >= MAX_CLASSES:
                del self._classes[next(iter(self._classes))]
            found = self._classes[key] = _Class()
        return found


def _next(now: int, period: int) -> int:
    """The next step after `now` in which sequences of that period are asked."""
    return (now // period + 1) * period
