"""Results of other clients, read as ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from decodeloop.evaluation import card_build
from decodeloop.evaluation.card_compare import left_out
from decodeloop.evaluation.journal import load, save
from decodeloop.evaluation.others import FORMS, read_results

DATA = Path(__file__).parent / "data" / "clients"
FILES = {"aiperf": "aiperf.jsonl", "vllm_bench": "vllm_bench.json", "guidellm": "guidellm.json"}


def imported(form):
    return read_results((DATA / FILES[form]).read_text(), form, label="theirs")


@pytest.mark.parametrize("form", FORMS)
def test_times_are_what_the_client_measured(form):
    """All three samples tell of the same request: first token after 100 ms, ten more in a second."""
    results = imported(form)
    first = min((r for r in results.requests if r.error is None), key=lambda r: r.sent_s)
    assert first.ttft_ms == pytest.approx(100.0, abs=0.01)
    assert first.tpot_ms == pytest.approx(100.0, abs=0.01)
    assert (first.prompt_tokens, first.completion_tokens, first.exact_chunks) == (20, 11, False)
    failed = [r.error for r in results.requests if r.error is not None]
    assert failed in (["boom"], ["refused"])
    assert results.missing() == []


@pytest.mark.parametrize("form", FORMS)
def test_they_give_a_card_that_says_what_it_lacks(form, tmp_path):
    results = imported(form)
    save(tmp_path / "run.jsonl", results)
    card = card_build.build(load(tmp_path / "run.jsonl"), "theirs")
    assert card.latency[0].ttft_ms.p50 >= 100.0 - 0.01
    assert not card.latency[0].exact_pieces
    assert card.throughput[0].output_tokens_per_s > 0
    assert "a baseline: speed against what?" in left_out(card)


def test_loads_are_the_clients_word_or_what_was_seen():
    assert imported("vllm_bench").plan.levels == (2.0,)
    assert imported("guidellm").plan.levels == (2.0,)
    assert imported("aiperf").plan.levels == (1.0,)


def test_aiperfs_acceptance_is_the_servers():
    card = card_build.build(imported("aiperf"), "theirs")
    part = card.acceptance["all"]
    assert (part.drafts, part.verified, part.accepted) == (4, 8, 5)
    assert part.mal_step_weighted == pytest.approx(2.25)
    assert len(imported("aiperf").requests) == 2  # the warm-up is none


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("text", ["", "{}", "[]", "not JSON", '{"benchmarks": [{}]}', '{"ttfts": [1]}'])
def test_other_files_are_refused(form, text):
    with pytest.raises(ValueError, match=form):
        read_results(text, form, label="x")


def test_unknown_clients_are_refused():
    with pytest.raises(ValueError, match="choose from aiperf, guidellm, vllm_bench"):
        read_results("", "wrk", label="x")


def test_summaries_without_requests_are_refused():
    with pytest.raises(ValueError, match="--save-detailed"):
        read_results('{"mean_ttft_ms": 3.0}', "vllm_bench", label="x")
