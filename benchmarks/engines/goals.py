"""What benchmarks/peers.py measured, and what it is held to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engines.subjects import LLAMA_ARMS

Row = tuple[str, str, int, str]  # engine, arm, streams, kind of prompts (copy, open; mixed among streams)
SPECULATING = ("ngram 4", "ngram 8", "adaptive")


@dataclass
class Figures:
    """Of a cell: tokens and seconds of each block, answers by prompt."""

    blocks: dict[int, tuple[int, float]] = field(default_factory=dict)
    answers: dict[str, list[int]] = field(default_factory=dict)

    @property
    def rates(self) -> list[float]:
        return [tokens / seconds for tokens, seconds in self.blocks.values()]


@dataclass(frozen=True)
class Goal:
    """rows: (name, arm, streams, kind) of ours, and of those whose fastest is held against it."""

    what: str
    ours: tuple[Row, ...]
    theirs: tuple[Row, ...]
    least: float


def goals() -> list[Goal]:
    def lone(name: str, *arms: str, kinds: Sequence[str] = ("copy", "open")) -> tuple[Row, ...]:
        return tuple((name, arm, 1, kind) for arm in arms for kind in kinds)

    def streams(name: str, *arms: str) -> tuple[Row, ...]:
        return tuple((name, arm, 16, "mixed") for arm in arms or ("plain",))

    spec_arms = tuple(LLAMA_ARMS)
    transformers = lone("transformers bfloat16", "plain") + lone("transformers float32", "plain")
    copy = {"kinds": ("copy",)}
    return [
        Goal("bf16 plain / llama.cpp BF16", lone("ours bf16", "plain"), lone("llama.cpp BF16", "plain"), 1.25),
        Goal("bf16 plain / transformers", lone("ours bf16", "plain"), transformers, 4.0),
        Goal("bf16 plain / vLLM bf16", lone("ours bf16", "plain"), lone("vLLM bfloat16", "plain"), 3.0),
        Goal("int4 plain / llama.cpp Q4_1", lone("ours int4", "plain"), lone("llama.cpp Q4_1", "plain"), 1.8),
        Goal("int4 plain / llama.cpp Q4_0", lone("ours int4", "plain"), lone("llama.cpp Q4_0", "plain"), 1.0),
        Goal(
            "copy: bf16 / llama.cpp BF16's best",
            lone("ours bf16", *SPECULATING, **copy),
            lone("llama.cpp BF16", *spec_arms, **copy),
            3.0,
        ),
        Goal(
            "copy: int4 / llama.cpp Q4_1's best",
            lone("ours int4", *SPECULATING, **copy),
            lone("llama.cpp Q4_1", *spec_arms, **copy),
            3.0,
        ),
        Goal(
            "copy: bf16 / own plain", lone("ours bf16", *SPECULATING, **copy), lone("ours bf16", "plain", **copy), 2.5
        ),
        Goal(
            "copy: int4 / own plain", lone("ours int4", *SPECULATING, **copy), lone("ours int4", "plain", **copy), 2.5
        ),
        Goal("16 streams: bf16 / llama.cpp BF16", streams("ours bf16"), streams("llama.cpp BF16"), 2.0),
        Goal("16 streams: int4 / llama.cpp Q4_1", streams("ours int4"), streams("llama.cpp Q4_1"), 2.0),
        Goal("16 streams: int4 / llama.cpp Q4_0", streams("ours int4"), streams("llama.cpp Q4_0"), 2.0),
        Goal("16 streams: bf16 / vLLM bf16", streams("ours bf16"), streams("vLLM bfloat16"), 3.0),
        Goal("16 streams: int4 through HTTP / alone", streams("ours int4 through HTTP"), streams("ours int4"), 0.75),
    ]


def ratios(goal: Goal, figures: Mapping[Row, Figures]) -> list[float]:
    """Block by block: our fastest arm over their fastest, kinds of prompts taken together; empty: not measured."""

    def best(rows: Sequence[Row], block: int) -> float | None:
        rates = []
        for player in dict.fromkeys(row[:2] for row in rows):
            parts = [figures[row].blocks.get(block) for row in rows if row[:2] == player and row in figures]
            if parts and None not in parts:
                rates.append(sum(part[0] for part in parts if part) / sum(part[1] for part in parts if part))
        return max(rates, default=None)

    blocks = {block for row in goal.ours if row in figures for block in figures[row].blocks}
    pairs = [(best(goal.ours, block), best(goal.theirs, block)) for block in sorted(blocks)]
    return [mine / other for mine, other in pairs if mine is not None and other is not None]
