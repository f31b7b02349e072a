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
from decodeloop.policy.meaning import (
    BIN_WEIGHT,
    BINS,
    BINS_A_LOGIT,
    LEAST,
    MIDDLE,
    MOST_LOGIT,
    Curves,
    Meaning,
    Meanings,
    Said,
)
from decodeloop.policy.scorecard import Scorecard
from decodeloop.policy.slots import Leaves, membership
from decodeloop.types import FloatArray, IntArray

FEATURES = 4  # 1, log c, -log(1 - c), own
START = (0.0, 1.0, 1.0, 0.5, 0.0)  # the features' shared weights, and that of log(1 + position): at its word
DAMPING = 0.5
CLIP = 0.5  # of a weight, in one step
LEAF_RIDGE, SHARED_RIDGE = 4.0, 1.0
LEAF_HALF_LIFE, SHARED_HALF_LIFE = 1024.0, 8192.0  # labels
BIN_HALF_LIFE = 512.0  # labels


@dataclass(frozen=True, slots=True)
class Calibration:
    """Curves and bins for some rows.

    weights: [n, K, FEATURES]. cells: [n, K] the first of the BINS places of each in bin_labels and bin_hits, both flat.
    """

    weights: FloatArray
    cells: IntArray
    bin_labels: FloatArray
    bin_hits: FloatArray

    def curve(self, features: FloatArray) -> FloatArray:
        """[n, K, FEATURES] -> [n, K] logits."""
        logits: FloatArray = np.einsum("nkf,nkf->nk", self.weights, features)
        return logits

    def binned(self, logits: FloatArray) -> FloatArray:
        """[n, K] logits -> [n, K] probabilities, after the bins' correction."""
        place = self.cells + bin_of(logits)
        corrected: FloatArray = (self.bin_hits.take(place) + BIN_WEIGHT * sigmoid(logits)) / (
            self.bin_labels.take(place) + BIN_WEIGHT
        )
        return corrected

    def predict(self, features: FloatArray) -> FloatArray:
        """[n, K, FEATURES] -> [n, K] conditional acceptance."""
        return self.binned(self.curve(features))


class Calibrator:
    """Learns and predicts conditional acceptance from confidence. No tenant's labels reach another's predictions."""

    def __init__(self, max_draft_len: int, leaves: Leaves) -> None:
        self.max_draft_len, self._leaves = max_draft_len, leaves
        shape = (leaves.capacity, max_draft_len)
        self._weights = np.zeros((*shape, FEATURES))
        self._curvature = np.zeros((*shape, FEATURES, FEATURES))
        self._shared = np.tile(START, (leaves.capacity, 1))
        self._shared_curvature = np.zeros((leaves.capacity, FEATURES + 1, FEATURES + 1))
        self._bin_labels, self._bin_hits = np.zeros((*shape, BINS)), np.zeros((*shape, BINS))
        self._cells = np.arange(leaves.capacity * max_draft_len).reshape(shape) * BINS
        self._depth = np.log1p(np.arange(max_draft_len))
        self._meanings = Meanings(self._curves)
        self.scorecard = Scorecard(max_draft_len)
        leaves.tell(self._clear_leaf, self._clear_tenant)

    def at(self, slots: IntArray) -> Calibration:
        """What is believed of each of `slots`. Its bins go on learning: see `frozen`."""
        shared = self._shared[self._leaves.tenant_of[slots]]
        weights = self._weights[slots] + shared[:, None, :FEATURES]
        weights[:, :, 0] += shared[:, FEATURES:] * self._depth
        cells = self._cells[slots]
        return Calibration(weights, cells, self._bin_labels.reshape(-1), self._bin_hits.reshape(-1))

    def meaning(self, slot: int, said: Said, own: float) -> Meaning:
        """What a draft that is not empty means. said: survival by its drafter's word. own: its request's standing."""
        return self._meanings.of(slot, said, own)

    def _curves(self, slot: int) -> Curves:
        weights = self.at(np.array([slot])).weights[0].tolist()
        return list(zip(weights, self._bin_labels[slot].tolist(), self._bin_hits[slot].tolist(), strict=True))

    def frozen(self, slot: int) -> Calibration:
        """What is believed of one slot now, for good."""
        live = self.at(np.array([slot]))
        labels, hits = self._bin_labels[slot].ravel().copy(), self._bin_hits[slot].ravel().copy()
        return Calibration(live.weights, self._cells[:1], labels, hits)

    def learn(self, slots: IntArray, features: FloatArray, runs: Runs) -> FloatArray:
        """Learn from drafts and return what had been predicted: [R, K] conditional acceptance.

        slots: [R]. features: [R, K, FEATURES] (see `featurise`).
        """
        self._meanings.forget()
        now = self.at(slots)
        logits = now.curve(features)
        predicted = now.binned(logits)
        self.scorecard.add(slots, confidence_of(features), predicted, runs)
        seen, hit = runs.labels(self.max_draft_len)
        row, position = np.nonzero(seen)
        if not len(row):
            return predicted
        z, y = logits[row, position], hit[row, position].astype(np.float64)
        self._learn_bins(now.cells[row, position] + bin_of(z), y)
        x, p = features[row, position], sigmoid(z)
        leaf = slots[row] * self.max_draft_len + position
        flat = self._weights.reshape(-1, FEATURES), self._curvature.reshape(-1, FEATURES, FEATURES)
        _newton(*flat, leaf, _Labels(x, p, y), ridge=LEAF_RIDGE, half_life=LEAF_HALF_LIFE)
        deeper = np.column_stack([x, self._depth[position]])
        tenants = self._leaves.tenant_of[slots[row]]
        labels = _Labels(deeper, p, y)
        _newton(self._shared, self._shared_curvature, tenants, labels, ridge=SHARED_RIDGE, half_life=SHARED_HALF_LIFE)
        return predicted

    def forget(self, slot: int, share: float) -> None:
        """A class has changed: loosen what was learned of it, so that its next labels count for more."""
        self._meanings.forget()
        self._curvature[slot] *= 1.0 - share
        self._bin_labels[slot] *= 1.0 - share
        self._bin_hits[slot] *= 1.0 - share
        self._shared_curvature[self._leaves.tenant_of[slot]] *= 1.0 - share / 2

    def describe(self) -> list[dict[str, Any]]:
        """Calibration error per (tenant, class, drafter), of predictions made before their labels were seen."""
        return [
            {"tenant": tenant, "class": str(request_class), "drafter": drafter, **self.scorecard.describe(row)}
            for (tenant, request_class, drafter), row in self._leaves.items()
            if self.scorecard.drafts(row)
        ]

    def _learn_bins(self, cells: IntArray, y: FloatArray) -> None:
        labels, hits = self._bin_labels.reshape(-1), self._bin_hits.reshape(-1)
        touched, member = membership(cells)
        added = member.sum(axis=1)
        kept = 0.5 ** (added / BIN_HALF_LIFE)
        labels[touched] = labels[touched] * kept + added
        hits[touched] = hits[touched] * kept + member @ y

    def _clear_leaf(self, row: int) -> None:
        self._meanings.forget()
        self._weights[row] = self._curvature[row] = 0.0
        self._bin_labels[row] = self._bin_hits[row] = 0.0
        self.scorecard.clear(row)

    def _clear_tenant(self, row: int) -> None:
        self._meanings.forget()
        self._shared[row], self._shared_curvature[row] = START, 0.0


def featurise(confidence: FloatArray, own: FloatArray) -> FloatArray:
    """[n, K, FEATURES] of [n, K] survival confidence (non-increasing) and [n] own standing."""
    before = np.ones_like(confidence)
    before[:, 1:] = confidence[:, :-1]
    conditional = np.minimum(np.maximum(confidence / np.maximum(before, 1e-12), LEAST), 1.0 - LEAST)
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


def sigmoid(logits: FloatArray) -> FloatArray:
    probabilities: FloatArray = 1.0 / (1.0 + np.exp(np.minimum(-logits, MOST_LOGIT)))
    return probabilities


def bin_of(logits: FloatArray) -> npt.NDArray[np.intp]:
    """The bin of each logit."""
    place: npt.NDArray[np.intp] = np.minimum(np.maximum(BINS_A_LOGIT * logits + MIDDLE, 0.0), BINS - 1.0).astype(
        np.intp
    )
    return place


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
    touched, member = membership(rows)
    x, p, size = labels.x, labels.p, labels.x.shape[1]
    gradient = member @ ((labels.y - p)[:, None] * x)
    outer = ((p * (1.0 - p))[:, None] * x)[:, :, None] * x[:, None, :]
    added = (member @ outer.reshape(len(x), -1)).reshape(-1, size, size)
    kept = 0.5 ** (member.sum(axis=1) / half_life)
    grown = curvature[touched] * kept[:, None, None] + added
    curvature[touched] = grown
    step = np.linalg.solve(grown + ridge * np.eye(size), gradient[:, :, None])[:, :, 0]
    weights[touched] += np.clip(DAMPING * step, -CLIP, CLIP)
