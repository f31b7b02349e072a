"""Objectives on a simulated engine (synthetic: known step times, acceptance drawn from a known law)."""

from __future__ import annotations

import numpy as np
import pytest

from decodeloop.policy import PolicySettings, policies
from decodeloop.types import Slo
from serving import CHAT, EDIT, SQL, engine, ngram, policy
from simulated import Client, K, SimulatedEngine, measured_surface


def test_objectives_are_kept_three_times_as_often_at_a_tenth_of_the_throughput():
    """Half the requests, of the predictable class, want 80 % of the plain TPOT, which this load can give them."""
    drafters = {"ngram": ngram(logits={EDIT: 2.5, SQL: 1.0}, proposes=0.9)}
    plain_ms = 16 / engine("off", (EDIT, SQL) * 8, drafters=drafters).rate
    wanted = 0.8 * plain_ms
    clients = [Client(EDIT, slo=Slo(tpot_ms=wanted), tokens=60) if i % 2 else Client(SQL, tokens=60) for i in range(16)]

    def run(name, **options):
        running = SimulatedEngine(policy(name, **options), drafters, clients).run(150)
        running.reset_tally()
        running.run(900)
        late = np.mean(np.array(running.tally[EDIT].tpot_ms) > wanted)
        return running, late

    (greedy, missed), (ours, late) = run("throughput"), run("interactive")
    assert missed > 0.2
    assert late <= missed / 3
    assert ours.rate >= 0.9 * greedy.rate
    _, dialled_down = run("interactive", frontier=0.0)
    assert dialled_down > 0.6 * missed


def test_no_throughput_is_given_for_more_answers_in_time_than_wanted():
    drafters = {"ngram": ngram(logits={EDIT: 2.5, SQL: 1.0}, proposes=0.9)}
    wanted = 0.75 * 16 / engine("off", (EDIT, SQL) * 8, drafters=drafters).rate
    clients = [Client(EDIT, slo=Slo(tpot_ms=wanted), tokens=60) if i % 2 else Client(SQL, tokens=60) for i in range(16)]

    def run(name, **options):
        running = SimulatedEngine(policy(name, **options), drafters, clients).run(300)
        running.reset_tally()
        running.run(1500)
        return float(np.mean(np.array(running.tally[EDIT].tpot_ms) > wanted)), running.rate

    missed, greedy = run("throughput")
    found = {share: run("interactive", attainment=share) for share in (0.6, 0.8, 0.95)}
    assert missed > 0.5
    assert [late for late, _ in found.values()] == pytest.approx([0.4, 0.2, 0.05], abs=0.025)
    few, more, most = (rate for _, rate in found.values())
    assert greedy > max(few, more)
    assert min(few, more) > most


def test_others_sit_steps_out_where_drafts_alone_keep_no_objective():
    """Nothing drafted is ever right; tokens are dear. Nobody loses more than half of its pace, nor anything at 0."""
    drafters = {"ngram": ngram(logits={EDIT: -6.0, CHAT: -6.0})}
    clients = [Client(EDIT, slo=Slo(tpot_ms=8.0), tokens=60) if i % 2 else Client(CHAT, tokens=60) for i in range(16)]

    def run(**options):
        settings = PolicySettings(K, may_hold=True, options=options)
        deciding = policies.load("interactive")(settings, measured_surface())
        running = SimulatedEngine(deciding, drafters, clients).run(150)
        running.reset_tally()
        running.run(600)
        return running, float(np.mean(np.array(running.tally[EDIT].tpot_ms) > 8.0))

    plain = engine("off", (EDIT, CHAT) * 8, drafters=drafters)
    kept, late = run()
    assert np.median(plain.tally[EDIT].tpot_ms) > 8.0
    assert late < 0.1
    assert np.median(kept.tally[CHAT].tpot_ms) < 2.0 * np.median(plain.tally[CHAT].tpot_ms)
    assert kept.rate > 0.85 * plain.rate
    for options in ({"frontier": 0.0}, {"interference": 0.05}):
        bound, _ = run(**options)
        assert bound.policy.describe()["aim"]["held_share"] == 0.0
        assert all(len(record.rows) == 16 for record in bound.records)


def test_queues_do_not_diverge_and_the_impossible_is_reported():
    drafters = {"ngram": ngram(logits={EDIT: 2.5})}
    for wanted, impossible in ((4.0, False), (0.2, True)):
        clients = [Client(EDIT, slo=Slo(tpot_ms=wanted), tokens=400)] * 4
        running = SimulatedEngine(policy("interactive", frontier=0.5), drafters, clients).run(600)
        aim = running.policy.describe()["aim"]
        assert (aim["infeasible"] > 0) is impossible
        assert aim["requests_with_objective"] == 4
        assert running.rate > 1.2 * engine("off", (EDIT,) * 4).rate
