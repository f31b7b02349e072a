"""Turn a drafter's confidence into the probability that the target agrees, online.

For each (tenant, class, drafter, position) the conditional acceptance P(k accepted | all before it were) is a beta
calibration (Kull et al. 2017) of the drafter's conditional confidence c:

    logit P = w0 + w1 log c - w2 log(1 - c) + w3 own

where `own` says how this request has fared against its class. Weights are a part that the tenant's classes share and a
deviation per leaf, both learned by damped, clipped second-order steps (undamped Newton steps chase noise). What the
curve leaves over is corrected by running means in bins of its own output ("calibeating", Foster and Hart,
arXiv 2305.00070).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from decodeloop.policy.acceptance import Runs
from decodeloop.policy.allocate import IntArray
from decodeloop.policy.scorecard import Scorecard
from decodeloop.policy.slots import Slots
from decodeloop.types import FloatArray, RequestClass

FEATURES = 4  # 1, log c, -log(1 - c), own
LEAST = 0.01  # confidence is clipped to LEAST .. 1 - LEAST
START = (0.0, 0.8, 0.8, 0.5, -0.1)  # the features' shared weights, and that of log(1 + position)
DAMPING = 0.5
CLIP = 0.5  # of a weight, in one step
LEAF_RIDGE, SHARED_RIDGE = 4.0, 1.0
LEAF_HALF_LIFE, SHARED_HALF_LIFE = 1024.0, 8192.0  # labels
BINS = 10
BIN_WEIGHT, BIN_HALF_LIFE = 32.0, 512.0  # labels
CAPACITY = 512


@dataclass(frozen=True, slots=True)
class Calibration:
    """The calibrator's parameters for some rows, as they were: a reference that no longer learns.

    weights: [n, K, FEATURES]. bin_labels, bin_hits: [n, K, BINS].
    """

    weights: FloatArray
    bin_labels: FloatArray
    bin_hits: FloatArray

    def curve(self, features: FloatArray) -> FloatArray:
        """[n, K, FEATURES] -> [n, K], before the bins."""
        logits = (self.weights * features).sum(axis=-1)
        probabilities: FloatArray = 1.0 / (1.0 + np.exp(-np.clip(logits, -20.0, 20.0)))
        return probabilities

    def binned(self, curve: FloatArray) -> FloatArray:
        """[n, K] -> [n, K], after the bins."""
        place = bin_of(curve)[..., None]
        labels = np.take_along_axis(self.bin_labels, place, axis=-1)[..., 0]
        hits = np.take_along_axis(self.bin_hits, place, axis=-1)[..., 0]
        corrected: FloatArray = (hits + BIN_WEIGHT * curve) / (labels + BIN_WEIGHT)
        return corrected

    def predict(self, features: FloatArray) -> FloatArray:
        return self.binned(self.curve(features))


class Calibrator:
    """Learns and predicts conditional acceptance from confidence. No tenant's labels reach another's predictions."""

    def __init__(self, max_draft_len: int) -> None:
        self.max_draft_len = max_draft_len
        leaves = (CAPACITY, max_draft_len)
        self._weights = np.zeros((*leaves, FEATURES))
        self._curvature = np.zeros((*leaves, FEATURES, FEATURES))
        self._shared = np.tile(START, (CAPACITY, 1))
        self._shared_curvature = np.zeros((CAPACITY, FEATURES + 1, FEATURES + 1))
        self._bin_labels, self._bin_hits = np.zeros((*leaves, BINS)), np.zeros((*leaves, BINS))
        self._depth = np.log1p(np.arange(max_draft_len))
        self._tenant_of = np.zeros(CAPACITY, dtype=np.int64)
        self._leaves = Slots(CAPACITY, self._clear_leaf)
        self._tenants = Slots(CAPACITY, self._clear_tenant)
        self.scorecard = Scorecard(max_draft_len)

    def slot(self, tenant: str, request_class: RequestClass, drafter: str) -> int:
        row = self._leaves.row((tenant, request_class, drafter))
        self._tenant_of[row] = self._tenants.row((tenant, drafter))
        return row

    def at(self, slots: IntArray) -> Calibration:
        """What is believed now of each of `slots`."""
        shared = self._shared[self._tenant_of[slots]]
        weights = self._weights[slots] + shared[:, None, :FEATURES]
        weights[:, :, 0] += shared[:, FEATURES:] * self._depth
        return Calibration(weights, self._bin_labels[slots], self._bin_hits[slots])

    def learn(self, slots: IntArray, features: FloatArray, runs: Runs) -> FloatArray:
        """Learn from drafts and return what had been predicted: [R, K] conditional acceptance.

        slots: [R]. features: [R, K, FEATURES] (see `featurise`).
        """
        now = self.at(slots)
        curve = now.curve(features)
        predicted = now.binned(curve)
        self.scorecard.add(slots, confidence_of(features), predicted, runs)
        seen, hit = runs.labels(self.max_draft_len)
        row, position = np.nonzero(seen)
        if not len(row):
            return predicted
        x, p, y = features[row, position], curve[row, position], hit[row, position].astype(np.float64)
        leaf = slots[row] * self.max_draft_len + position
        flat = self._weights.reshape(-1, FEATURES), self._curvature.reshape(-1, FEATURES, FEATURES)
        _newton(*flat, leaf, _Labels(x, p, y), ridge=LEAF_RIDGE, half_life=LEAF_HALF_LIFE)
        deeper = np.column_stack([x, self._depth[position]])
        tenants = self._tenant_of[slots[row]]
        labels = _Labels(deeper, p, y)
        _newton(self._shared, self._shared_curvature, tenants, labels, ridge=SHARED_RIDGE, half_life=SHARED_HALF_LIFE)
        self._learn_bins(leaf * BINS + bin_of(p), y)
        return predicted

    def forget(self, slot: int, share: float) -> None:
        """A class has changed: loosen what was learned of it, so that its next labels count for more."""
        self._curvature[slot] *= 1.0 - share
        self._bin_labels[slot] *= 1.0 - share
        self._bin_hits[slot] *= 1.0 - share
        self._shared_curvature[self._tenant_of[slot]] *= 1.0 - share / 2

    def describe(self) -> list[dict[str, Any]]:
        """Calibration error per (tenant, class, drafter), of predictions made before their labels were seen."""
        return [
            {"tenant": key[0], "class": str(key[1]), "drafter": key[2], **self.scorecard.describe(row)}  # type: ignore[index]
            for key, row in self._leaves.items()
            if self.scorecard.drafts(row)
        ]

    def _learn_bins(self, cells: IntArray, y: FloatArray) -> None:
        labels, hits = self._bin_labels.reshape(-1), self._bin_hits.reshape(-1)
        touched, counts = np.unique(cells, return_counts=True)
        kept = 0.5 ** (counts / BIN_HALF_LIFE)
        labels[touched] *= kept
        hits[touched] *= kept
        np.add.at(labels, cells, 1.0)
        np.add.at(hits, cells, y)

    def _clear_leaf(self, row: int) -> None:
        self._weights[row] = self._curvature[row] = 0.0
        self._bin_labels[row] = self._bin_hits[row] = 0.0
        self.scorecard.clear(row)

    def _clear_tenant(self, row: int) -> None:
        self._shared[row], self._shared_curvature[row] = START, 0.0


def featurise(confidence: FloatArray, own: FloatArray) -> FloatArray:
    """[n, K, FEATURES] of [n, K] survival confidence (non-increasing) and [n] own standing."""
    before = np.ones_like(confidence)
    before[:, 1:] = confidence[:, :-1]
    conditional = np.clip(confidence / np.maximum(before, 1e-12), LEAST, 1.0 - LEAST)
    features = np.empty((*confidence.shape, FEATURES))
    features[..., 0] = 1.0
    features[..., 1] = np.log(conditional)
    features[..., 2] = -np.log1p(-conditional)
    features[..., 3] = own[:, None]
    return features


def confidence_of(features: FloatArray) -> FloatArray:
    """[...] the (clipped) conditional confidence that features were made from."""
    confidence: FloatArray = np.exp(features[..., 1])
    return confidence


def bin_of(curve: FloatArray) -> npt.NDArray[np.int64]:
    """The bin of each probability. Narrower towards 0 and 1, where most drafts are."""
    place: npt.NDArray[np.int64] = (BINS / np.pi * np.arccos(1.0 - 2.0 * curve)).astype(np.int64)
    return np.minimum(place, BINS - 1)


@dataclass(frozen=True, slots=True)
class _Labels:
    """x: [L, F] features, p: [L] predictions, y: [L] outcomes."""

    x: FloatArray
    p: FloatArray
    y: FloatArray


def _newton(
    weights: FloatArray, curvature: FloatArray, rows: IntArray, labels: _Labels, *, ridge: float, half_life: float
) -> None:
    """One damped step on each touched row's logistic loss: w += clip(damping (H + ridge)^-1 g)."""
    touched, inverse, counts = np.unique(rows, return_inverse=True, return_counts=True)
    x, p, size = labels.x, labels.p, labels.x.shape[1]
    gradient = np.zeros((len(touched), size))
    np.add.at(gradient, inverse, (labels.y - p)[:, None] * x)
    added = np.zeros((len(touched), size, size))
    np.add.at(added, inverse, (p * (1.0 - p))[:, None, None] * x[:, :, None] * x[:, None, :])
    curvature[touched] = curvature[touched] * (0.5 ** (counts / half_life))[:, None, None] + added
    step = np.linalg.solve(curvature[touched] + ridge * np.eye(size), gradient[:, :, None])[:, :, 0]
    weights[touched] += np.clip(DAMPING * step, -CLIP, CLIP)
