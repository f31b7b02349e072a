"""A machine whose step times are known: a staircase, with noise where it is measured (synthetic)."""

from __future__ import annotations

import math

import numpy as np

from decodeloop.policy.cost_fit import CostSample
from decodeloop.types import Load, Reason, RequestClass, StepRecord, StepRow


def stairs(tokens, context, sequences):
    """Memory-bound up to 6 tokens, then stairs of 4; attention and bookkeeping on top."""
    climbed = np.maximum(0.0, np.ceil(tokens / 4) * 4 - 6)
    return 4.0 + 0.45 * climbed + 2e-4 * context + 3e-5 * tokens * context / sequences + 0.02 * sequences


def measure(seed=0, noise=0.03, outliers=0.03, per_sequence=(1, 2, 3, 4, 5, 6, 8, 9, 12)):
    rng, samples = np.random.default_rng(seed), []
    for sequences in (1, 2, 4, 8, 16, 32):
        for context in (64, 256, 1024):
            for length in per_sequence:
                tokens, total = sequences * length, sequences * context
                disturbed = math.exp(rng.normal(0.0, noise)) * (2.0 if rng.random() < outliers else 1.0)
                samples.append(CostSample(tokens, total, sequences, stairs(tokens, total, sequences) * disturbed))
    return samples


def true_samples(samples):
    return [CostSample(s.tokens, s.context, s.sequences, stairs(s.tokens, s.context, s.sequences)) for s in samples]


def record(step=1, *, rows=1, verify_len=0, verify_ms=5.0, draft_ms=0.0, drafter=None, sample_ms=0.0, context=256):
    row = StepRow(
        request_id="r",
        tenant="t",
        request_class=RequestClass.SQL,
        reason=Reason.FIXED,
        drafter=drafter,
        draft_len=verify_len,
        verify_len=verify_len,
        emitted=1,
    )
    return StepRecord(
        step=step,
        at_s=0.0,
        load=Load(rows, 0, context, 1.0),
        draft_ms=draft_ms,
        verify_ms=verify_ms,
        sample_ms=sample_ms,
        overhead_ms=0.0,
        step_ms=draft_ms + verify_ms + sample_ms,
        rows=(row,) * rows,
    )


def observe(surface, record, free=frozenset({"ngram"}), catch_up=None):
    surface.observe(record, free, catch_up or {})
