"""`decodeloop simulate` as typed: what it says, how it is labelled, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from decodeloop.cli.main import app

RECORDED = Path(__file__).parent / "data" / "smollm2_steps.jsonl"
SHORT = ("--seconds", "2", "--output-tokens", "12", "--prompt-tokens", "64")


def run(*arguments):
    return CliRunner().invoke(app, ["simulate", *map(str, arguments)])


def told(*arguments):
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.exception
    return done.stdout, json.loads(done.stdout.splitlines()[-1])


def test_a_prior_is_called_one_and_nothing_measured():
    text, found = told("--hardware", "h100", "--gpus", "2", *SHORT)
    assert "SIMULATED" in text
    assert "roofline prior; not compared with any measured step" in text
    assert found["mode"] == "M"
    assert list(found["policies"]) == ["off", "fixed:4", "best"]
    assert found["trust"]["error"] is None
    for each in found["policies"].values():
        assert each["label"] == "roofline prior"
        assert each["finished"] == each["requests"] > 0
        assert each["tokens_per_s_per_accelerator"] == pytest.approx(each["tokens_per_s"] / 2)


def test_recorded_steps_give_drafts_times_arrivals_and_the_error():
    text, found = told(
        "--steps", RECORDED, "--arrivals", f"steps:{RECORDED}", "--policy", "off", "--policy", "adaptive"
    )
    assert "calibration error on" in text
    assert found["trust"]["error"]["median"] > 0.0
    assert found["policies"]["off"]["mean_verify_len"] == 0.0
    assert set(found["policies"]["adaptive"]["per_class"]) <= {"code_edit", "creative_writing"}


def test_ten_thousand_accelerators_are_a_sample_times_a_factor():
    _, found = told("--gpus", 10_000, "--hardware", "h200", "--arrivals", "poisson:20000", "--policy", "off", *SHORT)
    off = found["policies"]["off"]
    assert off["simulated_replicas"] == 64
    assert off["tokens_per_s"] * off["seconds"] == pytest.approx(2 * 20_000 * 12, rel=0.25)


def test_traces_of_both_kinds_scaled_and_mixed(tmp_path):
    azure, mooncake = tmp_path / "azure.csv", tmp_path / "mooncake.jsonl"
    azure.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        + "".join(f"2023-11-16 18:17:0{i}.1234560,{100 + i},{10 + i}\n" for i in range(8))
    )
    mooncake.write_text(
        "".join(json.dumps({"timestamp": 500 * i, "input_length": 90, "output_length": 7}) + "\n" for i in range(8))
    )
    for spec in (f"azure:{azure}", f"mooncake:{mooncake}"):
        once = told("--arrivals", spec, "--policy", "off", "--gpus", 1)[1]["policies"]["off"]
        twice = told("--arrivals", spec, "--policy", "off", "--load", "3", "--classes", "sql=1,chat=1")[1]["policies"][
            "off"
        ]
        assert once["requests"] == 8
        assert twice["requests"] == 24
        assert set(twice["per_class"]) <= {"sql", "general_chat"}


def test_a_split_fleet_and_goodput():
    _, found = told(
        *(
            "--gpus",
            4,
            "--split",
            "0.5",
            "--transfer-ms",
            "3",
            "--policy",
            "off",
            "--ttft-ms",
            "1e9",
            "--tpot-ms",
            "1e9",
        ),
        *SHORT,
    )
    off = found["policies"]["off"]
    assert off["goodput_per_s"] == pytest.approx(off["requests"] / off["seconds"], rel=0.01)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--arrivals", "nowhere:x"), "choose from azure:FILE, mooncake:FILE, steps:FILE, poisson:RATE"),
        (("--arrivals", "poisson:many"), "positive number of requests"),
        (("--arrivals", "azure:{good}"), "not a trace of azure's form"),
        (("--arrivals", "azure:/nonexistent"), "/nonexistent"),
        (("--hardware", "abacus"), "no hardware 'abacus'; choose from a100"),
        (("--policy", "luck"), "no policy 'luck' to simulate"),
        (("--policy", "fixed:0"), "fixed:K drafts K tokens"),
        (("--gpus", "3", "--per-replica", "2"), "3 accelerators don't make replicas of 2"),
        (("--survival", "0.2,0.9"), "survival falls"),
        (("--survival", "high"), "write probabilities"),
        (("--classes", "poetry=1"), "no request class 'poetry'"),
        (("--classes", "sql=-1"), "no positive share"),
        (("--split", "1.5", "--gpus", "4"), "share between 0 and 1"),
        (("--cost", "{good}"), "not a cost surface|smollm2_steps"),
        (("--steps", "{good}", "--classes", "sql=1"), "no drafts of class sql; there are some of code_edit"),
        (("--load", "0"), "a load of 0.0 times"),
        (("--arrivals", "poisson:1e-9"), "poisson:1e-9': no request arrives"),
    ],
)
def test_mistakes_are_named(arguments, message):
    done = run(*(argument.format(good=RECORDED) for argument in arguments), *SHORT)
    assert isinstance(done.exception, ValueError | OSError), done.output
    assert any(part in str(done.exception) for part in message.split("|")), str(done.exception)


@pytest.mark.parametrize("option", ["--load", "--parameters", "--kv-bytes", "--weight-bits"])
def test_what_no_figure_would_come_of_is_refused(option):
    done = run(option, "inf", *SHORT)
    assert done.exit_code == 2
    assert option in done.output


@pytest.mark.parametrize("kind", ["azure", "mooncake"])
def test_a_trace_without_requests_is_told_so(tmp_path, kind):
    empty = tmp_path / "empty"
    empty.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" if kind == "azure" else "")
    done = run("--arrivals", f"{kind}:{empty}", *SHORT)
    assert "no request arrives" in str(done.exception)


@pytest.mark.parametrize("number", ["NaN", "Infinity"])
def test_a_trace_whose_times_are_none_is_refused(tmp_path, number):
    trace = tmp_path / "trace"
    trace.write_text('{"timestamp": 1, "input_length": 5, "output_length": 5}\n'.replace("1", number, 1))
    done = run("--arrivals", f"mooncake:{trace}", *SHORT)
    assert "not a trace of mooncake's form" in str(done.exception)
