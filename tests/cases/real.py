"""A tiny real model behind the real engine, asked through its worker, on a runner that is batch-invariant."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from compiler import needs_compiled
from decodeloop.engine.ask import Answer, ask
from decodeloop.engine.build import EmbeddedEngine, build_engine, choose_runner
from decodeloop.engine.kv_cache import KvCache
from decodeloop.engine.models import Checkpoint
from decodeloop.engine.models.sources import open_checkpoint
from decodeloop.engine.settings import EngineSettings
from decodeloop.speculation.forward import Runner
from decodeloop.types import Identity, Request, SamplingParams, StepRecord

PENALTIES = {"repetition_penalty": 1.3, "presence_penalty": 1.0, "frequency_penalty": 0.8}
TEXT = "the cat sat on the mat, the cat sat on the mat, the cat"


def request(prompt: Any = TEXT, *, seed: int = 1, organization: str = "local", **params: Any) -> Request:
    """Any field of Request or of SamplingParams; temperature 0 and 24 tokens unless told otherwise."""
    whole = {name: params.pop(name) for name in ("n", "speculation", "priority", "deadline_ms") if name in params}
    return Request(
        id=f"seed{seed}",
        model="tiny",
        prompt=prompt,
        params=SamplingParams(**{"temperature": 0.0, "max_tokens": 24, **params}),
        seed=seed,
        identity=Identity(organization),
        arrived_s=time.monotonic(),
        **whole,
    )


@dataclass
class Running:
    """An engine that is being asked, and the records of its steps."""

    engine: EmbeddedEngine
    records: list[StepRecord] = field(default_factory=list)

    def ask(self, *requests: Request, at_once: int = 64) -> list[Answer]:
        answers = ask(self.engine, requests, at_once=at_once)
        for answer in answers:
            if answer.error is not None:
                raise answer.error
        return answers

    def one(self, *args: Any, **params: Any) -> Answer:
        return self.ask(request(*args, **params))[0]

    @property
    def rows(self):
        return [row for record in self.records for row in record.rows]

    @property
    def cache(self):
        return self.engine.engine.scheduler.cache


BASE = EngineSettings(threads=1, max_context=512, kv_memory_mb=8, policy="fixed", drafters=("ngram",))
RUNNERS = {"torch": {"runner": "torch", "fixed_shape": True}, "native": {"runner": "native"}}


@dataclass(frozen=True)
class Tiny:
    """One checkpoint and one runner for all engines made of it. settings: theirs, unless a test says otherwise."""

    checkpoint: Checkpoint
    runner: Runner
    settings: EngineSettings

    @classmethod
    def open(cls, path: Path, **settings: Any) -> Tiny:
        checkpoint, chosen = open_checkpoint(path), replace(BASE, **settings)
        if chosen.runner == "native":
            needs_compiled()
        return cls(checkpoint, choose_runner(checkpoint, chosen).runner, chosen)

    @contextmanager
    def engine(self, *, extra_drafters=None, blocks: int | None = None, **settings: Any):
        """An engine that drafts 4 tokens with n-grams unless told otherwise; every block is free again at the end.

        blocks: of the KV pool, if less than what `kv_memory_mb` affords.
        """
        settings = replace(self.settings, **settings)
        records: list[StepRecord] = []
        engine = build_engine(
            self.checkpoint,
            settings,
            clock=time.monotonic,
            name="tiny",
            runner=self.runner,
            extra_drafters=extra_drafters,
            observers=(records.append,),
        )
        if blocks is not None:
            engine.engine.scheduler.cache = KvCache(blocks, 16, prefix_caching=settings.prefix_caching)
        engine.worker.start()
        try:
            yield Running(engine, records)
        finally:
            engine.close(60.0)
        cache = engine.engine.scheduler.cache
        cache.reset_prefixes()
        assert cache.free_blocks == cache.blocks, "blocks leaked"

    def plain(self, *requests: Request) -> list[Answer]:
        """Each alone, cold, without drafts: what every other way of serving must equal."""
        with self.engine(policy="off", drafters=(), prefix_caching=False) as running:
            return running.ask(*requests, at_once=1)


def every_kind(tiny: Tiny) -> list[Request]:
    """One request of each kind, ends that really occur in its plain text included."""
    first = tiny.plain(request(max_tokens=40))[0]
    text, ids = first.texts[0], first.token_ids[0]
    return [
        request(max_tokens=40, logprobs=3),
        request(max_tokens=40, temperature=1.0, logprobs=1),
        request(**PENALTIES),
        request(**PENALTIES, temperature=0.9, seed=2),
        request(temperature=1.3, top_k=20, top_p=0.9, min_p=0.01, logit_bias=((70, 3.0), (71, -100.0)), seed=3),
        request(temperature=1.0, allowed_token_ids=(40, 41, 42, 43), seed=4),
        request(temperature=1.0, banned_token_ids=tuple(range(3, 200)), seed=5),
        request(max_tokens=40, stop_token_ids=(ids[13],), logprobs=0),
        request(max_tokens=40, stop=(text[9:12],), logprobs=0),
        request(max_tokens=40, min_tokens=20, stop_token_ids=(ids[2], ids[6], ids[19])),
        request((5, 6, 7) * 20, max_tokens=32),
        request((9,), max_tokens=32, temperature=1.0, seed=6),
        *(request(max_tokens=most, temperature=0.5, seed=most) for most in range(1, 10)),
    ]


def differences(answers: Sequence[Answer], expected: Sequence[Answer]) -> list[str]:
    """Where `answers` differ, to the last bit, from what is due. Short: pytest compares long values slowly."""
    assert len(answers) == len(expected)
    found = []
    for place, (mine, theirs) in enumerate(zip(answers, expected, strict=True)):
        for name in ("token_ids", "texts", "logprobs", "finish_reasons"):
            if getattr(mine, name) != getattr(theirs, name):
                found.append(
                    f"answer {place} ({mine.request.params}): {name} {_short(mine, name)} != {_short(theirs, name)}"
                )
        if mine.usage.completion != theirs.usage.completion:
            found.append(f"answer {place}: {mine.usage} != {theirs.usage}")
    return found[:3]


def _short(answer: Answer, name: str) -> str:
    return repr(getattr(answer, name))[:200]


def drafting(kind: str, other_model: str = "") -> dict[str, Any]:
    """Engine settings for a kind of drafter."""
    models = {"first layer": "layers:1", "other model": other_model}
    if kind in models:
        return {"drafters": ("draft_model",), "drafter_options": {"draft_model": {"model": models[kind]}}}
    return {"drafters": (kind,), "drafter_options": {"ngram": {"min_n": 1}} if kind == "ngram" else {}}


def texts_of(checkpoint: Checkpoint, requests: Sequence[Request], answers: Sequence[Answer]) -> list[tuple[int, ...]]:
    """Prompt and output in tokens: what an oracle replays."""
    tokens = []
    for asked, answer in zip(requests, answers, strict=True):
        prompt = asked.prompt
        ids = checkpoint.tokenizer.encode(prompt, special=True) if isinstance(prompt, str) else list(prompt)
        if checkpoint.tokenizer.add_bos and isinstance(prompt, str):
            ids = [checkpoint.tokenizer.bos_id, *ids]
        tokens.append((*ids, *answer.token_ids[0]))
    return tokens
