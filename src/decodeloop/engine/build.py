"""Puts an engine together: runner, memory, drafters, verifier, policy, worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from decodeloop.engine.intake import Intake
from decodeloop.engine.kernels.lookup import compiled_lookups
from decodeloop.engine.kv_cache import KvCache
from decodeloop.engine.memory import MemoryPlan, plan_memory
from decodeloop.engine.models import Checkpoint
from decodeloop.engine.models.sources import open_checkpoint
from decodeloop.engine.proposals import Proposers
from decodeloop.engine.recorder import StepRecorder
from decodeloop.engine.runners import Runner, RunnerOptions, runners
from decodeloop.engine.scheduler import Scheduler
from decodeloop.engine.settings import EngineSettings
from decodeloop.engine.step import Engine
from decodeloop.engine.text import Tokenizer
from decodeloop.engine.text.chat import ChatTemplate
from decodeloop.engine.text.parsing import Parsing
from decodeloop.engine.totals import Totals
from decodeloop.engine.worker import Worker
from decodeloop.policy import Policy, PolicySettings, policies
from decodeloop.speculation import Drafter, DrafterSetup, Verifier
from decodeloop.speculation.drafters import drafters
from decodeloop.speculation.verifiers import verifiers
from decodeloop.types import CostModel, StepRecord

Observer = Callable[[StepRecord], None]
AUTO_RUNNERS = ("native", "torch")  # the fastest first
Measure = Callable[[Runner, MemoryPlan], CostModel]


@dataclass(frozen=True, slots=True)
class EmbeddedEngine:
    """A model, ready to serve once its worker is started."""

    name: str
    checkpoint: Checkpoint
    engine: Engine
    worker: Worker
    intake: Intake
    memory: MemoryPlan
    totals: Totals
    recorder: StepRecorder | None = None

    @property
    def max_context(self) -> int:
        return self.memory.max_context

    def counters(self) -> Mapping[str, float]:
        return {**self.totals.counters(), **({} if self.recorder is None else self.recorder.counters())}

    def describe(self) -> Mapping[str, Any]:
        return {
            **self.engine.policy.describe(),
            "verifier": self.totals.verifier,
            "drafters": list(self.engine.proposers.names),
            "drafters_set_aside": dict(self.engine.proposers.failed),
            "warnings": [*self.totals.warnings(), *([] if self.recorder is None else self.recorder.warnings())],
        }

    def close(self, drain_s: float) -> None:
        self.worker.stop(drain_s)


@dataclass(frozen=True, slots=True)
class RunnerChoice:
    """runner: the one to use. refusals: why faster ones can't be."""

    runner: Runner
    refusals: Mapping[str, str]


def choose_runner(
    checkpoint: Checkpoint,
    settings: EngineSettings,
    *,
    layers: int | None = None,
    weights_of: Runner | None = None,
) -> RunnerChoice:
    """The runner that `settings.runner` names; "auto": the first of AUTO_RUNNERS that loads here.

    Raises whatever a named runner raises, and RuntimeError with all the reasons when none of them loads.
    """
    options = RunnerOptions(
        dtype=settings.dtype,
        threads=settings.threads,
        block_tokens=settings.block_tokens,
        layers=layers,
        fixed_shape=settings.fixed_shape,
        device=settings.device,
        weights_of=weights_of,
    )
    if settings.runner != "auto":
        return RunnerChoice(runners.load(settings.runner)(checkpoint, options), {})
    refusals: dict[str, str] = {}
    for name in AUTO_RUNNERS:
        try:
            return RunnerChoice(runners.load(name)(checkpoint, options), refusals)
        except (ImportError, NotImplementedError, ValueError) as error:
            refusals[name] = str(error)
    raise RuntimeError("no runner can execute this model here: " + "; ".join(f"{n}: {r}" for n, r in refusals.items()))


def build_engine(
    checkpoint: Checkpoint,
    settings: EngineSettings,
    *,
    clock: Callable[[], float],
    name: str | None = None,
    runner: Runner | None = None,
    measure: Measure | None = None,
    extra_drafters: Mapping[str, Drafter] | None = None,
    verifier: Verifier | None = None,
    observers: tuple[Observer, ...] = (),
    recorder: StepRecorder | None = None,
) -> EmbeddedEngine:
    """An engine for `checkpoint`.

    runner: an opened one, else `settings` choose. measure: what gives a learning policy its costs.
    extra_drafters: beside those that `settings` name. verifier: instead of the one that they name.
    recorder: a started one, which its owner closes.

    Raises:
        ValueError: settings that can't hold, unknown names, or what doesn't fit in memory, with the numbers.
    """
    runner = runner or choose_runner(checkpoint, settings).runner
    memory = plan_memory(runner.info, settings, psutil.virtual_memory().available)
    runner.allocate_kv(memory.kv_blocks)
    cache = KvCache(
        memory.kv_blocks,
        runner.info.block_tokens,
        prefix_caching=settings.prefix_caching,
        spare_blocks=memory.spare_blocks,
    )
    scheduler = Scheduler(cache, settings, memory.max_context)
    verifier = verifier or verifiers.load(settings.verifier)()
    playing = {**open_drafters(checkpoint, settings, runner, memory.max_context), **(extra_drafters or {})}
    policy = open_policy(settings, verifier, (lambda: measure(runner, memory)) if measure else None)
    shadow_len = settings.shadow_len
    if shadow_len is None:
        shadow_len = settings.max_draft_len if policy.learns else 0
    proposers = Proposers(playing, shadow_len=shadow_len, shares_noise=verifier.shares_noise)
    engine = Engine(
        runner=runner,
        scheduler=scheduler,
        proposers=proposers,
        verifier=verifier,
        policy=policy,
        tokenizer=checkpoint.tokenizer,
        settings=settings,
        clock=clock,
    )
    totals = Totals(scheduler, settings.verifier)
    intake = open_intake(checkpoint, settings, proposers.names, memory.max_context)
    recorded = () if recorder is None else (recorder.observe,)
    worker = Worker(engine, clock=clock, observers=(totals.observe, *recorded, *observers))
    return EmbeddedEngine(name or checkpoint.name, checkpoint, engine, worker, intake, memory, totals, recorder)


def open_intake(
    checkpoint: Checkpoint, settings: EngineSettings, drafter_names: Sequence[str], max_context: int
) -> Intake:
    template = ChatTemplate(checkpoint.chat_template, checkpoint.tokenizer, family=checkpoint.config.family)
    return Intake(
        tokenizer=checkpoint.tokenizer,
        template=template,
        parsing=Parsing(checkpoint.tokenizer, template),
        drafters=drafter_names,
        max_context=max_context,
        settings=settings,
    )


def open_policy(settings: EngineSettings, verifier: Verifier, measure: Callable[[], CostModel] | None) -> Policy:
    """The policy that `settings` name; costs are measured only for one that learns."""
    build = policies.load(settings.policy)
    learns = getattr(build, "learns", False)
    if settings.policy_options and not learns:
        raise ValueError(f"policy {settings.policy} takes no options, got {', '.join(settings.policy_options)}")
    limits = PolicySettings(
        max_draft_len=settings.max_draft_len,
        draft_len=settings.draft_len,
        verifier_admits=verifier.admits,
        may_hold=True,
        options=settings.policy_options,
    )
    unmeasured = build(limits, None)  # refuses options that can't hold before measuring, which takes seconds
    return build(limits, measure()) if learns and measure is not None else unmeasured


def open_drafters(
    checkpoint: Checkpoint, settings: EngineSettings, runner: Runner, max_context: int
) -> dict[str, Drafter]:
    opened = {}
    for name in settings.drafter_options:
        drafters.load(name)  # one that is not listed plays no part, but one that does not exist is a typo
    for name in settings.drafters:
        setup = DrafterSetup(
            vocab_size=runner.info.vocab_size,
            max_context=max_context,
            max_sequences=settings.max_sequences,
            max_draft_len=settings.max_draft_len,
            kv_memory_mb=settings.draft_memory_mb,
            lookups=compiled_lookups(),
            open_runner=lambda spec: open_draft_runner(checkpoint, settings, spec, runner),
            options=settings.drafter_options.get(name, {}),
        )
        opened[name] = drafters.load(name)(setup)
    return opened


def open_draft_runner(checkpoint: Checkpoint, settings: EngineSettings, spec: str, target: Runner) -> Runner:
    """A draft model: "layers:N" (the target's first N), "int4" (its 4-bit form), "int4:layers:N", or a model's path.

    The target's first layers in the target's own format are its weights, not a copy of them.
    """
    parts = spec.split(":")
    dtype = settings.dtype
    if parts[0] in ("int4", "bf16", "float32"):
        dtype, parts = parts[0], parts[1:]
    layers = None
    if parts[:1] == ["layers"]:
        if len(parts) != 2 or not parts[1].isdigit() or not 0 < int(parts[1]) <= checkpoint.config.layers:
            raise ValueError(f"draft model {spec!r}: layers:N needs N in 1..{checkpoint.config.layers}")
        layers, parts = int(parts[1]), []
    source = checkpoint
    if parts:
        path = Path(":".join(parts))
        if not path.exists():
            raise ValueError(f"draft model {spec!r} is neither layers:N, int4, int4:layers:N nor an existing path")
        source = open_checkpoint(path)
        refuse_other_words(source.tokenizer, checkpoint.tokenizer, spec)
    if source is checkpoint and dtype == settings.dtype and target.info.name in runners.names():
        settings = replace(settings, runner=target.info.name)
        return choose_runner(checkpoint, settings, layers=layers, weights_of=target).runner
    return choose_runner(source, replace(settings, dtype=dtype), layers=layers).runner


def refuse_other_words(draft: Tokenizer, target: Tokenizer, spec: str) -> None:
    """Raises ValueError where an id means something else to the draft model: its drafts would be noise.

    Vocabularies of different sizes are the drafter's to refuse.
    """
    if draft.vocab_size != target.vocab_size:
        return
    for token in range(target.vocab_size):
        theirs, ours = draft.token_bytes(token), target.token_bytes(token)
        if theirs != ours:
            raise ValueError(
                f"draft model {spec!r} has another tokenizer than the target: token {token} is {theirs!r} to it and "
                f"{ours!r} to the target"
            )
