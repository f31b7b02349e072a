"""A pilot from its file to its report, on a tiny model: what was measured is kept, counted and told."""

import json
import re
import sys

import pytest
from typer.testing import CliRunner

from decodeloop.cli import arm_targets, pilot_bound, pilot_facts
from decodeloop.cli import pilot as command
from decodeloop.cli.main import app, main
from decodeloop.engine.models.sources import open_checkpoint
from decodeloop.evaluation import journal
from decodeloop.policy.cost import CostSurface
from decodeloop.policy.cost_fit import CostSample
from tiny import tiny_hf

HOSTILE = "<script>alert('x')</script>"
ENGINE = "runner: torch, fixed_shape: true, max_context: 128, kv_memory_mb: 16"
FILE = """
name: "{hostile}"
model: {model}
candidate: adaptive
price: {{usd_per_hour: 1}}
workload: {{file: work.jsonl, per_class: 8, max_tokens: 6, shares: {{code_edit: 3, sql: 1}}}}
load: {{levels: [1, 2], judged: 1, requests_per_turn: 2}}
budget: {{minutes: {minutes}, blocks: 2, least_blocks: 2}}
arms:
  - {{label: plain, role: "off", lossless: true, engine: {{{engine}, policy: "off"}}}}
  - {{label: adaptive, role: static, lossless: true, engine: {{{engine}, policy: fixed, draft_len: 2}}}}
  - {{label: smaller, role: smaller model, lossless: false, if_present: true, model: ./nothing-here.gguf,
     engine: {{{engine}, policy: "off"}}}}
"""


@pytest.fixture
def folder(tiny, tmp_path):
    lines = [
        {"id": f"{c}-{i}", "class": c, "prompt": f"{HOSTILE} the cat sat {i} the cat sat", "session": f"s{i}"}
        for c in ("code_edit", "sql")
        for i in range(8)
    ]
    (tmp_path / "work.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write(tmp_path, tiny)
    return tmp_path


@pytest.fixture(scope="session")
def smaller(tmp_path_factory):
    """Half the layers."""
    return open_checkpoint(tiny_hf("llama", tmp_path_factory.mktemp("smaller"), vocab_size=320, seed=1, layers=1))


def write(folder, tiny, minutes=5):
    (folder / "p.yaml").write_text(FILE.format(model=tiny.path, minutes=minutes, engine=ENGINE, hostile=HOSTILE))


@pytest.fixture
def run(monkeypatch, capsys, folder):
    def run(*options):
        monkeypatch.setattr(sys, "argv", ["decodeloop", "pilot", str(folder / "p.yaml"), *options])
        with pytest.raises(SystemExit) as ended:
            main()
        out = capsys.readouterr()
        return ended.value.code or 0, out.out, out.err

    return run


def test_from_the_file_to_the_report(run, folder):
    code, out, _ = run("--json")
    found = json.loads(out.splitlines()[-1])
    assert code == {"go": 0, "no-go": 1, "invalid": 3}[found["answer"]]
    checks = {check["name"]: check for check in found["checks"]}
    assert checks["enough blocks"]["passed"]
    unchanged = checks["answers are the baseline's, character for character"]
    assert unchanged["said"] == "16 of 16"
    assert any("smaller: its model ./nothing-here.gguf is not on this machine" in said for said in found["advice"])

    page = (folder / "p.pilot" / "report.html").read_text()
    text = (folder / "p.pilot" / "report.md").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    for title in ("Class by class", "Every way that was tried", "The frontier", "Whose time it was", "Method"):
        assert title in page
        assert title in text
    share = float(re.search(r"undisturbed turns took, ([\d.]+) %", text)[1])
    assert 99.0 <= share <= 101.0  # accounting, not speed: what requests are charged is what steps took


def test_interrupted_it_goes_on_and_loses_nothing(run, folder, monkeypatch):
    taken, add = [], journal.Journal.add

    def interrupted(self, turn, requests):
        if len(taken) == 3:
            raise KeyboardInterrupt
        taken.append(turn)
        add(self, turn, requests)

    path = folder / "p.pilot" / "run.jsonl"
    with monkeypatch.context() as patched:
        patched.setattr(command.Journal, "add", interrupted)
        code, _, err = run()
    assert code == 130
    assert "the same command goes on" in " ".join(err.split())
    kept = path.read_bytes()
    assert len(journal.load(path).turns) == 3
    run()
    assert path.read_bytes().startswith(kept)
    found = journal.load(path)
    assert not found.missing()
    before, page = path.read_bytes(), (folder / "p.pilot" / "report.html").read_text()
    run("--judge-only")
    assert path.read_bytes() == before
    assert (folder / "p.pilot" / "report.html").read_text() == page
    run("--fresh", "--minutes", "0.01")
    assert not path.read_bytes().startswith(kept)


def test_out_of_time_it_reports_what_it_has(run, tiny, folder):
    write(folder, tiny, minutes=0.0001)
    code, out, _ = run("--json")
    found = json.loads(out.splitlines()[-1])
    assert code in (1, 3)
    assert any("1 finished, 2 needed" in check["said"] for check in found["checks"])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("policy: fixed", "policy: nonsense", "nonsense"),
        ("draft_len: 2", "draft_length: 2", "draft_length"),
        ("file: work.jsonl", "file: gone.jsonl", "gone.jsonl"),
        ("sql: 1", "tool_call: 1", "tool_call"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_measured(run, folder, old, new, said):
    text = (folder / "p.yaml").read_text()
    (folder / "p.yaml").write_text(text.replace(old, new))
    code, _, err = run()
    assert code == 2
    assert said in err
    assert "Traceback" not in err


def test_a_smaller_model_is_tried_beside_speculation_and_said_to_change_the_output(run, folder, smaller):
    """Another checkpoint as an arm: its own engine, its own answers, the same requests."""
    file = folder / "p.yaml"
    file.write_text(
        file.read_text().replace("./nothing-here.gguf", str(smaller.path)).replace(", if_present: true", "")
    )
    code, out, _ = run("--json")
    assert code in (0, 1, 3)
    assert "Not tried" not in out
    found = journal.load(folder / "p.pilot" / "run.jsonl")
    plain, _, small = found.plan.arms
    assert plain.settings["target"]["sha256"] != small.settings["target"]["sha256"]
    assert (plain.lossless, small.lossless) == (True, False)
    texts = {arm.label: {(r.id, r.block): r.text_hash for r in found.steady(arm=arm.label)} for arm in (plain, small)}
    assert texts["plain"].keys() == texts["smaller"].keys()
    assert texts["plain"] != texts["smaller"]
    text = (folder / "p.pilot" / "report.md").read_text()
    row = next(line for line in text.splitlines() if line.startswith("| smaller"))
    assert "| NO |" in row


def test_an_arm_that_answers_nothing_is_told_with_its_error(run, folder):
    work = folder / "work.jsonl"
    lines = [json.loads(line) for line in work.read_text().splitlines()]
    work.write_text("".join(json.dumps({**line, "prompt": "the cat " * 200}) + "\n" for line in lines))
    code, _, err = run()
    assert code == 2
    assert "plain: every request failed, the first with 400" in err


def test_the_gap_to_the_bound_is_told_of_the_runs_own_answers(run, folder, monkeypatch):
    """Step costs are made up: what is tested is whose answers are asked about, and that it is kept and told."""
    surface = CostSurface([CostSample(n, 0, 1, 4.0 + 0.5 * n) for n in (1, 2, 3, 5, 9, 17)])
    monkeypatch.setattr(arm_targets, "measured_costs", lambda *_: lambda runner, memory: surface)
    monkeypatch.setattr(pilot_bound, "SECONDS", 0.1)
    file = folder / "p.yaml"
    learning = "policy: adaptive, drafters: [ngram, suffix], max_draft_len: 4"
    file.write_text(file.read_text().replace("policy: fixed, draft_len: 2", learning))
    code, _, err = run()
    assert code in (0, 1, 3), err  # a crowded machine may make the client late
    bound = pilot_facts.read(folder / "p.pilot").bound
    assert bound.policy == "adaptive"
    assert bound.drafter in ("ngram", "suffix")
    assert bound.answers == 2 * pilot_bound.PER_CLASS
    assert "recorded steps" in bound.times_from
    assert [(each.name, each.load) for each in bound.cells][-2:] == [("mixed", 1), ("mixed", 2)]
    assert all(each.gap.oracle >= 0.95 * each.gap.plain > 0.0 for each in bound.cells)
    run("--judge-only")
    told = (folder / "p.pilot" / "report.md").read_text()
    assert "The gap to the bound" in told
    asked = ["report", str(folder / "p.pilot" / "run.jsonl"), "--price", "1", "--markdown", str(folder / "again.md")]
    again = CliRunner().invoke(app, asked)
    assert again.exit_code == (3 if code == 3 else 0), again.output
    section = re.search(r"## The gap to the bound.*?\n## ", told, re.DOTALL)[0]
    assert section in (folder / "again.md").read_text()
