"""What is served: requests by class, and when they arrive."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from decodeloop.types import CLASS_ALIASES, RequestClass


@dataclass(frozen=True, slots=True)
class Prompt:
    id: str
    request_class: RequestClass
    text: str


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request as a trace knows it: when, and how long. text: which of the known texts it is, if it is one."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    request_class: RequestClass = RequestClass.GENERAL_CHAT
    text: int | None = None


def read_prompts(lines: Iterable[str]) -> list[Prompt]:
    """One JSON object a line: id, class (or an alias of it), prompt.

    Raises ValueError with the line's number.
    """
    prompts = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            prompts.append(Prompt(str(row["id"]), request_class(row["class"]), str(row["prompt"])))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"prompts, line {number}: {error!r}") from error
    return prompts


def request_class(name: str) -> RequestClass:
    """A class by its name or alias. Raises ValueError with the choices."""
    if name in CLASS_ALIASES:
        return CLASS_ALIASES[name]
    try:
        return RequestClass(name)
    except ValueError:
        choices = ", ".join([*RequestClass, *CLASS_ALIASES])
        raise ValueError(f"no request class {name!r}; choose from {choices}") from None


def mixed(prompts: Sequence[Prompt], shares: Mapping[RequestClass, float], count: int, *, seed: int) -> list[Prompt]:
    """`count` prompts in the classes' shares, in an order that depends on the seed alone.

    Each class goes through its prompts in turn, so that a mix is as fresh as its prompts allow. Raises ValueError for a
    class without prompts.
    """
    own = {c: [prompt for prompt in prompts if prompt.request_class is c] for c in shares}
    for c, found in own.items():
        if not found:
            raise ValueError(f"no prompts of class {c}")
    total = sum(shares.values())
    exact = {c: count * share / total for c, share in shares.items()}
    counts = {c: int(value) for c, value in exact.items()}
    for c in sorted(exact, key=lambda c: exact[c] - counts[c], reverse=True)[: count - sum(counts.values())]:
        counts[c] += 1
    chosen = [own[c][i % len(own[c])] for c, n in counts.items() for i in range(n)]
    return [chosen[i] for i in np.random.default_rng(seed).permutation(len(chosen))]


def poisson(rate: float, seconds: float, *, seed: int) -> list[float]:
    """Arrival times of a Poisson process of `rate` requests a second."""
    rng = np.random.default_rng(seed)
    expected = rate * seconds
    gaps = rng.exponential(1.0 / rate, int(expected + 10 * np.sqrt(expected) + 10))
    times = np.cumsum(gaps)
    return [float(t) for t in times[times < seconds]]


def read_azure(lines: Iterable[str]) -> list[Arrival]:
    """The Azure LLM inference traces: CSV with TIMESTAMP, ContextTokens, GeneratedTokens. Starts at 0."""
    rows = [
        (datetime.fromisoformat(row["TIMESTAMP"][:26]), int(row["ContextTokens"]), int(row["GeneratedTokens"]))
        for row in csv.DictReader(lines)
    ]
    return _from_zero((at.timestamp(), prompt, output) for at, prompt, output in rows)


def read_mooncake(lines: Iterable[str]) -> list[Arrival]:
    """The Mooncake traces: JSON lines with timestamp (ms), input_length, output_length. Starts at 0."""
    rows = [json.loads(line) for line in lines if line.strip()]
    return _from_zero((row["timestamp"] / 1e3, int(row["input_length"]), int(row["output_length"])) for row in rows)


def scaled(arrivals: Sequence[Arrival], factor: float) -> list[Arrival]:
    """The same requests, `factor` times as many a second."""
    return [Arrival(a.at_s / factor, a.prompt_tokens, a.output_tokens, a.request_class) for a in arrivals]


def repeated(text_tokens: Sequence[int], length: int = 12) -> bool:
    """Whether a text loops: some run of `length` tokens occurs twice. Loops flatter every drafter that copies."""
    return loop_at(text_tokens, length) is not None


def loop_at(text_tokens: Sequence[int], length: int = 12) -> int | None:
    """Where the first run of `length` tokens that has occurred before begins."""
    seen = set()
    for i in range(len(text_tokens) - length + 1):
        run = tuple(text_tokens[i : i + length])
        if run in seen:
            return i
        seen.add(run)
    return None


def _from_zero(rows: Iterator[tuple[float, int, int]]) -> list[Arrival]:
    """Requests without a prompt or an answer are left out."""
    found = sorted(row for row in rows if row[1] > 0 and row[2] > 0)
    if not all(math.isfinite(at) for at, _, _ in found):
        raise ValueError("a time that is no number")
    start = found[0][0] if found else 0.0
    return [Arrival(at - start, prompt, output) for at, prompt, output in found]
