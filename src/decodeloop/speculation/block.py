"""What a drafter hands to a verifier, and what the verifier hands back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decodeloop.types import FloatArray, Knowledge, Scores


@dataclass(frozen=True, slots=True)
class Draft:
    """One sequence's drafted run.

    tokens: draft_len target token ids; a chain unless `parents` says otherwise.
    q: [draft_len][V] what each token was drawn from, or None for point masses (one-hot).
    confidence: [draft_len] the drafter's own estimate of survival up to each position, non-increasing.
    parents: for a tree, the index of each token's parent (-1: the committed context); None for a chain.
    """

    tokens: tuple[int, ...] = ()
    q: tuple[FloatArray, ...] | None = None
    confidence: tuple[float, ...] = ()
    parents: tuple[int, ...] | None = None
    drafter: str | None = None
    knowledge: Knowledge = Knowledge.PREFIX  # what `confidence` depends on

    def __post_init__(self) -> None:
        if self.q is not None and len(self.q) != len(self.tokens):
            raise ValueError("q needs a row for every drafted token")
        if self.confidence and len(self.confidence) != len(self.tokens):
            raise ValueError("confidence needs a value for every drafted token")
        if self.parents is not None:
            if len(self.parents) != len(self.tokens):
                raise ValueError("a tree needs a parent for every drafted token")
            if any(not -1 <= parent < i for i, parent in enumerate(self.parents)):
                raise ValueError(f"parents {self.parents}: each must come before its child, or be -1")

    def cut(self, verify_len: int) -> Draft:
        """The first `verify_len` tokens: the part the policy chose to submit."""
        if self.parents is not None:
            raise ValueError("a tree is pruned by its drafter, not cut")
        q = None if self.q is None else self.q[:verify_len]
        return Draft(self.tokens[:verify_len], q, self.confidence[:verify_len], None, self.drafter, self.knowledge)

    def child(self, node: int, token: int) -> int | None:
        """The drafted token behind `node` (-1: the committed context) that is `token`, by index."""
        if self.parents is None:
            following = node + 1
            return following if self.tokens[following : following + 1] == (token,) else None
        matches = (i for i, parent in enumerate(self.parents) if parent == node and self.tokens[i] == token)
        return next(matches, None)

    def chain(self) -> Draft:
        """This draft. Raises ValueError for a tree, which only a tree's verifier can judge."""
        if self.parents is not None:
            raise ValueError(f"drafter {self.drafter!r} proposed a tree; verify it with a verifier of trees")
        return self


NO_DRAFT = Draft()
NO_SCORES: FloatArray = np.zeros(0)


@dataclass(frozen=True, slots=True)
class DraftBlock:
    """The drafts of a step, one per sequence in the order asked (NO_DRAFT where there is none)."""

    drafts: tuple[Draft, ...]

    @property
    def lens(self) -> tuple[int, ...]:
        return tuple(len(draft.tokens) for draft in self.drafts)

    def scores(self) -> Scores:
        """The drafts' confidences. A point mass is decided by its context: about it they know no more than that."""
        values = tuple(
            np.asarray(draft.confidence or [1.0] * len(draft.tokens), dtype=np.float64) if draft.tokens else NO_SCORES
            for draft in self.drafts
        )
        known = [draft.knowledge for draft in self.drafts if draft.q]
        return Scores(values, max(known, default=Knowledge.PREFIX))


@dataclass(frozen=True, slots=True)
class Verdict:
    """One sequence: `accepted` draft tokens kept, then one recovered or bonus token. Before stops and caps.

    path: for a tree, the indices of the accepted tokens; None for a chain, of which a prefix is accepted.
    """

    accepted: int
    emitted: tuple[int, ...]
    path: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if len(self.emitted) != self.accepted + 1:
            raise ValueError(f"accepted {self.accepted} draft tokens but emitted {len(self.emitted)}")
