"""Drafters that cost time, slowed and fast again, in a simulated engine: how they are tried, and when they are back."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest

from decodeloop.policy import PolicySettings, policies
from decodeloop.policy.lost_time import LOST_SHARE
from decodeloop.policy.probing import FIRST_WAIT, LONGEST_WAIT, MOST_AT_ONCE
from decodeloop.policy.resting import LONGEST
from decodeloop.types import Reason, RequestClass, Speculation, SpeculationMode
from simulated import Client, K, SimulatedDrafter, SimulatedEngine, measured_surface

CHAT = RequestClass.GENERAL_CHAT
PLAIN_MS, FAST_MS = 5.0, 0.2
BELIEVED_STEPS = 8 * MOST_AT_ONCE + 2 * round(MOST_AT_ONCE * FAST_MS / (LOST_SHARE * PLAIN_MS))


def step_ms(tokens, context, sequences):
    return PLAIN_MS + 0.4 * (tokens - 1)


@dataclass
class Slowed(SimulatedDrafter):
    """Takes as long as it is told, however much it drafts."""

    takes_ms: float = FAST_MS

    def ms(self, depth, sequences):
        return self.takes_ms


def opened(seed=0, surface=None):
    """An engine whose one drafter is right nine times of ten, and that drafter."""
    drafter = Slowed({CHAT: 2.2}, free=False, spread=0.1)
    deciding = policies.load("adaptive")(PolicySettings(K), surface or measured_surface(truth=step_ms))
    return SimulatedEngine(deciding, {"small": drafter}, [Client(CHAT)], truth=step_ms, seed=seed), drafter


def tried(record):
    """What was lost to a probe in this step, ms."""
    return record.draft_ms if any(row.reason is Reason.PROBE and row.draft_len for row in record.rows) else 0.0


@pytest.mark.parametrize(("slow_ms", "seed"), [(15.0, 0), (40.0, 1), (40.0, 2), (200.0, 3)])
def test_any_stretch_of_steps_loses_a_hundredth_and_one_probe_at_most(slow_ms, seed):
    running, drafter = opened(seed)
    for drafter.takes_ms, steps in ((FAST_MS, 1500), (slow_ms, 2000), (FAST_MS, 300), (slow_ms, 3500)):
        running.run(steps)
    lost, took = [tried(record) for record in running.records], [record.step_ms for record in running.records]
    assert sum(ms > slow_ms / 2 for ms in lost) >= 2
    for steps in (1, 30, 300, 1200):
        for start in range(0, len(lost) - steps, 10):
            stretch = slice(start, start + steps)
            assert sum(lost[stretch]) <= LOST_SHARE * sum(took[stretch]) + max(lost[stretch]) + 1e-6


@pytest.mark.parametrize("slow_ms", [15.0, 40.0, 200.0])
def test_who_is_fast_again_is_back_within_the_steps_that_pay_for_a_probe(slow_ms):
    running, drafter = opened()
    running.run(500)
    running.reset_tally()
    fast = running.run(300).rate
    drafter.takes_ms = slow_ms
    running.run(700)
    (entry,) = running.policy.describe()["guard"]["probes"]
    paid_steps = slow_ms / (LOST_SHARE * PLAIN_MS)
    assert entry["again_within_steps"] <= max(LONGEST_WAIT, 1.05 * paid_steps)
    assert entry["probe_ms"] == pytest.approx(slow_ms)
    drafter.takes_ms = FAST_MS
    running.run(entry["again_within_steps"] + BELIEVED_STEPS)
    running.reset_tally()
    assert running.run(300).rate > 0.95 * fast


def test_tries_in_vain_become_rarer():
    running, drafter = opened()
    running.run(300)
    drafter.takes_ms = 15.0
    running.run(100)
    running.reset_tally()
    running.run(5500)
    tries = [i for i, record in enumerate(running.records) if tried(record)]
    gaps = [b - a for a, b in pairwise(tries)]
    assert tries[0] <= FIRST_WAIT + LONGEST
    for gap, wait in zip(gaps, [FIRST_WAIT, 2 * FIRST_WAIT, LONGEST_WAIT, LONGEST_WAIT], strict=False):
        assert wait <= gap <= wait + LONGEST
    assert len(gaps) >= 3


def test_a_try_that_was_expected_to_take_long_and_did_not_is_charged_what_it_took():
    running, drafter = opened()
    running.run(300)
    drafter.takes_ms = 40.0
    running.run(400)
    drafter.takes_ms = FAST_MS
    before = running.policy.describe()["guard"]["lost_share"]
    running.run(1000)
    assert running.policy.describe()["guard"]["lost_share"] <= before + 0.001


def test_who_is_not_worth_it_is_hardly_weighed():
    """Weighing it takes time, too: a fifth of a step of 5 ms."""
    surface, weighed = measured_surface(truth=step_ms), []
    running, drafter = opened(surface=surface)
    asked = surface.draft_ms
    surface.draft_ms = lambda *args: weighed.append(running.steps) or asked(*args)
    running.run(300)
    drafter.takes_ms = 40.0
    running.run(200)
    weighed.clear()
    running.run(320)
    assert 0 < len(set(weighed)) <= 320 / LONGEST + 1
    (entry,) = running.policy.describe()["guard"]["probes"]
    drafter.takes_ms = FAST_MS
    running.run(entry["again_within_steps"] + BELIEVED_STEPS)
    weighed.clear()
    running.run(320)
    assert len(set(weighed)) > 300


def test_who_rests_still_drafts_for_those_who_insist():
    running, drafter = opened()
    drafter.takes_ms = 40.0
    running.run(300)
    running.set_clients([Client(CHAT), Client(CHAT, speculation=Speculation(SpeculationMode.FORCE, 3))])
    running.reset_tally()
    running.run(100)
    for record in running.records:
        _, forced = record.rows
        assert forced.draft_len == 3 or forced.context_tokens > 290


def test_nobody_else_drafts_while_the_operators_own_drafter_rests():
    small, free = Slowed({CHAT: 2.2}, free=False, takes_ms=40.0), SimulatedDrafter({CHAT: 2.2})
    deciding = policies.load("adaptive")(PolicySettings(K, drafter="small"), measured_surface(truth=step_ms))
    running = SimulatedEngine(deciding, {"small": small, "free": free}, [Client(CHAT)], truth=step_ms, early=True)
    running.run(400)
    assert {row.drafter for record in running.records for row in record.rows} == {None, "small"}
