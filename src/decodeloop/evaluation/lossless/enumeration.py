"""Every outcome of a random procedure with its probability: losslessness is checked by enumeration, not by sampling."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import TypeVar

import numpy as np

from decodeloop.speculation.sampling import Distribution
from decodeloop.types import FloatArray

Tokens = tuple[int, ...]
Law = dict[Tokens, float]  # sequences and their probabilities
Table = Mapping[Tokens, Distribution]  # the next token's distribution after each context

T = TypeVar("T")


class Branch:
    """A Chance that takes one path: the choices of `script` (each an index among the possible ones), then the first.

    Every coin and draw may be asked once: asked again it would not be independent.
    """

    def __init__(self, script: Sequence[int] = ()) -> None:
        self._script = script
        self._asked: set[tuple[str, int, int]] = set()
        self.taken: list[int] = []
        self.widths: list[int] = []
        self.probability = 1.0

    def choose(self, probs: Sequence[float] | FloatArray) -> int:
        """One of the indices whose probability isn't 0."""
        possible = [i for i, prob in enumerate(probs) if prob > 0.0]
        step = len(self.taken)
        self.taken.append(self._script[step] if step < len(self._script) else 0)
        self.widths.append(len(possible))
        choice = possible[self.taken[-1]]
        self.probability *= float(probs[choice])
        return choice

    def coupled(self, p: Distribution, position: int) -> int:
        self._ask("coupled", position, 0)
        return self.choose(p.probs)

    def accept(self, probability: float, position: int, start: int) -> bool:
        self._ask("accept", position, start)
        return self.choose((1.0 - probability, probability)) == 1 if 0.0 < probability < 1.0 else probability >= 1.0

    def draw(self, probs: FloatArray, position: int, start: int) -> int:
        self._ask("draw", position, start)
        return self.choose(probs)

    def draft(self, q: Distribution, position: int, start: int) -> int:
        self._ask("draft", position, start)
        return self.choose(q.probs)

    def _ask(self, what: str, position: int, start: int) -> None:
        if (what, position, start) in self._asked:
            raise AssertionError(f"{what} at position {position} was asked twice: the second isn't independent")
        self._asked.add((what, position, start))


def branches(run: Callable[[Branch], T]) -> Iterator[tuple[T, float]]:
    """(outcome, probability) of every path through `run`, which must draw all its randomness from the Branch."""
    pending: list[tuple[int, ...]] = [()]
    while pending:
        script = pending.pop()
        branch = Branch(script)
        yield run(branch), branch.probability
        for step in range(len(script), len(branch.taken)):
            pending.extend((*branch.taken[:step], other) for other in range(1, branch.widths[step]))


def law(run: Callable[[Branch], Tokens], table: Table, length: int) -> Law:
    """The law of the first `length` tokens when what `run` says is continued by drawing from `table`."""
    probs: defaultdict[Tokens, float] = defaultdict(float)
    for emitted, probability in branches(run):
        for tokens, rest in continued(emitted, table, length):
            probs[tokens] += probability * rest
    return dict(probs)


def continued(tokens: Tokens, table: Table, length: int) -> Iterable[tuple[Tokens, float]]:
    """The ways to go on from `tokens` to `length`, cut there, and how likely each is."""
    if len(tokens) >= length:
        yield tokens[:length], 1.0
        return
    for token, probability in enumerate(table[tokens].probs):
        if probability > 0.0:
            for longer, rest in continued((*tokens, token), table, length):
                yield longer, float(probability) * rest


def target_law(table: Table, length: int) -> Law:
    """Plain decoding."""
    return dict(continued((), table, length))


def total_variation(one: Law, other: Law) -> float:
    return 0.5 * sum(abs(one.get(key, 0.0) - other.get(key, 0.0)) for key in one.keys() | other.keys())


def random_table(rng: np.random.Generator, vocab_size: int, length: int, zeros: float = 0.0) -> Table:
    """A Dirichlet(1) row for every context shorter than `length`; each entry is 0 with probability `zeros`."""
    table = {}
    for context in (context for n in range(length) for context in product(range(vocab_size), repeat=n)):
        row = rng.dirichlet(np.ones(vocab_size)) * (rng.random(vocab_size) >= zeros)
        row[rng.integers(vocab_size)] += 0.0 if row.any() else 1.0
        table[context] = Distribution.of(row)
    return table
