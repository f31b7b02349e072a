"""Load 1 -> 16 -> 1 on a simulated engine: who went through a crowd is soon as if it had been alone all along."""

from __future__ import annotations

import numpy as np
import pytest

from decodeloop.policy import PolicySettings, policies
from decodeloop.types import RequestClass
from simulated import Client, K, SimulatedDrafter, SimulatedEngine, measured_surface

EDIT, CHAT = RequestClass.CODE_EDIT, RequestClass.GENERAL_CHAT
CROWD = 16
LEARNING, CROWDED, SOON = 400, 150, 100  # steps
COPIER = SimulatedDrafter({EDIT: 2.0, CHAT: -1.0}, proposes=0.8)


def beside_ms(rows):
    """Asking, deciding and learning take their time, by the more the more drafts there are."""
    asked, drafts = sum(bool(row.shadow_match) for row in rows), sum(row.draft_len > 0 for row in rows)
    return 0.1 + 0.03 * len(rows) + 0.05 * asked + (0.1 + 0.05 * drafts if drafts else 0.0)


def served(request_class, seed, *, crowded):
    """(verified tokens a row, tokens a ms): in the crowd if there is one, and in the first steps at load 1 after it.
    Whoever went through it then serves the same drafts as who did not."""
    drafters = {"ngram": COPIER}
    deciding = policies.load("adaptive")(PolicySettings(K), measured_surface(drafters))
    client = Client(request_class, tokens=60)
    engine = SimulatedEngine(deciding, drafters, [client], seed=seed, rests=True, beside_ms=beside_ms)
    engine.run(LEARNING)
    found = []
    for load, steps in ((CROWD, CROWDED), (1, SOON))[not crowded :]:
        engine.set_clients([client] * load)
        engine.rng = np.random.default_rng(100 + seed)
        engine.reset_tally()
        engine.run(steps)
        found.append((engine.mean_verified(), engine.rate))
    return found


@pytest.mark.parametrize("request_class", [EDIT, CHAT])
def test_the_draft_length_falls_in_a_crowd_and_is_back_at_once(request_class):
    seeds = range(3)
    (crowd, _), after = np.mean([served(request_class, seed, crowded=True) for seed in seeds], axis=0)
    (alone,) = np.mean([served(request_class, seed, crowded=False) for seed in seeds], axis=0)
    assert alone[0] > 1.0
    assert crowd < 0.5 * alone[0]
    assert after[0] >= 0.95 * alone[0]
    assert after[1] >= 0.97 * alone[1]
