"""Prompts, mixes and arrivals."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from decodeloop.evaluation.workload import (
    Arrival,
    mixed,
    poisson,
    read_azure,
    read_mooncake,
    read_prompts,
    repeated,
    request_class,
    scaled,
)
from decodeloop.types import RequestClass

EDIT, CHAT = RequestClass.CODE_EDIT, RequestClass.GENERAL_CHAT
PROMPTS = Path(__file__).parents[2] / "benchmarks" / "data" / "prompts.jsonl"


def test_the_shipped_prompts_can_be_read():
    prompts = read_prompts(PROMPTS.read_text().splitlines())
    assert Counter(prompt.request_class for prompt in prompts)[EDIT] >= 20
    assert len({prompt.id for prompt in prompts}) == len(prompts)


def test_a_bad_line_is_named():
    with pytest.raises(ValueError, match="line 2"):
        read_prompts(['{"id": "a", "class": "chat", "prompt": "x"}', '{"id": "b", "class": "nonsense", "prompt": "x"}'])
    with pytest.raises(ValueError, match="choose from"):
        request_class("nonsense")
    assert request_class("edit") is EDIT


def test_a_mix_has_its_shares_and_depends_on_its_seed():
    prompts = read_prompts(PROMPTS.read_text().splitlines())
    shares = {EDIT: 0.25, CHAT: 0.75}
    chosen = mixed(prompts, shares, 41, seed=3)
    assert Counter(prompt.request_class for prompt in chosen) == {EDIT: 10, CHAT: 31}
    assert chosen == mixed(prompts, shares, 41, seed=3)
    assert chosen != mixed(prompts, shares, 41, seed=4)
    assert len(set(chosen)) == 41
    with pytest.raises(ValueError, match="no prompts of class"):
        mixed(prompts[:1], shares, 5, seed=0)


def test_poisson_arrivals_have_their_rate():
    times = poisson(20.0, 500.0, seed=1)
    assert len(times) == pytest.approx(10_000, rel=0.03)
    gaps = np.diff(times)
    assert np.std(gaps) == pytest.approx(np.mean(gaps), rel=0.05)
    assert times[-1] < 500.0


def test_traces_of_others():
    azure = read_azure(
        [
            "TIMESTAMP,ContextTokens,GeneratedTokens",
            "2023-11-16 18:17:03.9799600,4808,10",
            "2023-11-16 18:17:04.0319600,3180,8",
        ]
    )
    assert azure[0] == Arrival(0.0, 4808, 10)
    assert azure[1].at_s == pytest.approx(0.052, abs=1e-6)
    mooncake = read_mooncake(
        ['{"timestamp": 3000, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}', ""]
    )
    assert mooncake == [Arrival(0.0, 6758, 500)]
    assert scaled(azure, 2.0)[1].at_s == pytest.approx(0.026, abs=1e-6)


def test_loops_are_seen():
    assert not repeated(list(range(50)))
    assert repeated([*range(30), *range(10, 22)])
    assert not repeated([*range(30), *range(10, 21)])
    assert not repeated([])
