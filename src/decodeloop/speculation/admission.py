"""Non-anticipation as a check: a verifier refuses verify lengths that know too much (DSpark 2607.05147, appendix A)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from decodeloop.speculation import Verifier
from decodeloop.speculation.block import Draft
from decodeloop.types import Knowledge, Scores


def refuse_inadmissible(verifier: Verifier, drafts: Sequence[Draft], scores: Scores) -> None:
    """Check, before a policy sees `scores`, that lengths chosen by them leave the target's law unchanged.

    Drafts that are point masses pass with any scores: their tokens are functions of the context. For sampled drafts,
    the verifier must admit the scores' knowledge, and unless it admits SELF, a draft's scores must not increase along
    it (else which ones rank highest depends on later tokens).

    Raises ValueError with the drafters concerned.
    """
    sampled = [i for i, draft in enumerate(drafts) if draft.q is not None and draft.tokens]
    if not sampled or verifier.admits >= Knowledge.SELF:
        return
    name = type(verifier).__name__
    drafters = ", ".join(sorted({drafts[i].drafter or "unnamed" for i in sampled}))
    if scores.knowledge > verifier.admits:
        raise ValueError(
            f"{name} admits scores that know {verifier.admits.name} of a sampled draft, but those of {drafters} know "
            f"{scores.knowledge.name}: score each token before drawing it, or verify with 'coupled'"
        )
    if any(np.any(np.diff(scores.values[i]) > 0) for i in sampled):
        raise ValueError(f"{name} needs scores that never increase along a sampled draft; those of {drafters} do")
