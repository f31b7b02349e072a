"""`decodeloop generate`: one answer on the terminal, with its decode steps explained if asked."""

from __future__ import annotations

import queue
import secrets
import time
from collections.abc import Sequence
from typing import Annotated

import orjson
import typer

from decodeloop.cli import flags
from decodeloop.cli.classes import open_classifier
from decodeloop.cli.costs import measured_costs
from decodeloop.cli.environment import read_environment
from decodeloop.cli.explain import lines
from decodeloop.cli.opening import open_model, short_name, stderr
from decodeloop.engine.ask import submit
from decodeloop.engine.build import EmbeddedEngine, build_engine
from decodeloop.engine.models.sources import DEFAULT_MODEL
from decodeloop.engine.settings import EngineSettings
from decodeloop.types import ChatPrompt, Chunk, Report, Request, RequestRefused, SamplingParams, StepRecord

SEED_LIMIT = 2**53
DRAIN_S = 1.0


def generate(
    context: typer.Context,
    prompt: Annotated[str, typer.Argument(help="What to say to the model.")],
    model: Annotated[str, typer.Option(help="As for `serve`.")] = DEFAULT_MODEL,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text itself, without the chat template.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="One line a step, then what the policy believes; on stderr.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="End with one JSON line.")] = False,
    max_tokens: Annotated[int, typer.Option(min=1)] = 128,
    temperature: Annotated[float, typer.Option(min=0.0, max=2.0)] = 0.0,
    seed: Annotated[
        int | None, typer.Option(min=0, max=SEED_LIMIT - 1, help="Replays an answer; drawn at random if not given.")
    ] = None,
    runner: flags.Runner = None,
    dtype: flags.Dtype = None,
    device: flags.Device = None,
    threads: flags.Threads = None,
    policy: flags.Policy = None,
    verifier: flags.Verifier = None,
    drafters: flags.Drafters = None,
    draft_model: flags.DraftModel = None,
    draft_len: flags.DraftLen = None,
) -> None:
    """Generate an answer to PROMPT."""
    settings = flags.engine_settings(EngineSettings(max_sequences=1), context.params)
    environment = read_environment()
    checkpoint = open_model(model, environment)
    steps: list[StepRecord] = []
    observe = (steps.append, _explain) if explain else (steps.append,)
    engine = build_engine(
        checkpoint,
        settings,
        clock=time.monotonic,
        name=short_name(model),
        measure=measured_costs(checkpoint, settings, environment),
        observers=observe,
    )
    as_chat = checkpoint.chat_template is not None and not raw
    asked = ChatPrompt(({"role": "user", "content": prompt},)) if as_chat else prompt
    request = Request(
        id="generate",
        model=engine.name,
        prompt=asked,
        request_class=open_classifier()(asked),
        params=SamplingParams(temperature=temperature, max_tokens=max_tokens),
        seed=secrets.randbelow(SEED_LIMIT) if seed is None else seed,
        arrived_s=time.monotonic(),
    )
    engine.worker.start()
    try:
        report = _print_answer(engine, request)
    finally:
        engine.close(DRAIN_S)
    _summarise(report, steps)
    if explain:
        for line in lines(engine.describe()):
            stderr.print(line, style="dim", highlight=False, soft_wrap=True, markup=False)
    if as_json:
        print(orjson.dumps(report).decode())


class _Inbox:
    """A Reader that hands everything to the main thread."""

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[Sequence[Chunk] | RequestRefused | None] = queue.SimpleQueue()

    def put(self, chunks: Sequence[Chunk]) -> None:
        self.events.put(chunks)

    def end(self) -> None:
        self.events.put(None)

    def fail(self, error: RequestRefused) -> None:
        self.events.put(error)


def _print_answer(engine: EmbeddedEngine, request: Request) -> Report:
    inbox = _Inbox()
    submit(engine, request, inbox)
    report = None
    while (event := inbox.events.get()) is not None:
        if isinstance(event, RequestRefused):
            raise RuntimeError(event.message)
        for chunk in event:
            print(chunk.reasoning + chunk.text, end="", flush=True)
            report = chunk.report or report
    print()
    assert report is not None
    return report


def _explain(record: StepRecord) -> None:
    predicted = "" if record.predicted_ms is None else f"  predicted {record.predicted_ms:7.2f} ms"
    for row in record.rows:
        what = f"prefill {row.prefill_tokens}" if row.prefill_tokens else f"{row.drafter or '-':>11}"
        stderr.print(
            f"step {record.step:4d}  {what:<12} draft {row.draft_len:2d}  verify {row.verify_len:2d}  "
            f"accepted {row.accepted:2d}  emitted {row.emitted:2d}  draft {record.draft_ms:6.2f} ms  "
            f"verify {record.verify_ms:7.2f} ms  sample {record.sample_ms:6.2f} ms{predicted}  {row.reason}",
            style="dim",
            highlight=False,
            soft_wrap=True,
        )


def _summarise(report: Report, steps: Sequence[StepRecord]) -> None:
    decoding = [step for step in steps if any(not row.prefill_tokens for row in step.rows)]
    seconds = sum(step.step_ms for step in decoding) / 1e3
    emitted = sum(row.emitted for step in decoding for row in step.rows if not row.prefill_tokens)
    speed = f"{emitted / seconds:.1f} tokens/s" if seconds else "one step"
    stderr.print(
        f"{emitted} tokens in {len(decoding)} decode steps, {speed}; "
        f"{report.accepted} of {report.verified} drafted tokens accepted; seed {report.seed}",
        style="dim",
        highlight=False,
        soft_wrap=True,
    )
