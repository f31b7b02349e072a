"""Measures what a step costs on this machine, in seconds, before the first request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from heapq import heapify, heappop, heappush
from itertools import product

import numpy as np

from decodeloop.engine.hardware import Hardware
from decodeloop.engine.settings import EngineSettings
from decodeloop.policy.cost import CostSurface
from decodeloop.policy.cost_fit import CostSample
from decodeloop.speculation.forward import Batch, Runner, RunnerInfo

LEAST_READINGS, MOST_READINGS = 2, 25  # of a point
LEAST_POINTS = 6  # however long they take
CONTEXTS = (128, 512)  # per sequence


@dataclass(frozen=True, slots=True)
class Point:
    """Each of `sequences` sequences feeds `tokens_each` tokens after `context` cached ones."""

    sequences: int
    tokens_each: int
    context: int

    @property
    def tokens(self) -> int:
        return self.sequences * self.tokens_each

    def blocks_each(self, block_tokens: int) -> int:
        return -(-(self.context + self.tokens_each) // block_tokens)


def measure(
    runner: Runner,
    settings: EngineSettings,
    *,
    kv_blocks: int,
    max_context: int,
    clock: Callable[[], float],
    budget_s: float,
) -> CostSurface:
    """The cost surface of `runner`, whose KV pool of `kv_blocks` must hold nothing of value.

    Every point is read in rounds over all of them, small steps first; then whichever has had the least time, until
    `budget_s` is spent: what matters is how much a token more slows a step of few, and those are quickly read. Readings
    of a point lie apart in time, so that a busy moment spoils one of each and not all of one; the median counts. A
    model that is too slow for all points in that time is known by its smallest steps, and learned on from there.
    clock: seconds.
    """
    points = [p for p in dict.fromkeys(grid(settings, max_context)) if _fits(p, runner.info, kv_blocks)]
    points.sort(key=lambda point: (point.tokens, point.sequences * point.context))
    ends_s = clock() + budget_s
    readings: dict[Point, list[float]] = {}
    for point in points:
        if len(readings) >= LEAST_POINTS and clock() >= ends_s:
            break
        runner.forward(_batch(point, runner.info))  # page in, prepare shapes
        readings[point] = [_reading_ms(runner, point, clock)]
    for _ in range(LEAST_READINGS - 1):
        for point, own in readings.items():
            if clock() < ends_s:
                own.append(_reading_ms(runner, point, clock))
    queue = [(sum(own), i) for i, own in enumerate(readings.values())]
    heapify(queue)
    read = list(readings)
    while queue and clock() < ends_s:
        spent_ms, i = heappop(queue)
        own = readings[read[i]]
        own.append(_reading_ms(runner, read[i], clock))
        if len(own) < MOST_READINGS:
            heappush(queue, (spent_ms + own[-1], i))
    samples = [
        CostSample(point.tokens, point.sequences * point.context, point.sequences, float(np.median(ms)))
        for point, ms in readings.items()
    ]
    return CostSurface(samples)


def grid(settings: EngineSettings, max_context: int) -> Iterator[Point]:
    """Sequences in powers of two; per sequence every draft length that differs enough to matter; two contexts, or what
    there is room for."""
    depths = sorted({1, 2, 3, 5, 9, 1 + settings.max_draft_len})
    sequences = [2**i for i in range(settings.max_sequences.bit_length()) if 2**i <= settings.max_sequences]
    for context, count, tokens_each in product(CONTEXTS, sequences, depths):
        point = Point(count, tokens_each, min(context, max_context - tokens_each))
        if point.context >= 0 and point.tokens <= settings.max_step_tokens:
            yield point


def fingerprint(hardware: Hardware, info: RunnerInfo, settings: EngineSettings, model_sha256: str, version: str) -> str:
    """Names everything that the surface depends on: machine, threads, model, weight format, kernels."""
    parts = (
        hardware.cpu,
        "+".join(hardware.isa),
        str(hardware.cores),
        str(hardware.quota_cores),
        str(settings.threads),
        model_sha256,
        info.name,
        info.weight_format,
        info.device,
        str(settings.max_sequences),
        str(settings.max_draft_len),
        version,
    )
    return sha256("\n".join(parts).encode()).hexdigest()[:32]


def _fits(point: Point, info: RunnerInfo, kv_blocks: int) -> bool:
    return point.sequences * point.blocks_each(info.block_tokens) <= kv_blocks


def _reading_ms(runner: Runner, point: Point, clock: Callable[[], float]) -> float:
    batch = _batch(point, runner.info)
    started_s = clock()
    runner.forward(batch)
    return 1e3 * (clock() - started_s)


def _batch(point: Point, info: RunnerInfo) -> Batch:
    """All tokens want logits, as drafted rows do."""
    blocks = point.blocks_each(info.block_tokens)
    positions = np.arange(point.context, point.context + point.tokens_each, dtype=np.int32)
    return Batch(
        tokens=_spread(np.arange(point.tokens), info.vocab_size),
        positions=np.tile(positions, point.sequences),
        slots=np.repeat(np.arange(point.sequences, dtype=np.int32), point.tokens_each),
        block_tables=np.arange(point.sequences * blocks, dtype=np.int32).reshape(point.sequences, blocks),
        logit_rows=np.arange(point.tokens, dtype=np.int32),
    )


def _spread(places: Sequence[int] | np.ndarray, vocab_size: int) -> np.ndarray:
    """Token ids all over the vocabulary, so that embedding rows are as cold as they are in service."""
    return (np.asarray(places, dtype=np.int64) * 7919 % vocab_size).astype(np.int32)
