"""Not only the same as plain: right. Outputs that can be told beforehand, under every drafter. (Cases 1, 7 to 10.)"""

import numpy as np
import pytest

from decodeloop.speculation import DrafterSetup
from decodeloop.speculation.drafters.ngram import NgramDrafter
from decodeloop.speculation.drafters.scripted import OracleDrafter, ScriptedDrafter, WrongDrafter
from rig import EOS, VOCAB, Rig

PROMPT = (9, 10, 11, 9, 10)
ALL_EQUAL = {"equal_rows": (tuple(range(VOCAB)),)}  # after anything, every token is as likely as any other


def drafters(output):
    text = (*PROMPT, *output)
    return [
        {},
        {"oracle": OracleDrafter([text])},
        {"wrong": WrongDrafter([text], VOCAB)},
        {"ngram": NgramDrafter(DrafterSetup(VOCAB, 4096, 8, 12, options={"min_n": 1}))},
        {"scripted": ScriptedDrafter([[*output[i : i + 2], EOS, 63] for i in range(len(output))])},
    ]


def answered(output, *, toy, verifier="coupled", **params):
    for each in drafters(output):
        for depth in (1, 5) if each else (0,):
            rig = Rig(each, policy="fixed", draft_len=depth, toy=toy, verifier=verifier)
            yield rig.generate(PROMPT, max_tokens=len(output), **params).token_ids


@pytest.mark.parametrize("verifier", ["coupled", "rejection", "block"])
@pytest.mark.parametrize(
    ("asked", "output"),
    [
        ({}, [0] * 6),
        ({"banned_token_ids": (0, 1)}, [2] * 6),
        ({"allowed_token_ids": (40, 7)}, [7] * 6),
        ({"logit_bias": ((20, 1.5), (8, 1.5))}, [8] * 6),
        ({"presence_penalty": 1.0}, [0, 1, 2, 3, 4, 5]),
        ({"frequency_penalty": 0.5, "banned_token_ids": tuple(range(2, VOCAB))}, [0, 1, 0, 1, 0, 1]),
        ({"top_k": 3, "temperature": 1e-4}, [0] * 6),
        ({"top_p": 1e-9, "temperature": 1.0}, [0] * 6),
        ({"top_k": 1, "temperature": 2.0}, [0] * 6),
        ({"logit_hook": lambda tokens, row: np.where(np.arange(VOCAB) < 30, -np.inf, row)}, [30] * 6),
    ],
)
def test_equals_go_to_the_lowest_id_whatever_else_is_asked(verifier, asked, output):
    for got in answered(output, toy=ALL_EQUAL, verifier=verifier, ignore_eos=True, **asked):
        assert got == output


def successor(tokens, row):
    """A user's hook that leaves one token: a known function of the whole text so far."""
    only = np.full(VOCAB, -np.inf)
    only[(sum(tokens) * 7 + len(tokens)) % 60 + 1] = 0.0
    return only


@pytest.mark.parametrize("verifier", ["coupled", "rejection", "block"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_hook_decides_every_token(verifier, temperature):
    text = list(PROMPT)
    for _ in range(20):
        text.append(int(successor(text, None).argmax()))
    output = text[len(PROMPT) :]
    for got in answered(output, toy={}, verifier=verifier, temperature=temperature, logit_hook=successor):
        assert got == output


@pytest.mark.parametrize("least", range(7))
def test_an_end_comes_with_exactly_the_first_token_that_may_be_one(least):
    """EOS has the lowest id, so among equals it is said as soon as it may be."""
    output = [1] * least + [EOS]
    for got in answered([*output, *[EOS] * 4], toy=ALL_EQUAL, min_tokens=least):
        assert got == output
