"""How much is asked: what decides the power of a certificate."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """prompts_a_class: of the mini-suite, for identity. tokens: of those answers. samples: at temperature 1, a prompt.

    alpha: the probability that a lossless target fails a check, at most; each check with answers has it.
    """

    seeds: int
    draws: int
    prompts_a_class: int
    tokens: int
    at_once: int
    sample_prompts: int
    samples: int
    sample_tokens: int
    permutations: int
    power_rounds: int
    alpha: float = 1e-3


QUICK = Sizes(
    seeds=1,
    draws=4000,
    prompts_a_class=3,
    tokens=16,
    at_once=8,
    sample_prompts=3,
    samples=400,
    sample_tokens=6,
    permutations=1999,
    power_rounds=12,
)
FULL = Sizes(
    seeds=3,
    draws=20_000,
    prompts_a_class=25,
    tokens=32,
    at_once=8,
    sample_prompts=4,
    samples=2000,
    sample_tokens=6,
    permutations=9999,
    power_rounds=40,
)


def sized(sizes: Sizes, **changes: int | None) -> Sizes:
    """`sizes` with the changes that aren't None. What a check can catch follows from them, and is said beforehand."""
    return replace(sizes, **{name: value for name, value in changes.items() if value is not None})
