"""An engine in this process under certification: what only its code and its logits can show."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from decodeloop.engine.ask import ask
from decodeloop.engine.build import EmbeddedEngine
from decodeloop.engine.runners import Batch, Forward, Runner, RunnerInfo
from decodeloop.evaluation.lossless import identity
from decodeloop.evaluation.lossless.answers import Answer, Arm, Ask
from decodeloop.evaluation.lossless.certify import SAMPLED
from decodeloop.evaluation.lossless.outcome import Check, Control, Power
from decodeloop.evaluation.lossless.sampler import Draw, Row, drawing
from decodeloop.speculation.drawing import CoupledRows, DrawsCoupled
from decodeloop.speculation.sampling import RequestChance
from decodeloop.speculation.verifiers.coupled import CoupledVerifier
from decodeloop.testing import Run, check_runner, pack
from decodeloop.types import ChatPrompt, FloatArray, IntArray, Request, SamplingParams, Speculation, SpeculationMode

MODES = {Arm.PLAIN: SpeculationMode.OFF, Arm.SERVED: SpeculationMode.AUTO, Arm.FORCED: SpeculationMode.FORCE}
FILTERED = SamplingParams(temperature=0.8, top_p=0.95, top_k=200)
LIKELY = 0.6  # a row whose likeliest token has more says little about a sampler


class InProcess:
    """A Target. The engine's worker must have been started."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self._engine = engine
        self._numbers = itertools.count()

    def answers(self, asks: Sequence[Ask], arm: Arm, at_once: int) -> list[Answer]:
        got = ask(self._engine, [self.request(each, arm) for each in asks], at_once=at_once)
        for answer in got:
            if answer.error is not None:
                raise ValueError(f"the engine refused: {answer.error.message}")
        return [
            Answer(
                tuple(answer.token_ids.get(0, ())),
                answer.usage.accepted if answer.usage else None,
                answer.usage.drafted if answer.usage else None,
            )
            for answer in got
        ]

    def request(self, asked: Ask, arm: Arm) -> Request:
        chat = self._engine.checkpoint.chat_template is not None
        text = "\n\n".join(message["content"] for message in asked.messages)
        return Request(
            id=f"certify-{next(self._numbers)}",
            model=self._engine.name,
            prompt=ChatPrompt(tuple(asked.messages)) if chat else text,
            params=SamplingParams(temperature=asked.temperature, max_tokens=asked.max_tokens),
            seed=asked.seed or 0,
            speculation=Speculation(MODES[arm]),
        )


def sampled_rows(engine: EmbeddedEngine) -> list[Row]:
    """Rows of the real model after a prompt, one bare and one filtered, as uncertain as they come.

    Before the worker is started: the forwards use the engine's own KV.
    """
    target = InProcess(engine)
    bare: list[Row] = []
    filtered: list[Row] = []
    for text in SAMPLED:
        request = target.request(
            Ask(messages=({"role": "user", "content": text},), temperature=1.0, max_tokens=1), Arm.PLAIN
        )
        for params, found in ((request.params, bare), (FILTERED, filtered)):
            prepared = engine.intake.prepare(replace(request, params=params))
            logits = _last_logits(engine.engine.runner, prepared.tokens)
            found.append(Row(prepared.tokens, prepared.state.distribution(logits), logits, prepared.state.plain))
    least_sure = [min(found, key=lambda row: float(row.p.probs.max())) for found in (bare, filtered)]
    if all(row.p.probs.max() > LIKELY for row in least_sure):
        raise ValueError("this model is sure of every next token that was tried: its sampler can't be seen at work")
    return least_sure


def drawn_as_served(engine: EmbeddedEngine) -> Draw:
    """By the verifier; by the runner where it draws coupled tokens itself, as the engine has it do."""
    verifier, runner = engine.engine.verifier, engine.engine.runner
    by_verifier = drawing(verifier)
    if not (isinstance(verifier, CoupledVerifier) and isinstance(runner, DrawsCoupled)):
        return by_verifier

    def draw(row: Row, asked: Sequence[tuple[RequestChance, int]]) -> Sequence[int]:
        if row.logits is None or row.sampling is None:
            return by_verifier(row, asked)
        logits = np.tile(row.logits, (len(asked), 1))
        rows = [
            CoupledRows(slice(i, i + 1), (), chance.key, position, row.sampling)
            for i, (chance, position) in enumerate(asked)
        ]
        return [
            by_verifier(row, [one])[0] if said is None else said.tokens[0]
            for one, said in zip(asked, runner.draw_coupled(logits, rows), strict=True)
        ]

    return draw


def _last_logits(runner: Runner, tokens: Sequence[int]) -> FloatArray:
    blocks = range(-(-len(tokens) // runner.info.block_tokens))
    batch = pack([Run(tokens, 0, list(blocks))])
    last = np.asarray([len(tokens) - 1], dtype=np.int32)
    row: FloatArray = runner.forward(replace(batch, logit_rows=last)).logits[0]
    return row.copy()


def check_invariance(runner: Runner) -> Check:
    """For a runner that promises it. Drops the runner's KV."""
    counted = _Watched(runner)
    fault = _fault(counted)
    leak = _fault(_Leaking(runner))
    return Check(
        name="batch invariance",
        claim="a token's logits are the same bits, however its text is cut and whatever stands beside it",
        passed=not fault,
        found=fault or f"bit for bit equal over {counted.forwards} forwards",
        measured={"forwards": counted.forwards},
        power=(
            Power(
                deviation="last bits of a logit, in a shape that was tried",
                size=1.0,
                probability=1.0,
                samples=counted.forwards,
                false_failure_rate=0.0,
            ),
        ),
        controls=(Control("the last bit of logits depends on company", bool(leak), leak or "not seen"),),
    )


def _fault(runner: Runner) -> str:
    try:
        check_runner(runner)
    except AssertionError as error:
        return str(error)
    return ""


class _Watched:
    """A runner that counts its forwards."""

    def __init__(self, runner: Runner) -> None:
        self._runner, self.forwards = runner, 0

    @property
    def info(self) -> RunnerInfo:
        return self._runner.info

    def allocate_kv(self, blocks: int) -> None:
        self._runner.allocate_kv(blocks)

    def forward(self, batch: Batch) -> Forward:
        self.forwards += 1
        return self._runner.forward(batch)

    def copy_kv(self, sources: IntArray, destinations: IntArray) -> None:
        self._runner.copy_kv(sources, destinations)


class _Leaking(_Watched):
    """The violation: a batch of several sequences moves logits by a last bit."""

    def forward(self, batch: Batch) -> Forward:
        got = super().forward(batch)
        if len(batch.block_tables) < 2:
            return got
        return replace(got, logits=np.nextafter(got.logits, np.float32(np.inf)))


def careless_control(engine: EmbeddedEngine, asks: Sequence[Ask]) -> Control:
    """The violation in the engine itself: identity must see it.

    engine: with a verifier that keeps whatever is drafted; closed in the end. asks: at temperature 0.
    """
    engine.worker.start()
    try:
        plain, bad = (InProcess(engine).answers(asks, arm, 1) for arm in (Arm.PLAIN, Arm.FORCED))
    finally:
        engine.close(1.0)
    found = identity.compare(*([a.tokens for a in answers] for answers in (plain, plain, bad)))
    seen = f"{found.differ} of {len(asks)} answers differ"
    return Control("a verifier that keeps whatever is drafted", found.differ > 0, seen)
