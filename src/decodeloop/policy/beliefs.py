"""What is believed of acceptance, and how every step changes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from decodeloop.policy.acceptance import LEAST, MOST, AcceptanceModel, Runs
from decodeloop.policy.calibration import Calibrator, featurise
from decodeloop.policy.drift import DriftMonitor
from decodeloop.policy.few import Survival, padded
from decodeloop.policy.meaning import Meaning
from decodeloop.policy.slots import Leaves
from decodeloop.policy.tracks import Affinity, Track, Tracks
from decodeloop.types import DecodeRequest, FloatArray, IntArray, StepRecord, StepRow

FLUSH = 256  # drafts that are learned from together, once there is a record
FIRST_FLUSH = 4
SAMPLED_ROWS = 4  # of a step: enough to learn from, however many requests run
CLASS_KEPT = 1.0 - 1.0 / 256.0  # of the class's rewards, a draft
PRIOR_STEPS = 4.0  # that the class's record counts for beside a request's own, and survival beside the class's
CHANGED = 0.9  # of the record that is dropped when a class has changed


@dataclass(slots=True)
class _Label:
    """What became of one draft: `accepted` tokens were right, and (unless censored) the next one was not."""

    leaf: int
    accepted: int
    censored: bool


@dataclass(slots=True)
class _Play:
    """A draft that was played. confidence: survival by the drafter's word. own: its request's standing then."""

    label: _Label
    confidence: Sequence[float]
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
        self._rewards = [0.0] * self._leaves.capacity  # of each leaf's drafts, played or not, discounted
        self._steps = [0.0] * self._leaves.capacity
        self._labels: list[_Label] = []
        self._plays: list[_Play] = []
        self._learned = 0
        self._leaves.tell(self._clear, lambda _: None)

    def affinity(self, track: Track, request: DecodeRequest | StepRow, drafter: str) -> Affinity:
        found = track.affinities.get(drafter)
        if found is None:
            found = track.affinities[drafter] = Affinity()
        if found.generation != self._leaves.generation:
            found.leaf = self._leaves.row(request.tenant, request.request_class, drafter)
            found.generation = self._leaves.generation
        return found

    def played(
        self, step: Sequence[tuple[DecodeRequest, Track]], drafters: Sequence[str | None]
    ) -> list[Affinity | None]:
        """Each request's affinity to the drafter that plays for it, None where none does."""
        while True:
            generation = self._leaves.generation
            found = [
                None if name is None else self.affinity(track, request, name)
                for (request, track), name in zip(step, drafters, strict=True)
            ]
            if self._leaves.generation == generation or len(found) > self._leaves.capacity:
                return found

    def survival(self, played: Sequence[Affinity | None]) -> FloatArray:
        """[N, K] before anything is drawn: by the record of the class and of the request itself. 0 where None."""
        survival = np.zeros((len(played), self.max_draft_len))
        rows = [i for i, affinity in enumerate(played) if affinity is not None]
        if rows:
            leaves, standing = _standings(played)
            conditional = self.acceptance.conditional[leaves]
            raised = conditional * np.exp(standing)[:, None]
            shifted = raised / (1.0 - conditional + raised)  # odds times exp(standing)
            survival[rows] = np.cumprod(np.clip(shifted, LEAST, MOST), axis=1)
        return survival

    def meaning(self, affinity: Affinity, said: Sequence[float]) -> Meaning:
        """What a draft that is not empty has turned out to mean. said: survival by its drafter's word."""
        return self._calibrator.meaning(affinity.leaf, tuple(said), affinity.standing)

    def drafted(self, played: Sequence[Affinity | None], said: Sequence[Sequence[float]]) -> list[Survival]:
        """[N] survival of drafts as far as they go, () where nobody plays."""
        return [
            self.meaning(affinity, own).survival(self.max_draft_len) if affinity is not None and len(own) else ()
            for affinity, own in zip(played, said, strict=True)
        ]

    def foreseen(self, step: Sequence[tuple[DecodeRequest, Track]], drafters: Sequence[str | None]) -> FloatArray:
        """[N, K] survival before the step's drafting: by the proposal where it is made already, else by the record."""
        played = self.played(step, drafters)
        said = [
            request.proposals.get(name) if name is not None else None
            for (request, _), name in zip(step, drafters, strict=True)
        ]
        spoken = [i for i, proposal in enumerate(said) if proposal is not None]
        drafts = self.drafted([played[i] for i in spoken], [said[i] or () for i in spoken])
        by_proposal = padded(drafts, self.max_draft_len)
        if len(spoken) == len(said):
            return by_proposal
        survival = self.survival(played)
        survival[spoken] = by_proposal
        return survival

    def expected_reward(self, affinity: Affinity) -> float:
        """Accepted tokens a step to be expected, by Hedge's record of the class and of the request."""
        leaf = affinity.leaf
        prior = float(self.acceptance.further[leaf, 0])
        by_class = (self._rewards[leaf] + PRIOR_STEPS * prior) / (self._steps[leaf] + PRIOR_STEPS)
        return (affinity.rewards + PRIOR_STEPS * by_class) / (affinity.steps + PRIOR_STEPS)

    def read(self, record: StepRecord, tracks: Sequence[Track]) -> dict[str, int]:
        """Note what paid drafters have read; returns what each had to catch up with in this step."""
        caught_up: dict[str, int] = {}
        for row, track in zip(record.rows, tracks, strict=True):
            played = row.drafter
            if played is not None and played not in self.free and row.draft_len:
                missed = max(row.context_tokens - track.read.get(played, 0), 0)
                caught_up[played] = caught_up.get(played, 0) + missed
                track.read[played] = row.context_tokens + row.emitted
        return caught_up

    def observe(self, record: StepRecord, tracks: Sequence[Track]) -> None:
        """tracks: of the record's rows."""
        pairs = list(zip(record.rows, tracks, strict=True))
        # Which rows are learned from turns with the step, never with what came of them.
        first = record.step * SAMPLED_ROWS % len(pairs) if len(pairs) > SAMPLED_ROWS else 0
        for row, track in (pairs[first:] + pairs[:first])[:SAMPLED_ROWS]:
            if row.emitted + row.discarded and not row.prefill_tokens:
                self._observe_row(row, track)
        if len(self._labels) >= min(FLUSH, max(FIRST_FLUSH, self._learned // 4)):
            self._flush()

    def _observe_row(self, row: StepRow, track: Track) -> None:
        known, drafter = row.accepted + 1, row.drafter
        played = None if drafter is None else self.affinity(track, row, drafter)
        own = 0.0 if played is None else played.standing  # as it was when this draft was judged
        for name, matched in row.shadow_match.items():
            self.free.add(name)
            self._score(self.affinity(track, row, name), min(matched, known), known)
        if drafter is None or played is None or not row.draft_len:
            return
        played = self.affinity(track, row, drafter)  # the shadows may have taken its leaf
        if drafter in row.shadow_match:
            judged = min(row.draft_len, known)
            accepted = min(row.shadow_match[drafter], judged)
        else:
            judged, accepted = row.verify_len, row.accepted
            if judged:
                self._score(played, accepted, judged)
        if judged:
            label = _Label(played.leaf, min(accepted, self.max_draft_len), accepted >= judged)
            self._plays.append(_Play(label, row.scores, own))

    def _score(self, affinity: Affinity, accepted: int, judged: int) -> None:
        """A draft, played or not, had its first `judged` positions compared with the text."""
        leaf, censored = affinity.leaf, accepted >= judged
        accepted = min(accepted, self.max_draft_len)
        self._labels.append(_Label(leaf, accepted, censored))
        reached = accepted if censored else min(accepted + 1, self.max_draft_len)
        expected, variance = self.acceptance.total[leaf, reached], self.acceptance.variance[leaf, reached]
        affinity.score(accepted - float(expected), float(variance))
        reward = accepted + (float(self.acceptance.further[leaf, accepted]) if censored else 0.0)
        affinity.reward(reward)
        self._rewards[leaf] = self._rewards[leaf] * CLASS_KEPT + reward
        self._steps[leaf] = self._steps[leaf] * CLASS_KEPT + 1.0

    def _flush(self) -> None:
        """Learn from the labels gathered so far."""
        if self._labels:
            self.acceptance.learn(*_arrays(self._labels))
        if self._plays:
            played, outcomes = _arrays([play.label for play in self._plays])
            standings = np.array([play.own for play in self._plays])
            confidence = np.ones((len(self._plays), self.max_draft_len))  # 1 where the drafter said nothing
            for row, play in zip(confidence, self._plays, strict=True):
                said = play.confidence[: self.max_draft_len]
                row[: len(said)] = said
            features = featurise(confidence, standings)
            changed = self._drift.observe(played, features, outcomes)
            self._calibrator.learn(played, features, outcomes)
            for leaf in changed:
                self._calibrator.forget(leaf, CHANGED)
                self.acceptance.forget(leaf, CHANGED)
        self._learned += len(self._labels)
        self._labels, self._plays = [], []

    def _clear(self, leaf: int) -> None:
        """The row changes hands: what its last owner said is not for the next."""
        self._labels = [label for label in self._labels if label.leaf != leaf]
        self._plays = [play for play in self._plays if play.label.leaf != leaf]
        self._rewards[leaf] = self._steps[leaf] = 0.0

    def describe(self) -> dict[str, Any]:
        return {
            "survival": self.acceptance.describe(),
            "calibration": self._calibrator.describe(),
            "drift": self._drift.describe(),
            "rewards": [
                {
                    "tenant": tenant,
                    "class": str(request_class),
                    "drafter": drafter,
                    "accepted_per_step": round(self._rewards[leaf] / self._steps[leaf], 3),
                }
                for (tenant, request_class, drafter), leaf in self._leaves.items()
                if self._steps[leaf]
            ],
        }


def _standings(played: Sequence[Affinity | None]) -> tuple[IntArray, FloatArray]:
    """Leaf row and own standing of each that plays."""
    mine = [affinity for affinity in played if affinity is not None]
    return np.array([a.leaf for a in mine], dtype=np.int64), np.array([a.standing for a in mine])


def _arrays(labels: Sequence[_Label]) -> tuple[IntArray, Runs]:
    leaves = np.array([label.leaf for label in labels], dtype=np.int64)
    return leaves, Runs.of([label.accepted for label in labels], [label.censored for label in labels])
