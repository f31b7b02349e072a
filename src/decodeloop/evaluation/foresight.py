"""What could be known of a draft before its verdict, learned in hindsight from all drafts of the texts served."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from decodeloop.evaluation.acceptance import CLASS_INDEX, CLASSES, Draft, History
from decodeloop.evaluation.fleet import Batch
from decodeloop.types import FloatArray, IntArray

FEATURES = 6
OWN_KEPT = 0.5 ** (1 / 16)  # of a request's own record, a draft
RIDGE = 1.0
NEWTON_STEPS = 12
FIRST, LEAST = 0.6, 1e-3  # acceptance of a request without a record; the least probability there is


class Foresight:
    """P(token k right | those before it were), by a logistic regression per class, fitted to the texts it is used on.

    Sees what policies see: the drafter's confidence, the position, how much is offered, and how the request's drafts
    fared at the positions before. Being fitted in hindsight it is, if anything, too good.
    """

    def __init__(self, histories: Sequence[History]) -> None:
        """histories: of texts, a draft at every position."""
        self._own = [_own_record(history.drafts) for history in histories]
        self._theta = np.zeros((len(CLASSES), FEATURES))
        for name in {history.request_class for history in histories}:
            rows = [
                row
                for history, own in zip(histories, self._own, strict=True)
                if history.request_class is name
                for row in _labels(history.drafts, own)
            ]
            if rows:
                self._theta[CLASS_INDEX[name]] = _fit(np.array([x for x, _ in rows]), np.array([y for _, y in rows]))

    def survival(self, batch: Batch) -> FloatArray:
        """[N, K], 0 beyond each draft."""
        survival = np.zeros(batch.drafts.confidence.shape)
        outputs = batch.contexts - np.array([request.arrival.prompt_tokens for request in batch.requests])
        for i, (request, produced) in enumerate(zip(batch.requests, outputs.tolist(), strict=True)):
            offered = int(batch.drafts.offered[i])
            if offered:
                own = self._own[request.nature]
                x = _features(batch.drafts.confidence[i, :offered], float(own[min(produced, len(own) - 1)]))
                survival[i, :offered] = np.cumprod(_sigmoid(x @ self._theta[batch.classes[i]]))
        return survival


def _own_record(drafts: Sequence[Draft]) -> FloatArray:
    """[T] log-odds of acceptance in the request's drafts before each position, the latest weighing most."""
    hits, tries = 2.0 * FIRST, 2.0
    found = np.empty(len(drafts))
    for i, draft in enumerate(drafts):
        share = (hits + 0.05) / (tries + 0.1)
        found[i] = np.log(share / (1.0 - share))
        if draft.offered:
            judged = min(draft.right + 1, draft.offered)
            hits = hits * OWN_KEPT + min(draft.right, judged)
            tries = tries * OWN_KEPT + judged
    return found


def _labels(drafts: Sequence[Draft], own: FloatArray) -> Iterator[tuple[FloatArray, float]]:
    """Of every position that was reached."""
    for draft, record in zip(drafts, own, strict=True):
        if draft.offered:
            confidence = np.ones(draft.offered)
            confidence[: len(draft.confidence)] = draft.confidence[: draft.offered]
            x = _features(confidence, float(record))
            for k in range(min(draft.right + 1, draft.offered)):
                yield x[k], float(k < draft.right)


def _features(confidence: FloatArray, own: float) -> FloatArray:
    """[L, FEATURES] of a draft's positions. confidence: [L] survival."""
    before = np.concatenate([[1.0], confidence[:-1]])
    said = np.clip(confidence / np.maximum(before, 1e-9), 0.02, 0.98)
    place: IntArray = np.arange(len(confidence))
    columns = (
        np.ones(len(place)),
        np.log(said / (1.0 - said)),
        np.log1p(place),
        np.full(len(place), own),
        np.full(len(place), np.log(len(place))),
        (place == 0).astype(np.float64),
    )
    return np.stack(columns, axis=1)


def _fit(x: FloatArray, y: FloatArray) -> FloatArray:
    """Ridge-damped Newton steps."""
    theta = np.zeros(x.shape[1])
    for _ in range(NEWTON_STEPS):
        p = _sigmoid(x @ theta)
        gradient = x.T @ (p - y) + RIDGE * theta
        hessian = (x * (p * (1.0 - p))[:, None]).T @ x + RIDGE * np.eye(x.shape[1])
        theta = theta - np.linalg.solve(hessian, gradient)
    return theta


def _sigmoid(x: FloatArray) -> FloatArray:
    found: FloatArray = np.clip(1.0 / (1.0 + np.exp(-np.clip(x, -30.0, 30.0))), LEAST, 1.0 - LEAST)
    return found
