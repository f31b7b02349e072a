"""Prices, windows, FOCUS rows and showback."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from books_rig import ANA, NOON_S, PRICE, row
from decodeloop.governance.focus import COLUMNS, csv_text, focus_rows
from decodeloop.governance.ledger import Outcome, bound_charge, charge_of, correction
from decodeloop.governance.price import Price
from decodeloop.governance.quota import Limit, Unit, Window
from decodeloop.governance.settings import AdminSettings, GovernanceSettings, LimitSettings, PriceSettings
from decodeloop.governance.showback import showback
from decodeloop.types import Identity, Usage

COUNT = st.integers(0, 10**7)
MONEY = st.floats(0, 1000, allow_nan=False)


@given(st.builds(Price, MONEY, MONEY, MONEY), COUNT, COUNT, COUNT)
def test_no_usage_within_a_bound_costs_more(price: Price, prompt: int, part: int, completion: int) -> None:
    used = Usage(prompt=prompt, cached=min(part, prompt), completion=completion)
    bound = bound_charge(price, Usage(prompt=prompt, completion=completion))
    real = charge_of(price, used)
    assert real.nanos <= bound.nanos + 1
    assert real.tokens <= bound.tokens


@given(st.sampled_from(list(Window)), st.floats(0, 4e9), st.floats(0, 4e9))
def test_windows_hold_all_that_is_not_older_than_they_are(window: Window, one: float, two: float) -> None:
    earlier, later = sorted((one, two))
    seconds = {"second": 1.0, "minute": 60.0, "hour": 3600.0}.get(window.value)
    counts = window.slice_at(earlier) >= window.oldest_at(later)
    if seconds is not None:
        assert counts or later - earlier >= seconds
        assert not counts or later - earlier <= seconds * (1 + 1 / 12) + 1e-3
    until_s = window.until_s(earlier)
    assert until_s == 0 or counts is (later < until_s) or abs(later - until_s) < 1e-3


def test_days_and_months_are_utcs() -> None:
    last = datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()
    assert Window.MONTH.slice_at(last) + 1 == Window.MONTH.slice_at(last + 1)
    assert Window.DAY.slice_at(last) + 1 == Window.DAY.slice_at(last + 1)
    assert Window.MONTH.frees_s(last) == 1.0
    assert Window.TOTAL.frees_s(last) is None


def test_the_unit_of_a_limit_is_what_is_charged() -> None:
    charge = charge_of(PRICE, Usage(prompt=10, cached=4, completion=5))
    assert {unit: unit.of(charge) for unit in Unit} == {
        Unit.REQUESTS: 1, Unit.TOKENS: 15, Unit.MONEY: 6_000 + 4 * 500 + 5 * 4_000,
    }  # fmt: skip


def test_limits_that_mean_nothing() -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        Limit(id="l", unit=Unit.TOKENS, amount=-1, window=Window.DAY)
    with pytest.raises(ValueError, match="text without"):
        Limit(id="a|b", unit=Unit.TOKENS, amount=1, window=Window.DAY)


@given(st.lists(st.tuples(COUNT, COUNT, COUNT), max_size=5))
def test_focus_bills_what_the_ledger_bills(usages: list[tuple[int, int, int]]) -> None:
    rows = [row(f"r{i}", Usage(p, min(c, p), a)) for i, (p, c, a) in enumerate(usages)]
    got = list(focus_rows(rows, "USD"))
    assert sum(each["BilledCost"] for each in got) == pytest.approx(sum(each.billed for each in rows) / 1e9)
    assert sum(each["ConsumedQuantity"] for each in got) == sum(
        each.usage.prompt + each.usage.completion for each in rows
    )


def test_focus_columns() -> None:
    usage = Usage(prompt=1000, cached=400, completion=250, drafted=90, verified=80, accepted=70)
    written = csv_text(focus_rows([row("r", usage, request_class="sql", task="session-1", cost=5)], "EUR"))
    fresh, cached, out = csv.DictReader(io.StringIO(written))
    assert tuple(fresh) == COLUMNS
    assert [each["SkuMeter"] for each in (fresh, cached, out)] == [
        "Input Tokens",
        "Cached Input Tokens",
        "Output Tokens",
    ]
    assert [each["ConsumedQuantity"] for each in (fresh, cached, out)] == ["600", "400", "250"]
    assert float(out["BilledCost"]) == 0.001
    assert (out["BillingCurrency"], out["PricingUnit"], out["ServiceCategory"]) == (
        "EUR", "1000000 Tokens", "AI and Machine Learning",
    )  # fmt: skip
    assert (out["SubAccountId"], out["x_Principal"], out["x_Agent"], out["x_AcceptedTokens"]) == (
        "acme", "ana", "coder", "70",
    )  # fmt: skip
    assert out["Tags"] == '{"class": "sql", "task": "session-1"}'
    assert (out["ChargePeriodStart"], out["BillingPeriodStart"]) == ("2027-01-15T08:00:00Z", "2027-01-01T00:00:00Z")
    assert (fresh["x_AttributedCost"], out["x_AttributedCost"]) == ("0.0", "5e-09")


def test_a_correction_says_so() -> None:
    estimate = row("r", Usage(prompt=100, completion=50), Outcome.ESTIMATED)
    actual = row("r", Usage(prompt=100, completion=20))
    (got,) = focus_rows([correction(estimate, actual, 1)], "USD")
    assert (got["ChargeClass"], got["ConsumedQuantity"], got["SkuMeter"]) == ("Correction", -30, "Output Tokens")
    assert got["BilledCost"] == (actual.billed - estimate.billed) / 1e9


def test_no_cell_runs_in_a_spreadsheet() -> None:
    evil = Identity("=cmd()", "+1", "@x", "-y")
    written = csv_text(focus_rows([row("r", Usage(1, 0, 1), identity=evil)], "USD"))
    assert all(each["SubAccountId"] == "'=cmd()" for each in csv.DictReader(io.StringIO(written)))


def test_showback_sums_by_what_is_asked() -> None:
    rows = [
        row("a", Usage(10, 0, 5), cost=1000),
        row("b", Usage(10, 0, 5), request_class="sql"),
        row("c", Usage(1, 0, 1), identity=Identity("other", "bob")),
    ]
    got = showback(rows, "organization")
    assert list(got) == ["acme", "other"], "dearest first"
    assert (got["acme"].requests, got["acme"].prompt, got["acme"].margin) == (2, 20, 2 * rows[0].billed - 1000)
    assert set(showback(rows, "class")) == {"", "sql"}
    assert set(showback(rows, "agent")) == {f"acme/{ANA.user}/coder", "other/bob/"}
    with pytest.raises(ValueError, match="no grouping 'moon'; choose from organization, "):
        showback(rows, "moon")
    assert rows[0].started_s == NOON_S


@pytest.mark.parametrize("amount", [-1, 1e30, float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("unit", Unit)
def test_amounts_that_no_store_could_count(unit: Unit, amount: float) -> None:
    with pytest.raises(ValueError, match="limit l: the amount must be between 0 and"):
        LimitSettings(id="l", unit=unit, amount=amount, window=Window.DAY)


@pytest.mark.parametrize("kind", ["prompt", "cached", "completion", "second_cost"])
@pytest.mark.parametrize("price", [-0.5, 1e30, float("inf"), float("nan")])
def test_prices_that_nobody_could_pay(kind: str, price: float) -> None:
    with pytest.raises(ValueError, match="prices must be between 0 and"):
        PriceSettings(**{kind: price})


def test_the_largest_amounts_are_counted_exactly() -> None:
    assert LimitSettings(id="l", unit=Unit.TOKENS, amount=2.0**53, window=Window.DAY).record().amount == 2**53
    assert LimitSettings(id="l", unit=Unit.MONEY, amount=9e6, window=Window.DAY).record().amount == 9 * 10**15


@pytest.mark.parametrize("port", [-1, 65536])
def test_the_admin_apis_port_is_one(port: int) -> None:
    with pytest.raises(ValueError, match="port must be between 0 and 65535"):
        AdminSettings(port=port)


def test_a_template_adds_tokens() -> None:
    with pytest.raises(ValueError, match="template_tokens must not be negative"):
        GovernanceSettings(template_tokens=-1)
