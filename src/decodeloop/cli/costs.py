"""The cost surface of this machine and model: measured once, kept in the user's cache."""

from __future__ import annotations

import json
import logging
import os
import tempfile
import time
from pathlib import Path

from decodeloop import __version__
from decodeloop.cli.environment import Environment
from decodeloop.cli.opening import stderr
from decodeloop.engine.build import Measure
from decodeloop.engine.hardware import read_hardware
from decodeloop.engine.memory import MemoryPlan
from decodeloop.engine.models import Checkpoint
from decodeloop.engine.profile import fingerprint, measure
from decodeloop.engine.settings import EngineSettings
from decodeloop.policy.cost import CostSurface
from decodeloop.speculation.forward import Runner

log = logging.getLogger(__name__)

BUDGET_S = 6.0


def measured_costs(checkpoint: Checkpoint, settings: EngineSettings, environment: Environment) -> Measure:
    """What `build_engine` asks: the cached surface of the same fingerprint, else a new measurement, cached."""

    def costs(runner: Runner, memory: MemoryPlan) -> CostSurface:
        name = fingerprint(read_hardware(), runner.info, settings, checkpoint.sha256, __version__)
        path = environment.cache / "cost" / f"{name}.json"
        cached = _read(path)
        if cached is not None:
            return cached
        with stderr.status("measuring what a step costs here ..."):
            surface = measure(
                runner,
                settings,
                kv_blocks=memory.kv_blocks,
                max_context=memory.max_context,
                clock=time.perf_counter,
                budget_s=BUDGET_S,
            )
        _write(path, surface)
        return surface

    return costs


def _read(path: Path) -> CostSurface | None:
    try:
        return CostSurface.from_json(json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.warning("the cost surface in %s can't be used, measuring anew: %s", path, error)
        return None


def _write(path: Path, surface: CostSurface) -> None:
    """Whole or not at all; a cache that can't be written costs a measurement, not a start."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            json.dump(surface.to_json(), file)
        os.replace(file.name, path)
    except OSError as error:
        log.warning("the cost surface can't be kept: %s", error)
