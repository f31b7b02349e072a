"""What every verifier must hold to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from decodeloop.evaluation.lossless.enumeration import (
    Branch,
    Table,
    Tokens,
    law,
    random_table,
    target_law,
    total_variation,
)
from decodeloop.evaluation.lossless.tables import EXACT, TableRows, point_draft, sampled_draft
from decodeloop.speculation import Draft, Verdict, Verifier
from decodeloop.types import Knowledge

VOCAB_SIZE = 3
MAX_DEPTH = 3


@dataclass(frozen=True)
class Case:
    """A target and a way to draft."""

    name: str
    target: Table
    draft: Callable[[Branch], Draft]


def check_verifier(factory: Callable[[], Verifier], seeds: int = 3) -> None:
    """Raises AssertionError, saying what was broken.

    On all outcomes of small random targets and drafts, zeros and foreign token ids included: the emitted tokens,
    continued by the target, follow the target's law to 1e-12; accepted tokens are the draft's; rows are asked in order
    and none behind a token of probability 0; no coin is used twice; inputs stay as they were.
    """
    verifier = factory()
    assert isinstance(verifier.admits, Knowledge), "`admits` says what verify lengths may know"
    assert isinstance(verifier.shares_noise, bool), "`shares_noise` says how sampling drafters should draw"
    for case in _cases(seeds, verifier.admits):
        found = total_variation(law(_judged(factory(), case), case.target, MAX_DEPTH + 1), _plain(case.target))
        assert found < EXACT, f"{case.name}: total variation {found:.3g} from the target"


def _plain(table: Table) -> dict[Tokens, float]:
    return target_law(table, MAX_DEPTH + 1)


def _judged(verifier: Verifier, case: Case) -> Callable[[Branch], Tokens]:
    def run(chance: Branch) -> Tokens:
        draft = case.draft(chance)
        before = None if draft.q is None else [row.copy() for row in draft.q]
        verdict = verifier.judge(draft, TableRows(case.target, draft.tokens), chance)
        _check_verdict(verdict, draft)
        assert before is None or all(map(np.array_equal, before, draft.q or ())), "q was changed"
        return verdict.emitted

    return run


def _check_verdict(verdict: Verdict, draft: Draft) -> None:
    assert verdict.accepted <= len(draft.tokens), f"accepted {verdict.accepted} of {len(draft.tokens)}"
    assert verdict.emitted[: verdict.accepted] == draft.tokens[: verdict.accepted], "emitted what wasn't drafted"
    assert all(0 <= token < VOCAB_SIZE for token in verdict.emitted), f"{verdict.emitted} leaves the vocabulary"


def _cases(seeds: int, admits: Knowledge) -> Iterator[Case]:
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        for zeros in (0.0, 0.4):
            target = random_table(rng, VOCAB_SIZE, MAX_DEPTH + 1, zeros)
            q = random_table(rng, VOCAB_SIZE, MAX_DEPTH, zeros)
            name = f"seed {seed}, zeros {zeros}"
            for length in range(MAX_DEPTH + 1):
                yield Case(f"{name}, {length} sampled", target, lambda c, q=q, n=length: sampled_draft(c, q, n))  # type: ignore[misc]
            wide = random_table(rng, VOCAB_SIZE + 1, 2, zeros)
            yield Case(f"{name}, ids out of range", target, lambda c, q=wide: sampled_draft(c, q, 2))  # type: ignore[misc]
            points = [*product(range(VOCAB_SIZE), repeat=MAX_DEPTH), (0, VOCAB_SIZE, 0), (-1,)]
            for tokens in points[seed::3]:
                yield Case(f"{name}, point masses {tokens}", target, lambda c, t=tokens: point_draft(t))  # type: ignore[misc]
            if admits >= Knowledge.SELF:
                yield Case(f"{name}, cut at unlikely tokens", target, lambda c, q=q: _cut_by_itself(c, q))  # type: ignore[misc]


def _cut_by_itself(chance: Branch, q: Table) -> Draft:
    """Stops before a token whose own q is small: lossy unless the verifier admits SELF."""
    draft = sampled_draft(chance, q, MAX_DEPTH)
    assert draft.q is not None
    likely = [row[token] >= 1 / VOCAB_SIZE for row, token in zip(draft.q, draft.tokens, strict=True)]
    return draft.cut(likely.index(False) if False in likely else MAX_DEPTH)
