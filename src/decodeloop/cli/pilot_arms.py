"""What a pilot adds to its open arms: their steps, and which of them can't be opened here."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path

from decodeloop.cli.arm_targets import Opened
from decodeloop.cli.environment import Environment
from decodeloop.engine.models.sources import cached_path, list_known
from decodeloop.evaluation.pilot import EMBEDDED, Pilot
from decodeloop.types import StepRecord

SETTLE_S = 5.0
KEPT = 2000  # steps of an engine


@dataclass(slots=True)
class Steps:
    """Sees every step: adds up what they took, and keeps some of each engine's, by the arm that it was opened for."""

    ms: float = 0.0
    kept: dict[str, list[StepRecord]] = field(default_factory=dict)

    def observe(self, arm: str, record: StepRecord) -> None:
        self.ms += record.step_ms
        own = self.kept.setdefault(arm, [])
        if len(own) < KEPT:
            own.append(record)

    def of(self, arm: str) -> list[StepRecord]:
        return self.kept.get(arm, [])


def settle(opened: Opened) -> None:
    """Until every step so far has been observed: answers are given before their last step is."""
    for engine in {id(engine): engine for engine in opened.engines.values()}.values():
        observed = threading.Event()
        engine.worker.call(observed.set)
        observed.wait(SETTLE_S)


def absent(pilot: Pilot, environment: Environment) -> dict[str, str]:
    """Arms that may be left out and whose model isn't on this machine: label -> why. Nothing is fetched for them."""
    known = {each.name: each for each in list_known()}
    found = {}
    for arm in pilot.arms:
        model = arm.model or pilot.model
        named = known.get(model)
        here = (
            Path(model).expanduser().exists() if named is None else cached_path(named, environment.models) is not None
        )
        if arm.if_present and arm.target == EMBEDDED and not here:
            found[arm.label] = f"{arm.label}: its model {model} is not on this machine"
    return found
