"""The report: what must be in it, in what order, and what must never get out of it (synthetic runs)."""

import re
from dataclasses import replace
from functools import lru_cache
from html.parser import HTMLParser

import numpy as np
import pytest

from decodeloop.evaluation.economics import Delta, Money
from decodeloop.evaluation.economics_run import bill
from decodeloop.evaluation.prices import given
from decodeloop.evaluation.report import Asked, build, headline, markdown, to_html, to_markdown
from decodeloop.evaluation.report_objectives import p_differs
from decodeloop.evaluation.report_tokens import Predicted
from decodeloop.evaluation.report_words import Answer, Check, Verdict, delta, ratio, usd
from decodeloop.evaluation.results import Mode
from decodeloop.evaluation.statistics import Ratio
from decodeloop.types import Slo
from synthetic_results import CHAT, EDIT, STORY, Truth, results

HOSTILE = "<script>alert('1')</script>|[x](javascript:y)`"
MONEY = Money(price=given(0.1))
TRUTH = Truth(
    levels=(1.0, 4.0),
    requests=3,
    speed={
        "off": {EDIT: 1.0, CHAT: 1.0, STORY: 1.0},
        "adaptive": {EDIT: 2.0, CHAT: 1.25, STORY: 0.9},
        "int4": {EDIT: 2.0, CHAT: 2.0, STORY: 2.0},
    },
    lossless={"int4": False},
)


@lru_cache
def run_of(truth=TRUTH):
    return results(truth)


@lru_cache
def text_of(truth=TRUTH):
    return to_markdown(build(asked(run_of(truth))))


def asked(run, **more):
    return Asked(**{"results": run, "arm": "adaptive", "level": 1.0, "money": MONEY, "slo": Slo(200.0, 20.0), **more})


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.words, self.open = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.words.append(data)


def real(run):
    return replace(run, plan=replace(run.plan, mode=Mode.REAL))


def test_the_verdict_comes_first_then_validity_then_the_rest():
    report = build(asked(real(run_of())))
    html = to_html(report)
    order = ["adaptive saves device time: -", "The run is valid.", "The bill", "Class by class",
             "Every way that was tried", "The cliff", "The frontier", "Acceptance", "Where the time goes",
             "Latency and objectives", "What the saving hangs on", "Method, and how to run it again"]  # fmt: skip
    for text in (html, to_markdown(report)):
        places = [text.index(said.split(": -")[0]) for said in order]
        assert places == sorted(places)
    assert re.search(r"device time: -\d+\.\d % \[-\d+\.\d, -\d+\.\d\]", html)
    assert "decodeloop pilot synthetic.yaml" in html


def test_it_is_one_file_that_asks_nobody_for_anything():
    page = Page(to_html(build(asked(run_of()))))
    for tag, attributes in page.tags:
        assert tag not in ("script", "link", "iframe", "object", "img")
        assert not any(name.startswith("on") for name in attributes)
        assert all(attributes.get(name, "#").startswith("#") for name in ("href", "src", "xlink:href"))
    assert len([tag for tag, _ in page.tags if tag == "svg"]) == 7


def test_nothing_from_a_workload_becomes_markup():
    run = run_of()
    plan = replace(
        run.plan,
        workload=replace(run.plan.workload, name=HOSTILE),
        arms=tuple(
            replace(arm, label=HOSTILE, note=HOSTILE) if arm.label == "adaptive" else arm for arm in run.plan.arms
        ),
        command=HOSTILE,
        system={HOSTILE: HOSTILE},
    )
    hostile = replace(
        run,
        plan=plan,
        turns=tuple(replace(t, arm=HOSTILE) if t.arm == "adaptive" else t for t in run.turns),
        requests=tuple(replace(r, arm=HOSTILE) if r.arm == "adaptive" else r for r in run.requests),
    )
    verdict = Verdict(answer=Answer.GO, headline=HOSTILE, checks=(Check(HOSTILE, True, HOSTILE),), advice=(HOSTILE,))
    report = build(asked(hostile, arm=HOSTILE, verdict=verdict, power=HOSTILE, card={HOSTILE: HOSTILE}))
    html, text = to_html(report), to_markdown(report)
    assert "script" not in {tag for tag, _ in Page(html).tags}
    assert HOSTILE in "".join(Page(html).words)
    shown = "\n".join(line for line in text.splitlines() if not line.startswith("    "))
    assert "<script" not in shown.replace("\\<script", "")
    assert not re.search(r"(?<!\\)\[x", shown)


def test_a_table_keeps_its_columns_whatever_is_in_it():
    text = text_of()
    tables = re.findall(r"(?:^\|.*\|\n)+", text, re.M)
    assert len(tables) >= 8
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


def test_an_invalid_run_says_so_above_its_figures():
    html = to_html(build(asked(results(replace(TRUTH, lag_s=0.02)))))
    assert "The run is invalid" in html
    assert html.index("the client was late") < html.index("The bill")


def test_answers_that_may_differ_do_not_make_a_run_invalid():
    run = run_of()
    shorter = replace(
        run, requests=tuple(replace(r, completion_tokens=20) if r.arm == "int4" else r for r in run.requests)
    )
    found = build(asked(shorter)).validity
    assert found.valid
    assert any("output lengths differ (not held to say the same)" in said for said in found.caveats)


@pytest.mark.parametrize("mode", [Mode.SYNTHETIC, Mode.SIMULATED])
def test_only_a_real_run_claims_a_saving(mode):
    found = bill(run_of(), "adaptive", 1.0, MONEY)
    assert "saves" not in headline(found, mode)
    assert "No saving is claimed" in headline(found, mode)
    assert "saves" in headline(found, Mode.REAL)
    assert "No saving is claimed" in text_of()


def test_every_class_is_listed_and_every_lossy_arm_is_marked():
    text = text_of()
    assert re.search(r"creative\\_writing .*costs more, low acceptance \(20 % of verified tokens\)", text)
    assert re.search(r"\| int4 \| NO \|", text)


def test_percentiles_need_their_requests():
    few = to_markdown(build(asked(results(replace(TRUTH, requests=1)))))
    many = to_markdown(build(asked(results(replace(TRUTH, requests=7)))))
    row = re.compile(r"^\| off \| (\d+) \| (\S+) \| (\S+) \| (\S+) \|", re.M)
    assert row.search(few).groups()[2:] == ("-", "-")
    count, _, p95, p99 = row.search(many).groups()
    assert int(count) > 100
    assert p95 != "-"
    assert p99 == "-"


def test_loops_are_counted_and_cut():
    run = run_of()
    looping = tuple(replace(r, loops=r.id.endswith("-0")) for r in run.requests)
    text = to_markdown(build(asked(replace(run, requests=looping))))
    assert "flatters copying drafters: 33.3 %" in text
    assert "answers that loop (and their like in the other configurations): -" in text


def test_a_prediction_stands_beside_what_was_measured():
    rows = (Predicted("adaptive", 1.0, 1.4, "measured surface"), Predicted("adaptive", 4.0, 1.4, "measured surface"))
    text = to_markdown(build(asked(run_of(), predicted=rows)))
    assert "## Simulated against measured" in text
    assert "| adaptive | 1 at once | 1.40x |" in text
    assert "## Simulated against measured" not in text_of()


def test_without_times_drafts_or_objectives_their_sections_are_left_out():
    run = results(replace(TRUTH, times=False))
    bare = replace(run, requests=tuple(replace(r, drafting=None) for r in run.requests))
    text = to_markdown(build(asked(bare, slo=None)))
    assert "## Acceptance" not in text
    assert "## Where the time goes" not in text
    assert "No objectives were set" in text
    assert "split over its requests by tokens" in text


def test_a_run_cut_short_is_reported_by_its_whole_blocks():
    run = run_of()
    cut = replace(run, turns=tuple(t for t in run.turns if t.block < 3 or (t.block == 3 and t.level == 1.0)))
    cut = replace(cut, requests=tuple(r for r in cut.requests if (r.block, r.level) <= (3, 1.0)))
    found = build(asked(cut))
    assert "level 4: 3 of at least 8 blocks: intervals are wide or missing" in found.validity.caveats


def test_amounts_keep_three_digits_that_count():
    assert [usd(v) for v in (1234.5, 0.0456, 0.00000123456, -0.5, float("inf"))] == [
        "$1,234.50", "$0.0456", "$0.00000123", "-$0.500", "none met",
    ]  # fmt: skip


def test_bounds_that_bound_nothing_are_said_so():
    assert ratio(Ratio(1.1, 0.0, 1e9, 3.0, 2)) == "1.10x [0.00, no bound]"
    assert ratio(Ratio(1.1, 1.0, 1.21, 0.1, 8)) == "1.10x [1.00, 1.21]"
    assert delta(Delta(-0.1, -0.2, 0.05, 8)) == "-10.0 % [-20.0, +5.0]"
    assert delta(Delta(-0.1, -1.0, float("inf"), 1)) == "-10.0 % (one block: no interval)"


def test_markdown_shows_text_as_it_is():
    assert markdown("a_b*|<i>\n# c") == r"a\_b\*\|\<i\> \# c"


def test_objectives_class_by_class():
    text = to_markdown(build(asked(run_of(), slo=Slo(tpot_ms=8.5))))
    section = text.split("## Objectives by class")[1].split("##")[0]
    rows = {line.split("|")[1].strip(): line for line in section.splitlines() if line.startswith("| ")}
    assert "surely more" in rows[r"code\_edit"]
    assert "none shown" in rows[r"creative\_writing"]
    assert "## Objectives by class" not in to_markdown(build(asked(run_of(), slo=None)))


def test_no_difference_is_called_in_more_than_five_percent_of_runs_without_one():
    rng = np.random.default_rng(0)
    called = 0
    for _ in range(1000):
        weather = rng.uniform(0.5, 0.95, 8)
        before, after = (([int(n) for n in rng.binomial(30, weather)], [30] * 8) for _ in range(2))
        called += p_differs(before, after) < 0.05
    assert called <= 65
    assert p_differs(([0] * 8, [30] * 8), ([30] * 8, [30] * 8)) == 0.0
    assert p_differs(([1], [2]), ([2], [2])) == 1.0
