"""`decodeloop doctor`: what this machine has, which runner it gets, and what a model would take of its memory."""

from __future__ import annotations

import warnings
from dataclasses import asdict
from typing import Annotated, Any

import orjson
import typer

from decodeloop.cli import flags
from decodeloop.cli.environment import read_environment
from decodeloop.cli.opening import open_model
from decodeloop.engine import kernels
from decodeloop.engine.build import choose_runner, open_drafters
from decodeloop.engine.hardware import Hardware, read_hardware
from decodeloop.engine.memory import plan_memory
from decodeloop.engine.models import Checkpoint
from decodeloop.engine.settings import EngineSettings

MIB = 1 << 20


def doctor(
    context: typer.Context,
    model: Annotated[
        str | None, typer.Argument(help="As for `serve`; without one, only the machine is looked at.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="End with one JSON line.")] = False,
    runner: flags.Runner = None,
    dtype: flags.Dtype = None,
    device: flags.Device = None,
    drafters: flags.Drafters = None,
    draft_model: flags.DraftModel = None,
    max_context: flags.MaxContext = None,
    max_sequences: flags.MaxSequences = None,
    kv_memory_mb: flags.KvMemory = None,
) -> None:
    """Look at the machine, the runners, and a MODEL's memory."""
    settings = flags.engine_settings(EngineSettings(), context.params)
    hardware = read_hardware()
    found: dict[str, Any] = {"hardware": asdict(hardware), "kernels": _kernels()}
    _print_hardware(hardware)
    print(f"kernels  {found['kernels']}")
    if model is not None:
        checkpoint = open_model(model, read_environment())
        found["model"] = _examine(checkpoint, settings, hardware)
    if as_json:
        print(orjson.dumps(found).decode())


def _print_hardware(hardware: Hardware) -> None:
    quota = f", limited to {hardware.quota_cores:g} by a CPU quota" if hardware.quota_cores else ""
    print(f"cpu      {hardware.cpu}, {hardware.cores} cores{quota}")
    print(f"isa      {' '.join(hardware.isa) or hardware.architecture}")
    print(f"memory   {hardware.memory_bytes // MIB} MiB, {hardware.available_bytes // MIB} MiB available")


def _kernels() -> str:
    with warnings.catch_warnings(action="ignore"):
        try:
            native = kernels.load()
        except ImportError as error:
            return f"none: {error}"
    return kernels.outdated(native) or f"compiled, for {', '.join(native.kernels())}"


def _examine(checkpoint: Checkpoint, settings: EngineSettings, hardware: Hardware) -> dict[str, Any]:
    """Opens the model's runner and drafters for real. Raises ValueError, with the numbers, for what can't fit."""
    choice = choose_runner(checkpoint, settings)
    info = choice.runner.info
    print(f"model    {checkpoint.name}, {checkpoint.config.family}, {checkpoint.config.layers} layers")
    print(f"runner   {info.name}, {info.weight_format} on {info.device}, batch-invariant: {_yes(info.batch_invariant)}")
    for name, why in choice.refusals.items():
        print(f"         not {name}: {why}")
    plan = plan_memory(info, settings, hardware.available_bytes)
    drafters = open_drafters(checkpoint, settings, choice.runner, plan.max_context)
    tax = {name: dict(drafter.memory_bytes()) for name, drafter in drafters.items()}
    print(f"weights  {info.weight_bytes / MIB:9.1f} MiB")
    print(
        f"kv pool  {plan.kv_bytes / MIB:9.1f} MiB, {plan.kv_blocks * info.block_tokens} tokens; "
        f"context {plan.max_context}"
    )
    print("speculation's memory tax:")
    print(f"  lookahead slots          {plan.lookahead_bytes / MIB:9.1f} MiB of the KV pool, at most")
    for drafter, parts in tax.items():
        for part, size in parts.items():
            print(f"  {drafter:<12} {part:<11} {size / MIB:9.1f} MiB")
    return {"runner": asdict(info), "memory": asdict(plan), "drafters": tax, "refused_runners": choice.refusals}


def _yes(value: bool) -> str:
    return "yes" if value else "no"
