"""Drafters that know the future, or are told what to say: for tests and for bounds on what drafting can earn.

Not in the registry: nobody serves with them. Build them with what they should say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from decodeloop.speculation import NO_DRAFT, Draft, DraftBlock, DraftRequest


class OracleDrafter:
    """Replays recorded texts (prompt and plain output): everything it proposes is accepted.

    A sequence follows the first recorded text that begins with its tokens; without one there is no draft.
    """

    free = True

    def __init__(self, texts: Iterable[Sequence[int]]) -> None:
        self._texts = [tuple(text) for text in texts]
        self._followed: dict[int, tuple[int, ...]] = {}

    def propose(self, requests: Sequence[DraftRequest]) -> DraftBlock:
        return DraftBlock(tuple(one_hot(self._future(request), "oracle") for request in requests))

    def _future(self, request: DraftRequest) -> tuple[int, ...]:
        tokens, known = tuple(request.tokens), self._followed.get(request.sequence_id, ())
        if not known or known[: len(tokens)] != tokens:
            known = next((text for text in self._texts if text[: len(tokens)] == tokens), ())
            self._followed[request.sequence_id] = known
        return known[len(tokens) : len(tokens) + request.draft_len]

    def finish(self, sequence_id: int, tokens: Sequence[int], organization: str) -> None:
        self._followed.pop(sequence_id, None)

    def memory_bytes(self) -> Mapping[str, int]:
        return {}


class WrongDrafter:
    """Misses every time: each token is the oracle's plus `offset`, modulo the vocabulary."""

    free = True

    def __init__(self, texts: Iterable[Sequence[int]], vocab_size: int, offset: int = 1) -> None:
        if offset % vocab_size == 0:
            raise ValueError(f"offset {offset} in a vocabulary of {vocab_size} gives the right token")
        self._oracle, self._vocab_size, self._offset = OracleDrafter(texts), vocab_size, offset

    def propose(self, requests: Sequence[DraftRequest]) -> DraftBlock:
        right = self._oracle.propose(requests).drafts
        return DraftBlock(
            tuple(
                one_hot([(token + self._offset) % self._vocab_size for token in draft.tokens], "wrong")
                for draft in right
            )
        )

    def finish(self, sequence_id: int, tokens: Sequence[int], organization: str) -> None:
        self._oracle.finish(sequence_id, tokens, organization)

    def memory_bytes(self) -> Mapping[str, int]:
        return {}


class ScriptedDrafter:
    """Says the n-th run of its script when a sequence asks for the n-th time; after the script's end, nothing.

    A run is cut to the length asked for; its ids are not checked, so that it can say what no vocabulary holds.
    """

    free = True

    def __init__(self, script: Sequence[Sequence[int]]) -> None:
        self._script = [tuple(run) for run in script]
        self._calls: dict[int, int] = {}

    def propose(self, requests: Sequence[DraftRequest]) -> DraftBlock:
        return DraftBlock(tuple(self._next(request) for request in requests))

    def _next(self, request: DraftRequest) -> Draft:
        call = self._calls.get(request.sequence_id, 0)
        self._calls[request.sequence_id] = call + 1
        run = self._script[call] if call < len(self._script) else ()
        return one_hot(run[: request.draft_len], "scripted")

    def finish(self, sequence_id: int, tokens: Sequence[int], organization: str) -> None:
        self._calls.pop(sequence_id, None)

    def memory_bytes(self) -> Mapping[str, int]:
        return {}


def one_hot(tokens: Sequence[int], drafter: str) -> Draft:
    """A draft of point masses, sure of itself."""
    return Draft(tuple(tokens), confidence=(1.0,) * len(tokens), drafter=drafter) if tokens else NO_DRAFT
