"""`decodeloop policy replay` on steps that `serve --record` wrote: default model, native runner, two clients."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from decodeloop.cli.main import app
from decodeloop.evaluation.steps import read_steps
from decodeloop.policy import policies
from decodeloop.policy.cost import CostSurface
from decodeloop.policy.replay import cost_samples

RECORDED = Path(__file__).parent / "data" / "smollm2_steps.jsonl"


def run(*arguments):
    return CliRunner().invoke(app, ["policy", "replay", *map(str, arguments)])


def told(*arguments):
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.exception
    return done.stdout, json.loads(done.stdout.splitlines()[-1])


def records():
    with RECORDED.open("rb") as file:
        return read_steps(file, source="steps").records


@pytest.mark.parametrize("policy", policies.names())
def test_any_policy_replays_a_real_record(policy):
    text, found = told(RECORDED, "--policy", policy)
    decoded = [row for record in records() for row in record.rows if not row.prefill_tokens and row.emitted]
    assert found["measured"]["rows"] == found["replayed"]["rows"] == len(decoded)
    assert found["measured"]["tokens"] == sum(row.emitted + row.discarded for row in decoded)
    assert set(found["replayed"]["classes"]) == {"code_edit", "creative_writing"}
    assert policy in text
    assert "class " in text
    assert 0.3 < found["speedup"] < 3.0
    if policy == "off":
        assert found["replayed"]["verified_per_row"] == 0.0
        assert found["replayed"]["tokens"] == len(decoded)


def test_measured_figures_are_the_records_own():
    _, found = told(RECORDED)
    rows = [
        (record.step_ms, row)
        for record in records()
        for row in record.rows
        if not row.prefill_tokens and row.request_class == "code_edit"
    ]
    expected = sum(ms for ms, _ in rows) / sum(row.accepted + 1 for _, row in rows)
    assert found["measured"]["classes"]["code_edit"]["tpot_ms"] == pytest.approx(expected, rel=1e-3)


def test_settings_and_options_reach_the_policy():
    shallow, deep = (told(RECORDED, "--policy", "fixed", "--set", f"draft_len={k}")[1] for k in (1, 8))
    assert shallow["replayed"]["verified_per_row"] < deep["replayed"]["verified_per_row"]
    bound = told(RECORDED, "--set", "interference=0.0", "--set", "max_draft_len=2")[1]
    assert bound["replayed"]["verified_per_row"] <= 2.0


def test_what_nobody_looked_at_is_told():
    text, found = told(RECORDED, "--policy", "fixed", "--set", "draft_len=8")
    assert found["replayed"]["guessed_share"] > 0.0
    assert "guesses" in text


def test_a_measured_surface_gives_the_times(tmp_path):
    path = tmp_path / "cost.json"
    path.write_text(json.dumps(CostSurface(cost_samples(records())).to_json()))
    _, found = told(RECORDED, "--cost", path)
    assert found["cost"]["source"] == str(path)
    assert found["cost"]["error_median"] > 0.0


def test_noise_that_no_model_of_shapes_can_foresee_is_told_apart():
    text, found = told(RECORDED)
    assert "the median of their own shape" in text
    assert 0.0 < found["noise"]["median"] < found["noise"]["p95"]


def test_a_rotation_is_read_as_one_record(tmp_path):
    lines = RECORDED.read_bytes().splitlines(keepends=True)
    older, newer = tmp_path / "steps.jsonl.1", tmp_path / "steps.jsonl"
    older.write_bytes(b"".join(lines[:30]))
    newer.write_bytes(lines[0] + b"".join(lines[30:]))
    assert told(older, newer)[1]["measured"] == told(RECORDED)[1]["measured"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("/nonexistent.jsonl",), "nonexistent.jsonl"),
        (("{broken}",), "broken.jsonl, line 3: not a step record"),
        (("{empty}",), "no step in it has decoded anything"),
        (("{good}", "--policy", "luck"), "no 'luck'; choose from adaptive, fixed"),
        (("{good}", "--set", "depth"), "write name=value"),
        (("{good}", "--policy", "fixed", "--set", "draft_len=99"), "draft_len 99 is not within"),
        (("{good}", "--set", "max_draft_len=many"), "--set: max_draft_len: Expected `int`"),
        (("{good}", "--set", "eagerness=2"), "eagerness"),
        (("{good}", "--policy", "off", "--set", "eagerness=2"), "policy off takes no options, got eagerness"),
        (("{good}", "--cost", "{broken}"), "broken.jsonl"),
        (("{good}", "--cost", "{other}"), "not a cost surface"),
    ],
)
def test_mistakes_are_named(tmp_path, arguments, message):
    head = RECORDED.read_text().splitlines()
    files = {"good": head[:9], "broken": [*head[:2], "{oops}"], "empty": head[:1], "other": ["{}"]}
    for name, lines in files.items():
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    paths = {name: tmp_path / f"{name}.jsonl" for name in files}
    done = run(*(argument.format(**paths) for argument in arguments))
    assert isinstance(done.exception, ValueError | OSError), done.output
    assert message in str(done.exception)
