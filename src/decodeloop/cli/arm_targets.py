"""Opens arms: an engine for each different setting, a connection for each URL."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from decodeloop import config
from decodeloop.cli.arms import EMBEDDED
from decodeloop.cli.costs import measured_costs
from decodeloop.cli.embedded import EmbeddedTarget
from decodeloop.cli.environment import Environment
from decodeloop.cli.opening import open_model, short_name
from decodeloop.engine.build import EmbeddedEngine, build_engine
from decodeloop.engine.hardware import read_hardware
from decodeloop.engine.memory import MemoryPlan
from decodeloop.engine.settings import EngineSettings
from decodeloop.evaluation.client.dialects import dialect
from decodeloop.evaluation.client.target import Target, connect
from decodeloop.evaluation.plan import Arm
from decodeloop.speculation.forward import Runner
from decodeloop.types import CostModel, StepRecord

CLOSE_S = 1.0
SMALL: Mapping[str, Any] = {"max_context": 2048, "kv_memory_mb": 256}  # several engines share this machine
TYPED: Mapping[str, Any] = {"policy": "adaptive", "drafters": ["ngram", "suffix"], **SMALL}

Observe = Callable[[str, StepRecord], None]


@dataclass(slots=True)
class Opened:
    """arms: as asked, with what is now known of them. By arm: targets; engines, of the embedded ones; surfaces, the
    measured costs of those whose policy learns."""

    arms: list[Arm] = field(default_factory=list)
    targets: dict[str, Target] = field(default_factory=dict)
    engines: dict[str, EmbeddedEngine] = field(default_factory=dict)
    surfaces: dict[str, CostModel] = field(default_factory=dict)


def system() -> dict[str, Any]:
    hardware = asdict(read_hardware())
    return {"hardware": {name: value for name, value in hardware.items() if name != "available_bytes"}}


async def open_arms(
    arms: Sequence[Arm],
    model: str,
    keys: Mapping[str, str | None],
    most_at_once: int,
    environment: Environment,
    stack: AsyncExitStack,
    *,
    defaults: Mapping[str, Any] = TYPED,
    observe: Observe | None = None,
) -> Opened:
    """The first arm is the baseline. keys: of endpoints, by arm. defaults: of engines' settings. observe: is shown
    every step, with the arm that its engine was opened for. All is closed with `stack`. Arms that differ in their
    requests alone share an engine."""
    opened = Opened()
    shared: dict[str, EmbeddedEngine] = {}
    wanted = {arm.label: settings_of(arm, most_at_once, defaults) for arm in arms if arm.target == EMBEDDED}
    for arm in arms:  # every setting has been checked by now
        if arm.target == EMBEDDED:
            settings, own = wanted[arm.label], arm.model or model
            place = f"{own} {settings}"
            if place not in shared:
                shared[place] = _engine(arm.label, own, settings, environment, observe, opened)
                stack.callback(shared[place].close, CLOSE_S)
            engine = opened.engines[arm.label] = shared[place]
            target: Target = EmbeddedTarget(engine, arm.label, arm.fields)
            known = _described(arm, engine, settings, opened.engines.get(arms[0].label))
        else:
            spoken = dialect(str(arm.settings["dialect"])) if "dialect" in arm.settings else None
            reached = await connect(arm, key=keys.get(arm.label), spoken=spoken)
            stack.callback(reached.close)
            told = {**await reached.described(), **arm.settings}
            target = reached
            known = replace(arm, model=reached.model, engine=arm.engine or reached.dialect.name, settings=told)
        opened.targets[arm.label] = target
        opened.arms.append(replace(known, reset=await target.reset()))
    return opened


def settings_of(arm: Arm, most_at_once: int, defaults: Mapping[str, Any] = TYPED) -> EngineSettings:
    """Raises ValueError naming the arm."""
    typed = {name: _value(name, value) for name, value in arm.settings.items()}
    asked = {**defaults, "max_sequences": max(most_at_once, 1), **typed}
    return config.load(json.dumps(asked), EngineSettings, env={}, source=f"arm {arm.label}")


def _value(name: str, value: Any) -> Any:
    if name == "drafters" and isinstance(value, str):
        return [each for each in value.split(",") if each]
    if isinstance(value, str) and value.lstrip("-").isdigit():
        return int(value)
    if value in ("true", "false"):
        return value == "true"
    return value


def weights(engine: EmbeddedEngine) -> tuple[str, str, str]:
    """What decides its output and its step times: the checkpoint, the runner, the format."""
    info = engine.engine.runner.info
    return engine.checkpoint.sha256, info.name, info.weight_format


def _engine(
    label: str,
    model: str,
    settings: EngineSettings,
    environment: Environment,
    observe: Observe | None,
    opened: Opened,
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
        observers=() if observe is None else (partial(observe, label),),
    )
    engine.worker.start()
    return engine


def _described(arm: Arm, engine: EmbeddedEngine, settings: EngineSettings, baseline: EmbeddedEngine | None) -> Arm:
    """Unless it says otherwise, an arm claims the baseline's output where it has its weights and a runner that gives
    the same bits in any company."""
    info = engine.engine.runner.info
    facts = {
        **arm.settings,
        "policy": settings.policy,
        "drafters": ",".join(settings.drafters),
        "verifier": settings.verifier,
        "max_draft_len": settings.max_draft_len,
        "shape": "chain",
        "synthetic": False,
        "max_batch": settings.max_sequences,
        "chunked_prefill": True,
        "dtypes": {"weights": info.weight_format},
        "parallelism": "one process",
        "target": {"name": engine.name, "sha256": engine.checkpoint.sha256, "precision": info.weight_format},
        "runner": info.name,
        "batch_invariant": info.batch_invariant,
    }
    same = info.batch_invariant and baseline is not None and weights(engine) == weights(baseline)
    lossless = arm.lossless if arm.lossless is not None else same or None
    return replace(arm, model=engine.name, engine="decodeloop", settings=facts, lossless=lossless)
