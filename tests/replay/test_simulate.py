"""The fleet simulator against published anchors, closed forms and conservation laws."""

from __future__ import annotations

import json

import numpy as np
import pytest

from decodeloop.evaluation.acceptance import BySurvival
from decodeloop.evaluation.fleet import Limits
from decodeloop.evaluation.roofline import H100, Hardware, Model, Roofline, StraightLines
from decodeloop.evaluation.rules import Best, Fixed, Off
from decodeloop.evaluation.simulate import Fleet, simulate, simulate_closed
from decodeloop.evaluation.steady import inversion, speedup
from decodeloop.evaluation.workload import Arrival, poisson
from decodeloop.types import RequestClass

CHAT, EDIT = RequestClass.GENERAL_CHAT, RequestClass.CODE_EDIT

# Published for Llama-3.1-8B on an H100 with an EAGLE drafter, in ms.
PUBLISHED = StraightLines(
    step=5.886, token=2.101e-2, context=3.926e-5, draft_step=2.135, draft_token=8.41e-4, draft_context=2.38e-6
)
TWO_A_DRAFT = (0.55, 0.28, 0.17)  # sums to 1: an accepted length of 2 with the bonus token
LLAMA_70B = Model(name="70B", parameters=70e9, kv_bytes=327_680)


@pytest.mark.parametrize(
    ("load", "published"), [(1, 1.46), (32, 1.29), (64, 1.20), (128, 1.12), (256, 1.05), (512, 1.0)]
)
def test_published_speedups(load, published):
    assert speedup(PUBLISHED, TWO_A_DRAFT, load, context=1024, draft_len=3) == pytest.approx(published, abs=0.006)


@pytest.mark.parametrize(("context", "published"), [(1024, 554), (256, 107), (2048, None)])
def test_published_inversions(context, published):
    """The cliff moves with the context: it is no constant of the method."""
    found = inversion(PUBLISHED, TWO_A_DRAFT, context=context, draft_len=3)
    assert found == (published if published is None else pytest.approx(published, rel=0.02))


def test_the_cliff_moves_with_depth_and_acceptance():
    def ends(survival, draft_len=3):
        return inversion(PUBLISHED, survival, context=256, draft_len=draft_len)

    assert ends(TWO_A_DRAFT, 2) > ends(TWO_A_DRAFT)
    assert ends((0.8, 0.6, 0.5)) > 2 * ends(TWO_A_DRAFT)
    assert ends((0.1, 0.0, 0.0)) == 1


def test_the_roofline_prior_reads_70b_in_41_8_ms():
    prior = Roofline(H100, LLAMA_70B)
    assert prior.step_ms(1, 0, 1) == pytest.approx(41.8, abs=0.05)
    assert prior.label == "roofline prior"


@pytest.mark.parametrize(("tokens", "published"), [(128, 1.05), (256, 1.24), (512, 2.05), (1024, 4.8)])
def test_the_roofline_prior_bends_where_linear_layers_do(tokens, published):
    prior = Roofline(H100, LLAMA_70B)
    assert prior.step_ms(tokens, 0, 1) / prior.step_ms(1, 0, 1) == pytest.approx(published, rel=0.1)


def clients(count, *, prompt=1000, output=200, request_class=CHAT):
    """Spread out, so that they don't march in step."""
    rng = np.random.default_rng(0)
    return [
        Arrival(float(rng.uniform(0, 1.0)), prompt, int(rng.integers(output // 2, 2 * output)), request_class)
        for _ in range(count)
    ]


def fleet(rule, *, cost=PUBLISHED, **fields):
    plain = {"replicas": 1, "cost": cost, "rule": rule, "acceptance": BySurvival({CHAT: TWO_A_DRAFT})}
    return Fleet(**{**plain, **fields})


@pytest.mark.parametrize("load", [16, 64, 256])
def test_the_simulation_agrees_with_the_closed_form(load):
    """Prefill apart, so that one replica decodes as the closed form has it; TPOT with and without speculation."""
    tpot = []
    for rule in (Off, lambda: Fixed(PUBLISHED, 3)):
        apart = fleet(rule, replicas=9, split=8 / 9)
        found, _ = simulate_closed(apart, clients(load, prompt=900, output=160), seconds=8.0, ramp_s=3.0)
        tpot.append(found.tpot_ms["mean"])
    expected = speedup(PUBLISHED, TWO_A_DRAFT, load, context=1024, draft_len=3)
    assert tpot[0] / tpot[1] == pytest.approx(expected, rel=0.05)


def test_every_token_asked_for_is_served_once():
    arrivals = [Arrival(t, 300, 1 + i % 40) for i, t in enumerate(poisson(20, 5, seed=1))]
    for rule in (Off, lambda: Fixed(PUBLISHED, 3)):
        found, served = simulate(fleet(rule, replicas=2), arrivals)
        assert found.finished == found.requests == len(arrivals)
        assert found.tokens_per_s * found.seconds == pytest.approx(sum(a.output_tokens for a in arrivals))
        assert all(s.arrival.at_s < s.first_token_s <= s.finished_s for s in served)


def test_alone_a_request_takes_exactly_its_steps():
    """Two chunks of prefill and nine decode steps, all of known length."""
    cost = StraightLines(step=10.0, token=0.0, context=0.0)
    found, (served,) = simulate(fleet(Off, cost=cost, limits=Limits(step_tokens=2048)), [Arrival(1.0, 4096, 10)])
    assert served.ttft_ms == pytest.approx(20.0)
    assert served.tpot_ms == pytest.approx(10.0)
    assert found.seconds == pytest.approx(1.11)


def test_more_load_means_longer_waits_and_more_replicas_shorter_ones():
    def ttft(rate, replicas):
        arrivals = [Arrival(t, 1000, 100) for t in poisson(rate, 10, seed=2)]
        return simulate(fleet(Off, replicas=replicas), arrivals)[0].ttft_ms["p95"]

    assert ttft(2, 1) < ttft(20, 1) < ttft(40, 1)
    assert ttft(40, 4) < ttft(40, 1)


@pytest.mark.parametrize(
    ("load", "chat", "edit"), [(4, (0.4, 0.16, 0.06), (0.9, 0.8, 0.7)), (400, (0.2, 0.04, 0.01), (0.8, 0.6, 0.5))]
)
def test_the_best_rule_is_never_behind_and_knows_when_to_stop(load, chat, edit):
    laws = BySurvival({CHAT: chat, EDIT: edit})
    mixed = [*clients(load // 2, prompt=200), *clients(load // 2, prompt=200, request_class=EDIT)]
    rules = {"off": Off, "fixed": lambda: Fixed(PUBLISHED, 3), "best": lambda: Best(PUBLISHED)}
    rates = {}
    for name, rule in rules.items():
        apart = fleet(rule, replicas=9, split=8 / 9, acceptance=laws)
        rates[name] = simulate_closed(apart, mixed, seconds=2.0, ramp_s=1.5)[0].tokens_per_s
    assert rates["best"] >= 0.97 * max(rates.values())
    assert rates["fixed"] < rates["off"] if load == 400 else rates["fixed"] > rates["off"]


def test_a_large_fleet_is_simulated_by_a_sample_of_it(monkeypatch):
    sampled = 12
    monkeypatch.setattr("decodeloop.evaluation.simulate.SAMPLED", sampled)

    def rates(replicas):
        arrivals = [Arrival(t, 500, 60) for t in poisson(2.0 * replicas, 6, seed=3)]
        return simulate(fleet(Off, replicas=replicas), arrivals, until_s=6.0)[0]

    whole, large = rates(sampled), rates(4 * sampled)
    assert large.simulated_replicas == sampled
    assert large.tokens_per_s == pytest.approx(4 * whole.tokens_per_s, rel=0.1)
    assert large.tpot_ms["p50"] == pytest.approx(whole.tpot_ms["p50"], rel=0.05)


def test_ten_thousand_accelerators_of_unmeasured_hardware():
    prior = Roofline(Hardware(name="next", memory_bytes_per_s=8e12, flops_per_s=2.2e15), LLAMA_70B, accelerators=4)
    arrivals = [Arrival(t, 800, 60) for t in poisson(2500, 2, seed=4)]
    found, _ = simulate(fleet(Off, cost=prior, replicas=2500, accelerators=4), arrivals)
    assert found.label == "roofline prior"
    assert found.tokens_per_s_per_accelerator == pytest.approx(found.tokens_per_s / 10_000)
    assert json.loads(json.dumps(found.to_json()))["mode"] == "M"


def test_splitting_prefill_off_steadies_the_decoding():
    arrivals = [Arrival(t, 6000, 60) for t in poisson(6, 5, seed=5)]
    together, _ = simulate(fleet(Off, replicas=4), arrivals)
    apart, served = simulate(fleet(Off, replicas=4, split=0.5, transfer_ms=5.0), arrivals)
    assert apart.tpot_ms["p95"] < together.tpot_ms["p95"]
    assert all(s.done for s in served)


def test_goodput_counts_what_met_both_objectives():
    arrivals = [Arrival(t, 1000, 60) for t in poisson(10, 6, seed=6)]
    found, served = simulate(fleet(Off), arrivals)
    assert found.goodput(served, ttft_ms=1e9, tpot_ms=1e9) == pytest.approx(len(arrivals) / found.seconds)
    assert found.goodput(served, ttft_ms=0.0, tpot_ms=1e9) == 0.0


def test_the_same_seed_gives_the_same_fate():
    arrivals = [Arrival(t, 300, 50) for t in poisson(20, 2, seed=7)]
    runs = [simulate(fleet(lambda: Fixed(PUBLISHED, 3), replicas=3), arrivals, seed=8) for _ in range(2)]
    assert runs[0][0] == runs[1][0]


@pytest.mark.parametrize(
    ("fields", "message"), [({"replicas": 0}, "at least one"), ({"replicas": 1, "split": 0.5}, "two replicas")]
)
def test_impossible_fleets_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        fleet(Off, **fields)


def test_survival_that_rises_is_refused():
    with pytest.raises(ValueError, match="survival falls"):
        BySurvival({CHAT: (0.5, 0.6)})
