"""Coupled verification of trees: what is said doesn't depend on the tree, and the longest matching path is kept."""

from functools import partial
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decodeloop.speculation import Draft
from decodeloop.speculation.sampling import Distribution
from decodeloop.speculation.verifiers.coupled import CoupledVerifier
from decodeloop.testing import EXACT, law, random_table, target_law, total_variation

V, DEPTH = 3, 3


class TreeRows:
    """Row i + 1 follows the path to token i. Only rows down one path may be asked."""

    def __init__(self, table, draft):
        self._table, self._draft, self._last = table, draft, None

    def __getitem__(self, i):
        parent_row = None if i == 0 else self._draft.parents[i - 1] + 1
        assert parent_row == self._last, f"row {i} was asked after row {self._last}"
        self._last = i
        return self._table[self.path(i)]

    def path(self, i):
        return () if i == 0 else (*self.path(self._draft.parents[i - 1] + 1), self._draft.tokens[i - 1])

    def position(self, i):
        return len(self.path(i))


def depth_of(node, parents):
    return 0 if node == -1 else 1 + depth_of(parents[node], parents)


@st.composite
def trees(draw):
    """Any tree of depth at most DEPTH, equal siblings included."""
    parents = []
    for i in range(draw(st.integers(0, 9))):
        shallow = [node for node in range(-1, i) if depth_of(node, parents) < DEPTH]
        parents.append(draw(st.sampled_from(shallow)))
    tokens = tuple(draw(st.integers(0, V)) for _ in parents)  # V itself is out of range
    return Draft(tokens, parents=tuple(parents))


def judged(chance, draft, table):
    return CoupledVerifier().judge(draft, TreeRows(table, draft), chance).emitted


@given(trees(), st.integers(0, 100))
@settings(max_examples=60, deadline=None)
def test_any_tree_is_exact(draft, seed):
    table = random_table(np.random.default_rng(seed), V, DEPTH + 1, 0.2)
    said = law(partial(judged, draft=draft, table=table), table, DEPTH + 1)
    assert total_variation(said, target_law(table, DEPTH + 1)) < EXACT


class Decided:
    def __init__(self, path):
        self.path = path

    def coupled(self, p, position):
        return self.path[position]


ANYTHING = {c: Distribution.of(np.ones(V)) for n in range(DEPTH + 1) for c in product(range(V), repeat=n)}


@given(trees(), st.tuples(*[st.integers(0, V - 1)] * (DEPTH + 1)))
@settings(max_examples=300)
def test_the_longest_matching_path_is_kept(draft, path):
    rows = TreeRows(ANYTHING, draft)
    paths = [rows.path(i) for i in range(len(draft.tokens) + 1)]
    longest = max(len(p) for p in paths if p == path[: len(p)])
    verdict = CoupledVerifier().judge(draft, rows, Decided(path))
    if len({(parent, token) for parent, token in zip(draft.parents, draft.tokens, strict=True)}) == len(draft.tokens):
        assert verdict.accepted == longest
    assert verdict.emitted == path[: verdict.accepted + 1]
    assert tuple(draft.tokens[i] for i in verdict.path) == verdict.emitted[:-1]


def test_a_greedy_target_is_followed_down_its_argmaxes():
    table = {c: Distribution.point(sum(c) % V, V) for n in range(DEPTH + 1) for c in product(range(V), repeat=n)}
    draft = Draft((1, 0, 2, 0, 1, 0), parents=(-1, -1, 1, 1, 3, 3))
    verdict = CoupledVerifier().judge(draft, TreeRows(table, draft), AsLikely())
    assert verdict.path == (1, 3, 5)
    assert verdict.emitted == (0, 0, 0, 0)


class AsLikely:
    def coupled(self, p, position):
        return p.likeliest


def test_a_chain_written_as_a_tree_is_the_chain():
    for path in product(range(V), repeat=DEPTH + 1):
        tree = Draft((0, 1, 2), parents=(-1, 0, 1))
        verdict = CoupledVerifier().judge(tree, TreeRows(ANYTHING, tree), Decided(path))
        agreed = next((k for k in range(3) if tree.tokens[k] != path[k]), 3)
        assert verdict.accepted == agreed
        assert verdict.path == tuple(range(agreed))


@pytest.mark.parametrize("parents", [(0,), (-2,), (-1, 1)])
def test_parents_that_cannot_be_are_refused(parents):
    with pytest.raises(ValueError, match="each must come before its child"):
        Draft((1,) * len(parents), parents=parents)


def test_a_tree_needs_every_parent():
    with pytest.raises(ValueError, match="a parent for every drafted token"):
        Draft((1, 2), parents=(-1,))
