"""economics, frontier and report as a user types them, on a run whose truth is known (synthetic)."""

import json
import sys
from dataclasses import replace

import pytest

from decodeloop.cli.main import main
from decodeloop.evaluation import journal
from synthetic_results import CHAT, EDIT, STORY, Truth, results

TRUTH = Truth(levels=(1.0, 4.0), requests=2, blocks=8)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "run.jsonl"
    journal.save(path, results(TRUTH))
    return path


@pytest.fixture(scope="module")
def invalid(tmp_path_factory):
    path = tmp_path_factory.mktemp("late") / "run.jsonl"
    journal.save(path, results(replace(TRUTH, lag_s=0.05, levels=(1.0,))))
    return path


@pytest.fixture
def call(monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["decodeloop", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out = capsys.readouterr()
        return ended.value.code or 0, out.out, out.err

    return run


def last_json(out):
    return json.loads(out.splitlines()[-1])


def test_economics_ends_with_one_line_of_json(saved, call):
    code, out, _ = call("economics", saved, "--price", 3.6, "--json")
    found = last_json(out)
    assert code == 0
    assert found["delta"]["share"] == pytest.approx(-0.3644, abs=0.01)
    assert found["tails"] == [STORY]
    assert set(found["classes"]) == {EDIT, CHAT, STORY}
    assert found["per_usd"]["adaptive"]["output_tokens_per_usd"] > found["per_usd"]["off"]["output_tokens_per_usd"]
    assert "creative_writing" in out
    assert "Cost per task" in out


@pytest.mark.parametrize(("share", "code"), [(0.3, 0), (0.5, 1)])
def test_a_saving_that_is_required_is_shown_or_the_answer_is_no(saved, call, share, code):
    assert call("economics", saved, "--price", 1, "--require-saving", share)[0] == code


@pytest.mark.parametrize("command", [("economics", "--price", "1"), ("report", "--price", "1"), ("frontier",)])
def test_an_invalid_run_is_told_by_its_code(invalid, call, command):
    name, *options = command
    code, out, _ = call(name, invalid, *options)
    assert code == 3
    assert "INVALID" in out
    assert "the client was late" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("economics",), "--price USD or --device NAME"),
        (("economics", "--price", "1", "--device", "H100"), "--price USD or --device NAME"),
        (("economics", "--device", "abacus"), "choose from H100"),
        (("economics", "--price", "1", "--arm", "nobody"), "choose from adaptive"),
        (("report", "--price", "1", "--level", "3"), "choose from 1, 4"),
        (("economics", "--price", "1", "--request-price", "dear"), "CLASS=USD"),
    ],
)
def test_what_was_wrong_and_what_would_be_right(saved, call, arguments, said):
    name, *options = arguments
    code, _, err = call(name, saved, *options)
    assert code == 2
    assert said in err
    assert "Traceback" not in err


def test_a_file_that_is_no_run(tmp_path, call):
    (tmp_path / "x.jsonl").write_text("{}\n")
    assert call("frontier", tmp_path / "x.jsonl")[0] == 2
    assert call("frontier", tmp_path / "missing.jsonl")[0] == 2


def test_margins_and_clients_events(saved, call, tmp_path):
    events = tmp_path / "events.jsonl"
    events.write_text(
        '{"at": "2026-11-29T10:00:00Z", "event": "suggestion_shown", "request_id": "1", "arm": "adaptive"}\n'
        '{"at": "2026-11-29T10:00:01Z", "event": "suggestion_accepted", "request_id": "1", "arm": "adaptive"}\n{\n'
    )
    code, out, _ = call("economics", saved, "--price", 1, "--events", events, "--request-price", "code_edit=0.001")
    assert code == 0
    assert "Contribution margin" in out
    assert "100.0 %" in out
    assert "line 3 is no event" in out


def test_the_frontier_and_its_picks(saved, call, tmp_path):
    code, out, _ = call("frontier", saved, "--tpot-ms", 30, "--svg", tmp_path / "f.svg", "--json")
    found = last_json(out)
    assert code == 0
    assert found["picks"] == {"off": 4.0, "adaptive": 4.0}
    assert len(found["points"]) == 4
    assert "<style>" in (tmp_path / "f.svg").read_text()
    assert call("frontier", saved, "--tpot-ms", 0.001)[0] == 1


def test_a_report_is_two_files(saved, call, tmp_path):
    page, text = tmp_path / "r.html", tmp_path / "r.md"
    code, out, _ = call("report", saved, "--price", 1, "--html", page, "--markdown", text, "--json")
    assert code == 0
    assert last_json(out)["html"] == str(page)
    assert "No saving is claimed" in page.read_text()
    assert text.read_text().startswith("# adaptive against off")


def test_a_hostile_name_does_not_drive_the_terminal(call, tmp_path):
    run = results(replace(TRUTH, levels=(1.0,)))
    named = replace(run, plan=replace(run.plan, arms=(run.plan.arms[0], replace(run.plan.arms[1], label="\x1b[2Jx"))))
    hostile = replace(
        named,
        turns=tuple(replace(t, arm="\x1b[2Jx") if t.arm == "adaptive" else t for t in run.turns),
        requests=tuple(replace(r, arm="\x1b[2Jx") if r.arm == "adaptive" else r for r in run.requests),
    )
    journal.save(tmp_path / "run.jsonl", hostile)
    assert "\x1b" not in call("economics", tmp_path / "run.jsonl", "--price", 1)[1]
