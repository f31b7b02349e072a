"""Whole policies against a simulated engine (synthetic: known step times, acceptance drawn from a known law)."""

from __future__ import annotations

import json

import numpy as np
import pytest

from decodeloop.policy import PolicySettings, policies
from decodeloop.testing import check_policy
from decodeloop.types import Knowledge, Reason, RequestClass, Slo, Speculation, SpeculationMode
from simulated import Client, K, SimulatedDrafter, SimulatedEngine, measured_surface, step_ms

EDIT, CHAT, CREATIVE, SQL = (
    RequestClass.CODE_EDIT,
    RequestClass.GENERAL_CHAT,
    RequestClass.CREATIVE_WRITING,
    RequestClass.SQL,
)
ADAPTIVE = ("throughput", "interactive", "adaptive")


def ngram(**changes):
    return SimulatedDrafter(**{"logits": {EDIT: 3.0, CHAT: -1.0, CREATIVE: -3.0, SQL: 1.0}, "proposes": 0.8, **changes})


def policy(name, drafters=(), draft_len=4, **options):
    return policies.load(name)(PolicySettings(K, draft_len, options=options), measured_surface(drafters))


def engine(name, classes, *, drafters=None, draft_len=4, warm=250, steps=350, seed=1, **options):
    """A run of `steps` after a warm-up, one client a class given."""
    drafters = {"ngram": ngram()} if drafters is None else drafters
    running = SimulatedEngine(
        policy(name, drafters, draft_len, **options), drafters, [Client(c) for c in classes], seed=seed
    )
    running.run(warm)
    running.reset_tally()
    return running.run(steps)


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


class Certain:
    """Says that it is sure, and is right always or never."""

    free = True

    def __init__(self, *, right):
        self.right = right

    def ms(self, depth, sequences):
        return 0.0

    def drafts(self, rng, classes, length):
        said = 0.9 ** np.arange(1, length + 1)
        return [(said, length if self.right else 0) for _ in classes]


@pytest.mark.parametrize("load", [1, 4, 8])
def test_drafts_that_are_never_right_cost_less_than_a_hundredth_from_the_first_step_on(load):
    drafters = {"liar": Certain(right=False)}
    off = engine("off", (CHAT,) * load, drafters=drafters, warm=0, steps=600)
    ours = engine("adaptive", (CHAT,) * load, drafters=drafters, warm=0, steps=600)
    assert ours.rate >= 0.99 * off.rate
    ours.reset_tally()
    assert ours.run(100).mean_verified() < 0.01


@pytest.mark.parametrize("load", [1, 4])
def test_drafts_that_are_always_right_gain_what_the_best_length_gains(load):
    drafters = {"oracle": Certain(right=True)}
    best = max(engine("fixed", (EDIT,) * load, drafters=drafters, draft_len=k, steps=200).rate for k in (1, 2, 4, 6, 8))
    ours = engine("adaptive", (EDIT,) * load, drafters=drafters, steps=200).rate
    assert ours >= 0.98 * max(best, engine("off", (EDIT,) * load, drafters=drafters, steps=200).rate)


@pytest.mark.parametrize("load", [1, 2, 8])
@pytest.mark.parametrize(("told", "kept"), [(0.5, 0.99), (0.0, 0.96)])
def test_a_surface_that_calls_drafted_tokens_cheap_is_found_out(load, told, kept):
    """Every token takes as long as the first; what was measured at start says `told` of that for drafted ones."""

    def measured(tokens, context, sequences):
        return 2.0 * sequences + told * 2.0 * (tokens - sequences)

    deciding = policies.load("adaptive")(PolicySettings(K), measured_surface(truth=measured))
    drafters = {"ngram": ngram()}
    running = SimulatedEngine(
        deciding, drafters, [Client(CREATIVE)] * load, truth=lambda tokens, context, sequences: 2.0 * tokens
    )
    plain = 0.5
    for _ in range(2):  # trials come later, in bursts
        running.reset_tally()
        assert running.run(1200).rate >= kept * plain
