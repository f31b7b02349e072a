"""Copy what followed most often: in the sequence itself and in its organization's finished outputs.

After SuffixDecoding (Oliaro et al. 2024, 2411.04975), on suffix automata that count instead of suffix trees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from decodeloop.config import read_options
from decodeloop.speculation import NO_DRAFT, Draft, DraftBlock, DrafterSetup, DraftRequest
from decodeloop.speculation.drafters.automaton import SuffixAutomaton
from decodeloop.speculation.drafters.library import Library
from decodeloop.speculation.drafters.ngram import succession
from decodeloop.speculation.drafters.recent import RecentlyUsed
from decodeloop.speculation.lookup import Automaton, Place


@dataclass(frozen=True, slots=True)
class SuffixOptions:
    """How far a match carries, and what is remembered.

    alpha, offset: a match of m tokens carries alpha * m + offset drafted ones.
    max_match: the longest match that is looked for; min_match: the shortest that is used.
    min_score: a run ends before its product of count ratios falls below this.
    library_tokens: finished outputs kept, of all organizations; 0: none.
    """

    alpha: float = 2.0
    offset: float = 0.0
    max_match: int = 32
    min_match: int = 1
    min_score: float = 0.1
    library_tokens: int = 200_000

    def __post_init__(self) -> None:
        if not 1 <= self.min_match <= self.max_match:
            raise ValueError(
                f"needs 1 <= min_match <= max_match, not min_match {self.min_match}, max_match {self.max_match}"
            )
        if self.alpha < 0 or self.library_tokens < 0:
            raise ValueError("alpha and library_tokens cannot be negative")


@dataclass(slots=True)
class Follower:
    """One sequence: its own automaton, and its place in each automaton of the library."""

    own: Automaton
    prompt_len: int | None = None
    places: dict[int, tuple[Automaton, Place]] = field(default_factory=dict)  # by id of the automaton


class SuffixDrafter:
    """The longest match, in the sequence or in the library, whose run promises the most accepted tokens."""

    free = True

    def __init__(self, setup: DrafterSetup) -> None:
        self._options = read_options(SuffixOptions, setup.options, of="drafter suffix")
        self._max_draft_len = setup.max_draft_len
        depth = self._options.max_match + setup.max_draft_len + 1
        make = SuffixAutomaton if setup.lookups is None else setup.lookups.automaton
        self._library = Library(self._options.library_tokens, lambda: make(depth))
        self._followers = RecentlyUsed(lambda: Follower(make(depth)), 2 * setup.max_sequences)

    def propose(self, requests: Sequence[DraftRequest]) -> DraftBlock:
        return DraftBlock(tuple(self._draft(request) for request in requests))

    def _draft(self, request: DraftRequest) -> Draft:
        follower = self._followers.get(request.sequence_id)
        if follower.prompt_len is None:
            follower.prompt_len = len(request.tokens) - request.state.output_len
        candidates = [
            self._run(automaton, context, request.draft_len) for automaton, context in self._matches(follower, request)
        ]
        best = max(candidates, key=lambda draft: sum(draft.confidence))  # the sequence's own among equals
        return best if best.tokens else NO_DRAFT

    def _matches(self, follower: Follower, request: DraftRequest) -> list[tuple[Automaton, Place]]:
        """Where the sequence's end is in its own automaton and in the library's, which catch up first."""
        limit = self._options.max_match
        read = follower.own.size
        assert len(request.tokens) >= read, "a sequence only grows"
        new = request.tokens[read:]
        follower.own.read(new)
        places = {}
        for automaton in self._library.automata(request.organization):
            _, context = follower.places.get(id(automaton), (automaton, automaton.nowhere()))
            if context.size != automaton.size or len(new) >= limit:  # it may know a longer match by now
                context, new_to_it = automaton.nowhere(), request.tokens[-limit:]
            else:
                new_to_it = new
            automaton.advance(context, new_to_it, limit)
            places[id(automaton)] = automaton, context
        follower.places = places
        return [(follower.own, follower.own.own_end(limit)), *places.values()]

    def _run(self, automaton: Automaton, context: Place, draft_len: int) -> Draft:
        options, match_len = self._options, context.length
        if match_len < options.min_match:
            return NO_DRAFT
        carried = int(options.alpha * match_len + options.offset)
        tokens, scores = automaton.likeliest(context, min(draft_len, carried, self._max_draft_len), options.min_score)
        trust = succession(match_len, len(tokens))
        confidence = tuple(score * share for score, share in zip(scores, trust, strict=True))
        return Draft(tuple(tokens), confidence=confidence, drafter="suffix")

    def finish(self, sequence_id: int, tokens: Sequence[int], organization: str) -> None:
        follower = self._followers.pop(sequence_id)
        if follower is not None and follower.prompt_len is not None:
            self._library.add(organization, tokens[follower.prompt_len :])

    def memory_bytes(self) -> Mapping[str, int]:
        return {
            "index": sum(follower.own.memory_bytes() for follower in self._followers),
            "library": self._library.memory_bytes(),
        }
