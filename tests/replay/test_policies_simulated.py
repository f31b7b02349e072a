"""Whole policies against a simulated engine (synthetic: known step times, acceptance drawn from a known law)."""

from __future__ import annotations

import json

import numpy as np
import pytest

from decodeloop.policy import PolicySettings, policies
from decodeloop.testing import check_policy
from decodeloop.types import Knowledge, Reason, Speculation, SpeculationMode
from serving import CHAT, CREATIVE, EDIT, SQL, engine, ngram, policy
from simulated import Client, K, SimulatedDrafter, SimulatedEngine, measured_surface, step_ms

ADAPTIVE = ("throughput", "interactive", "adaptive")


@pytest.mark.parametrize("name", [*ADAPTIVE, "reference"])
@pytest.mark.parametrize("interference", [0.05, None])
def test_the_contract_holds_with_a_measured_surface_too(name, interference):
    check_policy(lambda: policies.load(name)(PolicySettings(options={}), measured_surface()))
    if name != "reference":
        options = {"interference": interference, "tpot_ms": 1.0}
        settings = PolicySettings(verifier_admits=Knowledge.PREFIX, options=options)
        check_policy(lambda: policies.load(name)(settings, measured_surface()))


class PointCost:
    def step_ms(self, tokens, context, sequences):
        return float(step_ms(tokens, context, sequences))

    def draft_ms(self, drafter, depth, sequences):
        return 0.3 * depth


@pytest.mark.parametrize("name", ADAPTIVE)
def test_any_cost_model_will_do(name):
    check_policy(lambda: policies.load(name)(PolicySettings(), PointCost()))


@pytest.mark.parametrize(
    ("classes", "gain"), [((EDIT,), 3.6), ((EDIT,) * 4, 1.5), ((CHAT,) * 2, 1.2), ((EDIT, CHAT, EDIT, CHAT), 1.2)]
)
def test_adaptive_beats_off_and_the_best_fixed_depth(classes, gain):
    rates = {name: engine(name, classes).rate for name in ("off", "adaptive")}
    fixed = max(engine("fixed", classes, draft_len=length).rate for length in (2, 4, 8))
    assert rates["adaptive"] >= gain * rates["off"]
    assert rates["adaptive"] >= 0.97 * fixed


@pytest.mark.parametrize("classes", [(CREATIVE,) * 4, (CHAT,) * 16, (EDIT, CREATIVE) * 8, (CREATIVE,) * 32])
def test_where_fixed_depths_lose_adaptive_does_not(classes):
    off, ours = engine("off", classes).rate, engine("adaptive", classes).rate
    assert engine("fixed", classes, draft_len=4).rate < 0.9 * off
    assert ours >= 0.98 * off


def test_beats_the_rules_of_thumb_on_a_weighted_mix():
    mix = [((EDIT,), 1), ((CHAT,) * 4, 1), ((EDIT, CHAT) * 4, 2), ((CREATIVE,) * 2, 1), ((EDIT,) * 16, 1)]
    gains = [weight * np.log(engine("adaptive", c).rate / engine("reference", c).rate) for c, weight in mix]
    assert sum(gains) / sum(weight for _, weight in mix) > np.log(1.05)


def test_depth_falls_with_load_and_recovers():
    running = SimulatedEngine(policy("adaptive"), {"ngram": ngram()}, [Client(CHAT)])
    depths = []
    for load in (1, 16, 1):
        running.set_clients([Client(CHAT)] * load)
        running.run(60)
        running.reset_tally()
        depths.append(running.run(80).mean_verified())
    alone, crowded, again = depths
    assert alone > 1.5
    assert crowded < 0.1
    assert again > 0.85 * alone


def test_a_good_but_slowed_drafter_goes_off_and_comes_back():
    """Nine of ten first tokens are right throughout; only the time it takes changes."""
    drafter = SimulatedDrafter({CHAT: 3.0}, free=False, pass_ms=0.3)
    plain = engine("off", (CHAT,) * 2).rate
    running = SimulatedEngine(policy("adaptive", {"small": drafter}), {"small": drafter}, [Client(CHAT)] * 2)

    def phase(pass_ms, steps):
        drafter.pass_ms = pass_ms
        running.reset_tally()
        return running.run(steps)

    assert phase(0.3, 400).rate > 1.5 * plain
    phase(6.0, 400)
    slowed = phase(6.0, 600)
    assert slowed.reasons[Reason.OFF_COST] > 0.95 * sum(slowed.reasons.values())
    assert slowed.rate > 0.97 * plain
    phase(0.3, 1500)
    assert phase(0.3, 400).rate > 1.5 * plain


def test_probing_stays_within_its_budget():
    drafter = SimulatedDrafter({CHAT: 3.0}, free=False, pass_ms=8.0)
    running = engine("adaptive", (CHAT,), drafters={"small": drafter}, warm=0, steps=4000)
    assert 0 < running.reasons[Reason.PROBE] < 40
    assert running.policy.describe()["guard"]["lost_share"] <= 0.01
    assert running.rate > 0.985 * engine("off", (CHAT,)).rate


def test_the_better_drafter_is_found_per_class():
    copier = ngram(logits={EDIT: 3.0, CHAT: -3.0}, proposes=1.0)
    small = SimulatedDrafter({EDIT: 0.0, CHAT: 1.5}, free=False, pass_ms=0.25)
    both = {"ngram": copier, "small": small}
    for request_class in (EDIT, CHAT):
        alone = [engine("adaptive", (request_class,), drafters={name: both[name]}).rate for name in both]
        assert engine("adaptive", (request_class,), drafters=both).rate > 0.95 * max(alone)


def copier():
    """What it proposes for edits is so often right that total throughput gains by it whoever else is slowed."""
    return ngram(logits={EDIT: 4.0, CREATIVE: -3.0}, proposes=1.0)


def test_no_request_falls_below_plain_by_more_than_its_bound():
    """One copying request beside seven creative ones: in total they would gain by starving the seven."""
    classes, drafters = (EDIT, *(CREATIVE,) * 7), {"ngram": copier()}
    plain = engine("off", classes, drafters=drafters).tally[CREATIVE].speed
    assert engine("throughput", classes, drafters=drafters).tally[CREATIVE].speed < 0.9 * plain
    ours = engine("adaptive", classes, drafters=drafters)
    assert ours.tally[CREATIVE].speed > 0.94 * plain
    assert ours.tally[EDIT].speed > plain


def test_the_bound_is_made_use_of():
    """What the seven may lose is lost, for the eighth, and not kept for the luck of a moment."""
    classes, drafters = (EDIT, *(CREATIVE,) * 7), {"ngram": ngram(proposes=1.0)}
    plain = engine("off", classes).tally[CREATIVE].speed
    ours = engine("adaptive", classes, drafters=drafters, warm=400, steps=1500)
    assert 0.94 < ours.tally[CREATIVE].speed / plain < 0.985
    assert ours.mean_verified(EDIT) > 0.5


def test_the_loss_of_each_class_is_reported_where_the_bound_is_lifted():
    described = engine("throughput", (EDIT, *(CREATIVE,) * 7), drafters={"ngram": copier()}).policy.describe()
    speeds = {entry["class"]: entry["speed"] for entry in described["guard"]["speed_against_plain"]}
    assert speeds["creative_writing"] < 0.9
    assert speeds["code_edit"] > 1.0


def test_what_the_caller_asked_is_done():
    clients = [
        Client(EDIT, speculation=Speculation(SpeculationMode.OFF)),
        Client(CREATIVE, speculation=Speculation(SpeculationMode.FORCE, 5)),
        Client(EDIT, speculation=Speculation(SpeculationMode.AUTO, 2)),
    ]
    running = SimulatedEngine(policy("adaptive"), {"ngram": ngram(proposes=1.0)}, clients).run(200)
    for record in running.records:
        off, forced, limited = record.rows
        assert (off.verify_len, off.reason) == (0, Reason.OFF_USER)
        assert forced.verify_len == forced.draft_len
        assert forced.draft_len == 5 or forced.draft_len < K
        assert limited.verify_len <= 2


def test_predictions_come_true():
    """Of the step's time, within 5 % at the median."""
    running = SimulatedEngine(policy("adaptive"), {"ngram": ngram()}, [Client(EDIT)] * 4).run(300)
    running.reset_tally()
    running.run(400)
    ratios = [record.predicted_ms / record.step_ms for record in running.records]
    assert np.median(np.abs(np.array(ratios) - 1.0)) < 0.05


def test_says_what_it_believes():
    described = engine("adaptive", (EDIT, CHAT)).policy.describe()
    json.dumps(described, allow_nan=False)
    survival = {entry["class"]: entry["survival"] for entry in described["survival"]}
    assert survival["code_edit"][0] > 0.6 > survival["general_chat"][0]
    cliffs = {entry["class"]: entry["adaptive"]["ends_between"] for entry in described["cliff"]}
    assert (cliffs["code_edit"][0] or 0) > (cliffs["general_chat"][0] or 0)
    assert described["cost"]["samples"] > 0
    assert described["aim"]["frontier"] == 0.0
    assert described["drift"]["alarms"] == 0
    assert described["reasons"]["throughput"] > 0
    assert all(entry["log_loss"] < entry["log_loss_uncalibrated"] + 0.02 for entry in described["calibration"])


def test_before_costs_are_known_it_is_modest_and_learns_them():
    settings = PolicySettings(K)
    running = SimulatedEngine(policies.load("adaptive")(settings, None), {"ngram": ngram()}, [Client(EDIT)])
    assert running.policy.describe()["cost"]["measured"] is False
    running.run(20)
    assert set(running.reasons) <= {Reason.FIXED, Reason.NO_PROPOSAL}
    assert running.mean_verified() <= 3
    running.run(400)
    assert running.policy.describe()["cost"]["measured"] is True
    running.reset_tally()
    assert running.run(300).rate > 2.5 * engine("off", (EDIT,)).rate


def test_crowded_and_unmeasured_it_stays_plain():
    running = SimulatedEngine(
        policies.load("adaptive")(PolicySettings(K), None), {"ngram": ngram()}, [Client(EDIT)] * 9
    )
    assert set(running.run(5).reasons) == {Reason.OFF_LOAD}


def test_the_same_history_gives_the_same_decisions():
    runs = [engine("adaptive", (EDIT, CHAT), steps=100) for _ in range(2)]
    assert runs[0].records == runs[1].records


def test_a_noisy_machine_changes_little():
    """Step times vary by a third from step to step."""
    noisy = SimulatedEngine(policy("adaptive"), {"ngram": ngram()}, [Client(EDIT)] * 2, noise=0.3).run(250)
    noisy.reset_tally()
    noisy.run(800)
    assert noisy.mean_verified() == pytest.approx(engine("adaptive", (EDIT,) * 2).mean_verified(), rel=0.15)
    assert Reason.OFF_COST not in noisy.reasons


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"interfernce": 0.1}, "choose from interference"),
        ({"interference": 2.0}, "not a share"),
        ({"frontier": 1.5}, "not within 0"),
        ({"tpot_ms": 0.0}, "not a time"),
    ],
)
def test_bad_options_are_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        policies.load("adaptive")(PolicySettings(options=options), None)


def test_knowing_what_free_drafters_propose_beats_betting_on_them():
    """Each of three drafters is right sometimes; two of them say beforehand whether they have anything to say."""
    drafters = {
        "ngram": ngram(proposes=0.6),
        "suffix": ngram(logits={SQL: 1.0}, proposes=0.5),
        "small": SimulatedDrafter({SQL: 1.5}, free=False, pass_ms=0.3),
    }
    rates = []
    for early in (False, True):
        running = SimulatedEngine(policy("adaptive", drafters), drafters, [Client(SQL)], early=early).run(300)
        running.reset_tally()
        rates.append(running.run(500).rate)
    assert rates[1] > 1.08 * rates[0]
