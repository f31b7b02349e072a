"""Rows are shaped by the request's own sampling state after the drafted tokens: exact laws through the real state."""

import pytest

from decodeloop.evaluation.lossless.shaped import (
    EXCLUDING,
    REQUESTS,
    FilteredAtTheEnd,
    Stale,
    shaped_distance,
    trimmed,
    unmasked,
)
from decodeloop.speculation.verifiers import verifiers
from decodeloop.testing import EXACT
from decodeloop.types import SamplingParams

ALL = verifiers.names()
SAMPLED = ["block", "rejection"]


def distance(name, params, *rows, **options):
    return shaped_distance(verifiers.load(name)(), params, *rows, **options)


@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize("name", ALL)
def test_every_parameter_acts_on_every_row(name, request_name):
    for seed in range(2):
        assert distance(name, REQUESTS[request_name], seed=seed) < EXACT


@pytest.mark.parametrize("name", ALL)
def test_penalties_from_before_the_block_are_caught(name):
    assert distance(name, SamplingParams(presence_penalty=2.0, frequency_penalty=2.0), Stale) > 0.25


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("request_name", ["top_k", "top_p", "min_p", "bias", "banned"])
def test_filters_on_the_bonus_token_alone_are_caught(name, request_name):
    assert distance(name, REQUESTS[request_name], FilteredAtTheEnd) > 0.04


@pytest.mark.parametrize("request_name", EXCLUDING)
@pytest.mark.parametrize("name", SAMPLED)
def test_trimming_excluded_tokens_is_caught_and_submitting_them_is_exact(name, request_name):
    params, illegal = REQUESTS[request_name], EXCLUDING[request_name]
    assert distance(name, params, drafting=trimmed(0, illegal)) > 0.02
    assert distance(name, params, drafting=unmasked(0)) < EXACT
    assert distance("coupled", params, drafting=trimmed(0, illegal)) < EXACT
