"""Which requests a simulated fleet gets, from a few words: a trace or a rate, a mix of classes, a factor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from decodeloop.evaluation.histories import arrivals as recorded_arrivals
from decodeloop.evaluation.steps import read_steps
from decodeloop.evaluation.workload import Arrival, poisson, read_azure, read_mooncake, request_class
from decodeloop.types import RequestClass

KINDS = ("azure:FILE", "mooncake:FILE", "steps:FILE", "poisson:RATE")
JITTER_S = 1.0  # by which the copies of a request that comes several times lie apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Of requests of a Poisson process: means; lengths are geometric, as a memoryless end makes them."""

    prompt_tokens: int = 512
    output_tokens: int = 128


def open_arrivals(spec: str, *, sizes: Sizes, seconds: float | None, scale: float, seed: int) -> Iterator[Arrival]:
    """The requests that `spec` names, `scale` times as many a second, none after `seconds`; in no particular order.

    Raises:
        ValueError: a spec that is none of KINDS, or a file that isn't what it says.
    """
    if not scale > 0.0:
        raise ValueError(f"a load of {scale} times the trace's is none")
    kind, _, rest = spec.partition(":")
    if kind == "poisson":
        return _poisson(_rate(rest) * scale, 60.0 if seconds is None else seconds, sizes, seed)
    return scaled(_before(_trace(kind, Path(rest), spec), seconds), scale, seed=seed)


def scaled(trace: Sequence[Arrival], scale: float, *, seed: int) -> Iterator[Arrival]:
    """`scale` times as many requests over the same time: each comes so often on average, its copies a little later."""
    rng = np.random.default_rng(seed)
    for arrival in trace:
        copies = int(scale + rng.random())
        for copy in range(copies):
            yield arrival if copy == 0 else replace(arrival, at_s=arrival.at_s + float(rng.uniform(0.0, JITTER_S)))


def with_classes(
    trace: Iterator[Arrival], shares: Mapping[RequestClass, float] | None, *, seed: int
) -> Iterator[Arrival]:
    """Classes dealt by `shares`; None: the trace's own."""
    if shares is None:
        yield from trace
        return
    rng = np.random.default_rng(seed)
    names, weights = list(shares), np.array(list(shares.values()), dtype=np.float64)
    bounds = np.cumsum(weights / weights.sum())
    for arrival in trace:
        place = min(int(np.searchsorted(bounds, rng.random(), side="right")), len(names) - 1)
        yield replace(arrival, request_class=names[place])


def read_shares(text: str) -> dict[RequestClass, float]:
    """`code_edit=1,chat=3`: classes (or aliases) with their shares. Raises ValueError for anything else."""
    shares: dict[RequestClass, float] = {}
    for part in text.split(","):
        name, _, share = part.strip().partition("=")
        try:
            value = float(share or "1")
        except ValueError:
            value = -1.0
        if not 0.0 < value < float("inf"):
            raise ValueError(f"classes {text!r}: {part.strip()!r} has no positive share")
        shares[request_class(name)] = value
    return shares


def _poisson(rate: float, seconds: float, sizes: Sizes, seed: int) -> Iterator[Arrival]:
    rng = np.random.default_rng(seed + 1)
    for at_s in poisson(rate, seconds, seed=seed):
        prompt, output = rng.geometric(1.0 / sizes.prompt_tokens), rng.geometric(1.0 / sizes.output_tokens)
        yield Arrival(at_s, int(prompt), int(output))


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = -1.0
    if not 0.0 < rate < float("inf"):
        raise ValueError(f"poisson:{text} needs a positive number of requests a second")
    return rate


def _before(trace: Sequence[Arrival], seconds: float | None) -> Sequence[Arrival]:
    return trace if seconds is None else [arrival for arrival in trace if arrival.at_s < seconds]


def _trace(kind: str, path: Path, spec: str) -> list[Arrival]:
    if kind == "steps":
        with path.open("rb") as file:
            return recorded_arrivals(read_steps(file, source=str(path)).records)
    readers = {"azure": read_azure, "mooncake": read_mooncake}
    if kind not in readers:
        raise ValueError(f"arrivals {spec!r}: choose from {', '.join(KINDS)}")
    try:
        with path.open(encoding="utf-8") as lines:
            return readers[kind](lines)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: not a trace of {kind}'s form ({error!r})") from None
