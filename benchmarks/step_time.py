"""Step time T(M) of the native runner against the machine's read bandwidth in the same window.

    python benchmarks/step_time.py [MODEL] [--dtypes bf16,auto] [--tokens 1,2,4,...] [--streams] [--rounds N] [--json]

A step runs M tokens behind a context of 256: of one sequence (a drafted block), or with --streams of M sequences. Every
round visits all formats and sizes once, with a read of memory before and after each step, so that all see the same
weather; figures are medians over rounds, with quartiles. The floor of a step is the bytes that it must read (weights,
keys and values) over the bandwidth beside it. `cpu` is the step's CPU time, which a busy neighbour changes little.
Beside the steps, the drafter draft_model drafts with the target's first layer: what a pass of its layer costs.
Exit status 1 when bf16 misses what it is held to: T(1) within 1.2 of its floor, T(4) <= 1.35 T(1), T(8) <= 1.7 T(1).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import numpy as np

from decodeloop.cli.environment import read_environment
from decodeloop.engine import kernels
from decodeloop.engine.hardware import read_hardware
from decodeloop.engine.models import Checkpoint
from decodeloop.engine.models.sources import DEFAULT_MODEL, open_checkpoint, resolve
from decodeloop.engine.runners import RunnerOptions
from decodeloop.engine.runners.native import NativeRunner
from decodeloop.speculation import DrafterSetup, DraftRequest
from decodeloop.speculation.drafters.draft_model import ModelDrafter
from decodeloop.speculation.forward import Batch
from decodeloop.speculation.sampling import RequestChance, SamplingState
from decodeloop.testing import Run, pack
from decodeloop.types import SamplingParams

CONTEXT = 256
TOKENS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
PROBE_BYTES = 192 << 20
PASSES = 4  # of a draft
HELD_TO = {"T(1) / floor": 1.2, "T(4) / T(1)": 1.35, "T(8) / T(1)": 1.7}


@dataclass(frozen=True, slots=True)
class Sample:
    """One step: seconds of wall and CPU, of the floor beside it, and of its sections."""

    wall: float
    cpu: float
    floor: float
    sections: dict[str, float]


@dataclass(frozen=True, slots=True)
class Timing:
    """Of one format and number of tokens; times in ms, medians with quartiles."""

    dtype: str
    tokens: int
    ms: float
    ms_low: float
    ms_high: float
    cpu_ms: float
    over_floor: float
    sections_ms: dict[str, float]

    @classmethod
    def of(cls, dtype: str, tokens: int, samples: Sequence[Sample]) -> Timing:
        low, middle, high = np.quantile([sample.wall for sample in samples], [0.25, 0.5, 0.75]) * 1e3
        return cls(
            dtype=dtype,
            tokens=tokens,
            ms=round(float(middle), 3),
            ms_low=round(float(low), 3),
            ms_high=round(float(high), 3),
            cpu_ms=round(median(sample.cpu for sample in samples) * 1e3, 3),
            over_floor=round(median(sample.wall / sample.floor for sample in samples), 3),
            sections_ms={
                name: round(median(sample.sections[name] for sample in samples) * 1e3, 3)
                for name in samples[0].sections
            },
        )


class Subject:
    """A runner with its contexts in the cache."""

    def __init__(self, runner: NativeRunner, sequences: int, most: int) -> None:
        self.runner = runner
        self._blocks = -(-(CONTEXT + most) // runner.info.block_tokens)
        runner.allocate_kv(sequences * self._blocks)
        self._text = np.random.default_rng(0).integers(0, runner.info.vocab_size, CONTEXT + most).tolist()
        for sequence in range(sequences):
            runner.forward(pack([Run(self._text[:CONTEXT], 0, self._table(sequence))]))

    def _table(self, sequence: int) -> range:
        return range(sequence * self._blocks, (sequence + 1) * self._blocks)

    def batch(self, tokens: int, *, streams: bool) -> Batch:
        if streams:
            return pack([Run([self._text[row]], CONTEXT, self._table(row)) for row in range(tokens)])
        return pack([Run(self._text[:tokens], CONTEXT, self._table(0))])

    def read_bytes(self, sequences: int) -> int:
        info = self.runner.info
        return info.weight_bytes + sequences * CONTEXT * info.kv_block_bytes // info.block_tokens

    def step(self, batch: Batch, sequences: int, probe: Probe) -> Sample:
        before = probe.measure()
        self.runner.section_seconds()
        cpu, wall = process_time(), perf_counter()
        self.runner.forward(batch)
        wall, cpu = perf_counter() - wall, process_time() - cpu
        bandwidth = (before + probe.measure()) / 2
        return Sample(wall, cpu, self.read_bytes(sequences) / bandwidth, self.runner.section_seconds())


class Probe:
    """Reads memory that no cache holds, and remembers how fast."""

    def __init__(self, threads: int) -> None:
        self._probe = kernels.load().BandwidthProbe(PROBE_BYTES, threads)
        self.seen: list[float] = []

    def measure(self) -> float:
        self.seen.append(float(self._probe.measure()))
        return self.seen[-1]


class OneLayer:
    """The drafter draft_model on the first layer of a target, whose weights it shares."""

    def __init__(self, checkpoint: Checkpoint, target: NativeRunner, dtype: str) -> None:
        options = RunnerOptions(dtype=dtype, layers=1, weights_of=target)
        self._runner = NativeRunner(checkpoint, options)
        vocab_size = target.info.vocab_size
        setup = DrafterSetup(
            vocab_size=vocab_size,
            max_context=2 * CONTEXT,
            max_sequences=1,
            max_draft_len=PASSES,
            open_runner=lambda spec: self._runner,
            options={"model": "layers:1"},
        )
        self._drafter = ModelDrafter(setup)
        self._text = np.random.default_rng(1).integers(0, vocab_size, CONTEXT).tolist()
        self._state = SamplingState(SamplingParams(temperature=0.0), (), vocab_size=vocab_size, eos_ids=frozenset())
        self.samples: list[tuple[float, float]] = []  # seconds a pass: the layer, the head
        self.draft()
        self.samples.clear()

    def draft(self) -> None:
        """A token is committed, and a draft asked for."""
        self._text.append(1)
        self._runner.section_seconds()
        chance = RequestChance.of(0, (), 0)
        drafted = self._drafter.propose([DraftRequest(0, self._text, PASSES, self._state, chance)])
        assert drafted.lens == (PASSES,)
        sections = self._runner.section_seconds()
        head = sections.pop("head")
        self.samples.append((sum(sections.values()) / PASSES, head / PASSES))

    def ms(self) -> tuple[float, float]:
        """A pass: its layer, its head."""
        layer, head = np.median(self.samples, axis=0) * 1e3
        return round(float(layer), 3), round(float(head), 3)


def measure(
    subjects: dict[str, Subject],
    drafters: dict[str, OneLayer],
    sizes: Sequence[int],
    options: argparse.Namespace,
    probe: Probe,
) -> list[Timing]:
    samples: dict[tuple[str, int], list[Sample]] = {}
    for _ in range(options.rounds):
        for tokens in sizes:
            for dtype, subject in subjects.items():
                batch = subject.batch(tokens, streams=options.streams)
                sample = subject.step(batch, tokens if options.streams else 1, probe)
                samples.setdefault((dtype, tokens), []).append(sample)
        for drafter in drafters.values():
            drafter.draft()
    return [Timing.of(dtype, tokens, taken) for (dtype, tokens), taken in sorted(samples.items())]


def verdict(timings: Sequence[Timing]) -> dict[str, float]:
    """What bf16 is held to, as far as it was measured."""
    of = {timing.tokens: timing for timing in timings if timing.dtype == "bf16"}
    found = {"T(1) / floor": of[1].over_floor} if 1 in of else {}
    found |= {f"T({m}) / T(1)": round(of[m].ms / of[1].ms, 3) for m in (4, 8) if {1, m} <= set(of)}
    return found


def one_layer(dtype: str, drafter: OneLayer, timings: Sequence[Timing]) -> dict[str, float]:
    layer, head = drafter.ms()
    steps = [timing.ms for timing in timings if timing.dtype == dtype and timing.tokens == 1]
    return {"layer_ms": layer, "head_ms": head, **({"over_step": round(layer / steps[0], 4)} if steps else {})}


def show(timings: Sequence[Timing]) -> None:
    names = list(timings[0].sections_ms)
    print(
        f"{'dtype':6} {'M':>3} {'ms':>8} {'quartiles':>17} {'/floor':>7} {'cpu':>8}  "
        + " ".join(f"{n:>9}" for n in names)
    )
    for t in timings:
        spread = f"{t.ms_low:8.2f}-{t.ms_high:.2f}"
        sections = " ".join(f"{t.sections_ms[name]:9.2f}" for name in names)
        print(f"{t.dtype:6} {t.tokens:3} {t.ms:8.2f} {spread:>17} {t.over_floor:7.2f} {t.cpu_ms:8.2f}  {sections}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL)
    parser.add_argument("--dtypes", default="bf16,auto")
    parser.add_argument("--tokens", default=",".join(map(str, TOKENS)))
    parser.add_argument("--streams", action="store_true")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    sizes = [int(size) for size in options.tokens.split(",")]
    path = Path(options.model)
    checkpoint = open_checkpoint(path if path.exists() else resolve(options.model, read_environment().models))
    subjects = {}
    for dtype in options.dtypes.split(","):
        runner = NativeRunner(checkpoint, RunnerOptions(dtype=dtype, threads=options.threads))
        subjects[dtype] = Subject(runner, max(sizes) if options.streams else 1, max(sizes))
    runner = next(iter(subjects.values())).runner
    probe = Probe(runner.threads)
    drafters = {dtype: OneLayer(checkpoint, subject.runner, dtype) for dtype, subject in subjects.items()}
    timings = measure(subjects, drafters, sizes, options, probe)
    passes = {dtype: one_layer(dtype, drafter, timings) for dtype, drafter in drafters.items()}
    held = verdict(timings)
    missed = [name for name, value in held.items() if value > HELD_TO[name]]
    gigabytes = [round(float(quantile) / 1e9, 1) for quantile in np.quantile(probe.seen, [0.25, 0.5, 0.75])]
    if options.json:
        result = {
            "benchmark": "step_time",
            "device": read_hardware().device,
            "isa": runner.isa,
            "threads": runner.threads,
            "huge_pages_bytes": kernels.load().huge_page_bytes(),
            "streams": options.streams,
            "context": CONTEXT,
            "bandwidth_gb_s": gigabytes,
            "weight_bytes": {dtype: subject.runner.info.weight_bytes for dtype, subject in subjects.items()},
            "held_to": held,
            "one_layer": passes,
            "missed": missed,
            "timings": [asdict(timing) for timing in timings],
        }
        print(json.dumps(result))
        return int(bool(missed))
    print(f"{checkpoint.name}: {runner.isa}, {runner.threads} threads; memory read at {gigabytes[1]} GB/s {gigabytes}")
    show(timings)
    for dtype, found in passes.items():
        share = f", 1/{1 / found['over_step']:.0f} of T(1)" if "over_step" in found else ""
        print(
            f"{dtype}: draft_model on one layer: {found['layer_ms']} ms a pass{share}; its head {found['head_ms']} ms"
        )
    for name, value in held.items():
        print(f"bf16 {name} = {value} (held to {HELD_TO[name]})")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
