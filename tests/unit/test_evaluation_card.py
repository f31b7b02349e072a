"""Result cards: what they say, that they can't be changed unseen, and what two of them say together."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from decodeloop.evaluation import card_build
from decodeloop.evaluation.card import Card, decode, encode, json_schema, sealed
from decodeloop.evaluation.card_compare import Weight, compare, diff, left_out
from decodeloop.evaluation.card_measures import acceptance, by_position, quantiles
from decodeloop.evaluation.plan import Arm, LoadKind, Mode
from decodeloop.evaluation.results import Drafting, PhaseTimes, Results
from measured import CHAT, EDIT, FACTS, plan, request, results, served

PUBLISHED = Path(__file__).parents[2] / "docs" / "card.schema.json"
TIMES = PhaseTimes(queue_ms=1.0, prefill_ms=4.0, draft_ms=2.0, verify_ms=20.0, sample_ms=3.0, overhead_ms=0.5)
WHOLE = Drafting(drafts=4, verified=14, accepted=9, drafted=16, steps=6, accepted_histogram=(1, 0, 1, 1, 1))


def drafting(level, block, place, arm):
    on = {"drafting": WHOLE, "times": TIMES} if arm == "on" else {}
    return [replace(r, **on) for r in served(level, block, place, arm)]


def faster(level, block, place, arm):
    """At level 1 `on` takes half the time, at level 4 a tenth more; every block with its own mood."""
    mood = 1.0 + 0.1 * block
    gain = {1.0: 0.5, 4.0: 1.1}[level] if arm == "on" else 1.0
    return 2.0 * mood * gain * (1.0 + 0.001 * ((block + place) % 2))


@pytest.fixture(scope="module")
def run():
    return results(plan(blocks=8), serve=drafting, seconds=faster)


@pytest.fixture(scope="module")
def card(run):
    return card_build.build(run, "on", fresh=True, sampling={"temperature": 0})


def test_a_card_is_what_its_schema_says(card):
    jsonschema.validate(json.loads(encode(card)), json_schema())
    broken = json.loads(encode(card))
    broken["acceptance"]["all"]["surprise"] = 1
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, json_schema())


def test_the_published_schema_is_the_codes():
    assert json.loads(PUBLISHED.read_text()) == json.loads(json.dumps(json_schema()))


def test_a_card_is_read_back_and_may_not_be_changed(card):
    raw = encode(card)
    assert decode(raw) == card
    with pytest.raises(ValueError, match="changed after it was sealed"):
        decode(raw.replace(b'"verified": 14', b'"verified": 15').replace(b'"blocks": 8', b'"blocks": 80'))
    assert decode(encode(sealed(card))).sha256 == card.sha256


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda card: card.pop("load"), "load"),
        (lambda card: card["identity"].update(mode="X"), "identity.mode"),
        (lambda card: card["load"]["points"][0].update(level="many"), r"points\[.*level"),
        (lambda card: card.update(extra=1), "extra"),
    ],
)
def test_what_is_no_card_is_refused_by_its_place(card, change, where):
    fields = json.loads(encode(card))
    change(fields)
    with pytest.raises(ValueError, match=where):
        decode(json.dumps(fields).encode())


def test_what_a_card_says(card):
    assert (card.identity.arm, card.identity.baseline, card.identity.mode) == ("on", "off", "R")
    assert card.losslessness.claimed
    assert (card.losslessness.equal, card.losslessness.compared) == (64 * 2, 64 * 2)
    one, four = card.throughput
    assert one.against_baseline.ratio == pytest.approx(2.0, rel=1e-6)
    assert four.against_baseline.ratio == pytest.approx(1 / 1.1, rel=1e-6)
    assert one.output_tokens_per_s == pytest.approx(
        44 * 16 / sum(faster(1.0, b, t, "on") for b in range(8) for t in (0, 1))
    )
    assert (card.cliff["all"].last_gain, card.cliff["all"].first_loss) == (1.0, 4.0)
    assert card.statistics.blocks == 8
    assert card.validity.valid


def test_acceptance_has_its_four_names(card):
    part = card.acceptance["all"]
    count = len(results(plan(blocks=8)).steady(arm="on"))
    assert (part.drafts, part.verified, part.accepted, part.drafted) == (4 * count, 14 * count, 9 * count, 16 * count)
    assert part.mal_step_weighted == pytest.approx(1 + 9 / 4)
    assert part.mal_request_mean == pytest.approx(1 + 9 / 4)
    assert part.rate == pytest.approx(9 / 14)
    assert part.draft_yield == pytest.approx(9 / 16)
    assert part.no_draft_share == pytest.approx(1 - 4 / 6)
    assert part.emitted == 13 * count
    assert part.survival == pytest.approx((0.75, 0.75, 0.5, 0.25))
    assert part.conditional == pytest.approx((0.75, 1.0, 2 / 3, 0.5))
    assert set(card.acceptance) == {"all", "code_edit", "general_chat"}
    assert card.time["all"].verify_ms == pytest.approx(20.0)
    assert card.time["all"].scheduler_ms == pytest.approx(0.5)


def test_request_means_and_steps_weigh_differently():
    long = Drafting(drafts=9, verified=9, accepted=0)
    short = Drafting(drafts=1, verified=1, accepted=1)
    part = acceptance([request(1.0, 0, 0, "on", drafting=d) for d in (long, short)])
    assert part.mal_request_mean == pytest.approx(1.5)
    assert part.mal_step_weighted == pytest.approx(1.1)
    assert (part.steps, part.drafted, part.draft_yield) == (None, None, None)


def test_what_isnt_told_is_not_zero():
    """llama.cpp tells drafted and accepted tokens, not in how many steps."""
    part = acceptance([request(1.0, 0, 0, "on", drafting=Drafting(drafts=None, verified=8, drafted=8, accepted=2))])
    assert (part.mal_step_weighted, part.mal_request_mean, part.drafts) == (None, None, None)
    assert part.rate == pytest.approx(0.25)
    assert acceptance([request(1.0, 0, 0, "on")]) is None
    assert by_position(()) == (None, None)


def test_percentiles_only_as_far_as_the_sample_goes():
    few, some, many = (quantiles(float(i) for i in range(n)) for n in (20, 100, 1000))
    assert (few.p90, few.p95, some.p99) == (None, None, None)
    assert some.p95 == pytest.approx(94.05)
    assert many.p99 == pytest.approx(989.01)
    assert quantiles([]) is None


def test_a_baselines_own_card_compares_with_nothing(run):
    own = card_build.build(run, "off")
    assert (own.identity.baseline, own.cliff, own.losslessness.compared) == (None, {}, None)
    assert own.throughput[0].against_baseline is None
    assert "a baseline: speed against what?" in left_out(own)


def test_nothing_measured_no_card():
    with pytest.raises(ValueError, match="no block was finished"):
        card_build.build(Results(plan()), "on")
    with pytest.raises(KeyError, match="there are off, on"):
        card_build.build(results(), "none")


def test_a_card_of_itself_is_comparable_and_equal(card):
    found = compare(card, card)
    assert found.comparable
    assert found.differences == ()
    assert [s.ratio for s in found.shared] == pytest.approx([1.0, 1.0])
    assert all(s.low < 1.0 < s.high for s in found.shared)
    assert list(diff(card, card)) == []


def other(**changes):
    return card_build.build(results(plan(blocks=8, **changes), serve=drafting, seconds=faster), "on", fresh=True)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"workload": type(FACTS)(name="w", sha256="1" * 64, requests=1, counts={}, shares={})}, "workload (hash)"),
        ({"max_tokens": 9}, "longest answer"),
        ({"mode": Mode.SYNTHETIC}, "mode of the result"),
        ({"arrivals": "poisson", "load": LoadKind.OPEN}, "kind of load"),
    ],
)
def test_cards_about_different_things_are_not_compared(changes, what):
    found = compare(other(), other(**changes))
    assert not found.comparable
    assert what in {d.what for d in found.differences if d.weight is Weight.FORBIDS}


def test_invalid_runs_are_not_compared():
    late = results(serve=lambda *key: [replace(r, sent_s=0.9) for r in served(*key)])
    bad = card_build.build(late, "on")
    assert not bad.validity.valid
    assert not compare(bad, bad).comparable


def test_other_hardware_is_a_caution_and_another_engine_the_subject():
    arms = (plan().arms[0], Arm(label="on", target="x", engine="vllm", settings={"engine_version": "0.33"}))
    found = compare(other(), other(system={"hardware": {"cpu": "x"}}, arms=arms))
    weights = {d.what: d.weight for d in found.differences}
    assert weights["hardware"] is Weight.CAUTIONS
    assert weights["engine"] is Weight.SUBJECT
    assert found.comparable
    said = {d.what: (d.one, d.other) for d in found.differences}
    assert said["engine"] == ("not said not said", "vllm 0.33")


def test_no_level_in_common_is_no_comparison():
    elsewhere = card_build.build(results(plan(levels=(2.0,))), "on")
    assert not compare(other(), elsewhere).comparable


def test_what_a_claim_leaves_out_is_listed(card):
    missing = left_out(card)
    assert "clocks and power limits" in missing
    assert "a baseline: speed against what?" not in missing
    alone = card_build.build(results(plan(blocks=2, levels=(1.0,))), "on")
    assert any("more than one load" in why for why in left_out(alone))
    assert any("8 blocks" in why for why in left_out(alone))
    assert any("acceptance: did" in why for why in left_out(alone))


def test_differences_are_named_by_their_place():
    assert list(diff({"a": [1, {"b": 2}], "c": 1}, {"a": [1, {"b": 3}], "d": 1})) == [
        ("a[1].b", 2, 3),
        ("c", 1, None),
        ("d", None, 1),
    ]
    assert [path for path, _, _ in diff(other(), other(seed=5))][:1] == ["statistics.seed"]


def test_a_class_has_its_own_cliff(card):
    assert set(card.cliff) == {"all", str(EDIT), str(CHAT)}
    assert isinstance(card, Card)


@pytest.mark.parametrize(
    ("cached", "said", "warned"),
    [(0, "not used: by every answer's own count", False), (16, None, True), (None, None, True)],
)
def test_a_prefix_cache_that_no_answer_used_needs_no_emptying(cached, said, warned):
    def serve(level, block, place, arm):
        return [replace(r, cached_tokens=cached) for r in served(level, block, place, arm)]

    run = results(plan(blocks=2), serve=serve, seconds=faster)
    run = replace(run, plan=replace(run.plan, arms=tuple(replace(arm, reset="none") for arm in run.plan.arms)))
    made = card_build.build(run, "on")
    assert made.system.prefix_cache == said
    assert any("prefix caches were not emptied" in caveat for caveat in made.validity.caveats) is warned
