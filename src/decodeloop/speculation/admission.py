"""Non-anticipation as a check: a verifier refuses verify lengths that know too much (DSpark 2607.05147, appendix A).

Drafts that are point masses pass in any case: their tokens are functions of the context.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from decodeloop.speculation import Verifier
from decodeloop.speculation.block import Draft
from decodeloop.types import Decision, Knowledge, Scores


def refuse_inadmissible(verifier: Verifier, drafts: Sequence[Draft], scores: Scores) -> None:
    """Check scores before a policy sees them.

    For sampled drafts the verifier must admit what they know; and unless it admits SELF, they must not increase along
    a draft, or which of them rank highest depends on later tokens.

    Raises ValueError with the drafters concerned.
    """
    sampled = _sampled(verifier, drafts)
    if not sampled:
        return
    if scores.knowledge > verifier.admits:
        raise ValueError(
            f"{_name(verifier)} admits scores that know {verifier.admits.name} of a sampled draft, but those of "
            f"{_drafters(drafts, sampled)} know {scores.knowledge.name}: score each token before it is drawn, or "
            "verify with 'coupled'"
        )
    rising = [i for i in sampled if np.any(np.diff(scores.values[i]) > 0)]
    if rising:
        raise ValueError(
            f"{_name(verifier)} admits scores that never increase along a sampled draft, but those of "
            f"{_drafters(drafts, rising)} do: take their running minimum"
        )


def refuse_anticipation(verifier: Verifier, drafts: Sequence[Draft], decision: Decision) -> None:
    """Check verify lengths before they take effect.

    Raises ValueError when there are sampled drafts and the verifier doesn't admit what the lengths know of them.
    """
    sampled = _sampled(verifier, drafts)
    if sampled and decision.knowledge > verifier.admits:
        raise ValueError(
            f"{_name(verifier)} admits verify lengths that know {verifier.admits.name} of a sampled draft, but the "
            f"policy's know {decision.knowledge.name} of those of {_drafters(drafts, sampled)}: choose a policy whose "
            "lengths are settled before each token, or verify with 'coupled'"
        )


def _sampled(verifier: Verifier, drafts: Sequence[Draft]) -> list[int]:
    """The drafts about which it matters what decides their length."""
    if verifier.admits >= Knowledge.SELF:
        return []
    return [i for i, draft in enumerate(drafts) if draft.q is not None and draft.tokens]


def _name(verifier: Verifier) -> str:
    return type(verifier).__name__


def _drafters(drafts: Sequence[Draft], which: Iterable[int]) -> str:
    return ", ".join(sorted({drafts[i].drafter or "an unnamed drafter" for i in which}))
