"""`decodeloop simulate`: what a fleet would give under a trace, from step times and acceptance. Nothing is measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import orjson
import typer

from decodeloop.cli.assignments import open_policy
from decodeloop.cli.policy import read, read_surface
from decodeloop.evaluation.acceptance import Acceptance, BySurvival, Recorded
from decodeloop.evaluation.fleet import Limits, Rule, Served
from decodeloop.evaluation.histories import histories
from decodeloop.evaluation.policy_rule import PolicyRule
from decodeloop.evaluation.roofline import HARDWARE, Model, Roofline
from decodeloop.evaluation.rules import Best, Fixed, Off
from decodeloop.evaluation.scenario import Sizes, open_arrivals, read_shares, with_classes
from decodeloop.evaluation.simulate import Fleet, Simulated, simulate
from decodeloop.evaluation.steps import Steps
from decodeloop.evaluation.trust import Trust, calibrated
from decodeloop.policy import policies
from decodeloop.policy.cost import CostSurface
from decodeloop.policy.replay import cost_samples
from decodeloop.types import CostModel, RequestClass

MOST_TOKENS = 10_000_000
RULES = "off, fixed:K, best, or a policy (adaptive, throughput, interactive, reference)"


def simulate_command(
    arrivals: Annotated[
        str, typer.Option(help="azure:FILE, mooncake:FILE, steps:FILE, or poisson:RATE in requests a second.")
    ] = "poisson:4",
    gpus: Annotated[int, typer.Option(min=1, help="Accelerators (or machines) in the fleet.")] = 1,
    per_replica: Annotated[int, typer.Option(min=1, help="Accelerators that one engine spans.")] = 1,
    rules: Annotated[list[str] | None, typer.Option("--policy", help=f"{RULES}; repeatable.")] = None,
    cost: Annotated[Path | None, typer.Option(help="A measured cost surface (the user cache's cost/*.json).")] = None,
    steps: Annotated[
        list[Path] | None, typer.Option(help="Recorded steps: acceptance, and the error of the step times.")
    ] = None,
    survival: Annotated[
        str, typer.Option(help="Without --steps: P(the first k draft tokens are right), k = 1, 2, ...")
    ] = "0.7,0.5,0.35,0.25",
    hardware: Annotated[str | None, typer.Option(help=f"A roofline's step times: {', '.join(HARDWARE)}.")] = None,
    parameters: Annotated[float, typer.Option(min=1e6, max=1e15, help="Of the roofline's model.")] = 70e9,
    kv_bytes: Annotated[float, typer.Option(min=0.0, max=1e12, help="Of a cached token, for the roofline.")] = 327_680,
    weight_bits: Annotated[float, typer.Option(min=1.0, max=64.0, help="For the roofline.")] = 16,
    paid: Annotated[bool | None, typer.Option("--paid/--free", help="Does drafting take time? A prior's does.")] = None,
    classes: Annotated[str | None, typer.Option(help="Shares: code_edit=1,general_chat=3.")] = None,
    load: Annotated[float, typer.Option(max=1e6, help="So many times the trace's requests a second.")] = 1.0,
    seconds: Annotated[float | None, typer.Option(min=0.001, help="Of the trace; a Poisson process: 60.")] = None,
    prompt_tokens: Annotated[
        int, typer.Option(min=1, max=MOST_TOKENS, help="Mean, of a Poisson process's requests.")
    ] = 512,
    output_tokens: Annotated[
        int, typer.Option(min=1, max=MOST_TOKENS, help="Mean, of a Poisson process's requests.")
    ] = 128,
    split: Annotated[float | None, typer.Option(help="Share of the replicas that only read prompts.")] = None,
    transfer_ms: Annotated[float, typer.Option(min=0.0, help="Moving a read prompt's cache, where split.")] = 0.0,
    max_sequences: Annotated[int, typer.Option(min=1)] = 256,
    prefill_chunk: Annotated[int, typer.Option(min=1)] = 2048,
    step_tokens: Annotated[int, typer.Option(min=1)] = 4096,
    ttft_ms: Annotated[float | None, typer.Option(help="Objective, for goodput.")] = None,
    tpot_ms: Annotated[float | None, typer.Option(help="Objective, for goodput and `interactive`.")] = None,
    seed: int = 0,
    as_json: Annotated[bool, typer.Option("--json", help="End with one JSON line.")] = False,
) -> None:
    """Simulate a fleet under several speculation rules. Every figure is simulated, and says how far to trust it."""
    replicas = _replicas(gpus, per_replica)
    record = None if steps is None else read(steps)
    measured = cost is not None or (record is not None and hardware is None)
    prior = None if measured else _prior(hardware, parameters, kv_bytes, weight_bits)
    model, trust = (prior, Trust(prior.label)) if prior is not None else _measured(cost, record)
    acceptance = _by_survival(survival) if record is None else _recorded(record)
    shares = None if classes is None else read_shares(classes)
    setting = _Setting(model, acceptance, prior is not None if paid is None else paid, tpot_ms)
    fleet = {"replicas": replicas, "accelerators": per_replica, "split": split, "transfer_ms": transfer_ms}
    limits = Limits(max_sequences, prefill_chunk, step_tokens)
    sizes = Sizes(prompt_tokens=prompt_tokens, output_tokens=output_tokens)
    found: dict[str, dict[str, Any]] = {}
    for name in rules or ["off", "fixed:4", "best"]:
        build = setting.rule(name)
        one = Fleet(cost=model, rule=build, acceptance=acceptance, limits=limits, **fleet)  # type: ignore[arg-type]
        trace = open_arrivals(arrivals, sizes=sizes, seconds=seconds, scale=load, seed=seed)
        result, served = simulate(one, with_classes(trace, shares, seed=seed), seed=seed)
        if not served:
            raise ValueError(f"arrivals {arrivals!r}: no request arrives at the replicas that are simulated")
        found[name] = _figures(result, served, replicas, ttft_ms, tpot_ms)
        if len(found) == 1:
            _print_head(gpus, result, trust)
        _print(name, found[name], next(iter(found.values())))
    if as_json:
        print(orjson.dumps({"mode": "M", "trust": trust.to_json(), "gpus": gpus, "policies": found}).decode())


@dataclass(frozen=True, slots=True)
class _Setting:
    """What rules are made of."""

    cost: CostModel
    acceptance: Acceptance
    paid: bool
    tpot_ms: float | None

    def rule(self, name: str) -> Callable[[], Rule]:
        """Raises ValueError for a name that is none of RULES."""
        kind, _, length = name.partition(":")
        if kind == "off":
            return Off
        if kind == "fixed":
            if not length.isdigit() or not int(length):
                raise ValueError(f"policy {name!r}: fixed:K drafts K tokens, 1 or more")
            return lambda: Fixed(self.cost, int(length), self.paid)
        if kind == "best":
            return lambda: Best(self.cost, paid=self.paid)
        if kind not in policies.names():
            raise ValueError(f"no policy {name!r} to simulate; choose from {RULES}")
        return lambda: self._policy(name)

    def _policy(self, name: str) -> Rule:
        own = CostSurface.from_json(self.cost.to_json()) if isinstance(self.cost, CostSurface) else self.cost
        policy = open_policy(name, (), own, max_draft_len=self.acceptance.depth)
        return PolicyRule(policy, self.cost, max_draft_len=self.acceptance.depth, paid=self.paid, tpot_ms=self.tpot_ms)


def _replicas(gpus: int, per_replica: int) -> int:
    if gpus % per_replica:
        raise ValueError(f"{gpus} accelerators don't make replicas of {per_replica}")
    return gpus // per_replica


def _prior(hardware: str | None, parameters: float, kv_bytes: float, weight_bits: float) -> Roofline:
    name = hardware or "h100"
    if name not in HARDWARE:
        raise ValueError(f"no hardware {name!r}; choose from {', '.join(HARDWARE)}")
    model = Model(name=f"{parameters / 1e9:g}B", parameters=parameters, kv_bytes=kv_bytes)
    return Roofline(HARDWARE[name], model=_at_bits(model, weight_bits))


def _at_bits(model: Model, bits: float) -> Model:
    return Model(
        name=f"{model.name} at {bits:g} bits",
        parameters=model.parameters,
        kv_bytes=model.kv_bytes,
        bytes_per_parameter=bits / 8,
    )


def _measured(cost: Path | None, record: Steps | None) -> tuple[CostSurface, Trust]:
    """Step times of a measured surface or of the record itself, and how far they are from the record's."""
    if cost is not None:
        return calibrated(read_surface(cost), record.records if record is not None else (), source=str(cost))
    assert record is not None
    return calibrated(CostSurface(cost_samples(record.records)), record.records, source="the recorded steps")


def _recorded(record: Steps) -> Recorded:
    return Recorded(histories(record.records, max_draft_len=record.max_draft_len))


def _by_survival(text: str) -> BySurvival:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"survival {text!r}: write probabilities, separated by commas") from None
    return BySurvival(dict.fromkeys(RequestClass, values))


def _figures(
    result: Simulated, served: Sequence[Served], replicas: int, ttft_ms: float | None, tpot_ms: float | None
) -> dict[str, Any]:
    """What is told of a rule. Goodput: of all `replicas`, of which `result` may have simulated some."""
    share = result.goodput(served, ttft_ms=ttft_ms or np.inf, tpot_ms=tpot_ms or np.inf) / result.simulated_replicas
    return {**result.to_json(), "goodput_per_s": round(share * replicas, 4)}


def _print_head(gpus: int, result: Simulated, trust: Trust) -> None:
    print(f"SIMULATED, nothing here was measured: {gpus} accelerators, {result.simulated_replicas} replicas simulated")
    print(f"step times: {trust.said()}")
    print(
        f"{'policy':<12} {'tokens/s':>10} {'a GPU':>8} {'ratio':>6}  {'TTFT ms p50/p95':>19}  {'TPOT ms p50/p95':>17}  "
        f"{'goodput/s':>9} {'busy':>5} {'verified':>8}"
    )


def _print(name: str, found: dict[str, Any], first: dict[str, Any]) -> None:
    ratio = found["tokens_per_s"] / first["tokens_per_s"] if first["tokens_per_s"] else 0.0
    ttft, tpot = ([found[key].get(q, 0.0) for q in ("p50", "p95")] for key in ("ttft_ms", "tpot_ms"))
    print(
        f"{name:<12} {found['tokens_per_s']:10.1f} {found['tokens_per_s_per_accelerator']:8.1f} {ratio:6.3f}  "
        f"{ttft[0]:9.0f} {ttft[1]:9.0f}  {tpot[0]:8.2f} {tpot[1]:8.2f}  "
        f"{found['goodput_per_s']:9.2f} {found['busy_share']:5.2f} {found['mean_verify_len']:8.2f}"
    )
