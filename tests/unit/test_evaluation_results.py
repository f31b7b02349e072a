"""What a run leaves behind, on disk and off it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodeloop.evaluation.journal import Journal, load, save
from decodeloop.evaluation.results import Drafting, PhaseTimes
from measured import CHAT, EDIT, plan, request, results, served, turn


def test_times_are_those_defined():
    """TTFT to the first piece; its tokens are no steps of TPOT."""
    one = request(1.0, 0, 0, "on")
    assert one.ttft_ms == pytest.approx(100.0)
    assert one.tpot_ms == pytest.approx(900.0 / 9)
    assert one.gaps_ms == pytest.approx((400.0, 500.0))
    assert one.lag_ms == pytest.approx(1.0)
    assert one.e2e_ms == pytest.approx(1000.0)


def test_what_never_came_has_no_time():
    nothing = request(1.0, 0, 0, "on", chunk_s=(), chunk_tokens=(), error="refused")
    assert (nothing.ttft_ms, nothing.tpot_ms, nothing.gaps_ms) == (None, None, ())
    assert request(1.0, 0, 0, "on", chunk_s=(0.1,), chunk_tokens=(8,)).tpot_ms is None


def test_a_file_gives_back_what_was_put_in(tmp_path):
    made = results()
    save(tmp_path / "r.jsonl", made)
    assert load(tmp_path / "r.jsonl") == made
    with pytest.raises(FileExistsError):
        save(tmp_path / "r.jsonl", made)


def test_every_field_survives(tmp_path):
    drafting = Drafting(drafts=2, verified=8, accepted=5, drafted=9, steps=3, discarded=1, accepted_histogram=(0, 1))
    full = request(
        1.0, 0, 0, "off", session="s", exact_chunks=False, cached_tokens=3, drafting=drafting, drafter="ngram",
        times=PhaseTimes(draft_ms=1.5), seed=7, error="e", ramp=True, text_hash="ff", loops=True, text="č",
    )  # fmt: skip
    with Journal(tmp_path / "r.jsonl", plan()) as journal:
        journal.add(turn(1.0, 0, 0, "off", requests=1, counters={"x": 1.0}), [full])
    assert load(tmp_path / "r.jsonl").requests == (full,)


@given(st.integers(0, 10**6))
def test_a_file_cut_anywhere_is_read_and_gone_on_with(tmp_path_factory, cut):
    """After an interruption at any byte: whole turns count, the rest is taken again, and nothing is counted twice."""
    path = tmp_path_factory.mktemp("cut") / "r.jsonl"
    made = results(plan(levels=(1.0,), blocks=2))
    save(path, made)
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    path.write_bytes(whole[: first + cut % (len(whole) - first + 1)])
    with Journal(path, made.plan) as journal:
        for key in load(path).missing():
            journal.add(turn(*key), served(*key))
    again = load(path)
    assert again.missing() == []
    assert {t.arm: 0 for t in again.turns} == {"off": 0, "on": 0}
    assert sorted(again.requests, key=repr) == sorted(made.requests, key=repr)


def test_a_block_torn_at_one_level_is_whole_at_another():
    made = results()
    torn = [t for t in made.turns if (t.level, t.block, t.arm, t.turn) != (4.0, 1, "on", 1)]
    left = type(made)(made.plan, tuple(torn), made.requests)
    assert {key[:2] for key in left.missing()} == {(4.0, 1)}
    assert len(left.missing()) == 4
    assert left.complete_blocks(1.0) == [0, 1, 2]
    assert left.complete_blocks(4.0) == [0, 2]
    assert sorted(left.run(4.0).turns["on"]) == [0, 2]


def test_results_of_two_plans_do_not_mix(tmp_path):
    path = tmp_path / "r.jsonl"
    Journal(path, plan()).close()
    Journal(path, plan(id="again", created_at="later", command="typed otherwise")).close()
    with pytest.raises(ValueError, match="another plan: blocks 3, asked for 9"):
        Journal(path, plan(blocks=9))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("", "no results in it"),
        ('{"kind": "turn"}\n', "line 1"),
        ('{"kind": "plan", "schema": "other/9"}\n', "schema 'other/9'"),
        ("GET / HTTP/1.1\n", "line 1"),
        ("[1]\n", "line 1"),
    ],
)
def test_other_files_are_refused(tmp_path, lines, message):
    path = tmp_path / "r.jsonl"
    path.write_text(lines)
    with pytest.raises(ValueError, match=message):
        load(path)


def test_a_results_file_begins_with_its_plan(tmp_path):
    path = tmp_path / "r.jsonl"
    save(path, results())
    first, second, *_ = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(second + first)
    with pytest.raises(ValueError, match="begins with its plan"):
        load(path)
    path.write_bytes(first + first)
    with pytest.raises(ValueError, match="line 2: a second plan"):
        load(path)


def test_ramps_are_left_out_of_figures():
    def serve(level, block, place, arm):
        ramp = request(level, block, place, arm, id="ramp", ramp=True, error="cut off", completion_tokens=500)
        return [*served(level, block, place, arm), ramp]

    made = results(serve=serve)
    measured = made.run(1.0).turns["on"][0][0]
    assert (measured.requests, measured.errors, measured.tokens) == (4, 0, 44)
    assert len(made.steady(arm="on", level=1.0)) == 3 * 2 * 4


def test_a_class_has_its_own_rate():
    """Decoding 9 tokens in 0.9 s, whatever the others did."""
    rates = results().run(4.0, EDIT).rates("on")
    assert rates == pytest.approx([10.0] * 3)
    assert results().run(4.0, CHAT).turns["off"][0][0].requests == 2


def test_an_arm_is_found_by_its_label():
    assert plan().arm("on").lossless
    with pytest.raises(KeyError, match="there are off, on"):
        plan().arm("none")
