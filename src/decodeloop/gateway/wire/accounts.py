"""How an answer came about, as clients read it: OpenAI's usage, vLLM's metrics object, our `decodeloop` key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from decodeloop.types import FinishReason, Report, Usage

__all__ = ["decodeloop_object", "merged_reports", "metrics_object", "summed_usage", "usage_object"]


def usage_object(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }


def summed_usage(usages: Sequence[Usage]) -> Usage:
    return Usage(
        prompt=sum(usage.prompt for usage in usages),
        cached=sum(usage.cached for usage in usages),
        completion=sum(usage.completion for usage in usages),
        drafted=sum(usage.drafted for usage in usages),
        verified=sum(usage.verified for usage in usages),
        accepted=sum(usage.accepted for usage in usages),
    )


def merged_reports(reports: Sequence[Report]) -> Report:
    """One report for an HTTP request of several prompts: sums; the first one's seed, class and drafter."""
    if len(reports) == 1:
        return reports[0]
    reasons: Counter[str] = Counter()
    for report in reports:
        reasons.update(report.reasons)
    return Report(
        seed=reports[0].seed,
        request_class=reports[0].request_class,
        drafter=next((report.drafter for report in reports if report.drafter is not None), None),
        queue_ms=sum(report.queue_ms for report in reports),
        prefill_ms=sum(report.prefill_ms for report in reports),
        draft_ms=sum(report.draft_ms for report in reports),
        verify_ms=sum(report.verify_ms for report in reports),
        sample_ms=sum(report.sample_ms for report in reports),
        overhead_ms=sum(report.overhead_ms for report in reports),
        steps=sum(report.steps for report in reports),
        drafted=sum(report.drafted for report in reports),
        verified=sum(report.verified for report in reports),
        accepted=sum(report.accepted for report in reports),
        discarded=sum(report.discarded for report in reports),
        reasons=reasons,
        accepted_per_step=tuple(count for report in reports for count in report.accepted_per_step),
        verified_per_step=tuple(count for report in reports for count in report.verified_per_step),
    )


def decodeloop_object(report: Report, finish_reasons: Sequence[FinishReason | None]) -> dict[str, Any]:
    """finish_reasons: by choice, our own words, of which OpenAI's `finish_reason` knows fewer."""
    return {
        "seed": report.seed,
        "class": report.request_class,
        "drafter": report.drafter,
        "queue_ms": round(report.queue_ms, 3),
        "prefill_ms": round(report.prefill_ms, 3),
        "draft_ms": round(report.draft_ms, 3),
        "verify_ms": round(report.verify_ms, 3),
        "sample_ms": round(report.sample_ms, 3),
        "overhead_ms": round(report.overhead_ms, 3),
        "steps": report.steps,
        "drafted": report.drafted,
        "verified": report.verified,
        "accepted": report.accepted,
        "discarded": report.discarded,
        "reasons": dict(report.reasons),
        "finish_reasons": list(finish_reasons),
    }


def metrics_object(report: Report) -> dict[str, Any] | None:
    """vLLM's per-request object; its draft tokens are those that were verified. None: no step verified a draft."""
    accepted, verified = report.accepted_per_step, report.verified_per_step
    if not sum(verified):
        return None
    longest = max(verified)
    counts = Counter(accepted)
    return {
        "speculative_decoding": {
            "mean_acceptance_length": 1 + sum(accepted) / len(verified),
            "draft_acceptance_rate": sum(accepted) / sum(verified),
            "acceptance_histogram": [counts[length] for length in range(longest + 1)],
            "num_spec_steps": len(verified),
            "num_accepted_draft_tokens": sum(accepted),
            "num_draft_tokens": sum(verified),
            "num_spec_tokens": longest,
        }
    }
