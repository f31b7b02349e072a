"""Runs of whole policies on the simulated engine."""

from __future__ import annotations

from decodeloop.policy import PolicySettings, policies
from decodeloop.types import RequestClass
from simulated import Client, K, SimulatedDrafter, SimulatedEngine, measured_surface

EDIT, CHAT, CREATIVE, SQL = (
    RequestClass.CODE_EDIT,
    RequestClass.GENERAL_CHAT,
    RequestClass.CREATIVE_WRITING,
    RequestClass.SQL,
)


def ngram(**changes):
    return SimulatedDrafter(**{"logits": {EDIT: 3.0, CHAT: -1.0, CREATIVE: -3.0, SQL: 1.0}, "proposes": 0.8, **changes})


def policy(name, drafters=(), draft_len=4, **options):
    return policies.load(name)(PolicySettings(K, draft_len, options=options), measured_surface(drafters))


def engine(name, classes, *, drafters=None, draft_len=4, warm=250, steps=350, seed=1, **options):
    """A run of `steps` after a warm-up, one client a class given."""
    drafters = {"ngram": ngram()} if drafters is None else drafters
    running = SimulatedEngine(
        policy(name, drafters, draft_len, **options), drafters, [Client(c) for c in classes], seed=seed
    )
    running.run(warm)
    running.reset_tally()
    return running.run(steps)
