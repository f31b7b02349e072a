"""Philox4x32-10: 128 random bits as a pure function of a counter and a key (Salmon et al., SC 2011)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

WordArray = npt.NDArray[np.uint64]  # 32-bit words, held in 64 bits

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LOW = 0xFFFFFFFF


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Four random 32-bit words for one counter."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        even, odd = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (odd >> 32) ^ c1 ^ k0, odd & _LOW, (even >> 32) ^ c3 ^ k1, even & _LOW
        k0, k1 = (k0 + _KEY_STEPS[0]) & _LOW, (k1 + _KEY_STEPS[1]) & _LOW
    return c0, c1, c2, c3


def philox_rows(
    counter: tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike, npt.ArrayLike], key: tuple[npt.ArrayLike, npt.ArrayLike]
) -> WordArray:
    """[..., 4] random 32-bit words for each of many counters and keys, which broadcast against each other."""
    words = np.broadcast_arrays(*(np.asarray(word, dtype=np.uint64) for word in (*counter, *key)))
    c0, c1, c2, c3, k0, k1 = words
    low, half = np.uint64(_LOW), np.uint64(32)
    for r in range(_ROUNDS):
        even, odd = c0 * np.uint64(_MULTIPLIERS[0]), c2 * np.uint64(_MULTIPLIERS[1])
        c0 = (odd >> half) ^ c1 ^ ((k0 + np.uint64(r * _KEY_STEPS[0])) & low)
        c2 = (even >> half) ^ c3 ^ ((k1 + np.uint64(r * _KEY_STEPS[1])) & low)
        c1, c3 = odd & low, even & low
    return np.stack((c0, c1, c2, c3), axis=-1)
