"""Reservations and settlements in a few statements: what one after the other gives, to the last row."""

from __future__ import annotations

import sqlite3
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from books_rig import NOON_S, limit, opening, row
from decodeloop.gateway.store import sqlite_steps as steps
from decodeloop.gateway.store.sqlite_together import Reserve, Settle, Step, together
from decodeloop.governance.ledger import Outcome
from decodeloop.governance.quota import Window
from decodeloop.types import Usage

LIMITS = [limit(60), limit(40, window=Window.MINUTE, user="ana")]
TABLES = ("ledger", "counters", "reservations")
STEPS = st.lists(
    st.tuples(st.sampled_from(["reserve", "settle"]), st.integers(0, 5), st.integers(1, 30), st.integers(0, 90)),
    max_size=12,
)


def database() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    steps.create(connection)
    return connection


def made(history: list[tuple[str, int, int, int]], known: set[int]) -> list[Step]:
    """known: ids that were used before; no request opens one again."""
    each: list[Step] = []
    for what, id, tokens, after_s in history:
        if what == "settle":
            is_free = tokens % 7 == 0
            outcome = Outcome.FAILED if is_free else Outcome.COMPLETED
            each.append(Settle(row(str(id), Usage() if is_free else Usage(0, 0, tokens), outcome)))
        elif id not in known:
            now_s = NOON_S + after_s
            each.append(Reserve(opening(str(id), LIMITS, Usage(0, 0, tokens), now_s=now_s), "one", now_s))
        known.add(id)
    return each


def contents(connection: sqlite3.Connection) -> dict[str, list[Any]]:
    """Counters of nothing are as good as none."""
    found = {name: sorted(connection.execute(f"SELECT * FROM {name}").fetchall()) for name in TABLES}
    return {**found, "counters": [each for each in found["counters"] if each[2]]}


@settings(deadline=None)
@given(STEPS, STEPS)
def test_together_is_one_after_the_other(before: list[Any], batch: list[Any]) -> None:
    one, other, known = database(), database(), set[int]()
    for step in made(before, known):
        step(one)
        step(other)
    now = made(batch, known)
    reserved = {step.opening.reservation.id for step in now if isinstance(step, Reserve)}
    ended = {step.row.request_id for step in now if isinstance(step, Settle)}
    order = now if reserved & ended else sorted(now, key=lambda step: isinstance(step, Reserve))
    expected = {id(step): step(one) for step in order}
    assert together(other, now) == [expected[id(step)] for step in now]
    assert contents(other) == contents(one)


def test_a_large_batch() -> None:
    connection = database()
    openings = [Reserve(opening(f"r{i}", [limit(10**9)], Usage(0, 0, 1)), "one", NOON_S) for i in range(300)]
    assert all(each.refusal is None for each in together(connection, openings))
    together(connection, [Settle(row(f"r{i}", Usage(0, 0, 2))) for i in range(300)])
    found = contents(connection)
    assert (len(found["ledger"]), found["reservations"]) == (300, [])
    assert [used for _, _, used, _ in found["counters"]] == [600]
