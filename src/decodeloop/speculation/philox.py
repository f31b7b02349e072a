"""Philox4x32-10: 128 random bits as a pure function of a counter and a key (Salmon et al., SC 2011)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

WordArray = npt.NDArray[np.uint32]

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LOW = 0xFFFFFFFF
_CHUNK = 8192  # counters worked on at a time: eight arrays of them fit in a core's cache


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Four random 32-bit words for one counter."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        even, odd = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (odd >> 32) ^ c1 ^ k0, odd & _LOW, (even >> 32) ^ c3 ^ k1, even & _LOW
        k0, k1 = (k0 + _KEY_STEPS[0]) & _LOW, (k1 + _KEY_STEPS[1]) & _LOW
    return c0, c1, c2, c3


def philox_rows(counter: tuple[npt.ArrayLike, ...], key: tuple[npt.ArrayLike, npt.ArrayLike]) -> WordArray:
    """[..., 4] random words for many counters (four words each) and keys, which broadcast against each other."""
    given = [np.asarray(word, dtype=np.uint64) for word in (*counter, *key)]
    shape = np.broadcast_shapes(*(word.shape for word in given))
    flat = [word if word.ndim == 0 else np.broadcast_to(word, shape).reshape(-1) for word in given]
    count = int(np.prod(shape))
    words = np.empty((count, 4), dtype=np.uint32)
    for first in range(0, count, _CHUNK):
        part = slice(first, min(first + _CHUNK, count))
        _rounds([word if word.ndim == 0 else word[part] for word in flat], words[part])
    return words.reshape(*shape, 4)


def _rounds(given: list[npt.NDArray[np.uint64]], words: WordArray) -> None:
    """The ten rounds on one chunk, in place: 32-bit words are held in 64 bits, as their products need."""
    state = np.empty((4, len(words)), dtype=np.uint64)
    for i in range(4):
        state[i] = given[i]
    c0, c1, c2, c3 = state
    k0, k1 = given[4:]
    even, odd = np.empty_like(c0), np.empty_like(c0)
    low, half = np.uint64(_LOW), np.uint64(32)
    for r in range(_ROUNDS):
        np.multiply(c0, np.uint64(_MULTIPLIERS[0]), out=even)
        np.multiply(c2, np.uint64(_MULTIPLIERS[1]), out=odd)
        for product, mixed, kept, key, step in (
            (odd, c0, c1, k0, _KEY_STEPS[0]),
            (even, c2, c3, k1, _KEY_STEPS[1]),
        ):
            np.right_shift(product, half, out=mixed)
            np.bitwise_xor(mixed, kept, out=mixed)
            np.bitwise_xor(mixed, (key + np.uint64(r * step)) & low, out=mixed)
        np.bitwise_and(odd, low, out=c1)
        np.bitwise_and(even, low, out=c3)
    words[...] = state.T
