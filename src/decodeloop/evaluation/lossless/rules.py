"""Ways to decide what is submitted to a verifier: each takes randomness and q, and gives the draft as submitted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from decodeloop.evaluation.lossless.enumeration import Branch, Table, Tokens
from decodeloop.evaluation.lossless.tables import everywhere, sampled_draft
from decodeloop.speculation import Draft
from decodeloop.speculation.sampling import Distribution
from decodeloop.types import FloatArray

Rule = Callable[[Branch, Table, int], Draft]

SURE = 0.45  # what counts as confident here


def _rows(draft: Draft) -> Sequence[FloatArray]:
    assert draft.q is not None
    return draft.q


def _probs_of_own(draft: Draft) -> list[float]:
    return [float(row[token]) for row, token in zip(_rows(draft), draft.tokens, strict=True)]


def _first(conditions: Sequence[bool]) -> int:
    """How many come before the first that fails."""
    return next((k for k, holds in enumerate(conditions) if not holds), len(conditions))


# Legal for sampled drafts under any verifier: whether token k is verified is settled before it is drawn.


def whole(chance: Branch, q: Table, depth: int) -> Draft:
    return sampled_draft(chance, q, depth)


def one(chance: Branch, q: Table, depth: int) -> Draft:
    return sampled_draft(chance, q, depth).cut(1)


def nothing(chance: Branch, q: Table, depth: int) -> Draft:
    return sampled_draft(chance, q, depth).cut(0)


def stop_on_max_q(chance: Branch, q: Table, depth: int) -> Draft:
    draft = sampled_draft(chance, q, depth)
    return draft.cut(_first([row.max() >= SURE for row in _rows(draft)]))


def stop_on_previous_q(chance: Branch, q: Table, depth: int) -> Draft:
    draft = sampled_draft(chance, q, depth)
    return draft.cut(_first([True, *(prob >= SURE for prob in _probs_of_own(draft)[:-1])]))


def stop_along_greedy_path(chance: Branch, q: Table, depth: int) -> Draft:
    """Confidence is taken along the drafter's likeliest tokens, whichever ones it draws."""
    path: Tokens = ()
    for _ in range(depth):
        path = (*path, q[path].likeliest)
    return sampled_draft(chance, q, depth).cut(_first([q[path[:k]].probs.max() >= SURE for k in range(depth)]))


def stale_price(chance: Branch, q: Table, depth: int) -> Draft:
    """Stop before k when the survival s_k(x_<k) is under a price that was fixed before."""
    draft = sampled_draft(chance, q, depth)
    survival = accumulate((row.max() for row in _rows(draft)), mul)
    return draft.cut(_first([s >= SURE**2 for s in survival]))


def running_minimum(chance: Branch, q: Table, depth: int) -> Draft:
    """Scores that rise along the draft, made cumulative by their running minimum: the largest k over the price."""
    draft = sampled_draft(chance, q, depth)
    scores = list(accumulate((row.max() for row in _rows(draft)), min))
    return draft.cut(_last_over(scores))


def nothing_behind_an_end(chance: Branch, q: Table, depth: int) -> Draft:
    """Token 0 ends the text: it is submitted, what was drawn after it isn't."""
    draft = sampled_draft(chance, q, depth)
    return draft.cut(_first([True, *(token != 0 for token in draft.tokens[:-1])]))


def coin(chance: Branch, q: Table, depth: int) -> Draft:
    draft = sampled_draft(chance, q, depth)
    return draft.cut(chance.choose([0.25] * 4) % (depth + 1))


def masked_before_drawing(chance: Branch, q: Table, depth: int) -> Draft:
    """What the target excludes (here token 0) is excluded from q, and q is what is left."""
    masked: dict[Tokens, Distribution] = {}
    for context, row in q.items():
        left = row.probs.copy()
        left[0] = 0.0
        masked[context] = Distribution.of(left / left.sum()) if left.sum() else row
    return sampled_draft(chance, masked, depth)


LEGAL: tuple[Rule, ...] = (
    whole,
    one,
    nothing,
    stop_on_max_q,
    stop_on_previous_q,
    stop_along_greedy_path,
    stale_price,
    running_minimum,
    nothing_behind_an_end,
    coin,
    masked_before_drawing,
)


# Unsound for sampled drafts under rejection and block: each looks at the token that it decides about.


def stop_on_own_q(chance: Branch, q: Table, depth: int) -> Draft:
    draft = sampled_draft(chance, q, depth)
    return draft.cut(_first([prob >= SURE for prob in _probs_of_own(draft)]))


def best_length_on_a_staircase(chance: Branch, q: Table, depth: int) -> Draft:
    """Every score is known before its token; but the best length weighs later scores, which the token changes.

    A step costs 1 with nothing verified and 1.9 with any number up to depth.
    """
    draft = sampled_draft(chance, q, depth)
    confidence = [0.6, *(0.98 if token == 0 else 0.1 for token in draft.tokens[:-1])]
    expected = [1.0, *(1.0 + total for total in accumulate(accumulate(confidence, mul)))]
    rates = [value / (1.0 if length == 0 else 1.9) for length, value in enumerate(expected)]
    return draft.cut(max(range(depth + 1), key=rates.__getitem__))


def not_monotone(chance: Branch, q: Table, depth: int) -> Draft:
    """The largest k whose own score is over the price, though a score before it may be under."""
    draft = sampled_draft(chance, q, depth)
    return draft.cut(_last_over([0.3, *(0.8 if token == 0 else 0.1 for token in draft.tokens[:-1])]))


def choose_drafter_after_seeing(chance: Branch, q: Table, depth: int) -> Draft:
    """Two drafts are drawn, and the one that looks better is played."""
    first = sampled_draft(chance, q, depth)
    tokens: Tokens = ()
    rows: list[FloatArray] = []
    while len(tokens) < depth:
        rows.append(q[tokens].probs)
        tokens = (*tokens, chance.choose(rows[-1]))
    second = Draft(tokens, tuple(rows))
    return max(first, second, key=lambda draft: _probs_of_own(draft)[0])


def trim_first_token(chance: Branch, q: Table, depth: int) -> Draft:
    """Token 0 is not submitted."""
    draft = sampled_draft(chance, q, depth)
    return draft.cut(_first([token != 0 for token in draft.tokens]))


UNSOUND: tuple[Rule, ...] = (
    stop_on_own_q,
    best_length_on_a_staircase,
    not_monotone,
    choose_drafter_after_seeing,
    trim_first_token,
)


def _last_over(scores: Iterable[float]) -> int:
    return max((k + 1 for k, score in enumerate(scores) if score >= SURE), default=0)


@dataclass(frozen=True, slots=True)
class Instance:
    """Where an unsound rule shows: total variation of at least `least` under rejection and block."""

    target: Table
    q: Table
    depth: int
    least: float


_SIXTY = everywhere(0.6, 0.4)
_EVEN = everywhere(0.5, 0.5)
INSTANCES: dict[Rule, Instance] = {
    stop_on_own_q: Instance(_SIXTY, _SIXTY, 1, 0.22),
    best_length_on_a_staircase: Instance(_SIXTY, _SIXTY, 2, 0.21),
    not_monotone: Instance(_EVEN, _EVEN, 2, 0.25),
    choose_drafter_after_seeing: Instance(_SIXTY, _SIXTY, 1, 0.23),
    trim_first_token: Instance(everywhere(0.0, 0.5, 0.5), everywhere(0.5, 0.5, 0.0), 1, 0.24),
}
