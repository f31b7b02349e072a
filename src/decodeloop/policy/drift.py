"""Has a class changed? An e-detector against a frozen reference, with a stated average run length.

Null hypothesis: |E[y_t | past] - h_t| <= TOLERANCE for the frozen prediction h_t of each label y_t. For each side and
each stake, the bet 1 +- stake (y_t - h_t -+ TOLERANCE) has mean <= 1 under it. Restarting a bettor at every label and
adding them up, M <- (M + 1) bet (Shiryaev-Roberts), gives an e-detector: E[M] at any stopping time is at most the
labels seen, so the expected number of labels before M reaches a threshold is at least that threshold (Shin, Ramdas and
Rinaldo, arXiv 2203.03532). Averages over stakes, sides and streams keep that.

Testing an *adapting* predictor for perfect calibration would alarm in every long run; a frozen one with a tolerance
does not.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np

from decodeloop.policy.acceptance import Runs
from decodeloop.policy.calibration import Calibration, Calibrator
from decodeloop.policy.slots import Leaves
from decodeloop.types import FloatArray, IntArray

TOLERANCE = 0.03
STAKES = np.array([0.05, 0.1, 0.2, 0.35, 0.5])
RUN_LENGTH = 1e6  # labels between false alarms, at least, on average: 1 / delta
WARM_UP = 2000  # labels of a position before its prediction is worth freezing
MOST = 1e200


class EDetector:
    """Watches any number of streams of labels; `run_length` is its average run length under the null."""

    def __init__(self, run_length: float = RUN_LENGTH, tolerance: float = TOLERANCE) -> None:
        self.run_length, self.tolerance = run_length, tolerance
        self._streams: dict[Hashable, FloatArray] = {}  # [2 sides, stakes]

    def update(self, stream: Hashable, y: FloatArray, h: FloatArray) -> None:
        """y: [m] labels in their order, 0 or 1. h: [m] the frozen predictions of them."""
        surplus = np.stack([y - h - self.tolerance, h - y - self.tolerance], axis=1)
        bets = 1.0 + surplus[:, :, None] * STAKES
        suffixes = np.cumprod(bets[::-1], axis=0)  # of the last 1, 2, .. labels
        before = self._streams.get(stream, np.zeros(bets.shape[1:]))
        self._streams[stream] = np.minimum(before * suffixes[-1] + suffixes.sum(axis=0), MOST)

    def evidence(self, stream: Hashable) -> float:
        state = self._streams.get(stream)
        return 0.0 if state is None else float(state.mean())

    @property
    def value(self) -> float:
        """The e-detector over all streams."""
        return float(np.mean([state.mean() for state in self._streams.values()])) if self._streams else 0.0

    def alarms(self) -> list[Hashable]:
        """When the alarm is raised: the streams behind it, and those that are on their way."""
        if self.value < self.run_length:
            return []
        return [stream for stream in self._streams if self.evidence(stream) >= math.sqrt(self.run_length)]

    def reset(self, stream: Hashable) -> None:
        if stream in self._streams:
            self._streams[stream] = np.zeros_like(self._streams[stream])


class DriftMonitor:
    """Freezes what the calibrator believes of a class once it knows it, and watches whether that stays true."""

    def __init__(self, calibrator: Calibrator, leaves: Leaves, run_length: float = RUN_LENGTH) -> None:
        self._calibrator = calibrator
        self._detector = EDetector(run_length)
        self._labels: dict[int, IntArray] = {}  # slot -> [K] labels seen since it was last found changed
        self._frozen: dict[int, tuple[Calibration, int]] = {}  # slot -> reference, positions it holds for
        self.alarms = 0
        leaves.tell(lambda row: self.drop([row]), lambda _: None)

    def observe(self, slots: IntArray, features: FloatArray, runs: Runs) -> list[int]:
        """Take drafts that the calibrator has not learned from yet; returns the slots found changed."""
        seen, hit = runs.labels(self._calibrator.max_draft_len)
        for slot in np.unique(slots):
            mine = slots == slot
            self._observe(int(slot), features[mine], seen[mine], hit[mine])
        changed = [int(slot) for slot in self._detector.alarms() if isinstance(slot, int)]
        self.alarms += bool(changed)
        self.drop(changed)
        return changed

    def drop(self, slots: Iterable[int]) -> None:
        """Start again with these: they have changed, or changed hands."""
        for slot in slots:
            self._detector.reset(slot)
            self._frozen.pop(slot, None)
            self._labels.pop(slot, None)

    def describe(self) -> dict[str, Any]:
        return {
            "evidence": round(min(self._detector.value, 1e12), 3),
            "alarm_at": self._detector.run_length,
            "tolerance": self._detector.tolerance,
            "watched": len(self._frozen),
            "alarms": self.alarms,
        }

    def _observe(self, slot: int, features: FloatArray, seen: FloatArray, hit: FloatArray) -> None:
        if slot in self._frozen:
            reference, depth = self._frozen[slot]
            judged = seen.astype(bool)
            judged[:, depth:] = False
            if judged.any():
                y = hit[judged].astype(np.float64)
                self._detector.update(slot, y, reference.predict(features)[judged])
            return
        labels = self._labels.get(slot, np.zeros(seen.shape[1], dtype=np.int64)) + seen.sum(axis=0)
        self._labels[slot] = labels
        depth = int((labels >= WARM_UP).sum())
        if depth and labels[:1].sum() >= 2 * WARM_UP:
            self._frozen[slot] = self._calibrator.frozen(slot), depth
