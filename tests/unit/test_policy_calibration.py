"""Calibration and drift on synthetic streams, where the true acceptance of every draft is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decodeloop.policy.acceptance import Runs
from decodeloop.policy.calibration import Calibrator, bin_of, confidence_of, featurise
from decodeloop.policy.drift import DriftMonitor, EDetector
from decodeloop.policy.metrics import auc, brier, calibration_error, log_loss
from decodeloop.policy.slots import Leaves
from decodeloop.policy.sts import fit_sequentially
from decodeloop.types import RequestClass

K = 6
EASY, HARD = (2.2, 0.6, -0.3), (0.5, 1.6, 0.7)  # (mean logit, slope of the drafter's confidence in it, its offset)
CLASSES = (RequestClass.CODE_EDIT, RequestClass.CREATIVE_WRITING)
BATCH = 16


def drafts(rng, count, kind):
    """[count, K] survival confidence of a drafter that misjudges itself, and what came of each draft."""
    mean, slope, offset = kind
    logits = rng.normal(mean, 1.5, (count, K))
    hits = rng.random((count, K)) < 1.0 / (1.0 + np.exp(-logits))
    accepted = np.where(hits.all(axis=1), K, np.argmin(hits, axis=1))
    confidence = np.cumprod(1.0 / (1.0 + np.exp(-(slope * logits + offset))), axis=1)
    return confidence, Runs(accepted, accepted == K)


class Stream:
    """Two classes of one tenant through a calibrator and its monitor; predictions kept as they were made."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.leaves = Leaves()
        self.calibrator = Calibrator(K, self.leaves)
        self.monitor = DriftMonitor(self.calibrator, self.leaves)
        self.slots = [self.leaves.row("t", request_class, "d") for request_class in CLASSES]
        self.raw, self.predicted, self.runs, self.changed = [], [], [], []

    def play(self, batches, kinds):
        for _ in range(batches):
            for slot, kind in zip(self.slots, kinds, strict=True):
                confidence, runs = drafts(self.rng, BATCH, kind)
                features = featurise(confidence, np.zeros(BATCH))
                rows = np.full(BATCH, slot)
                for changed in self.monitor.observe(rows, features, runs):
                    self.changed.append(changed)
                    self.calibrator.forget(changed, 0.9)
                self.predicted.append(self.calibrator.learn(rows, features, runs))
                self.raw.append(confidence_of(features))
                self.runs.append(runs)

    def labels(self, values, skip):
        seen = [runs.labels(K)[0] for runs in self.runs]
        return np.concatenate([value[mask] for value, mask in zip(values[skip:], seen[skip:], strict=True)])

    def outcomes(self, skip):
        return np.concatenate([hit[seen] for seen, hit in (runs.labels(K) for runs in self.runs[skip:])]).astype(float)

    def temperatures(self, batches):
        runs = Runs(
            np.concatenate([r.accepted for r in self.runs[:batches]]),
            np.concatenate([r.censored for r in self.runs[:batches]]),
        )
        return fit_sequentially(np.concatenate(self.raw[:batches]), runs)


@pytest.fixture(scope="module")
def swapped():
    """A run in which the two classes trade places half way."""
    stream = Stream(1)
    stream.play(260, (EASY, HARD))
    stream.play(260, (HARD, EASY))
    return stream


@pytest.fixture(scope="module")
def stationary():
    stream = Stream(2)
    stream.play(520, (EASY, HARD))
    return stream


def test_beats_raw_confidence_and_offline_scaling_on_a_drifting_mix(swapped):
    skip = 100
    temperatures = swapped.temperatures(skip)
    y = swapped.outcomes(skip)
    ours, raw = swapped.labels(swapped.predicted, skip), swapped.labels(swapped.raw, skip)
    offline = swapped.labels([temperatures.predict(raw) for raw in swapped.raw], skip)
    for score in (log_loss, brier):
        assert score(ours, y) < min(score(raw, y), score(offline, y)) - 0.005
    assert calibration_error(ours, y).error < 0.02
    assert calibration_error(raw, y).low > 0.04
    assert calibration_error(offline, y).low > 0.04


def test_offline_scaling_helps_where_nothing_drifts_and_one_class_plays():
    """The baseline is worth beating: on the stream that it was made for it improves on raw confidence."""
    stream = Stream(3)
    stream.slots = stream.slots[:1]
    stream.play(200, (HARD,))
    y, raw = stream.outcomes(100), stream.labels(stream.raw, 100)
    temperatures = stream.temperatures(100)
    offline = stream.labels([temperatures.predict(raw) for raw in stream.raw], 100)
    assert brier(offline, y) < brier(raw, y)


def test_one_alarm_after_the_swap_and_none_before(swapped, stationary):
    assert swapped.monitor.alarms == 1
    assert set(swapped.changed) == set(swapped.slots)
    assert stationary.monitor.alarms == 0
    assert stationary.monitor.describe()["watched"] == 2


def test_calibration_error_is_reported_per_class(swapped):
    described = {entry["class"]: entry for entry in swapped.calibrator.describe()}
    assert set(described) == {"code_edit", "creative_writing"}
    for entry in described.values():
        assert entry["log_loss"] < entry["log_loss_uncalibrated"]
        assert entry["survival_error"] == []  # fewer labels than an ECE needs


def test_survival_error_shows_once_there_are_labels_enough():
    stream = Stream(4)
    stream.slots = stream.slots[:1]
    stream.play(400, (EASY,))
    errors = stream.calibrator.describe()[0]["survival_error"]
    assert errors[0]["error"] < 0.03


def test_tenants_learn_apart():
    stream = Stream(5)
    other = np.array([stream.leaves.row("other", CLASSES[0], "d")])
    before = stream.calibrator.at(other).weights.copy()
    stream.play(30, (HARD, HARD))
    assert np.array_equal(stream.calibrator.at(other).weights, before)
    assert not np.array_equal(stream.calibrator.at(np.array(stream.slots)).weights[0], before[0])


def test_a_drafter_without_confidence_is_calibrated_by_its_record():
    """Point masses often carry confidence 1; the target agrees 40 % of the time."""
    rng, leaves = np.random.default_rng(0), Leaves()
    calibrator, slot = Calibrator(K, leaves), leaves.row("t", CLASSES[0], "ngram")
    features = featurise(np.ones((8, K)), np.zeros(8))
    for _ in range(100):
        hits = rng.random((8, K)) < 0.4
        accepted = np.where(hits.all(axis=1), K, np.argmin(hits, axis=1))
        predicted = calibrator.learn(np.full(8, slot), features, Runs(accepted, accepted == K))
    assert predicted[0, 0] == pytest.approx(0.4, abs=0.06)


def test_own_record_separates_requests_of_a_class():
    """Half the requests copy and half don't, with the same confidence: their own record tells them apart."""
    rng, leaves = np.random.default_rng(0), Leaves()
    calibrator, slot = Calibrator(K, leaves), leaves.row("t", CLASSES[0], "ngram")
    own = np.repeat([1.0, -1.0], 4)
    features = featurise(np.full((8, K), 0.7) ** np.arange(1, K + 1), own)
    for _ in range(100):
        hits = rng.random((8, K)) < np.where(own > 0, 0.9, 0.2)[:, None]
        accepted = np.where(hits.all(axis=1), K, np.argmin(hits, axis=1))
        predicted = calibrator.learn(np.full(8, slot), features, Runs(accepted, accepted == K))
    assert predicted[0, 0] > 0.8
    assert predicted[-1, 0] < 0.35


@given(st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_stays_sane_whatever_it_is_taught(seed):
    rng, leaves = np.random.default_rng(seed), Leaves()
    calibrator, slot = Calibrator(K, leaves), leaves.row("t", CLASSES[0], "x")
    for _ in range(20):
        count = int(rng.integers(1, 40))
        confidence = np.cumprod(rng.choice([0.0, 1.0, rng.random()], (count, K)), axis=1)
        accepted = rng.integers(0, K + 1, count)
        features = featurise(confidence, rng.normal(0, 2, count))
        runs = Runs(accepted, rng.random(count) < 0.5)
        predicted = calibrator.learn(np.full(count, slot), features, runs)
        assert np.all((predicted > 0) & (predicted < 1))
    assert np.all(np.abs(calibrator.at(np.array([slot])).weights) < 100)


def test_bins_cover_everything():
    assert bin_of(np.array([-20.0, -4.0, 0.0, 3.99, 20.0])).tolist() == [0, 0, 5, 9, 9]


@pytest.mark.parametrize("seed", range(4))
def test_a_true_reference_raises_no_alarm_for_as_long_as_the_run_length(seed):
    rng, detector = np.random.default_rng(seed), EDetector(run_length=1e5)
    for _ in range(1000):
        h = rng.uniform(0.2, 0.8, 100)
        detector.update("a", (rng.random(100) < h).astype(float), h)
        assert not detector.alarms()


def test_the_average_run_length_is_at_least_stated():
    """A small run length, so that many runs can be timed: the mean time to a false alarm is not below it."""
    rng, lengths = np.random.default_rng(0), []
    for _ in range(60):
        detector, length = EDetector(run_length=50.0), 0
        while not detector.alarms() and length < 5000:
            detector.update("a", (rng.random(1) < 0.53).astype(float), np.array([0.5]))
            length += 1
        lengths.append(length)
    assert np.mean(lengths) > 50.0


@pytest.mark.parametrize("shift", [0.25, -0.25])
def test_the_detector_finds_a_change_either_way_soon(shift):
    rng, detector = np.random.default_rng(0), EDetector()
    for _ in range(30):
        detector.update("still", (rng.random(20) < 0.5).astype(float), np.full(20, 0.5))
        detector.update("moved", (rng.random(20) < 0.5 + shift).astype(float), np.full(20, 0.5))
        if detector.alarms():
            break
    assert detector.alarms() == ["moved"]
    detector.reset("moved")
    assert not detector.alarms()


def test_batches_of_labels_are_the_same_as_one_by_one():
    rng, batched, single = np.random.default_rng(0), EDetector(), EDetector()
    y, h = (rng.random(50) < 0.7).astype(float), rng.random(50)
    batched.update("a", y, h)
    for label, reference in zip(y, h, strict=True):
        single.update("a", np.array([label]), np.array([reference]))
    assert batched.evidence("a") == pytest.approx(single.evidence("a"))


def test_scores():
    p, y = np.array([0.9, 0.8, 0.3, 0.3]), np.array([1.0, 0.0, 1.0, 0.0])
    assert brier(p, y) == pytest.approx((0.01 + 0.64 + 0.49 + 0.09) / 4)
    assert auc(p, y) == pytest.approx((1 + 1 + 0 + 0.5) / 4)
    assert log_loss(np.array([1.0]), np.array([1.0])) == pytest.approx(0.0, abs=1e-6)
    assert auc(p, np.ones(4)) == 0.5


def test_a_perfect_predictor_has_no_calibration_error_and_a_poor_one_has_its_own():
    rng = np.random.default_rng(0)
    p = rng.random(20000)
    y = (rng.random(20000) < p).astype(float)
    assert calibration_error(p, y).low == 0.0
    assert calibration_error(p, y).error < 0.01
    shifted = calibration_error(np.clip(p + 0.1, 0, 1), y)
    assert shifted.low < 0.1 < shifted.high + 0.02
    with pytest.raises(ValueError, match="too few"):
        calibration_error(p[:10], y[:10])
