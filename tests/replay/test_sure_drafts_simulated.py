"""Drafts that are never or always right, and step times that were measured wrong (synthetic)."""

from __future__ import annotations

import numpy as np
import pytest

from decodeloop.policy import PolicySettings, policies
from serving import CHAT, CREATIVE, EDIT, engine, ngram
from simulated import Client, K, SimulatedEngine, measured_surface


class Certain:
    """Says that it is sure, and is right always or never."""

    free = True

    def __init__(self, *, right):
        self.right = right

    def ms(self, depth, sequences):
        return 0.0

    def drafts(self, rng, classes, length):
        said = 0.9 ** np.arange(1, length + 1)
        return [(said, length if self.right else 0) for _ in classes]


@pytest.mark.parametrize("load", [1, 4, 8])
def test_drafts_that_are_never_right_cost_less_than_a_hundredth_from_the_first_step_on(load):
    drafters = {"liar": Certain(right=False)}
    off = engine("off", (CHAT,) * load, drafters=drafters, warm=0, steps=600)
    ours = engine("adaptive", (CHAT,) * load, drafters=drafters, warm=0, steps=600)
    assert ours.rate >= 0.99 * off.rate
    ours.reset_tally()
    assert ours.run(100).mean_verified() < 0.01


@pytest.mark.parametrize("load", [1, 4])
def test_drafts_that_are_always_right_gain_what_the_best_length_gains(load):
    drafters = {"oracle": Certain(right=True)}
    best = max(engine("fixed", (EDIT,) * load, drafters=drafters, draft_len=k, steps=200).rate for k in (1, 2, 4, 6, 8))
    ours = engine("adaptive", (EDIT,) * load, drafters=drafters, steps=200).rate
    assert ours >= 0.98 * max(best, engine("off", (EDIT,) * load, drafters=drafters, steps=200).rate)


@pytest.mark.parametrize("load", [1, 2, 8])
@pytest.mark.parametrize(("told", "kept"), [(0.5, 0.99), (0.0, 0.96)])
def test_a_surface_that_calls_drafted_tokens_cheap_is_found_out(load, told, kept):
    """Every token takes as long as the first; what was measured at start says `told` of that for drafted ones."""

    def measured(tokens, context, sequences):
        return 2.0 * sequences + told * 2.0 * (tokens - sequences)

    deciding = policies.load("adaptive")(PolicySettings(K), measured_surface(truth=measured))
    drafters = {"ngram": ngram()}
    running = SimulatedEngine(
        deciding, drafters, [Client(CREATIVE)] * load, truth=lambda tokens, context, sequences: 2.0 * tokens
    )
    plain = 0.5
    for _ in range(2):  # trials come later, in bursts
        running.reset_tally()
        assert running.run(1200).rate >= kept * plain
