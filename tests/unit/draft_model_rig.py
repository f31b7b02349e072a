"""A model drafter over a toy that remembers what it was asked, and requests for it."""

from dataclasses import replace

import numpy as np

from decodeloop.engine.runners import RunnerOptions
from decodeloop.engine.runners.toy import ToyRunner
from decodeloop.speculation import DraftRequest
from decodeloop.speculation.drafters.draft_model import ModelDrafter
from decodeloop.speculation.forward import Batch
from decodeloop.speculation.sampling import RequestChance, SamplingState
from decodeloop.testing import drafter_setup
from decodeloop.types import SamplingParams

V = 16
BLOCK_MB = 4 * 16 / (1 << 20)  # of the toy's KV, in blocks of 4 tokens


class Watched:
    """A toy runner that remembers the batches it was given."""

    def __init__(self, **options):
        self.toy = ToyRunner(None, RunnerOptions(block_tokens=4, options={"vocab_size": V, **options}))
        self.batches = []
        self.info = self.toy.info

    def allocate_kv(self, blocks):
        self.blocks = blocks
        self.toy.allocate_kv(blocks)

    def forward(self, batch):
        self.batches.append(batch)
        return self.toy.forward(batch)


def build(runner=None, *, max_sequences=4, kv_memory_mb=512.0, **options):
    runner = runner or Watched()
    setup = replace(
        drafter_setup(V, {"model": "toy", **options}),
        open_runner=lambda spec: runner,
        max_sequences=max_sequences,
        kv_memory_mb=kv_memory_mb,
    )
    return ModelDrafter(setup)


def request(
    sequence_id, tokens, draft_len=4, *, prompt_len=1, shares_noise=True, eos=(), seed=7, matcher=None, **params
):
    params = SamplingParams(**{"temperature": 1.0, **params})
    state = SamplingState(params, tokens[:prompt_len], vocab_size=V, eos_ids=frozenset(eos), matcher=matcher)
    for token in tokens[prompt_len:]:
        state.advance(token)
    chance = RequestChance.of(seed, tokens[:prompt_len], 0)
    return DraftRequest(sequence_id, tokens, draft_len, state, chance, "acme", shares_noise)


def plain(tokens, count, seed=7, prompt_len=1, **params):
    """The text that the toy itself goes on with: a token a forward, without any cache to get wrong."""
    params = SamplingParams(**{"temperature": 1.0, **params})
    chance, text = RequestChance.of(seed, tokens[:prompt_len], 0), list(tokens)
    for _ in range(count):
        state = SamplingState(params, text[:prompt_len], vocab_size=V, eos_ids=frozenset())
        for token in text[prompt_len:]:
            state.advance(token)
        text.append(chance.coupled(state.distribution(logits_after(text)), len(text)))
    return tuple(text[len(tokens) :])


def logits_after(text):
    runner, length = Watched().toy, len(text)
    runner.allocate_kv(-(-length // 4))
    return runner.forward(
        Batch(
            tokens=np.array(text, dtype=np.int32),
            positions=np.arange(length, dtype=np.int32),
            slots=np.zeros(length, dtype=np.int32),
            block_tables=np.arange(-(-length // 4), dtype=np.int32)[None],
            logit_rows=np.array([length - 1], dtype=np.int32),
        )
    ).logits[0]
