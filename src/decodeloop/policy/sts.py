"""Sequential temperature scaling (DSpark, arXiv 2607.05147): the offline calibration that the online one must beat."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decodeloop.policy.acceptance import Runs
from decodeloop.policy.metrics import log_loss
from decodeloop.types import FloatArray

TEMPERATURES = np.geomspace(0.1, 10.0, 121)
CLIP = 1e-4


@dataclass(frozen=True, slots=True)
class SequentialTemperatures:
    """temperatures: [K], one for the conditional confidence of each position."""

    temperatures: FloatArray

    def predict(self, conditional: FloatArray) -> FloatArray:
        """[n, K] conditional confidence -> [n, K] calibrated."""
        return _scaled(conditional, self.temperatures)


def fit_sequentially(conditional: FloatArray, runs: Runs) -> SequentialTemperatures:
    """Position by position, the temperature under which *cumulative* survival, earlier ones fixed, is likeliest.

    conditional: [R, K] the drafter's conditional confidence. Drafts that were cut short before a position (censored)
    say nothing about it.
    """
    length = conditional.shape[1]
    temperatures = np.ones(length)
    survival = np.ones(len(conditional))
    for k in range(length):
        known = (runs.accepted > k) | ~runs.censored
        if not known.any():
            break
        survived = (runs.accepted > k)[known].astype(np.float64)
        losses = [
            log_loss(survival[known] * _scaled(conditional[known, k], np.float64(temperature)), survived)
            for temperature in TEMPERATURES
        ]
        temperatures[k] = TEMPERATURES[int(np.argmin(losses))]
        survival = survival * _scaled(conditional[:, k], temperatures[k])
    return SequentialTemperatures(temperatures)


def _scaled(conditional: FloatArray, temperature: FloatArray | np.float64) -> FloatArray:
    c = np.clip(conditional, CLIP, 1.0 - CLIP)
    scaled: FloatArray = 1.0 / (1.0 + np.exp(-np.log(c / (1.0 - c)) / temperature))
    return scaled
