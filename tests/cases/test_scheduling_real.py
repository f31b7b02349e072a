"""Memory, budgets, limits and pauses, with drafters that have a memory of their own.

Cases 18 to 21, 23, 24, 26, 28 and 29.
"""

import random
import threading
from dataclasses import replace

import numpy as np
import pytest

from decodeloop.engine.job import Job
from decodeloop.policy.fixed import FixedPolicy
from decodeloop.speculation.drafters.scripted import WrongDrafter
from decodeloop.types import FinishReason, Reason, RequestRefused
from real import RUNNERS, TEXT, Tiny, differences, drafting, request
from tiny import tiny_hf

KINDS = ["ngram", "suffix", "first layer"]
LONG = TEXT * 5  # 80 tokens


@pytest.mark.parametrize("kind", KINDS)
def test_preempted_requests_say_the_same(tiny, kind):
    """A drafter goes on from what its sequence was; nothing of a draft outlives its step."""
    asked = [request(LONG[i:], seed=i, temperature=1.0, max_tokens=40, ignore_eos=True) for i in range(6)]
    with tiny.engine(draft_len=6, blocks=20, max_context=160, **drafting(kind)) as running:
        answers = running.ask(*asked)
        assert running.engine.engine.scheduler.preemptions > 0
        assert sum(row.verify_len for row in running.rows) > 0
    assert differences(answers, tiny.plain(*asked)) == []


class Reader:
    """Hears of the first tokens, and of the end."""

    def __init__(self):
        self.begun, self.over, self.job = threading.Event(), threading.Event(), None

    def put(self, chunks):
        self.begun.set()

    def end(self):
        self.over.set()

    def fail(self, error):
        self.over.set()


def started(running, asked):
    reader = Reader()
    prepared = running.engine.intake.prepare(asked)

    def open_job():
        reader.job = Job(asked, lambda choice: running.engine.intake.open(prepared, choice), reader)
        return reader.job

    running.engine.worker.submit(open_job, reader.fail)
    return reader


@pytest.mark.parametrize("kind", ["ngram", "first layer"])
def test_the_pool_is_whole_after_any_workload(tiny, kind):
    """100 short requests, half of them aborted: waiting, in their prompt, or in flight. A wrong drafter plays too."""
    draw = random.Random(5)
    asked = [
        request(LONG[: draw.randrange(1, 400)], seed=i, temperature=1.0, max_tokens=draw.randrange(1, 12), n=1 + i % 2)
        for i in range(100)
    ]
    wrong = {"wrong": WrongDrafter([()], 320)}
    with tiny.engine(kv_memory_mb=1, max_sequences=8, shadow_len=2, extra_drafters=wrong, **drafting(kind)) as running:
        readers = []
        for i, each in enumerate(asked):
            readers.append(started(running, each))
            if i % 2:
                victim = readers.pop(draw.randrange(len(readers)))
                if i % 4 == 1:
                    victim.begun.wait(20)
                running.engine.worker.abort(lambda victim=victim: victim.job)
        for reader in readers:
            assert reader.over.wait(60)
        settled = threading.Event()
        running.engine.worker.call(settled.set)
        assert settled.wait(20)
        assert running.cache.available_blocks == running.cache.blocks
        drafter = running.engine.engine.proposers._drafters[drafting(kind)["drafters"][0]]
        if kind == "first layer":
            most = running.engine.engine.proposers.memory_bytes()["draft_model"]["draft_kv"]
            assert drafter._cache.free_blocks * drafter._runner.info.kv_block_bytes == most
        else:
            assert len(drafter._indices) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_counts_draft_tokens(tiny, kind):
    with tiny.engine(max_step_tokens=24, max_sequences=8, prefill_chunk=10, draft_len=8, **drafting(kind)) as running:
        running.ask(*(request(TEXT[i:], seed=i, max_tokens=24, ignore_eos=True) for i in range(10)))
        assert max(sum(row.verify_len > 0 for row in record.rows) for record in running.records) > 1
        for record in running.records:
            assert sum(row.prefill_tokens or 1 + row.verify_len for row in record.rows) <= 24
            assert all(row.draft_len == 0 for row in record.rows if row.prefill_tokens)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limit", [64, 65])
def test_near_the_context_limit_a_request_goes_on_without_drafting(tiny, kind, limit):
    """Prompts of limit - 1, limit and limit + 1 tokens beside a live answer."""
    with tiny.engine(max_context=limit, draft_len=8, **drafting(kind)) as running:
        live = request(TEXT[:40], max_tokens=40)
        fits = request(tuple([5, 6, 7] * 30)[: limit - 1], max_tokens=9)
        nearly = request(tuple([5, 6, 7] * 30)[: limit - 8], max_tokens=99)
        too_long = started_or_refused(running, request((5,) * limit)), started_or_refused(running, request((5,) * 99))
        answers = running.ask(live, fits, nearly)
    assert [error.status for error in too_long] == [400, 400]
    assert f"at most {limit - 1}" in too_long[0].message
    assert [len(answer.token_ids[0]) for answer in answers[1:]] == [1, 8]
    assert {answer.finish_reasons[0] for answer in answers[1:]} == {FinishReason.LENGTH}
    assert differences(answers[:1], tiny.plain(live)) == []
    assert (
        answers[2].token_ids[0]
        == tiny.plain(replace(nearly, params=replace(nearly.params, max_tokens=8)))[0].token_ids[0]
    )


def started_or_refused(running, asked):
    with pytest.raises(RequestRefused) as refused:
        running.engine.intake.prepare(asked)
    return refused.value


def test_near_the_draft_models_own_limit_too(tiny, models):
    """A draft model made for 48 positions: beyond them its sequences decode plainly, and others keep drafting."""
    path = models / "short"
    if not path.exists():
        tiny_hf("llama", path, vocab_size=320, max_position_embeddings=48)
    asked = [request(TEXT, max_tokens=60), request(TEXT[:20], max_tokens=30)]
    with tiny.engine(draft_len=4, **drafting("other model", str(path))) as running:
        answers = running.ask(*asked)
        beyond = [row for row in running.rows if row.context_tokens >= 49]
        within = [row for row in running.rows if row.context_tokens < 45 and not row.prefill_tokens]
        assert beyond
        assert within
        reasons = [(row.draft_len, row.reason) for row in beyond if not row.prefill_tokens]
        assert set(reasons[:-5]) == {(0, Reason.NO_PROPOSAL)}
        assert all(row.draft_len == 4 for row in within[:-8])
        assert not running.engine.engine.proposers.failed
    assert differences(answers, tiny.plain(*asked)) == []


def acceptance(rows):
    return [(row.verify_len, row.accepted) for row in rows if not row.prefill_tokens]


@pytest.mark.parametrize("kind", ["ngram", "first layer"])
def test_acceptance_after_a_prefix_hit_is_that_of_a_cold_start(tiny, kind):
    """What the target need not compute again the drafter must still read."""
    with tiny.engine(draft_len=4, **drafting(kind)) as running:
        cold = running.one(LONG, max_tokens=30)
        count = len(running.rows)
        warm = running.one(LONG, max_tokens=30)
        assert warm.usage.cached == 64
        assert acceptance(running.rows[count:]) == acceptance(running.rows[:count])
        assert differences([warm], [cold]) == []


class Pausing(FixedPolicy):
    """Drafts nothing in steps 6 to 17, as under load."""

    steps = 0

    def plan(self, load, requests):
        self.steps += bool(requests)
        paused = 6 <= self.steps < 18
        plan = super().plan(load, requests)
        return replace(plan, draft_lens=(0,) * len(requests), drafters=(None,) * len(requests)) if paused else plan


@pytest.mark.parametrize(
    ("kind", "catch_up"), [("ngram", 512), ("suffix", 512), ("first layer", 512), ("first layer", 3)]
)
def test_a_paused_drafter_recovers(tiny, kind, catch_up):
    """The first draft after the pause, and every later one, is the one that would have been made without it."""
    settings = drafting(kind)
    if kind == "first layer":
        settings["drafter_options"]["draft_model"]["catch_up_tokens"] = catch_up
    drafts = {}
    for paused in (False, True):
        with tiny.engine(draft_len=3, **settings) as running:
            if paused:
                running.engine.engine.policy = Pausing(running.engine.engine.policy._settings)
            running.one(max_tokens=80, ignore_eos=True)
            decoding = [row for row in running.rows if not row.prefill_tokens]
            drafts[paused] = {row.context_tokens: (row.verify_len, row.accepted) for row in decoding}
            if paused:
                assert [row.draft_len for row in decoding[5:17]] == [0] * 12
                first = decoding[17].context_tokens + (0 if catch_up == 512 else 12)
    again = [context for context in drafts[True] if context in drafts[False] and context >= first]
    assert len(again) > 10
    assert sum(drafts[True][context][1] for context in again) > 0
    assert [drafts[True][context] for context in again] == [drafts[False][context] for context in again]


def test_organizations_learn_nothing_of_each_other(tiny):
    """Neither prefixes nor finished outputs: another organization is served as a stranger, to the step."""
    asked = {"max_tokens": 40, "temperature": 1.0, "seed": 3, "ignore_eos": True}
    with tiny.engine(draft_len=6, **drafting("suffix")) as running:
        cold = running.one((9, 8, 7), organization="a", **asked)
        first = acceptance(running.rows)
        running.records.clear()
        own = running.one((9, 8, 7), organization="a", **asked)
        warm = acceptance(running.rows)
        running.records.clear()
        other = running.one((9, 8, 7), organization="b", **asked)
        assert acceptance(running.rows) == first
        running.records.clear()
        assert running.one(LONG, organization="a").usage.cached == 0
        assert running.one(LONG, organization="b").usage.cached == 0
        assert running.one(LONG, organization="b").usage.cached > 0
    assert differences([own, other], [cold, cold]) == []
    assert sum(accepted for _, accepted in warm) > sum(accepted for _, accepted in first) + 10


def test_a_broken_draft_model_shows_and_a_good_one_does_not(tiny, near, stranger):
    """Of the right vocabulary and the wrong weights: nothing fails, everything is rejected, and that is said."""
    for model, broken in ((near, False), (stranger, True)):
        with tiny.engine(draft_len=8, **drafting("other model", model)) as running:
            running.ask(*(request(TEXT[i:], max_tokens=40, ignore_eos=True) for i in range(4)))
            warnings = running.engine.describe()["warnings"]
            assert bool(warnings) == broken, warnings
            assert running.engine.counters()["drafter_warnings"] == broken
    assert "drafter draft_model" in warnings[0]


def test_records_reconcile_with_usage_and_totals(tiny, near):
    text = tiny.plain(request(max_tokens=40))[0].token_ids[0]
    asked = [request(max_tokens=40, stop_token_ids=(token,)) for token in text[1:9]]
    asked += [request(max_tokens=most, temperature=1.0, seed=most) for most in range(1, 9)]
    for verifier in ("coupled", "rejection", "block"):
        with tiny.engine(draft_len=5, verifier=verifier, **drafting("other model", near)) as running:
            answers = running.ask(*asked)
            rows, counters = running.rows, running.engine.counters()
            judged = [row for row in rows if row.emitted]
            assert all(row.emitted + row.discarded == row.accepted + 1 for row in judged)
            for field, usage, total in (
                ("draft_len", "drafted", "draft_tokens"),
                ("verify_len", "verified", "verified_tokens"),
                ("accepted", "accepted", "accepted_tokens"),
                ("emitted", "completion", "emitted_tokens"),
            ):
                counted = sum(getattr(row, field) for row in rows)
                assert counted == sum(getattr(answer.usage, usage) for answer in answers)
                assert counted == counters[f"{total}_total"]
            assert sum(row.discarded for row in rows) == counters["discarded_tokens_total"] > 0
            assert sum(answer.report.discarded for answer in answers) == counters["discarded_tokens_total"]
            for answer in answers:
                steps = answer.report.steps + 1  # the prompt's last step gave a token too
                assert answer.usage.completion == steps + answer.usage.accepted - answer.report.discarded


@pytest.fixture(scope="module", params=[*RUNNERS, "torch, ordinary"])
def poisoned(request, models):
    """Token 100 turns all that reads it into NaN."""
    from safetensors.torch import load_file, save_file

    path = models / f"poisoned {request.param}"
    tiny_hf("llama", path, vocab_size=320, tie_word_embeddings=False)
    weights = load_file(path / "model.safetensors")
    weights["model.embed_tokens.weight"][100] = np.nan
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    return Tiny.open(path, **RUNNERS.get(request.param, {"runner": "torch"}))


@pytest.mark.parametrize("kind", ["ngram", "first layer"])
def test_nan_ends_its_request_and_spoils_no_memory(poisoned, kind):
    """The sick request's blocks hold NaN; whoever gets them next must not read any."""
    well = [request(TEXT[i:], banned_token_ids=(100,), seed=i, temperature=1.0) for i in range(3)]
    sick = request((5, 6, 100) * 30, n=3)
    with poisoned.engine(
        max_context=128,
        max_sequences=4,
        kv_memory_mb=1,
        **drafting(kind),
    ) as running:
        before = running.ask(*well)
        for _ in range(3):
            with pytest.raises(RequestRefused, match="nan") as failed:
                running.ask(sick)
            assert failed.value.status == 500
            again = running.ask(*well)
            assert [answer.texts for answer in again] == [answer.texts for answer in before]
        assert not running.engine.engine.proposers.failed
