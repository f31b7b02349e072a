"""What steps take beside the model, and what of it is deciding (synthetic: see `made_up_machine`)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from decodeloop.policy.cost import CostSurface
from made_up_machine import measure, observe, record, stairs


def test_what_deciding_on_drafts_takes_is_charged_to_the_steps_that_verify_some():
    surface = CostSurface(measure())
    guessed = surface.speculating_ms(1)
    assert guessed > 0.0  # unknown is not free
    for step in range(300):
        verify_len = step % 3
        forward = stairs(1 + verify_len, 256, 1)
        beside = 0.4 + (0.7 if verify_len else 0.0)
        observe(surface, record(step, rows=1, verify_len=verify_len, verify_ms=forward, sample_ms=beside))
    found = surface.step_ms(3, 256, 1) + surface.speculating_ms(1)
    assert found == pytest.approx(stairs(3, 256, 1) + 1.1, rel=0.05)
    assert surface.step_ms(1, 256, 1) == pytest.approx(stairs(1, 256, 1) + 0.4, rel=0.05)
    assert surface.speculating_ms(1) > 0.4


@pytest.mark.parametrize("plain_every", [20, 100])
def test_what_every_step_takes_is_not_charged_to_drafts_where_nearly_all_steps_have_some(plain_every):
    surface, rng = CostSurface(measure()), np.random.default_rng(0)
    charged = []
    for step in range(2000):
        verify_len = step % 3 if step % plain_every else 0
        drafts = 4 if step % plain_every else 0
        beside = 1.2 + 0.3 * bool(drafts) + float(rng.exponential(0.2)) - 0.2
        told = record(
            step, rows=4, verify_len=verify_len, verify_ms=stairs(4 + 4 * verify_len, 1024, 4), sample_ms=beside
        )
        rows = tuple(replace(row, draft_len=2 if drafts else 0) for row in told.rows)
        observe(surface, replace(told, rows=rows))
        charged.append(surface.speculating_ms(4))
    assert 0.1 < np.mean(charged[500:]) < 0.6
    assert np.max(charged[500:]) < 0.9


def test_what_plain_steps_take_is_not_forgotten_while_everyone_drafts():
    """Overhead of 0.6 ms, and as much again where drafts are decided on."""
    surface, rng = CostSurface(measure()), np.random.default_rng(0)

    def observe_some(steps, verify_len, beside_ms):
        for step in steps:
            forward = stairs(4 * (1 + verify_len), 1024, 4)
            noisy = beside_ms * float(rng.lognormal(0.0, 0.1))
            kind = {"rows": 4, "verify_len": verify_len, "context": 1024}
            observe(surface, record(step, verify_ms=forward, sample_ms=noisy, **kind))

    observe_some(range(64), 0, 0.6)
    observe_some(range(64, 1064), 2, 1.2)
    assert surface.step_ms(4, 1024, 4) - stairs(4, 1024, 4) == pytest.approx(0.6, abs=0.15)
    assert surface.speculating_ms(4) == pytest.approx(0.6, abs=0.15)


def test_what_asking_drafters_takes_is_not_held_to_be_plain():
    """One step in four, of those that are learned from, was plain without anybody asked."""
    surface, rng = CostSurface(measure()), np.random.default_rng(0)
    for step in range(800):
        asked = step % 4 > 0
        beside_ms = (0.9 if asked else 0.6) * float(rng.lognormal(0.0, 0.1))
        told = record(step, rows=4, verify_ms=stairs(4, 1024, 4), sample_ms=beside_ms, context=1024)
        rows = tuple(replace(row, shadow_match={"ngram": 0} if asked else {}) for row in told.rows)
        observe(surface, replace(told, rows=rows))
    assert surface.step_ms(4, 1024, 4) - stairs(4, 1024, 4) == pytest.approx(0.6, abs=0.1)
