"""What is believed of acceptance, and how every step changes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from decodeloop.policy.acceptance import LEAST, MOST, AcceptanceModel, Runs
from decodeloop.policy.allocate import IntArray
from decodeloop.policy.calibration import Calibrator, featurise
from decodeloop.policy.drift import DriftMonitor
from decodeloop.policy.hedge import CLASS_MEMORY, CLASS_WEIGHT, Record
from decodeloop.policy.slots import Leaves
from decodeloop.policy.tracks import Track, Tracks
from decodeloop.types import DecodeRequest, FloatArray, RequestClass, Scores, StepRecord, StepRow

FLUSH = 64  # drafts that are learned from together, once there is a record
FIRST_FLUSH = 4
SAMPLED_ROWS = 32  # of a step: enough to learn from, however many requests run
CHANGED = 0.9  # of the record that is dropped when a class has changed


@dataclass(frozen=True, slots=True)
class _Label:
    """What became of one draft: `accepted` tokens were right, and (unless censored) the next one was not."""

    slot: int
    accepted: int
    censored: bool


@dataclass(frozen=True, slots=True)
class _Play:
    """A draft that was played. confidence: [K] survival by the drafter's word. own: its request's standing then."""

    label: _Label
    confidence: FloatArray
    own: float


class Beliefs:
    """Owns every estimate of acceptance. Free drafters, which run at every step, teach at every step."""

    def __init__(self, max_draft_len: int, free: frozenset[str]) -> None:
        self.max_draft_len = max_draft_len
        self.free = set(free)
        self.tracks = Tracks()
        self._leaves = Leaves()
        self.acceptance = AcceptanceModel(max_draft_len, self._leaves)
        self._calibrator = Calibrator(max_draft_len, self._leaves)
        self._drift = DriftMonitor(self._calibrator, self._leaves)
        self._rewards: dict[tuple[str, RequestClass], Record] = {}
        self._labels: list[_Label] = []
        self._plays: list[_Play] = []
        self._learned = 0
        self._leaves.tell(self._drop_labels, lambda _: None)

    def slot(self, request: DecodeRequest | StepRow, drafter: str) -> int:
        return self._leaves.row(request.tenant, request.request_class, drafter)

    def survival(self, requests: Sequence[DecodeRequest], drafters: Sequence[str | None]) -> FloatArray:
        """[N, K] before anything is drawn: by the record of the class and of the request itself. 0 without drafter."""
        survival = np.zeros((len(requests), self.max_draft_len))
        played = [(i, name) for i, name in enumerate(drafters) if name is not None]
        if played:
            slots, standing = self._standings(requests, played)
            survival[[i for i, _ in played]] = _survival(self.acceptance.conditional[slots], standing)
        return survival

    def calibrated(
        self, requests: Sequence[DecodeRequest], drafters: Sequence[str | None], scores: Scores
    ) -> FloatArray:
        """[N, K] once drafted: by the drafters' confidence as it has turned out to mean. 0 beyond each draft."""
        survival = np.zeros((len(requests), self.max_draft_len))
        played = [(i, name) for i, name in enumerate(drafters) if name is not None and len(scores.values[i])]
        if played:
            slots, own = self._standings(requests, played)
            said = [scores.values[i][: self.max_draft_len] for i, _ in played]
            drafted = np.arange(self.max_draft_len) < np.array([len(values) for values in said])[:, None]
            confidence = np.ones(drafted.shape)
            confidence[drafted] = np.concatenate(said)
            conditional = self._calibrator.at(slots).predict(featurise(confidence, own))
            survived = np.cumprod(np.clip(conditional, LEAST, MOST), axis=1)
            survival[[i for i, _ in played]] = np.where(drafted, survived, 0.0)
        return survival

    def _standings(
        self, requests: Sequence[DecodeRequest], played: Sequence[tuple[int, str]]
    ) -> tuple[IntArray, FloatArray]:
        """Row and own standing of each (request, drafter) that plays."""
        slots = np.array([self.slot(requests[i], name) for i, name in played])
        return slots, np.array([self.track(requests[i]).standing(name) for i, name in played])

    def expected_reward(self, request: DecodeRequest, drafter: str) -> float:
        """Accepted tokens a step to be expected of the drafter, by Hedge's record of the class and of the request."""
        prior = float(self.acceptance.further[self.slot(request, drafter), 0])
        record = self._rewards.get((request.tenant, request.request_class))
        by_class = prior if record is None else record.mean(drafter, prior, CLASS_WEIGHT)
        return self.track(request).rewards.mean(drafter, by_class, CLASS_WEIGHT)

    def track(self, request: DecodeRequest | StepRow) -> Track:
        return self.tracks.of(request.tenant, request.request_id)

    def unread(self, request: DecodeRequest | StepRow, drafter: str) -> int:
        """Tokens that a paid drafter must read before it can draft: all of them at first."""
        return self.track(request).missed.get(drafter, request.context_tokens)

    def read(self, record: StepRecord) -> dict[str, int]:
        """Note what paid drafters have read; returns what each had to catch up with in this step."""
        caught_up: dict[str, int] = {}
        for row in record.rows:
            missed, played = self.track(row).missed, row.drafter
            if played is not None and played not in self.free and row.draft_len:
                caught_up[played] = caught_up.get(played, 0) + missed.get(played, row.context_tokens)
                missed[played] = -row.emitted
            for name in missed:
                missed[name] += row.emitted
        return caught_up

    def observe(self, record: StepRecord) -> None:
        rows = [row for row in record.rows if row.emitted + row.discarded and not row.prefill_tokens]
        # Which rows are learned from turns with the step, never with what came of them.
        first = record.step * SAMPLED_ROWS % len(rows) if len(rows) > SAMPLED_ROWS else 0
        for row in (rows[first:] + rows[:first])[:SAMPLED_ROWS]:
            self._observe_row(row)
        if len(self._labels) >= min(FLUSH, max(FIRST_FLUSH, self._learned // 4)):
            self._flush()

    def _observe_row(self, row: StepRow) -> None:
        track, known, drafter = self.track(row), row.accepted + 1, row.drafter
        own = track.standing(drafter) if drafter is not None else 0.0  # as it was when this draft was judged
        self.free.update(row.shadow_match)
        for name, matched in row.shadow_match.items():
            self._score(row, track, name, min(matched, known), known)
        if drafter is None or not row.draft_len:
            return
        if drafter in row.shadow_match:
            judged = min(row.draft_len, known)
            accepted = min(row.shadow_match[drafter], judged)
        else:
            judged, accepted = row.verify_len, row.accepted
            if judged:
                self._score(row, track, drafter, accepted, judged)
        if judged:
            label = _Label(self.slot(row, drafter), min(accepted, self.max_draft_len), accepted >= judged)
            self._plays.append(_Play(label, self._confidence(row), own))

    def _score(self, row: StepRow, track: Track, drafter: str, accepted: int, judged: int) -> None:
        """A draft, played or not, had its first `judged` positions compared with the text."""
        slot, censored = self.slot(row, drafter), accepted >= judged
        accepted = min(accepted, self.max_draft_len)
        self._labels.append(_Label(slot, accepted, censored))
        reached = accepted if censored else min(accepted + 1, self.max_draft_len)
        track.score(drafter, accepted, float(self.acceptance.total[slot, reached]))
        reward = accepted + (float(self.acceptance.further[slot, accepted]) if censored else 0.0)
        track.rewards.add(drafter, reward)
        key = row.tenant, row.request_class
        if key not in self._rewards:
            if len(self._rewards) >= self._leaves.capacity:
                del self._rewards[next(iter(self._rewards))]
            self._rewards[key] = Record(CLASS_MEMORY)
        self._rewards[key].add(drafter, reward)

    def _confidence(self, row: StepRow) -> FloatArray:
        """[K]; 1 where the drafter said nothing."""
        confidence = np.ones(self.max_draft_len)
        said = row.scores[: self.max_draft_len]
        confidence[: len(said)] = said
        return confidence

    def _flush(self) -> None:
        """Learn from the labels gathered so far."""
        if self._labels:
            self.acceptance.learn(*_arrays(self._labels))
        if self._plays:
            played, outcomes = _arrays([play.label for play in self._plays])
            standings = np.array([play.own for play in self._plays])
            features = featurise(np.stack([play.confidence for play in self._plays]), standings)
            changed = self._drift.observe(played, features, outcomes)
            self._calibrator.learn(played, features, outcomes)
            for slot in changed:
                self._calibrator.forget(slot, CHANGED)
                self.acceptance.forget(slot, CHANGED)
        self._learned += len(self._labels)
        self._labels, self._plays = [], []

    def _drop_labels(self, slot: int) -> None:
        """The row changes hands: what its last owner said is not for the next."""
        self._labels = [label for label in self._labels if label.slot != slot]
        self._plays = [play for play in self._plays if play.label.slot != slot]

    def describe(self) -> dict[str, Any]:
        return {
            "survival": self.acceptance.describe(),
            "calibration": self._calibrator.describe(),
            "drift": self._drift.describe(),
            "drafters": [
                {
                    "tenant": tenant,
                    "class": str(request_class),
                    "accepted_per_step": {name: round(mean, 3) for name, mean in record.means().items()},
                }
                for (tenant, request_class), record in list(self._rewards.items())
            ],
        }


def _survival(conditional: FloatArray, standing: FloatArray) -> FloatArray:
    """[n, K] of a request that fares exp(standing) times as well as its class at every position."""
    raised = conditional * np.exp(standing)[:, None]
    return np.cumprod(np.clip(raised, LEAST, MOST), axis=1, dtype=np.float64)


def _arrays(labels: Sequence[_Label]) -> tuple[IntArray, Runs]:
    slots: IntArray = np.array([label.slot for label in labels], dtype=np.int64)
    return slots, Runs.of([label.accepted for label in labels], [label.censored for label in labels])
