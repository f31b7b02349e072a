"""Workloads: what is in them, samples of them, the shipped suite, and what redaction takes out."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodeloop.evaluation.workloads.redaction import Redactor, luhn
from decodeloop.evaluation.workloads.sampling import filled, sample, slices, weigh
from decodeloop.evaluation.workloads.suite import mini_suite
from decodeloop.evaluation.workloads.workload import Workload, WorkRequest
from decodeloop.types import RequestClass

EDIT, CHAT, SQL = RequestClass.CODE_EDIT, RequestClass.GENERAL_CHAT, RequestClass.SQL


def of(counts, **fields):
    requests = [
        WorkRequest(id=f"{kind}-{i}", request_class=kind, prompt=f"{kind} {i}", **fields)
        for kind, count in counts.items()
        for i in range(count)
    ]
    return Workload(name="w", requests=tuple(requests))


def test_the_hash_is_of_what_is_served():
    one = of({EDIT: 2})
    assert replace(one, name="other", sources=("elsewhere",)).sha256 == one.sha256
    assert replace(one, requests=one.requests[::-1]).sha256 != one.sha256
    changed = replace(one.requests[0], params={"temperature": 0.5})
    assert replace(one, requests=(changed, one.requests[1])).sha256 != one.sha256


@pytest.mark.parametrize(
    "fields", [{"prompt": "a", "messages": ({"role": "user"},)}, {"weight": 0.0}, {"arrival_s": -1.0}]
)
def test_impossible_requests_are_refused(fields):
    with pytest.raises(ValueError, match="request x"):
        WorkRequest(id="x", **fields)


@given(st.integers(1, 30), st.integers(0, 5))
def test_a_sample_keeps_the_real_volume(per_class, seed):
    whole = of({EDIT: 5, CHAT: 95})
    some = sample(whole, per_class, seed=seed)
    assert some.counts == {EDIT: min(5, per_class), CHAT: min(95, per_class)}
    assert some.shares == pytest.approx(whole.shares)
    assert sum(r.weight for r in some.requests) == pytest.approx(len(some.requests))
    assert some == sample(whole, per_class, seed=seed)


def test_shares_come_from_real_volumes():
    weighed = weigh(of({EDIT: 5, CHAT: 5}), {EDIT: 300, CHAT: 9_700})
    assert weighed.shares == pytest.approx({EDIT: 0.03, CHAT: 0.97})
    with pytest.raises(ValueError, match="only one of them has general_chat, sql"):
        weigh(of({EDIT: 1, CHAT: 1}), {EDIT: 1, SQL: 2})


def test_a_trace_is_filled_with_texts_of_its_lengths():
    texts = Workload(
        name="t",
        requests=tuple(
            WorkRequest(id=str(n), request_class=EDIT, prompt="x" * n, params={"temperature": 0, "max_tokens": 9})
            for n in (40, 400, 4000)
        ),
    )
    trace = Workload(
        name="a",
        requests=tuple(
            WorkRequest(id=f"r{i}", prompt_tokens=p, output_tokens=o, arrival_s=float(i))
            for i, (p, o) in enumerate([(900, 5), (12, 700), (110, 30), (900, 8)])
        ),
    )
    full = filled(trace, texts, longest=64)
    assert [len(r.prompt or "") for r in full.requests] == [4000, 40, 400, 4000]
    assert [r.params["max_tokens"] for r in full.requests] == [5, 64, 30, 8]
    assert [r.arrival_s for r in full.requests] == [0.0, 1.0, 2.0, 3.0]
    with pytest.raises(ValueError, match="no texts"):
        filled(trace, trace)


def test_slices_are_alike_and_fresh_while_they_last():
    dealt, fresh = slices(of({EDIT: 12, CHAT: 24}), 6, 6, seed=1)
    assert fresh
    assert all(Counter(r.request_class for r in part) == {EDIT: 2, CHAT: 4} for part in dealt)
    assert len({r.id for part in dealt for r in part}) == 36
    again, fresh = slices(of({EDIT: 12, CHAT: 24}), 6, 7, seed=1)
    assert not fresh
    assert again[6] == dealt[0]


def test_the_suite_has_the_enterprise_classes_and_never_repeats_itself():
    suite = mini_suite(60)
    assert list(suite.counts) == [
        "code_edit", "code_synthesis", "structured_json", "rag_summary", "sql", "tool_call", "support_chat",
        "creative_writing",
    ]  # fmt: skip
    assert set(suite.counts.values()) == {60}
    assert len({str(r.messages) for r in suite.requests}) == 480
    assert not any("[[" in str(r.messages) or "||" in str(r.messages) for r in suite.requests)
    assert suite.sha256 == mini_suite(60).sha256
    assert suite.sha256 != mini_suite(60, seed=1).sha256
    assert all("max_tokens" in r.params and "seed" in r.params for r in suite.requests)


def test_the_suite_tells_what_it_lacks():
    assert list(mini_suite(2, classes=(SQL,)).counts) == [SQL]
    with pytest.raises(ValueError, match="has no translation; it has code_edit"):
        mini_suite(1, classes=(RequestClass.TRANSLATION,))
    with pytest.raises(ValueError, match="distinct requests of class"):
        mini_suite(100_000, classes=(SQL,))


def test_redaction_keeps_what_repeats():
    redactor = Redactor()
    text = redactor.text("Mail eva@example.com or paul@example.org; eva@example.com answers faster.")
    assert text == "Mail <email-1> or <email-2>; <email-1> answers faster."
    assert redactor.text("Ask eva@example.com") == "Ask <email-1>"
    assert redactor.counts == {"email": 4}


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("key sk-abcdefghijklmnop1234 leaked", "key <key-1> leaked"),
        ("postgres://app:hunter2@db/orders", "postgres://<secret-1>@db/orders"),
        ("Authorization: Bearer abcdef0123456789", "Authorization: Bearer <secret-1>"),
        ("IBAN CZ65 0800 0000 1920 0014 5399 please", "IBAN <iban-1> please"),
        ("card 4111 1111 1111 1111 expires", "card <card-1> expires"),
        ("host 10.0.12.7 is down", "host <ip-1> is down"),
        ("call +420 601 123 456 now", "call <phone-1> now"),
        ("order 12345678901234 of 2024-05-01, total 1200.50", "order 12345678901234 of 2024-05-01, total 1200.50"),
    ],
)
def test_what_is_taken_out_and_what_stays(text, want):
    assert Redactor().text(text) == want


def test_redaction_reaches_every_text():
    request = WorkRequest(
        id="a", messages=({"role": "user", "content": [{"type": "text", "text": "to a@b.cz"}]},),
        params={"tools": [{"function": {"description": "mails a@b.cz"}}]}, session="eva",
    )  # fmt: skip
    clean = Redactor({"email": r"\S+@\S+"}).workload(Workload(name="w", requests=(request,))).requests[0]
    assert "a@b.cz" not in str(clean)
    assert clean.session == "<session-1>"
    assert request.messages[0]["content"][0]["text"] == "to a@b.cz"
    with pytest.raises(ValueError, match="no regular expression"):
        Redactor({"bad": "("})


def test_luhn():
    assert luhn("4111 1111 1111 1111")
    assert not luhn("4111 1111 1111 1112")
