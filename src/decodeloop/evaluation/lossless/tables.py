"""Verification over a table of distributions: a draft drawn from one table, judged by the rows of another."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np

from decodeloop.evaluation.lossless.enumeration import Branch, Table, Tokens, law, target_law, total_variation
from decodeloop.speculation import Draft, Verifier
from decodeloop.speculation.sampling import Chance, Distribution

EXACT = 1e-12  # total variation under which two enumerated laws are the same

Drafting = Callable[[Branch], Draft]


class TableRows:
    """TargetRows over a table, for a draft after the tokens `said`; it fails when rows are asked that can't exist."""

    def __init__(self, table: Table, tokens: Tokens, said: Tokens = ()) -> None:
        self._table, self._tokens, self._said = table, tokens, said
        self._highest = -1

    def __getitem__(self, i: int) -> Distribution:
        assert i <= len(self._tokens), f"row {i} of a draft of {len(self._tokens)}"
        assert i <= self._highest + 1, f"row {i} was asked after row {self._highest}: rows go in order"
        if i > 0:
            before = self._table[self._said + self._tokens[: i - 1]]
            assert before.prob(self._tokens[i - 1]) > 0.0, f"row {i} was asked behind a token of probability 0"
        self._highest = max(self._highest, i)
        return self._table[self._said + self._tokens[:i]]

    def position(self, i: int) -> int:
        return len(self._said) + i


def sampled_draft(chance: Chance, q: Table, length: int, said: Tokens = ()) -> Draft:
    """`length` tokens drawn from q after `said`, with the rows that they were drawn from."""
    tokens: Tokens = ()
    rows = []
    for _ in range(length):
        row = q[said + tokens]
        tokens = (*tokens, chance.draft(row, len(said) + len(tokens), len(said)))
        rows.append(row.probs)
    return Draft(tokens, tuple(rows), drafter="sampled")


def point_draft(tokens: Tokens) -> Draft:
    return Draft(tokens, None, drafter="point")


def everywhere(*probs: float, length: int = 4) -> Table:
    """The same row after every context shorter than `length`."""
    row = Distribution.of(np.array(probs))
    return {context: row for n in range(length) for context in product(range(len(probs)), repeat=n)}


def distance(verifier: Verifier, target: Table, drafting: Drafting, length: int) -> float:
    """Total variation between what is said after one verdict (and the target's continuation) and plain decoding."""

    def said(chance: Branch) -> Tokens:
        draft = drafting(chance)
        return verifier.judge(draft, TableRows(target, draft.tokens), chance).emitted

    return total_variation(law(said, target, length), target_law(target, length))
