"""Score a draft that nobody played: what the text turned out to be judges it."""

from __future__ import annotations

from collections.abc import Sequence

from decodeloop.speculation import Draft


def shadow_match(draft: Draft, committed: Sequence[int]) -> int:
    """How many tokens of the chain `draft` agree with the `committed` tokens that came after its context.

    A match of len(committed) is censored: the draft may have been right for longer.
    """
    count = 0
    for drafted, token in zip(draft.tokens, committed, strict=False):
        if drafted != token:
            break
        count += 1
    return count
