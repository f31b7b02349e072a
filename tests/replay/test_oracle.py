"""The oracle and the best causal rule: exact where that can be enumerated, ordered as they must be."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodeloop.evaluation.acceptance import Draft, Drafts, History, Recorded, Texts
from decodeloop.evaluation.fleet import Batch, Limits, Served
from decodeloop.evaluation.foresight import Foresight
from decodeloop.evaluation.oracle import Cell, Informed, Oracle, cell_of, gap
from decodeloop.evaluation.roofline import StraightLines
from decodeloop.evaluation.rules import Fixed, Off
from decodeloop.evaluation.workload import Arrival
from decodeloop.types import RequestClass

EDIT, CHAT = RequestClass.CODE_EDIT, RequestClass.GENERAL_CHAT
COST = StraightLines(step=4.0, token=0.5, context=0.0)
K = 6


def batch(right, offered):
    n = len(right)
    confidence = np.where(np.arange(K) < np.array(offered)[:, None], 0.9 ** np.arange(1, K + 1), 0.0)
    return Batch(
        requests=[Served(Arrival(0.0, 10, 50, EDIT)) for _ in range(n)],
        classes=np.zeros(n, np.int64),
        contexts=np.full(n, 11),
        drafts=Drafts(np.array(offered), np.array(right), confidence),
        context=11 * n,
        prefill=0,
        sequences=n,
        waiting=0,
    )


@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.floats(0.01, 2.0))
def test_the_oracle_is_the_best_of_all_lengths(right, price):
    """It never verifies a token that is wrong, and no lengths are worth more at its price."""

    def worth(lens):
        accepted = sum(min(n, r) for n, r in zip(lens, right, strict=True))
        return len(right) + accepted - price * COST.step_ms(len(right) + sum(lens), 0, len(right))

    lens = Oracle(COST, price).decide(batch(right, [K] * len(right))).verify_lens
    assert (lens <= right).all()
    best = max(worth(each) for each in product(range(5), repeat=len(right)))
    assert worth(lens.tolist()) == pytest.approx(best)


def texts(seed=0, count=8, length=80):
    """Texts with runs that a drafter copies, some with many, some with few; its confidence knows a little."""
    rng, histories, arrivals = np.random.default_rng(seed), [], []
    for i in range(count):
        name, drafts = (EDIT if i % 2 else CHAT), []
        for _ in range(length):
            offered = int(rng.integers(0, K + 1))
            rate = 0.9 if name is EDIT else 0.35
            hits = rng.random(offered) < rate
            right = offered if hits.all() else int(np.argmin(hits))
            drafts.append(Draft(offered, right, np.cumprod(np.full(offered, rng.uniform(rate - 0.1, rate + 0.09)))))
        histories.append(History(name, drafts))
        arrivals.append(Arrival(0.0, 20, length, name, text=i))
    return histories, arrivals


def cell(load, wanted="mixed", seed=0):
    histories, arrivals = texts(seed)
    chosen = cell_of(arrivals, wanted)
    return Cell(Texts(histories), chosen, COST, load, seconds=3.0, ramp_s=0.3), Foresight(histories)


@pytest.mark.parametrize("load", [1, 6])
@pytest.mark.parametrize("wanted", ["mixed", "code_edit"])
def test_nobody_beats_the_oracle_and_the_informed_beat_fixed_lengths(load, wanted):
    one, foresight = cell(load, wanted)
    fixed = {k: one.rate(lambda k=k: Fixed(COST, k, paid=False)) for k in range(1, K + 1)}
    found = gap(one, plain=Off, policy=lambda: Fixed(COST, 3, paid=False), foresight=foresight, interference=None)
    assert found.plain <= found.informed
    assert found.oracle >= found.informed > 0.99 * max(fixed.values())
    assert found.policy == fixed[3]
    assert found.information >= 0.0
    assert found.to_json()["regret"] == pytest.approx(1.0 - fixed[3] / found.informed, abs=1e-3)


def test_an_oracle_pays_only_for_drafts_that_it_uses():
    rule = Oracle(COST, 0.1, drafting_ms=2.0)
    assert rule.decide(batch([0, 0], [K, K])).draft_ms == 0.0
    assert rule.decide(batch([0, 4], [K, K])).draft_ms == 2.0


def test_never_to_draft_is_open_to_the_informed_and_to_the_oracle():
    one, foresight = cell(6, "general_chat")
    found = gap(one, plain=Off, policy=Off, foresight=foresight, interference=None, drafting_ms=50.0)
    assert found.informed == found.policy == found.plain
    assert found.oracle >= found.plain
    assert found.regret == 0.0


def test_drafting_is_paid():
    one, foresight = cell(1, "code_edit")
    free, paid = (
        gap(one, plain=Off, policy=Off, foresight=foresight, interference=None, drafting_ms=ms) for ms in (0.0, 2.0)
    )
    assert paid.oracle < free.oracle
    assert paid.plain == free.plain


def test_foresight_is_calibrated_on_the_texts_it_was_fitted_to():
    histories, _ = texts(count=20, length=200)
    foresight = Foresight(histories)
    expected, right, tries = 0.0, 0, 0
    for nature, history in enumerate(histories):
        for produced, draft in enumerate(history.drafts):
            if draft.offered:
                one = batch([draft.right], [draft.offered])
                one.requests[0].nature = nature
                one.drafts.confidence[0, : draft.offered] = draft.confidence
                place = {EDIT: 0, CHAT: list(RequestClass).index(CHAT)}[history.request_class]
                one.classes[0], one.contexts[0] = place, 10 + produced
                expected += foresight.survival(one)[0, 0]
                right += draft.right > 0
                tries += 1
    assert expected / tries == pytest.approx(right / tries, abs=0.02)


def test_a_mix_takes_classes_in_turn():
    _, arrivals = texts()
    assert [a.request_class for a in cell_of(arrivals, "mixed")][:4] == [CHAT, EDIT] * 2 or [EDIT, CHAT] * 2
    assert {a.request_class for a in cell_of(arrivals, "general_chat")} == {CHAT}


def test_texts_answer_by_position_and_records_by_chance():
    histories = [History(EDIT, [Draft(2, i % 3, ()) for i in range(10)])]
    rng = np.random.default_rng(0)
    drawn = Texts(histories).draw(np.zeros(4, np.int64), np.array([0, 1, 2, 99]), rng)
    assert drawn.right.tolist() == [0, 1, 2, 0]
    recorded = Recorded(histories).draw(np.zeros(3000, np.int64), np.zeros(3000, np.int64), rng)
    assert recorded.right.mean() == pytest.approx(0.9, abs=0.05)
    with pytest.raises(ValueError, match="no drafts of class sql"):
        Recorded(histories).assign(Arrival(0.0, 1, 1, RequestClass.SQL), rng)


def test_an_informed_rule_keeps_the_interference_bound():
    rule = Informed(COST, Foresight(texts()[0]), price=0.05, interference=0.0)
    decided = rule.decide(batch([6, 0, 0], [6, 0, 0]))
    assert COST.step_ms(3 + int(decided.verify_lens.sum()), 0, 3) <= COST.step_ms(3, 0, 3)


def test_limits_hold_drafts_to_the_steps_budget():
    histories, arrivals = texts()
    tight = Cell(Texts(histories), arrivals, COST, 6, 3.0, 0.5, Limits(32, 8, 8))
    assert tight.rate(lambda: Fixed(COST, K, paid=False)) < tight.rate(Off) * 1.6
