"""What others recorded, read: public formats there and back, and every line accounted for."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodeloop.evaluation.workloads.file import SCHEMA, read_file, read_lines, write
from decodeloop.evaluation.workloads.importing import importers, iso, nanoseconds
from decodeloop.evaluation.workloads.traces import write_azure, write_mooncake
from decodeloop.evaluation.workloads.workload import Workload, WorkRequest
from decodeloop.types import RequestClass

DATA = Path(__file__).parent / "data" / "workloads"
SAMPLES = {
    "azure": ("azure.csv", 4),
    "mooncake": ("mooncake.jsonl", 3),
    "burstgpt": ("burstgpt.csv", 3),
    "spec_bench": ("spec_bench.jsonl", 4),
    "prompts": ("prompts.txt", 4),
    "capture": ("capture.jsonl", 3),
    "otel": ("otel.jsonl", 2),
}


def imported(form):
    name, count = SAMPLES[form]
    found = read_file(DATA / name, form)
    assert found.faults == ()
    assert len(found.workload.requests) == count
    return found


@pytest.mark.parametrize("form", [name for name in importers.names() if name != "workload"])
def test_every_format_survives_as_a_workload_file(form, tmp_path):
    workload = imported(form).workload
    write(tmp_path / "w.jsonl", workload)
    again = read_file(tmp_path / "w.jsonl")
    assert again.faults == ()
    assert again.workload == workload
    assert again.workload.sha256 == workload.sha256


@pytest.mark.parametrize(("form", "write_back"), [("azure", write_azure), ("mooncake", write_mooncake)])
def test_public_traces_round_trip_to_the_last_digit(form, write_back):
    workload = imported(form).workload
    assert list(write_back(workload)) == (DATA / SAMPLES[form][0]).read_text().splitlines()


@given(st.lists(st.tuples(st.integers(0, 10**13), st.integers(1, 9999), st.integers(1, 999)), min_size=1, max_size=9))
def test_any_azure_trace_round_trips(rows):
    """Stamps of 100 ns, days apart."""
    rows = sorted(rows, key=lambda row: row[0])
    stamps = [iso(1_700_000_000 * 10**9 + ticks * 100).replace("T", " ")[:27] for ticks, _, _ in rows]
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    lines += [f"{stamp},{prompt},{output}" for stamp, (_, prompt, output) in zip(stamps, rows, strict=True)]
    found = importers.load("azure")(lines, "trace")
    assert found.faults == ()
    assert list(write_azure(found.workload)) == lines


def test_arrivals_count_from_the_first():
    azure = imported("azure").workload
    assert azure.requests[0].arrival_s == 0.0
    assert azure.requests[1].arrival_s == pytest.approx(0.052, abs=1e-12)
    assert azure.began_at == "2023-11-16T18:17:03.979960000Z"
    assert (azure.requests[2].prompt_tokens, azure.requests[2].output_tokens) == (110, 27)
    assert [r.arrival_s for r in imported("burstgpt").workload.requests] == [0.0, 40.0, 183.5]


def test_failures_are_left_out_and_told():
    assert dict(imported("burstgpt").left_out) == {"no prompt or no answer": 1}
    assert imported("capture").left_out == {"refused or failed": 1, "neither a chat nor a text completion": 1}
    assert imported("otel").left_out == {"no span of a generation": 1, "failed": 1}
    assert imported("otel").notes() == ["1 lines left out: no span of a generation", "1 lines left out: failed"]


def test_a_capture_keeps_what_was_asked():
    first, second, third = imported("capture").workload.requests
    assert (first.request_class, second.request_class, third.request_class) == (
        RequestClass.SUPPORT_CHAT,
        RequestClass.TOOL_CALL,
        RequestClass.CREATIVE_WRITING,
    )
    assert first.params == {"temperature": 0, "max_tokens": 20}
    assert (first.session, first.output_tokens, third.prompt) == ("task-9", 7, "Once")
    assert [r.arrival_s for r in (first, second, third)] == pytest.approx([0.0, 1.25, 3.75])


def test_a_span_gives_text_where_it_was_recorded_and_lengths_where_not():
    first, second = imported("otel").workload.requests
    assert first.messages == ({"role": "user", "content": "Hello there"},)
    assert first.params == {"max_tokens": 32, "temperature": 0.5, "stop": ["END"]}
    assert (first.session, first.prompt_tokens) == ("c1", 12)
    assert (second.has_text, second.request_class, second.output_tokens) == (False, RequestClass.SQL, 9)
    assert second.arrival_s == pytest.approx(2.000001)


def test_questions_have_classes_and_only_their_first_turn():
    workload = imported("spec_bench").workload
    assert [str(r.request_class) for r in workload.requests] == [
        "creative_writing", "rag_summary", "general_chat", "translation",
    ]  # fmt: skip
    assert workload.requests[0].messages[0]["content"].startswith("Compose a toast")
    assert len(workload.requests[0].messages) == 1


BROKEN = {
    "azure": ["2023-11-16,17", "yesterday,5,5", "2023-11-16 18:17:04.1,-4,8", "2023-11-16 18:17:04.1,many,8"],
    "burstgpt": ["x,m,1,1,2,l", "5,m,1"],
    "mooncake": ["{", '{"timestamp": 1}', '{"timestamp": "late", "input_length": 1, "output_length": 2}'],
    "spec_bench": ['{"question_id": 1, "category": "qa", "turns": []}', "[]", '{"question_id": 9}'],
    "prompts": ['{"prompt": 3}', '{"broken', '{"class": "nonsense", "prompt": "x"}'],
    "capture": ["null", '{"at": "2026-03-01T08:00:00Z"}', '{"at": "noon", "body": {"prompt": "x"}}'],
    "otel": ['{"attributes": {"gen_ai.operation.name": "chat"}}', "}{"],
    "workload": ['{"id": "x", "prompts": "typo"}', '{"id": "y", "class": "nonsense"}', '{"id": "z", "weight": -1}'],
}


@pytest.mark.parametrize("form", importers.names())
def test_malformed_lines_are_counted_and_named_and_stop_nothing(form, tmp_path):
    """Among sound lines, which all come through."""
    if form == "workload":
        sound = ['{"id": "a", "prompt": "x"}', '{"id": "b", "prompt": "y"}']
    else:
        sound = (DATA / SAMPLES[form][0]).read_text().splitlines()
    want = read_lines(sound, "w") if form == "workload" else imported(form)
    head, *rest = sound
    lines = [head, *BROKEN[form], *rest]
    found = importers.load(form)(lines, "w")
    assert [fault.line for fault in found.faults] == [2 + i for i in range(len(BROKEN[form]))]
    assert len(found.workload.requests) == len(want.workload.requests)
    assert f"{len(BROKEN[form])} malformed lines: line 2: " in found.notes()[-1]


@pytest.mark.parametrize("form", importers.names())
@given(junk=st.lists(st.text(max_size=40), max_size=5))
def test_no_text_breaks_an_importer(form, junk):
    """What isn't understood is a fault or, as a whole, refused in words."""
    lines = [line + "\n" for text in junk for line in text.splitlines()]
    try:
        found = importers.load(form)(lines, "junk")
    except ValueError:
        assert form in ("azure", "burstgpt")  # a first line that names no columns
    else:
        empty = sum(not line.strip() for line in lines)
        header = int(form in ("azure", "burstgpt"))
        counted = len(found.workload.requests) + len(found.faults) + sum(found.left_out.values())
        assert counted == len(lines) - empty - header


def test_a_table_without_its_columns_is_refused_as_a_whole():
    with pytest.raises(ValueError, match="no column ContextTokens, GeneratedTokens; it has TIMESTAMP, Tokens"):
        importers.load("azure")(["TIMESTAMP,Tokens", "1,2"], "w")


def test_an_id_is_taken_once():
    found = read_lines(['{"id": "a", "prompt": "x"}', '{"id": "a", "prompt": "y"}'], "w")
    assert [fault.line for fault in found.faults] == [2]
    with pytest.raises(ValueError, match="more than once"):
        Workload(name="w", requests=(WorkRequest(id="a"), WorkRequest(id="a")))


def test_another_schema_is_refused():
    with pytest.raises(ValueError, match="/9' is not"):
        read_lines(['{"schema": "decodeloop.workload/9"}'], "w")
    assert read_lines([f'{{"schema": "{SCHEMA}", "name": "n"}}'], "w").workload.name == "n"


@pytest.mark.parametrize("text", ["", "soon", "2026-13-01T00:00:00Z", "2026-01-01T00:00:00.Z"])
def test_no_time_is_told(text):
    with pytest.raises(ValueError):
        nanoseconds(text)


def test_times_to_the_nanosecond():
    assert nanoseconds("1970-01-01T00:00:01.000000001Z") == 10**9 + 1
    assert nanoseconds("1970-01-01 02:00:00.5+02:00") == 5 * 10**8
    assert iso(nanoseconds("2023-11-16 18:17:03.9799600")) == "2023-11-16T18:17:03.979960000Z"
