"""Reading recorded steps: what was written comes back, and what can't be true is refused by its line."""

from __future__ import annotations

import re
from dataclasses import asdict, replace

import orjson
import pytest

from decodeloop.engine.recorder import StepRecorder
from decodeloop.evaluation.steps import read_steps
from decodeloop.types import STEPS_SCHEMA, Load, Provenance, Reason, RequestClass, StepRecord, StepRow

ROW = StepRow(
    request_id="r",
    tenant="t",
    request_class=RequestClass.SQL,
    reason=Reason.THROUGHPUT,
    drafter="ngram",
    context_tokens=40,
    draft_len=3,
    verify_len=2,
    scores=(0.9, 0.8, 0.1),
    accepted=1,
    emitted=2,
    shadow_match={"ngram": 1, "suffix": 2},
    entropy=(0.5, 1.25),
)
RECORD = StepRecord(
    step=7,
    at_s=1.5,
    load=Load(1, 0, 40, 0.5),
    draft_ms=0.1,
    verify_ms=5.0,
    sample_ms=0.2,
    overhead_ms=0.1,
    step_ms=5.4,
    predicted_ms=5.0,
    rows=(ROW,),
)
HEADER = orjson.dumps({"schema": STEPS_SCHEMA, "provenance": asdict(Provenance("1", model_hash="m"))})


def line(record=RECORD, **row):
    return orjson.dumps(asdict(replace(record, rows=(replace(ROW, **row),))))


def read(*lines):
    return read_steps(lines, source="steps.jsonl")


def test_what_the_recorder_writes_is_what_is_read(tmp_path):
    recorder = StepRecorder(tmp_path / "steps.jsonl", Provenance("1", model_hash="m"))
    recorder.start()
    other = replace(
        RECORD, step=8, rows=(replace(ROW, drafter=None, draft_len=0, verify_len=0, accepted=0, emitted=1),)
    )
    other = replace(other, rows=(replace(other.rows[0], scores=(), token_ids=(5,)),), predicted_ms=None)
    recorder.observe(RECORD)
    recorder.observe(other)
    recorder.close()
    with (tmp_path / "steps.jsonl").open("rb") as file:
        found = read_steps(file, source="steps.jsonl")
    assert found.records == [RECORD, other]
    assert found.provenance == Provenance("1", model_hash="m")
    assert (found.max_draft_len, found.cut_short) == (3, 0)


def test_files_of_a_rotation_are_read_one_after_another():
    assert read(HEADER, line(), HEADER, line(), b"\n").records == [RECORD, RECORD]


@pytest.mark.parametrize("rest", [(), (b"\n",), (line(),)])
def test_a_line_that_just_stops_is_passed_over_and_counted(rest):
    found = read(HEADER, line(), line()[:-20], *rest)
    assert found.cut_short == 1
    assert len(found.records) == 1 + (rest == (line(),))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ((), "the file is empty"),
        ((line(),), "line 1: not a header"),
        ((b"hello",), "line 1: not a header"),
        ((HEADER.replace(b"steps/1", b"steps/2"),), "line 1: the schema is 'decodeloop.steps/2'; this version reads"),
        ((HEADER, line(), b"hello"), "line 3: not a step record"),
        ((HEADER, b'{"step": oops}'), "line 2: not a step record"),
        ((HEADER, b'{"step": 1}'), "line 2: not a step record .*missing required field"),
        ((HEADER, line().replace(b'"sql"', b'"poems"')), r"line 2: .*poems.*request_class"),
        ((HEADER, line(verify_len=4)), r"line 2: row 0 \(r\): 4 tokens were verified of 3 drafted"),
        ((HEADER, line(accepted=3)), "3 tokens were accepted of 2 verified"),
        ((HEADER, line(emitted=3)), "3 emitted and 0 discarded are not 1 accepted and one more"),
        ((HEADER, line(scores=(0.5,) * 4)), "4 scores for 3 drafted"),
        ((HEADER, line(context_tokens=-1)), "negative"),
        ((HEADER, line(replace(RECORD, step_ms=-1.0))), "line 2: step_ms is -1.0"),
        ((HEADER, line(replace(RECORD, draft_ms=1e300))), "line 2: draft_ms is 1e.300"),
        ((HEADER, line(draft_len=10**12)), r"line 2: row 0 \(r\): more was counted than can be"),
        ((HEADER, line(draft_len=2000)), "more was counted than can be: 1024 is the most"),
        ((HEADER, line().replace(b'"prefill_tokens":0', b'"prefill_tokens":1' + b"0" * 25)), "more was counted"),
        ((HEADER, line(replace(RECORD, load=Load(1, 0, -40, 0.5)))), "line 2: load: a count is negative"),
        ((HEADER, line(replace(RECORD, load=Load(1, 0, 40, 0.5, 0.0, 10**12)))), "line 2: load: more was counted"),
    ],
)
def test_what_can_be_no_record_is_refused_by_its_line(lines, message):
    with pytest.raises(ValueError, match=message) as refused:
        read(*lines)
    assert re.match(r"steps.jsonl[:,]", str(refused.value))
