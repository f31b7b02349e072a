"""The measuring commands' own parts: arms as typed, keys kept out of records, other clients' results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from decodeloop.cli.arms import keys_of, parse_arm, without_keys
from decodeloop.cli.bench import share_memory
from decodeloop.cli.cliff import brackets
from decodeloop.cli.main import app
from decodeloop.cli.measuring import numbers, open_workload, sampling_of, table
from decodeloop.cli.results import command, payload
from decodeloop.evaluation.card import read
from decodeloop.evaluation.workloads.workload import WorkRequest

DATA = Path(__file__).parent / "data"


def test_short_arms_ask_the_default_target():
    off, adaptive, fixed, ngram = (parse_arm(text, "http://x") for text in ("off", "adaptive", "fixed:4", "ngram:8"))
    assert off.fields == {"decodeloop": {"speculation": "off"}}
    assert (adaptive.role, adaptive.fields) == ("adaptive", {"decodeloop": {"speculation": "auto"}})
    assert fixed.fields == {"decodeloop": {"speculation": "force", "draft_len": 4}}
    assert ngram.fields["decodeloop"]["drafter"] == "ngram"
    assert {arm.target for arm in (off, adaptive, fixed, ngram)} == {"http://x"}


def test_a_long_arm_says_all():
    text = (
        "mine=embedded;model=a.gguf;policy=fixed;draft_len=3;speculation=force;body.top_k=5;body.stop=END;lossless=no"
    )
    arm = parse_arm(text, "http://x")
    assert (arm.label, arm.target, arm.model, arm.lossless) == ("mine", "embedded", "a.gguf", False)
    assert arm.fields == {"top_k": 5, "stop": "END", "decodeloop": {"draft_len": 3, "speculation": "force"}}
    assert arm.settings == {"policy": "fixed"}


@pytest.mark.parametrize(
    "text", ["turbo", "fixed:", ":4", "fixed:four", "=x", "a=", "a=x;policy", "a=x;lossless=maybe"]
)
def test_what_is_no_arm_is_refused(text):
    with pytest.raises(ValueError):
        parse_arm(text, "http://x")


def test_a_key_is_in_no_record():
    typed = ["bench", "--key", "s3cret", "--key=s3cret", "--arm", "a=http://x;key=s3cret;role=off", "w"]
    assert "s3cret" not in " ".join(without_keys(typed))
    assert without_keys(typed)[5] == "a=http://x;key=...;role=off"
    assert keys_of(typed) == {"a": "s3cret"}
    assert "s3cret" not in repr(parse_arm(typed[5], "http://x"))


def test_arms_of_one_client_share_what_a_server_remembers():
    one, other = parse_arm("off", "http://x"), parse_arm("fixed:4", "http://x")
    assert share_memory([one, other], {})
    assert not share_memory([one, other], {"off": "a", "fixed:4": "b"})
    assert not share_memory([parse_arm("off", "embedded"), parse_arm("fixed:4", "embedded")], {})


@pytest.mark.parametrize(("text", "want"), [("4,1,4", (1.0, 4.0)), ("0.5", (0.5,))])
def test_loads_are_sorted_and_positive(text, want):
    assert numbers(text, "--rates") == want
    for bad in ("", "a", "-1", "1,,2"):
        with pytest.raises(ValueError, match="--rates"):
            numbers(bad, "--rates")


def test_requests_that_name_no_temperature_get_one():
    """So that servers of different defaults are asked the same."""
    workload = open_workload(None, "workload", 2, "sql,creative", 0.0, 0)
    assert {r.params["temperature"] for r in workload.requests} == {0.0, 0.9}
    assert sampling_of(workload) == {"temperature": [0.0, 0.9], "top_p": [0.95]}


def test_tables_are_aligned():
    assert table([{"arm": "off", "x": 1.0}, {"arm": "b", "x": None}]) == ["arm  x", "off  1", "  b  -"]
    assert table([]) == []


class Cliffs:
    """Findings, as far as brackets reads them."""

    def __init__(self, **arms):
        self.cliffs = arms


@pytest.mark.parametrize(
    ("cliffs", "want"),
    [
        ({"a": {"sql": (1, 16)}}, {"sql": 4}),
        ({"a": {"sql": (4, 8)}, "b": {"sql": (1, 16)}}, {"sql": 4}),
        ({"a": {"sql": (7, 8)}}, {}),
        ({"a": {"sql": (None, 8), "mixed": (16, None)}}, {}),
    ],
)
def test_brackets_are_halved_where_there_is_room(cliffs, want):
    assert brackets(Cliffs(**cliffs)) == want


def test_aiperf_is_asked_word_for_word():
    request = WorkRequest(id="a", messages=({"role": "user", "content": "Hi"},), params={"max_tokens": 90, "seed": 3})
    body = json.loads(payload(request, "m", 40))
    assert (body["max_tokens"], body["seed"], body["messages"]) == (40, 3, [{"role": "user", "content": "Hi"}])
    asked = command("aiperf", "http://x", Path("p.jsonl"), Path("out"), "m", "/tok", 2, 9)
    assert asked[:2] == ["aiperf", "profile"]
    assert asked[asked.index("--custom-dataset-type") + 1] == "raw_payload"
    assert asked[asked.index("--concurrency") + 1] == "2"


def test_other_clients_results_become_cards(tmp_path):
    asked = ["results", "import", DATA / "clients" / "aiperf.jsonl", "--format", "aiperf", "--out", tmp_path, "--json"]
    got = CliRunner().invoke(app, [*map(str, asked), "--label", "their server"])
    assert got.exit_code == 0, got.output
    told = json.loads(got.stdout.splitlines()[-1])
    card = read(tmp_path / "their-server.card.json")
    assert told["card"] == card.sha256
    assert card.acceptance["all"].mal_step_weighted == pytest.approx(2.25)
    alone = CliRunner().invoke(app, ["compare", str(tmp_path / "their-server.card.json")])
    assert "leaves out" in alone.stdout


def test_a_missing_aiperf_is_told(tmp_path):
    asked = ["results", "aiperf", "http://x", "--out", tmp_path, "--model", "m", "--tokenizer", "/t"]
    got = CliRunner().invoke(app, [*map(str, asked), "--program", "no-such-program"])
    assert isinstance(got.exception, ValueError)
    assert "no program 'no-such-program'" in str(got.exception)
