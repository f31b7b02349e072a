"""The default model itself: a sample of what benchmarks/byte_equality.py measures in full."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from decodeloop.engine.ask import ask
from decodeloop.engine.build import build_engine, choose_runner
from decodeloop.engine.models.sources import open_checkpoint
from decodeloop.engine.settings import EngineSettings
from decodeloop.types import ChatPrompt, Request, SamplingParams

PROMPTS = Path(__file__).parents[2] / "benchmarks" / "data" / "prompts.jsonl"
BASE = EngineSettings(
    runner="torch", fixed_shape=True, policy="off", drafters=(), max_context=512, max_sequences=8, kv_memory_mb=256
)

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def checkpoint(default_model_path):
    return open_checkpoint(default_model_path)


@pytest.fixture(scope="module")
def runner(checkpoint):
    return choose_runner(checkpoint, BASE).runner


def requests(temperature):
    rows = [json.loads(line) for line in PROMPTS.read_text().splitlines()]
    short = sorted(rows, key=lambda row: len(row["prompt"]))[:3]
    return [
        Request(
            id=row["id"],
            model="model",
            prompt=ChatPrompt(({"role": "user", "content": row["prompt"]},)),
            params=SamplingParams(temperature=temperature, max_tokens=6),
            seed=7,
        )
        for row in short
    ]


def answers(checkpoint, runner, asked, at_once=1, **settings):
    engine = build_engine(checkpoint, replace(BASE, **settings), clock=time.monotonic, runner=runner)
    engine.worker.start()
    try:
        return [answer.token_ids[0] for answer in ask(engine, asked, at_once=at_once)]
    finally:
        engine.close(1.0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_speculative_answers_are_the_plain_ones(checkpoint, runner, temperature):
    asked = requests(temperature)
    plain = answers(checkpoint, runner, asked)
    for drafter, draft_len, at_once, chunk in (("ngram", 5, 3, 16), ("draft_model", 3, 1, 128), ("suffix", 12, 3, 128)):
        got = answers(
            checkpoint,
            runner,
            asked,
            at_once,
            policy="fixed",
            drafters=(drafter,),
            draft_len=draft_len,
            prefill_chunk=chunk,
            drafter_options={"draft_model": {"model": "int4"}},
        )
        assert got == plain, drafter
