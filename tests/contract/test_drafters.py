from dataclasses import replace

import numpy as np
import pytest

from decodeloop.speculation import DraftBlock
from decodeloop.speculation.drafters import drafters
from decodeloop.speculation.drafters.ngram import NgramDrafter
from decodeloop.speculation.drafters.scripted import OracleDrafter, WrongDrafter
from decodeloop.testing import check_drafter, drafter_setup

V = 16


@pytest.mark.parametrize("name", drafters.names())
def test_drafter_keeps_the_contract(name):
    check_drafter(lambda: drafters.load(name)(drafter_setup(V)), V)


@pytest.mark.parametrize("factory", [lambda: OracleDrafter([[1, 2, 3]]), lambda: WrongDrafter([[1, 2, 3]], V)])
def test_test_drafter_keeps_the_contract(factory):
    check_drafter(factory, V)


class Faulty:
    """A good drafter whose drafts are spoilt."""

    free = True

    def __init__(self, spoil):
        self._drafter, self._spoil = NgramDrafter(drafter_setup(V)), spoil

    def propose(self, requests):
        drafts = self._drafter.propose(requests).drafts
        return DraftBlock(tuple(self._spoil(draft, request) for draft, request in zip(drafts, requests, strict=True)))

    def finish(self, sequence_id, tokens, organization):
        self._drafter.finish(sequence_id, tokens, organization)

    def memory_bytes(self):
        return self._drafter.memory_bytes()


def too_long(draft, request):
    return replace(draft, tokens=(*draft.tokens, 0), confidence=())


def out_of_range(draft, request):
    return replace(draft, tokens=tuple(token + V for token in draft.tokens))


def surer_and_surer(draft, request):
    return replace(draft, confidence=draft.confidence[::-1])


def too_sure(draft, request):
    return replace(draft, confidence=tuple(2.0 for _ in draft.tokens))


def unnormalised(draft, request):
    return replace(draft, q=tuple(np.ones(V) for _ in draft.tokens))


def not_drawn(draft, request):
    return replace(draft, q=tuple(np.eye(V)[(token + 1) % V] for token in draft.tokens))


def narrow(draft, request):
    return replace(draft, q=tuple(np.ones(2) / 2 for _ in draft.tokens))


def changes_tokens(draft, request):
    request.tokens.append(0)
    return draft


def advances_state(draft, request):
    request.state.advance(0)
    return draft


def counts_calls():
    calls = iter(range(1, 10**9))
    return lambda draft, request: replace(draft, confidence=tuple(1 / next(calls) for _ in draft.tokens))


@pytest.mark.parametrize(
    "spoil",
    [
        too_long,
        out_of_range,
        surer_and_surer,
        too_sure,
        unnormalised,
        not_drawn,
        narrow,
        changes_tokens,
        advances_state,
        counts_calls(),
    ],
)
def test_the_check_finds_a_spoilt_draft(spoil):
    with pytest.raises(AssertionError):
        check_drafter(lambda: Faulty(spoil), V)


class Leaky(NgramDrafter):
    def finish(self, sequence_id, tokens, organization):
        pass


class Stale(NgramDrafter):
    """Says again what it said first."""

    def propose(self, requests):
        said = self.__dict__.setdefault("said", {})
        block = super().propose(requests)
        return DraftBlock(
            tuple(
                draft if not request.draft_len else replace(said.setdefault(request.sequence_id, draft))
                for draft, request in zip(block.drafts, requests, strict=True)
            )
        )


@pytest.mark.parametrize("faulty", [Leaky, Stale])
def test_the_check_finds_a_faulty_memory(faulty):
    with pytest.raises(AssertionError):
        check_drafter(lambda: faulty(drafter_setup(V)), V)
