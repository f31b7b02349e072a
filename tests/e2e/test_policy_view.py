"""`GET /v1/policy` of a server that has served: every belief is there, and agrees with what was served."""

from __future__ import annotations

import httpx
import pytest

from decodeloop.cli.explain import lines
from stack import stack

PROMPT = "the cat sat on the mat, the cat sat on the mat, the cat sat on the"


@pytest.fixture(scope="module")
def view(tiny):
    with stack(tiny, runner="torch", policy="adaptive", drafters=("ngram", "suffix"), max_context=256) as running:
        reports = []
        for request_class in ("code_edit", "creative_writing") * 4:
            body = {"prompt": PROMPT, "max_tokens": 40, "temperature": 0, "decodeloop": {"class": request_class}}
            answer = httpx.post(f"{running.url}/v1/completions", json=body, timeout=120).json()
            reports.append(answer["decodeloop"])
        (found,) = httpx.get(f"{running.url}/v1/policy").json()["data"]
        yield found["policy"], reports


def test_what_it_believes_is_all_there(view):
    policy, _ = view
    assert {"cost", "survival", "calibration", "cliff", "aim", "drift", "guard", "reasons", "rewards"} <= set(policy)
    assert policy["drafters"] == ["ngram", "suffix"]
    assert policy["cost"]["measured"]
    assert policy["cost"]["ms"] == sorted(policy["cost"]["ms"])
    assert policy["aim"]["point"]["tokens_per_s"] > 0
    assert policy["drift"]["alarm_at"] > 0


def test_it_agrees_with_what_was_served(view):
    policy, reports = view
    steps = sum(report["steps"] for report in reports)
    seen = sum(count for reason, count in policy["reasons"].items() if reason != "prefill")
    assert steps - 16 <= seen <= steps  # a policy may learn from several steps at once
    classes = {(entry["class"], entry["drafter"]) for entry in policy["survival"]}
    assert classes == {(c, d) for c in ("code_edit", "creative_writing") for d in ("ngram", "suffix")}
    for entry in policy["survival"]:
        assert entry["survival"] == sorted(entry["survival"], reverse=True)
        assert 0 < entry["observations"][0] <= steps
    assert {entry["class"] for entry in policy["cliff"]} == {"code_edit", "creative_writing"}


def test_it_can_be_read_aloud(view):
    text = "\n".join(lines(view[0]))
    assert "cost surface" in text
    assert "survival code_edit ngram" in text
