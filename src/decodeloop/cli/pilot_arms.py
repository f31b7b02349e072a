"""Opens a pilot's arms: an engine for each different setting, an endpoint for each URL."""

from __future__ import annotations

import json
import threading
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from decodeloop import config
from decodeloop.cli.costs import measured_costs
from decodeloop.cli.embedded import EmbeddedTarget
from decodeloop.cli.environment import Environment
from decodeloop.cli.opening import open_model, short_name
from decodeloop.engine.build import EmbeddedEngine, build_engine
from decodeloop.engine.hardware import read_hardware
from decodeloop.engine.memory import MemoryPlan
from decodeloop.engine.models.sources import cached_path, list_known
from decodeloop.engine.settings import EngineSettings
from decodeloop.evaluation.client.target import Target, connect
from decodeloop.evaluation.pilot import EMBEDDED, ArmAsked, Pilot
from decodeloop.evaluation.plan import Arm
from decodeloop.speculation.forward import Runner
from decodeloop.types import CostModel, StepRecord

CLOSE_S = 1.0
SETTLE_S = 5.0
DEFAULTS = {"max_context": 2048, "kv_memory_mb": 256}


@dataclass(slots=True)
class DeviceTime:
    """An observer that adds up what steps took."""

    ms: float = 0.0

    def observe(self, record: StepRecord) -> None:
        self.ms += record.step_ms


@dataclass(slots=True)
class Opened:
    """targets: by arm. engines: of the embedded arms. surfaces: measured costs, of arms whose policy learns."""

    targets: dict[str, Target] = field(default_factory=dict)
    engines: dict[str, EmbeddedEngine] = field(default_factory=dict)
    surfaces: dict[str, CostModel] = field(default_factory=dict)
    device_time: DeviceTime = field(default_factory=DeviceTime)

    def settle(self) -> None:
        """Until every step so far has been observed: answers are given before their last step is."""
        for engine in {id(engine): engine for engine in self.engines.values()}.values():
            observed = threading.Event()
            engine.worker.call(observed.set)
            observed.wait(SETTLE_S)

    def system(self) -> dict[str, Any]:
        """What it ran on, for the plan."""
        hardware = read_hardware()
        facts: dict[str, Any] = {
            "cpu": hardware.cpu,
            "cores": hardware.cores,
            "isa": " ".join(hardware.isa) or hardware.architecture,
            "memory": f"{hardware.memory_bytes >> 20} MiB",
        }
        for label, engine in self.engines.items():
            info = engine.engine.runner.info
            facts[f"arm {label}"] = (
                f"{engine.name}, {info.name}, {info.weight_format}, batch-invariant: {info.batch_invariant}, "
                f"model SHA-256 {engine.checkpoint.sha256[:16]}"
            )
        return facts


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


def settings_of(arm: ArmAsked, most_at_once: int) -> EngineSettings:
    """Raises ValueError naming the arm."""
    asked = {"max_sequences": max(most_at_once, 1), **DEFAULTS, **arm.engine}
    return config.load(json.dumps(asked), EngineSettings, env={}, source=f"arm {arm.label}, engine")


async def open_arms(pilot: Pilot, environment: Environment, stack: AsyncExitStack) -> Opened:
    """Everything opened is closed with `stack`. Arms that differ in their requests' fields alone share an engine."""
    opened = Opened()
    shared: dict[str, EmbeddedEngine] = {}
    most = max(pilot.load.levels)
    wanted = {arm.label: settings_of(arm, most) for arm in pilot.arms if arm.target == EMBEDDED}  # all checked first
    for arm in pilot.arms:
        if arm.target != EMBEDDED:
            reached = Arm(label=arm.label, target=arm.target, model=arm.model or "", fields=arm.fields)
            target = await connect(reached, key=arm.key)
            stack.callback(target.close)
            opened.targets[arm.label] = target
            continue
        settings, model = wanted[arm.label], arm.model or pilot.model
        key = f"{model} {settings}"
        if key not in shared:
            shared[key] = _engine(model, settings, environment, arm.label, opened)
            stack.callback(shared[key].close, CLOSE_S)
        opened.engines[arm.label] = shared[key]
        opened.targets[arm.label] = EmbeddedTarget(shared[key], arm.label, arm.fields)
    return opened


def _engine(
    model: str, settings: EngineSettings, environment: Environment, label: str, opened: Opened
) -> EmbeddedEngine:
    checkpoint = open_model(model, environment)
    measure = measured_costs(checkpoint, settings, environment)

    def kept(runner: Runner, memory: MemoryPlan) -> CostModel:
        opened.surfaces[label] = measure(runner, memory)
        return opened.surfaces[label]

    engine = build_engine(
        checkpoint,
        settings,
        clock=time.monotonic,
        name=short_name(model),
        measure=kept,
        observers=(opened.device_time.observe,),
    )
    engine.worker.start()
    return engine
