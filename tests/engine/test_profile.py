"""The profile finds the cost that a runner really has. The runner here keeps its own clock (synthetic times)."""

import numpy as np
import pytest

from decodeloop.engine.hardware import read_hardware
from decodeloop.engine.profile import LEAST_POINTS, fingerprint, grid, measure
from decodeloop.engine.settings import EngineSettings
from decodeloop.speculation.forward import Forward, RunnerInfo

INFO = RunnerInfo("timed", 1000, 8, 2, 2048, 16, 1024, 0, "none", batch_invariant=True)


class TimedRunner:
    """A forward takes 5 ms, or 0.5 ms a token if that is more, and 1 ms a thousand cached tokens."""

    info = INFO

    def __init__(self):
        self.now_s = 0.0
        self.batches = []

    def forward(self, batch):
        self.batches.append(batch)
        context = sum(int(batch.positions[batch.slots == s].min()) for s in np.unique(batch.slots))
        self.now_s += self.ms(len(batch.tokens), context) / 1e3
        return Forward(np.zeros((len(batch.logit_rows), 1), dtype=np.float32))

    @staticmethod
    def ms(tokens, context):
        return max(5.0, 0.5 * tokens) + context / 1000


def measured(**settings):
    runner = TimedRunner()
    surface = measure(
        runner,
        EngineSettings(**settings),
        kv_blocks=400,
        max_context=2048,
        clock=lambda: runner.now_s,
        budget_s=60.0,
    )
    return runner, surface


def test_the_surface_is_the_runners_cost():
    runner, surface = measured(max_sequences=16)
    for sequences in (1, 4, 16):
        for each in (1, 3, 5):
            for context in (128, 400):
                expected = runner.ms(sequences * each, sequences * context)
                found = surface.step_ms(sequences * each, sequences * context, sequences)
                assert found == pytest.approx(expected, rel=0.08)


def test_no_batch_is_larger_than_the_step_or_the_pool():
    runner, _ = measured(max_sequences=32, max_step_tokens=64)
    assert max(len(batch.tokens) for batch in runner.batches) <= 64
    assert max(batch.block_tables.max() for batch in runner.batches) < 400


def test_a_model_too_slow_for_the_budget_is_known_by_its_smallest_steps():
    runner = TimedRunner()
    settings = EngineSettings(max_sequences=4)
    surface = measure(runner, settings, kv_blocks=400, max_context=2048, clock=lambda: runner.now_s, budget_s=0.1)
    sizes = [len(batch.tokens) for batch in runner.batches]
    assert runner.now_s <= 0.1 + 0.03
    assert max(sizes) < max(point.tokens for point in grid(settings, 2048))
    assert surface.step_ms(1, 128, 1) == pytest.approx(runner.ms(1, 128), rel=0.05)
    assert surface.step_ms(52, 512, 4) >= surface.step_ms(4, 512, 4)


@pytest.mark.parametrize("max_context", [1, 16, 128, 200])
def test_short_contexts_are_measured_as_far_as_they_go(max_context):
    runner = TimedRunner()
    blocks = -(-max_context // INFO.block_tokens)
    surface = measure(
        runner, EngineSettings(), kv_blocks=blocks, max_context=max_context, clock=lambda: runner.now_s, budget_s=9.0
    )
    assert max(int(batch.positions.max()) for batch in runner.batches) < max_context
    assert surface.step_ms(1, max_context, 1) == pytest.approx(runner.ms(1, max_context), rel=0.05)


def test_with_no_time_at_all_a_few_points_are_read():
    runner = TimedRunner()
    surface = measure(
        runner, EngineSettings(), kv_blocks=400, max_context=2048, clock=lambda: runner.now_s, budget_s=0.0
    )
    assert len(runner.batches) == 2 * LEAST_POINTS
    assert surface.step_ms(1, 128, 1) == pytest.approx(runner.ms(1, 128), rel=0.05)


def test_time_is_shared_out_evenly_so_that_small_steps_are_read_more_often():
    runner = TimedRunner()
    settings = EngineSettings(max_sequences=16)
    measure(runner, settings, kv_blocks=800, max_context=2048, clock=lambda: runner.now_s, budget_s=10.0)
    assert runner.now_s <= 10.2
    sizes = [len(batch.tokens) for batch in runner.batches]
    assert sizes.count(1) >= 2 * 10
    assert sizes.count(max(sizes)) < 2 * 6


def test_the_fingerprint_names_what_matters():
    hardware, settings = read_hardware(), EngineSettings()
    names = {
        fingerprint(hardware, INFO, settings, "abc", "1"),
        fingerprint(hardware, INFO, settings, "abd", "1"),
        fingerprint(hardware, INFO, settings, "abc", "2"),
        fingerprint(hardware, INFO, EngineSettings(threads=1), "abc", "1"),
    }
    assert len(names) == 4
