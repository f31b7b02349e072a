"""Faults from the field, E to G: memory, budgets, limits, broken drafters, records that reconcile."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decodeloop.engine.totals import Totals
from decodeloop.policy.attention import HURRIED
from decodeloop.speculation import DraftBlock, DrafterSetup
from decodeloop.speculation.drafters.ngram import NgramDrafter
from decodeloop.speculation.drafters.scripted import OracleDrafter, ScriptedDrafter, WrongDrafter
from decodeloop.types import FinishReason, Reason, Speculation, SpeculationMode
from rig import VOCAB, Rig, plain_text

PROMPT = [1, 2, 3, 4, 5, 1, 2, 3]


def ngram():
    return {"ngram": NgramDrafter(DrafterSetup(VOCAB, 4096, 8, 12, options={"min_n": 1}))}


def prompts(count, seed=0):
    draw = random.Random(seed)
    return [[draw.randrange(1, VOCAB) for _ in range(draw.randrange(1, 40))] for _ in range(count)]


def test_preempted_requests_say_the_same():
    rig = Rig(ngram(), policy="fixed", draft_len=6, blocks=12, max_context=160)
    heard = [rig.submit(prompt, max_tokens=60, seed=i, temperature=1.0) for i, prompt in enumerate(prompts(6))]
    rig.run()
    assert rig.scheduler.preemptions > 0
    for i, prompt in enumerate(prompts(6)):
        assert heard[i].token_ids == Rig().generate(prompt, max_tokens=60, seed=i, temperature=1.0).token_ids
    assert rig.no_block_leaked()


class Holding:
    """A policy that lets any request but one sit any step out."""

    learns = True

    def __init__(self, policy, seed):
        self._policy, self._draw = policy, random.Random(seed)
        self.allocate, self.observe, self.describe = policy.allocate, policy.observe, policy.describe

    def plan(self, load, requests):
        kept = self._draw.randrange(len(requests)) if requests else 0
        held = tuple(i for i in range(len(requests)) if i != kept and self._draw.random() < 0.5)
        return replace(self._policy.plan(load, [r for i, r in enumerate(requests) if i not in held]), held=held)


@pytest.mark.parametrize("policy", ["fixed", "throughput"])
def test_who_sits_steps_out_says_the_same(policy):
    rig = Rig(ngram(), policy=policy, draft_len=6, max_context=160)
    rig.engine.policy = Holding(rig.engine.policy, 1)
    heard = [rig.submit(prompt, max_tokens=40, seed=i, temperature=1.0) for i, prompt in enumerate(prompts(6))]
    rig.run()
    for i, prompt in enumerate(prompts(6)):
        assert heard[i].token_ids == Rig().generate(prompt, max_tokens=40, seed=i, temperature=1.0).token_ids
    assert rig.no_block_leaked()
    decoding = [record for record in rig.records if not record.load.prefill_tokens]
    assert {len(record.rows) for record in decoding} >= {1, 2, 3, 4}
    for record in decoding:
        assert record.load.running == len(record.rows)
        assert record.load.context_tokens == sum(row.context_tokens - 1 for row in record.rows)


def test_the_pool_is_whole_after_any_workload():
    texts = prompts(100)
    rig = Rig({"wrong": WrongDrafter(texts, VOCAB), **ngram()}, policy="fixed", blocks=64, max_context=256)
    draw = random.Random(3)
    live = []
    for i, prompt in enumerate(texts):
        live.append(rig.submit(prompt, max_tokens=draw.randrange(1, 20), temperature=1.0, seed=i, n=1 + i % 2))
        rig.step()
        if i % 2:
            rig.abort(live.pop(draw.randrange(len(live))))
    rig.run()
    assert all(heard.ended for heard in live)
    assert rig.no_block_leaked()


def test_drafting_backs_off_before_anything_is_evicted():
    rig = Rig(
        {"oracle": OracleDrafter([plain_text(PROMPT, max_tokens=40)])},
        policy="fixed",
        draft_len=8,
        blocks=8,
        block_tokens=8,
        max_context=64,
    )
    kept = rig.generate(list(range(1, 42)), max_tokens=1)
    idle = rig.cache.available_blocks - rig.cache.free_blocks
    assert idle == 5
    heard = rig.submit(PROMPT, max_tokens=30)
    while rig.cache.free_blocks or rig.records[-1].rows[0].reason is not Reason.CAPPED_KV:
        rig.step()
    assert rig.cache.available_blocks - rig.cache.free_blocks >= idle
    rig.run()
    assert heard.token_ids == Rig().generate(PROMPT, max_tokens=30).token_ids
    assert kept.ended


def test_a_cache_full_of_prefixes_leaves_room_to_draft():
    def capped(spare_blocks):
        oracle = {"oracle": OracleDrafter([plain_text(PROMPT, max_tokens=30)])}
        rig = Rig(oracle, policy="fixed", draft_len=4, blocks=40, spare_blocks=spare_blocks, block_tokens=4)
        for start in range(1, 40):
            rig.generate(list(range(start, start + 16)), max_tokens=1)
        assert rig.cache.free_blocks == spare_blocks  # the prefix cache has the others
        rig.records.clear()
        assert rig.generate(PROMPT, max_tokens=20).token_ids == Rig().generate(PROMPT, max_tokens=20).token_ids
        return sum(row.reason is Reason.CAPPED_KV for record in rig.records for row in record.rows)

    assert capped(2) == 0
    assert capped(0)


@settings(max_examples=30, deadline=None)
@given(st.integers(8, 40), st.integers(1, 8), st.integers(0, 12), st.integers(1, 30))
def test_a_step_never_exceeds_its_budget(budget, sequences, depth, chunk):
    sequences = min(sequences, budget)
    rig = Rig(
        ngram(), policy="fixed", draft_len=depth, max_step_tokens=budget, max_sequences=sequences, prefill_chunk=chunk
    )
    heard = [rig.submit(prompt, max_tokens=10) for prompt in prompts(10)]
    rig.run()
    assert all(each.ended for each in heard)
    for record in rig.records:
        assert sum(row.prefill_tokens or 1 + row.verify_len for row in record.rows) <= budget
        assert all(row.draft_len == 0 for row in record.rows if row.prefill_tokens)


@pytest.mark.parametrize("length", [62, 63])
def test_near_the_context_limit_a_request_goes_on_without_drafting(length):
    rig = Rig(ngram(), policy="fixed", draft_len=8, max_context=64)
    other = rig.submit(PROMPT, max_tokens=20)
    heard = rig.submit([5] * length, max_tokens=99)
    rig.run()
    assert len(heard.token_ids) == 64 - length
    assert heard.finish_reason is FinishReason.LENGTH
    assert other.token_ids == Rig().generate(PROMPT, max_tokens=20).token_ids


def test_ids_out_of_range_never_reach_the_target():
    script = [[VOCAB], [5, VOCAB + 7, 3], [-1, 2], [10**9]] * 10
    for verifier in ("coupled", "rejection", "block"):
        rig = Rig({"scripted": ScriptedDrafter(script)}, policy="fixed", draft_len=4, verifier=verifier)
        assert rig.generate(PROMPT).token_ids == Rig().generate(PROMPT).token_ids


def test_a_drafter_that_raises_is_set_aside():
    class Broken(ScriptedDrafter):
        def propose(self, requests):
            raise KeyError("no such layer")

    rig = Rig({"broken": Broken([])}, policy="fixed")
    heard = rig.generate(PROMPT)
    assert heard.token_ids == Rig().generate(PROMPT).token_ids
    assert "no such layer" in rig.engine.proposers.failed["broken"]


def test_a_useless_drafter_shows():
    rig = Rig({"wrong": WrongDrafter([plain_text(PROMPT, max_tokens=80)], VOCAB)}, policy="fixed")
    totals = Totals(rig.scheduler, "coupled")
    rig.generate(PROMPT, max_tokens=80)
    for record in rig.records:
        totals.observe(record)
    assert "wrong" in totals.warnings()[0]


def test_acceptance_after_a_prefix_hit_is_that_of_a_cold_start():
    prompt = PROMPT * 6
    rig = Rig(ngram(), policy="fixed", draft_len=4, toy={"order": 2})
    cold, warm = (rig.generate(prompt, max_tokens=40) for _ in range(2))
    assert warm.usage.cached > 0
    assert (cold.usage.accepted, cold.usage.drafted) == (warm.usage.accepted, warm.usage.drafted)


def test_records_reconcile():
    """emitted + discarded == accepted + 1, row by row, request by request, in total; ends inside a block included."""
    text = Rig().generate(PROMPT, max_tokens=40).token_ids
    rig = Rig({"oracle": OracleDrafter([(*PROMPT, *text)])}, policy="fixed", draft_len=6, block_tokens=4)
    stops = [rig.submit(PROMPT, max_tokens=40, stop_token_ids=(token,)) for token in text[2:12]]
    caps = [rig.submit(PROMPT, max_tokens=most) for most in range(1, 12)]
    rig.run()
    for row in rig.rows:
        if row.reason is not Reason.PREFILL or row.emitted:
            assert row.emitted + row.discarded == row.accepted + 1
        assert row.accepted <= row.verify_len <= row.draft_len
    usages = [heard.usage for heard in (*stops, *caps)]
    assert sum(row.emitted for row in rig.rows) == sum(usage.completion for usage in usages)
    for field, total in (("draft_len", "drafted"), ("verify_len", "verified"), ("accepted", "accepted")):
        assert sum(getattr(row, field) for row in rig.rows) == sum(getattr(usage, total) for usage in usages)
    assert sum(row.discarded for row in rig.rows) > 0


def test_per_request_speculation():
    off, forced = Speculation(SpeculationMode.OFF), Speculation(SpeculationMode.FORCE, draft_len=3)
    oracle = {"oracle": OracleDrafter([plain_text(PROMPT)])}
    rig = Rig(oracle, policy="fixed", draft_len=6, shadow_len=4)
    heard = rig.generate(PROMPT, speculation=off)
    assert heard.usage.drafted == 0
    assert {row.reason for row in rig.rows} == {Reason.PREFILL, Reason.OFF_USER}
    assert all(not row.shadow_match for row in rig.rows)
    rig = Rig(oracle, policy="off")
    heard = rig.generate(PROMPT, speculation=forced)
    assert max(row.draft_len for row in rig.rows) == 3
    assert Reason.FORCED in {row.reason for row in rig.rows}


def test_free_drafters_are_shadow_scored_when_not_played():
    text = plain_text(PROMPT, max_tokens=20)
    rig = Rig({"oracle": OracleDrafter([text]), "wrong": WrongDrafter([text], VOCAB)}, policy="off", shadow_len=5)
    rig.generate(PROMPT, max_tokens=20)
    scored = [row.shadow_match for row in rig.rows if not row.prefill_tokens]
    assert all(match == {"oracle": 1, "wrong": 0} for match in scored[:HURRIED])


def test_nan_fails_its_request_alone():
    toy = {"nan_at": 50}
    rig = Rig(ngram(), policy="fixed", toy=toy)
    sick, well = rig.submit([1, 50, 2]), rig.submit(PROMPT, banned_token_ids=(50,))
    rig.run()
    assert sick.error is not None
    assert well.token_ids == Rig().generate(PROMPT, banned_token_ids=(50,)).token_ids
    assert rig.no_block_leaked()


def test_a_failing_forward_ends_its_step_and_no_more():
    rig = Rig()
    broken = rig.submit(PROMPT)
    forward, rig.runner.forward = rig.runner.forward, lambda batch: 1 / 0
    rig.step()
    assert broken.error is not None
    rig.runner.forward = forward
    assert rig.generate(PROMPT).ended
    assert rig.no_block_leaked()


def test_organizations_share_no_prefix():
    rig = Rig()
    rig.generate(PROMPT * 8, organization="a")
    assert rig.generate(PROMPT * 8, organization="b").usage.cached == 0
    assert rig.generate(PROMPT * 8, organization="a").usage.cached > 0


def test_a_draft_block_can_be_empty():
    assert DraftBlock(()).lens == ()
    rig = Rig({"scripted": ScriptedDrafter([[], [1], []])}, policy="fixed")
    assert rig.generate(PROMPT).token_ids == Rig().generate(PROMPT).token_ids


def test_a_policy_is_told_what_a_step_reads_and_not_what_is_still_to_be_read():
    rig = Rig(ngram(), policy="fixed", draft_len=2, prefill_chunk=8, max_context=256)
    rig.submit(PROMPT, max_tokens=40)
    rig.step()
    rig.submit([1 + i % 50 for i in range(118)], max_tokens=4)
    rig.run()
    read = [sum(row.prefill_tokens for row in record.rows) for record in rig.records]
    assert max(read[1:]) == 8
    assert [record.load.prefill_tokens for record in rig.records] == read
