"""The default model on the native runner: bits that don't depend on the batch, and numbers near the reference's."""

import numpy as np
import pytest
from scipy.special import log_softmax

from decodeloop.engine.models.sources import open_checkpoint
from decodeloop.engine.runners import RunnerOptions, runners
from decodeloop.testing import Run, pack

pytestmark = pytest.mark.model

TEXTS = (
    "The capital of France is Paris, and the capital of Germany is Berlin. The capital of Italy is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(n - 1) + fibonacci(n - 2)\n",
    "Once upon a time there was a small robot that lived at the edge of the sea and collected shells.",
)
# Mean divergence from the reference in nats, and how often the likeliest token must be the same.
BOUNDS = {"bf16": (2e-4, 0.98), "auto": (4e-3, 0.95)}


@pytest.fixture(scope="module")
def checkpoint(default_model_path):
    return open_checkpoint(default_model_path)


@pytest.fixture(scope="module", params=["auto", "bf16"])
def native(request, checkpoint):
    runner = runners.load("native")(checkpoint, RunnerOptions(dtype=request.param, threads=2))
    runner.allocate_kv(64)
    return request.param, runner


@pytest.fixture(scope="module")
def reference(checkpoint):
    """[T, V] log-probabilities of each text, computed by torch in float32 of the same weights."""
    runner = runners.load("torch")(checkpoint, RunnerOptions(dtype="float32", threads=2))
    runner.allocate_kv(8)
    return [
        log_softmax(runner.forward(pack([Run(checkpoint.tokenizer.encode(text), 0, range(8))])).logits, axis=-1)
        for text in TEXTS
    ]


def test_it_says_what_the_reference_says(native, checkpoint, reference):
    dtype, runner = native
    divergences, agreements = [], []
    for text, expected in zip(TEXTS, reference, strict=True):
        got = runner.forward(pack([Run(checkpoint.tokenizer.encode(text), 0, range(8))])).logits
        got = log_softmax(got, axis=-1)
        divergences.append((np.exp(expected) * (expected - got)).sum(-1))
        agreements.append(got.argmax(-1) == expected.argmax(-1))
    most, least = BOUNDS[dtype]
    assert np.concatenate(divergences).mean() < most
    assert np.concatenate(agreements).mean() >= least


def test_the_bits_of_a_text_alone_token_by_token(native, checkpoint):
    """Prefill at once, in pieces beside other texts, and a decode step among drafts give the same logits."""
    runner = native[1]
    tokens = (checkpoint.tokenizer.encode(" ".join(TEXTS)) * 5)[:275]  # beyond a chunk of attention
    other = checkpoint.tokenizer.encode(TEXTS[2])
    table, away = list(range(18)), list(range(40, 60))
    alone = [runner.forward(pack([Run([token], at, table)])).logits[0].copy() for at, token in enumerate(tokens)]
    whole = runner.forward(pack([Run(tokens, 0, away)])).logits
    assert np.array_equal(whole, alone)
    for start, end in ((0, 7), (7, 100), (100, 101), (101, 109), (109, 275)):
        mixed = [Run(other[: 3 + start % 5], 0, range(30, 36)), Run(tokens[start:end], start, away)]
        assert np.array_equal(runner.forward(pack(mixed)).logits[-(end - start) :], alone[start:end])
