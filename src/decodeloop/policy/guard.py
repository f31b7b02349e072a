"""Speculation may not make a class slower than plain decoding, by measurement and not only by prediction.

Every step is compared with what a plain step would have taken (the cost surface, which plain steps keep honest). A
class that would have got more tokens in the same time had it alone decoded plainly has lost. Classes that keep losing
go off (reason off_cost) and come back by trials; trials, probes and what a class had lost until it was found out have
one budget of lost time, into which all steps pay, resting ones too. What a class loses to the *others'* speculation is
the interference bound's business, which is tightened where it is broken in fact: apart for every octave of requests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from decodeloop.policy.bounded import make_room
from decodeloop.policy.lost_time import LostTime
from decodeloop.types import Reason, RequestClass, StepRecord

Key = tuple[str, RequestClass]  # tenant, class

KEPT = 0.5 ** (1 / 256)  # a step
SLOWEST = 3.0  # times plain: a step slower than that says no more than that
TOLERATED = 0.005  # of plain speed, before a loss counts
SURE, TRIAL_SURE = 2.0, 2.0  # standard errors of a loss
LEAST_STEPS, LEAST_TRIAL, TRIAL_STEPS = 16, 6, 24
FIRST_PAUSE, LONGEST_PAUSE = 64, 8192  # steps


class Stand(Enum):
    """How a class stands with the guard."""

    ON = "on"
    OFF = "off"
    TRIAL = "trial"


class Guard(Protocol):
    def stand(self, key: Key) -> Stand:
        """May the class speculate in the coming step?"""
        ...

    def interference(self, requests: int) -> float:
        """By how much of its plain speed one of so many requests may be slowed for the others' sake."""
        ...

    def affords_probe(self) -> bool: ...

    def spend(self, ms: float) -> None:
        """So much is lost to a probe. Below 0: it was less than had been expected."""
        ...

    def rest(self, step_ms: float) -> None:
        """A step passed in which nobody was looked at."""
        ...

    def observe(self, record: StepRecord, plain_ms: float) -> None:
        """plain_ms: the same rows decoded plainly."""
        ...

    def describe(self) -> Mapping[str, Any]: ...


@dataclass(slots=True)
class Account:
    """A class against plain decoding, discounted: tokens it lost, their squares, and what plain would have given."""

    loss: float = 0.0
    squares: float = 0.0
    plain: float = 0.0
    steps: float = 0.0

    def add(self, lost: float, plain: float) -> None:
        self.loss = self.loss * KEPT + lost
        self.squares = self.squares * KEPT + lost * lost
        self.plain = self.plain * KEPT + plain
        self.steps = self.steps * KEPT + 1.0

    @property
    def speed(self) -> float:
        """Against plain decoding; 1 when nothing was seen."""
        return 1.0 - self.loss / self.plain if self.plain else 1.0

    def certainty_of(self, share: float) -> float:
        """That more than `share` of plain speed is lost, in standard errors."""
        excess = self.loss - share * self.plain
        return excess / math.sqrt(self.squares) if self.squares else 0.0


class Watch:
    """Measures and reports; never acts. `interference`: the bound to report, inf when it is lifted.

    What steps take has a long tail, which their expected time leaves out. Steps in which nobody speculates say how much
    longer they take on average: a class is not slow by that.
    """

    def __init__(self, interference: float = math.inf) -> None:
        self._interference = interference
        self._tail = 1.0  # times the expected time, of plain steps
        self.accounts: dict[Key, Account] = {}

    def stand(self, key: Key) -> Stand:
        return Stand.ON

    def interference(self, requests: int) -> float:
        return self._interference

    def affords_probe(self) -> bool:
        return False

    def spend(self, ms: float) -> None:
        """Nothing is spent where nothing is afforded."""

    def rest(self, step_ms: float) -> None:
        """Nothing is owed."""

    def observe(self, record: StepRecord, plain_ms: float) -> None:
        self.book(_by_class(record), record.step_ms, plain_ms)

    def book(self, classes: Mapping[Key, _Part], step_ms: float, plain_ms: float) -> None:
        if plain_ms <= 0.0:
            return
        slowness = min(step_ms / plain_ms, SLOWEST)
        if classes and not any(part.verified or part.paid for part in classes.values()):
            self._tail = slowness + KEPT * (self._tail - slowness)
        slowness /= self._tail
        for key, part in classes.items():
            self.account(key).add(part.rows * slowness - part.tokens, part.rows * slowness)

    def account(self, key: Key) -> Account:
        if key not in self.accounts:
            make_room(self.accounts, key)
            self.accounts[key] = Account()
        return self.accounts[key]

    def describe(self) -> Mapping[str, Any]:
        return {
            "interference": self._interference if math.isfinite(self._interference) else None,
            "speed_against_plain": [
                {"tenant": tenant, "class": str(request_class), "speed": round(account.speed, 4)}
                for (tenant, request_class), account in list(self.accounts.items())
            ],
        }


@dataclass(slots=True)
class _Standing:
    account: Account
    stand: Stand = Stand.ON
    since: int = 0
    pause: int = FIRST_PAUSE


@dataclass(slots=True)
class _Crowd:
    """About as many requests. allowed: by how much of its plain speed one may be slowed now."""

    watch: Watch
    allowed: float


class PlainGuard:
    """Switches losing classes off and tries them again; tightens the interference bound when it is broken in fact."""

    def __init__(self, interference: float) -> None:
        self._watch = Watch(interference)
        self._promised = interference
        self._crowds: dict[int, _Crowd] = {}  # by octave of requests
        self._standings: dict[Key, _Standing] = {}
        self._lost = LostTime()
        self._step = 0

    def stand(self, key: Key) -> Stand:
        standing = self._standings.get(key)
        if standing is None:
            return Stand.ON
        if standing.stand is Stand.OFF and self._step - standing.since >= standing.pause:
            if not self._lost.affords_more:
                return Stand.OFF
            standing.stand, standing.since, standing.account = Stand.TRIAL, self._step, Account()
        return standing.stand

    def interference(self, requests: int) -> float:
        return self._crowd(requests).allowed

    def affords_probe(self) -> bool:
        return self._lost.affords_more

    def spend(self, ms: float) -> None:
        self._lost.spend(ms)

    def rest(self, step_ms: float) -> None:
        self._step += 1
        self._lost.pass_by(step_ms)

    def observe(self, record: StepRecord, plain_ms: float) -> None:
        classes = _by_class(record)
        crowd = self._crowd(sum(part.rows for part in classes.values()))
        for watch in (self._watch, crowd.watch):
            watch.book(classes, record.step_ms, plain_ms)
        self.rest(record.step_ms)
        if plain_ms <= 0.0 or any(row.reason is Reason.PROBE and row.draft_len for row in record.rows):
            return  # what a probe takes is spent already
        speculating = [key for key, part in classes.items() if part.verified or part.paid]
        for key in speculating:
            without_ms = _without(record, classes, key, plain_ms)
            slowness = min(record.step_ms / max(without_ms, record.step_ms / SLOWEST), SLOWEST)
            due = classes[key].rows * slowness * (1.0 - TOLERATED)
            self._judge(key, due - classes[key].tokens, due, plain_ms / len(record.rows))
        if speculating:
            self._tighten(crowd, [crowd.watch.account(key) for key in classes if key not in speculating])

    def describe(self) -> Mapping[str, Any]:
        allowed = min([self._promised, *(crowd.allowed for crowd in list(self._crowds.values()))])
        off = [key for key, standing in list(self._standings.items()) if standing.stand is not Stand.ON]
        return {
            **self._watch.describe(),
            "interference_allowed": round(allowed, 4) if math.isfinite(allowed) else None,
            "off": [{"tenant": tenant, "class": str(request_class)} for tenant, request_class in off],
            "lost_share": round(self._lost.share, 5),
            "owed_ms": round(self._lost.owed_ms, 3),
        }

    def _judge(self, key: Key, lost: float, plain: float, token_ms: float) -> None:
        standing = self._standing(key)
        if standing.stand is Stand.OFF:  # forced
            return
        standing.account.add(lost, plain)
        trial = standing.stand is Stand.TRIAL
        if trial:
            self.spend(max(lost, 0.0) * token_ms)
        account = standing.account
        if account.steps < (LEAST_TRIAL if trial else LEAST_STEPS):
            return
        if account.certainty_of(0.0) > (TRIAL_SURE if trial else SURE):
            standing.pause = min(2 * standing.pause, LONGEST_PAUSE) if trial else FIRST_PAUSE
            if not trial:  # found out by losing it: no trial until that is made up for
                self.spend(account.loss * token_ms)
            standing.stand, standing.since = Stand.OFF, self._step
        elif trial and self._step - standing.since >= TRIAL_STEPS:
            standing.stand, standing.since = Stand.ON, self._step

    def _tighten(self, crowd: _Crowd, bystanders: Sequence[Account]) -> None:
        """A class that only bears the others' speculation may have lost more than it was promised to."""
        most = self._promised
        if math.isfinite(most) and any(account.certainty_of(most) > SURE for account in bystanders):
            crowd.allowed = max(0.98 * crowd.allowed, 0.1 * most)
        else:
            crowd.allowed = min(1.005 * crowd.allowed, most)

    def _crowd(self, requests: int) -> _Crowd:
        octave = max(requests - 1, 0).bit_length()
        if octave not in self._crowds:
            self._crowds[octave] = _Crowd(Watch(), self._promised)
        return self._crowds[octave]

    def _standing(self, key: Key) -> _Standing:
        if key not in self._standings:
            make_room(self._standings, key)
            self._standings[key] = _Standing(Account())
        return self._standings[key]


@dataclass(slots=True)
class _Part:
    """A class's part in a step: decoding rows, their tokens before stops and caps, and what was speculated for them."""

    rows: int = 0
    tokens: int = 0
    verified: int = 0  # draft tokens
    paid: int = 0  # draft tokens of drafters that cost time


def _by_class(record: StepRecord) -> dict[Key, _Part]:
    classes: dict[Key, _Part] = {}
    for row in record.rows:
        if row.prefill_tokens or not row.emitted + row.discarded:
            continue
        part = classes.setdefault((row.tenant, row.request_class), _Part())
        part.rows += 1
        part.tokens += row.accepted + 1
        part.verified += row.verify_len
        part.paid += row.draft_len if row.drafter not in row.shadow_match else 0
    return classes


def _without(record: StepRecord, classes: Mapping[Key, _Part], key: Key, plain_ms: float) -> float:
    """What the step would have taken had this one class decoded plainly.

    What it took beyond plain time is shared out by verified tokens, paid drafting by drafted ones.
    """
    verified = sum(part.verified for part in classes.values())
    paid = sum(part.paid for part in classes.values())
    own, drafting_ms = classes[key], record.draft_ms if paid else 0.0
    verifying_ms = record.step_ms - drafting_ms - plain_ms
    saved_ms = verifying_ms * own.verified / verified if verified else 0.0
    return record.step_ms - saved_ms - (drafting_ms * own.paid / paid if paid else 0.0)
