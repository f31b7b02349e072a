"""What was predicted of the last drafts, and what came true."""

from __future__ import annotations

from typing import Any

import numpy as np

from decodeloop.policy.acceptance import Runs
from decodeloop.policy.metrics import ECE_LABELS, auc, brier, calibration_error, log_loss
from decodeloop.types import FloatArray, IntArray

DRAFTS = 8192  # remembered, all classes together


class Scorecard:
    """A ring of predictions made before their labels were known."""

    def __init__(self, max_draft_len: int) -> None:
        shape = (DRAFTS, max_draft_len)
        self._raw, self._predicted = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        self._accepted = np.zeros(DRAFTS, np.int64)
        self._censored = np.zeros(DRAFTS, bool)
        self._slot = np.full(DRAFTS, -1)
        self._next = 0

    def add(self, slots: IntArray, raw: FloatArray, predicted: FloatArray, runs: Runs) -> None:
        """raw, predicted: [R, K] conditional acceptance by the drafter's word and after calibration."""
        place = (self._next + np.arange(len(slots))) % DRAFTS
        self._next = int(self._next + len(slots)) % DRAFTS
        self._raw[place], self._predicted[place] = raw, predicted
        self._accepted[place], self._censored[place], self._slot[place] = runs.accepted, runs.censored, slots

    def clear(self, slot: int) -> None:
        self._slot[self._slot == slot] = -1

    def drafts(self, slot: int) -> int:
        return int((self._slot == slot).sum())

    def describe(self, slot: int) -> dict[str, Any]:
        """Scores of the conditional predictions; the error of cumulative survival per position, where it shows."""
        mine = self._slot == slot
        runs = Runs(self._accepted[mine], self._censored[mine])
        seen, hit = runs.labels(self._raw.shape[1])
        y = hit[seen].astype(np.float64)
        raw, predicted = self._raw[mine][seen].astype(np.float64), self._predicted[mine][seen].astype(np.float64)
        if not len(y):
            return {"labels": 0}
        return {
            "labels": len(y),
            "log_loss": _rounded(log_loss(predicted, y)),
            "log_loss_uncalibrated": _rounded(log_loss(raw, y)),
            "brier": _rounded(brier(predicted, y)),
            "auc": _rounded(auc(predicted, y)),
            "survival_error": self._survival_errors(np.cumprod(self._predicted[mine], axis=1), runs),
        }

    def _survival_errors(self, survival: FloatArray, runs: Runs) -> list[dict[str, float]]:
        """Per position with enough labels. A draft rejected earlier is a label too: it did not survive."""
        errors = []
        for position in range(survival.shape[1]):
            known = (runs.accepted > position) | ~runs.censored
            if known.sum() < ECE_LABELS:
                break
            survived = (runs.accepted > position)[known].astype(np.float64)
            found = calibration_error(survival[known, position].astype(np.float64), survived)
            errors.append({"error": _rounded(found.error), "low": _rounded(found.low), "high": _rounded(found.high)})
        return errors


def _rounded(value: float) -> float:
    return round(value, 5)
