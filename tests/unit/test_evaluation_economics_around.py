"""Around the bill: power, tasks, what clients tell, and what the saving hangs on."""

import json

import pytest

from decodeloop.evaluation.economics import Money
from decodeloop.evaluation.economics_power import between, read_power
from decodeloop.evaluation.economics_roi import outcomes, read_events, returns
from decodeloop.evaluation.economics_run import bill
from decodeloop.evaluation.economics_sensitivity import dollar_swings, saving_swings, usd_saved_per_million
from decodeloop.evaluation.economics_tasks import TaskRequest, roll_up
from decodeloop.evaluation.prices import given
from synthetic_results import EDIT, STORY, results


def package(root, number, uj, wrap=1_000_000_000):
    path = root / f"intel-rapl:{number}"
    path.mkdir(parents=True, exist_ok=True)
    (path / "energy_uj").write_text(str(uj))
    (path / "max_energy_range_uj").write_text(str(wrap))
    part = root / f"intel-rapl:{number}:0"  # a part of the package: counted already
    part.mkdir(exist_ok=True)
    (part / "energy_uj").write_text("77000000")


def no_gpu(command):
    raise FileNotFoundError(command[0])


def test_packages_are_summed_and_their_parts_are_not(tmp_path):
    package(tmp_path, 0, 5_000_000)
    package(tmp_path, 1, 7_000_000)
    first = read_power(rapl=tmp_path, run=no_gpu)
    package(tmp_path, 0, 105_000_000)
    power = between(first, read_power(rapl=tmp_path, run=no_gpu), 10.0)
    assert power.watts == pytest.approx(10.0)
    assert "RAPL (2 packages)" in power.said


def test_a_counter_that_wrapped_has_not_run_backwards(tmp_path):
    package(tmp_path, 0, 990_000_000)
    first = read_power(rapl=tmp_path, run=no_gpu)
    package(tmp_path, 0, 10_000_000)
    assert between(first, read_power(rapl=tmp_path, run=no_gpu), 10.0).watts == pytest.approx(2.0)


def test_gpus_say_their_draw(tmp_path):
    first, last = (read_power(rapl=tmp_path, run=lambda _, w=w: w) for w in ("300.0\n400.0\n", "500.0\n400.0\n"))
    assert between(first, last, 1.0).watts == pytest.approx(800.0)


def test_where_nothing_can_be_read_that_is_said(tmp_path):
    for run in (no_gpu, lambda _: "[N/A]\n"):
        reading = read_power(rapl=tmp_path, run=run)
        assert not reading.readable
        power = between(reading, reading, 1.0)
        assert power.watts is None
        assert "not measured: no RAPL counters; no nvidia-smi" in power.said
    with pytest.raises(ValueError, match="no time"):
        between(reading, reading, 0.0)


def test_a_counter_that_may_not_be_read_is_said(tmp_path):
    package(tmp_path, 0, 1)
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("secret")
    assert "can't be read" in read_power(rapl=tmp_path, run=no_gpu).said


def test_a_task_costs_what_its_requests_cost_together():
    found = roll_up(
        [TaskRequest("a", 1.0, 2.0), TaskRequest("b", 2.0, 1.0), TaskRequest("a", 3.0, 4.0), TaskRequest(None, 9.0)]
    )
    assert (found.tasks, found.requests, found.unnamed) == (2, 3, 1)
    assert (found.usd_mean, found.usd_p50, found.seconds_mean) == (3.0, 3.0, 3.5)
    assert roll_up([TaskRequest(None, 1.0)]) is None


def event(at, kind, **more):
    return json.dumps({"at": f"2026-11-29T10:00:{at:02}Z", "event": kind, **more})


def test_suggestions_and_tasks_by_hand():
    read = read_events(
        [
            event(0, "task_started", session_id="s", arm="on"),
            event(1, "suggestion_shown", request_id="1", arm="on", editor="vi"),
            event(2, "suggestion_shown", request_id="2", arm="on"),
            event(2, "suggestion_shown", request_id="2", arm="on"),
            event(3, "suggestion_accepted", request_id="1", arm="on"),
            event(4, "suggestion_rejected", request_id="1", arm="on"),
            event(5, "suggestion_accepted", request_id="2", arm="on"),
            event(9, "task_completed", session_id="s", arm="on"),
            event(9, "task_abandoned", session_id="t", arm="off"),
        ]
    )
    off, on = outcomes(read.events)
    assert not read.malformed
    assert (on.shown, on.accepted, on.acceptance) == (2, 1, 0.5)
    assert (on.tasks, on.completed, on.completion_s_p50) == (1, 1, 9.0)
    assert (off.acceptance, off.tasks, off.completed, off.completion_s_p50) == (None, 1, 0, None)


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"event": "task_started"}', event(1, "suggestion_shown"), event(1, "clicked", request_id="1")]
)
def test_an_event_that_is_none_is_kept_by_its_line(line):
    read = read_events([event(1, "suggestion_shown", request_id="1"), line])
    assert list(read.malformed) == [2]
    assert len(read.events) == 1


def test_returns_by_hand():
    found = returns("on", usd_per_hour=3.6, seconds=1000.0, output_tokens=5000.0, requests=10)
    assert (found.output_tokens_per_usd, found.requests_per_usd) == pytest.approx((5000.0, 10.0))
    with pytest.raises(ValueError, match="nothing"):
        returns("on", usd_per_hour=0.0, seconds=1.0, output_tokens=1.0, requests=1)


MONEY = Money(price=given(3.6), watts=500.0, usd_per_kwh=0.2)


def test_price_and_power_move_the_dollars():
    found = bill(results(), "adaptive", 1.0, MONEY)
    price, power = dollar_swings(found, MONEY)
    # 1e6 requests at 0.4 s; 0.6 x 50 % + 0.35 x 20 % - 0.05 x 11 % saved.
    assert usd_saved_per_million(found, MONEY) == pytest.approx(4e5 * 0.3644 / 3600 * 3.7, rel=0.1)
    assert price.at_low < usd_saved_per_million(found, MONEY) < price.at_high
    assert power.at_high - power.at_low == pytest.approx(4e5 * 0.3644 / 3600 * 0.15, rel=0.1)


def test_power_that_was_not_measured_is_in_no_sensitivity():
    unread = Money(price=given(3.6), usd_per_kwh=0.2)
    assert [s.name for s in dollar_swings(bill(results(), "adaptive", 1.0, unread), unread)] == ["device price"]


def test_the_mix_moves_the_share():
    found = bill(results(), "adaptive", 1.0, MONEY)
    swings = {swing.name: swing for swing in saving_swings(found)}
    assert swings[f"volume of {EDIT}"].at_high < found.delta.share < swings[f"volume of {EDIT}"].at_low
    assert swings[f"volume of {STORY}"].at_low < found.delta.share < swings[f"volume of {STORY}"].at_high
    assert swings[f"speed-up of {EDIT}"].at_low < swings[f"speed-up of {EDIT}"].at_high
