"""The compiled form of what free drafters look texts up in."""

from __future__ import annotations

from decodeloop.engine import kernels
from decodeloop.speculation.drafters.ngram import SuffixIndex
from decodeloop.speculation.lookup import Lookups, Ngrams

KEY_BITS = 128  # of a compiled n-gram


def compiled_lookups() -> Lookups | None:
    """None in an installation without it: drafters do as well without, more slowly."""
    try:
        native = kernels.load()
        compiled, automaton = native.Ngrams, native.SuffixAutomaton
    except (ImportError, AttributeError):
        return None

    def ngrams(max_n: int, min_n: int, token_bits: int) -> Ngrams:
        make = compiled if max_n * token_bits <= KEY_BITS else SuffixIndex
        found: Ngrams = make(max_n, min_n, token_bits)
        return found

    return Lookups(ngrams, automaton)
