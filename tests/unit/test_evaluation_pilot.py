"""The pilot's file and its verdict: criteria set in advance, judged on runs whose truth is known (synthetic)."""

import re
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path

import pytest

from decodeloop.evaluation.pilot import (
    ArmAsked,
    Budget,
    Criteria,
    LoadAsked,
    Pilot,
    PriceAsked,
    WorkloadAsked,
    arm_of,
    plan_of,
    read_pilot,
    settled,
    suite_of,
)
from decodeloop.evaluation.pilot_prediction import predictions
from decodeloop.evaluation.pilot_verdict import judge
from decodeloop.evaluation.report_words import Answer
from decodeloop.evaluation.results import Mode
from decodeloop.evaluation.workloads.workload import Workload, WorkRequest
from decodeloop.types import RequestClass
from synthetic_results import CHAT, EDIT, STORY, Truth, results

EXAMPLE = Path(__file__).parents[2] / "examples" / "pilot.yaml"
FILE = """
name: a pilot
candidate: adaptive
price: {usd_per_hour: 1}
load: {levels: [1, 4], judged: 1}
arms:
  - {label: "off", role: "off"}
  - {label: adaptive, role: adaptive}
"""
ALIKE = {EDIT: 1.0, CHAT: 1.0, STORY: 1.0}
GAINS = {EDIT: 2.0, CHAT: 1.25, STORY: 1.0}


def read(text=FILE):
    return read_pilot(text, env={}, source="pilot.yaml")


@lru_cache
def ran(**changes):
    truth = Truth(levels=(1.0, 4.0), requests=2, speed={"off": ALIKE, "adaptive": GAINS})
    found = results(replace(truth, **changes))
    plan = replace(found.plan, mode=Mode.REAL)
    return replace(found, plan=plan, requests=tuple(replace(r, text_hash=r.id) for r in found.requests))


def speeds(**arms):
    class Speeds(dict):
        __hash__ = object.__hash__

    return Speeds({"off": ALIKE, "adaptive": GAINS, **arms})


def verdict(run, pilot=None, **criteria):
    pilot = pilot or read()
    asked = replace(pilot, criteria=replace(pilot.criteria, **criteria))
    return judge(run, asked, asked.price.money(None))


def missed(found):
    return [check.name for check in found.checks if not check.passed]


def test_every_criterion_met_is_a_go_with_its_interval_first():
    found = verdict(ran())
    assert found.answer is Answer.GO
    assert not missed(found)
    assert found.headline.startswith("adaptive against off: -3")
    assert "] device time, weighted by volume, at 1 at once; every criterion is met" in found.headline


@pytest.mark.parametrize(
    ("criteria", "reason"),
    [
        ({"saving": 0.5}, "saves at least 50 % of device time"),
        ({"ttft_ms": 10.0}, "95 % of requests within TTFT 10 ms"),
        ({"tpot_ms": 1.0}, "95 % of requests within TPOT 1 ms"),
    ],
)
def test_a_criterion_that_is_missed_is_a_no_with_its_reason(criteria, reason):
    found = verdict(ran(), **criteria)
    assert found.answer is Answer.NO_GO
    assert missed(found) == [reason]
    assert reason in found.headline


def test_a_class_that_surely_loses_stops_it_however_small():
    found = verdict(ran(speed=speeds(adaptive={**GAINS, STORY: 0.8})))
    assert found.answer is Answer.NO_GO
    assert missed(found) == ["no class surely costs 5 % more", "nowhere surely below 0.98x of plain decode speed"]
    assert any("creative_writing +2" in check.said for check in found.checks)


def test_a_loss_under_load_alone_is_found():
    found = verdict(ran(fall=0.3))
    assert missed(found) == ["nowhere surely below 0.98x of plain decode speed"]
    assert any("4 at once" in check.said for check in found.checks)


def test_one_answer_that_differs_is_enough():
    run = ran()
    place = next(i for i, r in enumerate(run.requests) if r.arm == "adaptive")
    changed = [*run.requests]
    changed[place] = replace(changed[place], text_hash="another")
    run = replace(run, requests=tuple(changed))
    found = verdict(run)
    assert missed(found) == ["answers are the baseline's, character for character"]
    assert any(check.said == "191 of 192" for check in found.checks)
    assert verdict(run, unchanged=False).answer is Answer.GO


def test_a_saving_that_noise_hides_is_not_shown():
    found = verdict(
        ran(speed=speeds(adaptive={EDIT: 1.1, CHAT: 1.1, STORY: 1.1}), noise=0.2), floor=0.0, class_loss=1.0
    )
    assert found.answer is Answer.NO_GO
    assert any("(not shown)" in check.said for check in found.checks)


def test_an_invalid_run_answers_nothing():
    found = verdict(ran(lag_s=0.02))
    assert found.answer is Answer.INVALID
    assert found.headline.startswith("No answer: the run is invalid")


def test_too_few_blocks_decide_nothing():
    assert missed(verdict(ran(blocks=3)))[0] == "enough blocks"
    one = {check.name: check.passed for check in verdict(ran(blocks=1)).checks}
    assert list(one.values()) == [False, False, None, None, True]  # what has no interval is not judged


def test_where_speculation_is_the_wrong_optimisation_it_says_so():
    slow = {EDIT: 0.9, CHAT: 0.9, STORY: 0.9}
    found = verdict(ran(speed=speeds(adaptive=slow, int4=dict.fromkeys(ALIKE, 1.8))))
    assert found.advice[0] == "Speculation is the wrong optimisation here: int4 saves, adaptive does not."


def test_what_saves_more_is_named_and_its_changed_output_too():
    run = ran(speed=speeds(int4=dict.fromkeys(ALIKE, 3.0)))
    arms = tuple(replace(arm, lossless=arm.label != "int4") for arm in run.plan.arms)
    found = verdict(replace(run, plan=replace(run.plan, arms=arms)))
    assert found.answer is Answer.GO
    assert "Speculation alone is not the best optimisation here: int4 saves more." in found.advice
    assert any(said.startswith("int4 takes -") and "CHANGES: check quality" in said for said in found.advice)
    assert any(said.startswith("A larger batch, off at 4 at once: +300") for said in found.advice)


def test_arms_that_could_not_be_tried_are_told():
    pilot = read()
    found = judge(ran(), pilot, pilot.price.money(None), left_out=["small: not here"])
    assert found.advice[-1] == "Not tried: small: not here"


def test_the_example_is_a_pilot():
    pilot = read_pilot(EXAMPLE.read_text(), env={}, source="example")
    assert pilot.arms[0].role == "off"
    assert {arm.role for arm in pilot.arms} >= {"adaptive", "static", "int4", "smaller model"}
    assert all(arm.lossless is not None for arm in pilot.arms)
    assert pilot.budget.minutes < 10
    assert set(suite_of(pilot.workload, seed=0).counts) == {RequestClass(name) for name in pilot.workload.shares}


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("candidate: adaptive", "candidate: nobody", "choose from adaptive"),
        ("candidate: adaptive", 'candidate: "off"', "choose from adaptive"),
        ("judged: 1", "judged: 2", "none of the levels"),
        ("levels: [1, 4]", "levels: [4, 1]", "ascending"),
        ("usd_per_hour: 1", "device: abacus", "choose from H100"),
        ("usd_per_hour: 1", "devices: 1", "either usd_per_hour or device"),
        ("name: a pilot", "name: a pilot\ncriteria: {saving: 10}", "share from 0 to 1"),
        ("name: a pilot", "name: a pilot\nbudget: {blocks: 3}", "least_blocks"),
        ("name: a pilot", "name: a pilot\nworkload: {shares: {poems: 1}}", "no request class 'poems'"),
        ("role: adaptive}", "role: adaptive, if_present: true}", "can't be left out"),
        ("label: adaptive", 'label: "off"', "different labels"),
        ("label: adaptive", "lable: adaptive", "lable"),
    ],
)
def test_a_file_that_cannot_be_meant_says_why(old, new, why):
    with pytest.raises(ValueError, match=why):
        read(FILE.replace(old, new))


def test_shares_are_what_the_plan_weighs_by():
    asked = WorkloadAsked(per_class=2, shares={"code": 3, "sql": 1})
    arms = [arm_of(arm) for arm in read().arms]
    plan = plan_of(
        read(), suite_of(asked, seed=0), arms, {"cpu": "x"}, at="2026-11-29T00:00:00Z", version="1", command="c"
    )
    assert plan.workload.shares == pytest.approx({"code_synthesis": 0.75, "sql": 0.25})
    assert plan.workload.requests == 4
    assert [arm.label for arm in plan.arms] == ["off", "adaptive"]


def test_every_request_has_a_seed_and_a_temperature_and_keeps_its_own():
    own = {"seed": 7, "temperature": 0.5}
    work = [WorkRequest(id=f"r{i}", prompt="x", params=own if i == 0 else {}) for i in range(3)]
    params = [r.params for r in settled(Workload(name="w", requests=tuple(work)), 1, 0.0).requests]
    seeds = [each["seed"] for each in params]
    assert [each["temperature"] for each in params] == [0.5, 0.0, 0.0]
    assert seeds[0] == 7
    assert len(set(seeds)) == 3
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_a_key_is_in_no_record():
    text = FILE.replace("{label: adaptive,", '{label: adaptive, target: "http://x", key: "${K}",')
    pilot = read_pilot(text, env={"K": "secret"}, source="f")
    arms = [arm_of(arm) for arm in pilot.arms]
    plan = plan_of(pilot, suite_of(WorkloadAsked(per_class=1), seed=0), arms, {}, at="", version="", command="")
    assert pilot.arm("adaptive").key == "secret"
    assert "secret" not in repr(pilot) + repr(plan)


class Steps:
    """10 ms, and 1 more for each token beyond a request's first."""

    def step_ms(self, tokens, context, sequences):
        return 10.0 + (tokens - sequences)

    def draft_ms(self, drafter, depth, sequences):
        return 0.0


def test_a_prediction_by_hand():
    run = ran(speed=speeds(fixed=GAINS))
    (one, four) = predictions(run, {"fixed": Steps(), "off": Steps()})
    # Half the steps draft, four tokens each; of them 80, 60 and 20 % are accepted: 2.13 a draft.
    emitted = 1 + 0.5 * (3.2 + 2.4 + 0.8) / 3
    assert (one.arm, one.level, four.level) == ("fixed", 1.0, 4.0)
    assert one.speedup == pytest.approx(emitted * 10 / 12)
    assert four.speedup == pytest.approx(emitted * 10 / 18)


def test_criteria_default_to_what_matters():
    assert Criteria().unchanged
    assert Criteria().slo is None


def test_the_documented_file_is_a_pilot_with_its_defaults():
    text = (EXAMPLE.parents[1] / "docs" / "pilot.md").read_text()
    documented = text.split("```yaml\n")[1].split("```")[0]
    pilot = read_pilot(documented, env={}, source="docs/pilot.md")
    assert pilot.workload == WorkloadAsked()
    assert (pilot.load, pilot.budget, pilot.criteria) == (LoadAsked(), Budget(), Criteria())
    for section in (Pilot, WorkloadAsked, LoadAsked, Budget, PriceAsked, Criteria, ArmAsked):
        assert {each.name for each in fields(section)} - set(re.findall(r"\w+", documented)) <= {"seed", "note"}
