"""Sampling states over a vocabulary of twelve tokens."""

import numpy as np

from decodeloop.speculation.sampling import SamplingState
from decodeloop.types import SamplingParams

V = 12
EOS, STOP = 11, 10
ROW = np.array([3.0, 2.5, 2.0, 2.0, 1.0, 0.5, 0.0, -0.5, -1.0, -2.0, 1.5, 2.2], dtype=np.float32)


def state(prompt=(), matcher=None, **params):
    return SamplingState(SamplingParams(**params), prompt, vocab_size=V, eos_ids=frozenset({EOS}), matcher=matcher)


def advanced(tokens, prompt=(), **params):
    made = state(prompt, **params)
    for token in tokens:
        made.advance(token)
    return made


def softmax(logits, temperature=1.0):
    weights = np.exp((np.asarray(logits, dtype=np.float64) - np.max(logits)) / temperature)
    return weights / weights.sum()


def kept(distribution):
    return set(np.flatnonzero(distribution.probs).tolist())


class Alternating:
    """A grammar: even, odd, even, ... tokens below EOS; EOS may come after two."""

    def __init__(self, said=()):
        self.said = list(said)

    def allowed(self):
        mask = np.arange(V) % 2 == len(self.said) % 2
        mask[EOS] = len(self.said) >= 2
        return mask & (EOS not in self.said)

    def accept(self, token):
        if not 0 <= token < V or not self.allowed()[token]:
            return False
        self.said.append(token)
        return True

    def rollback(self, count):
        assert 0 < count <= len(self.said)
        del self.said[-count:]

    def fork(self):
        return Alternating(self.said)
