"""Running totals of the engine: what /metrics shows, and what should worry an operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from decodeloop.engine.scheduler import Scheduler
from decodeloop.types import StepRecord

SUSPICIOUS_AFTER = 200  # drafted tokens
SUSPICIOUS_BELOW = 0.01  # acceptance: a drafter this bad is broken, not unlucky


class Totals:
    """Observes every step. Read from other threads: single values only, each consistent by itself."""

    def __init__(self, scheduler: Scheduler, verifier: str) -> None:
        self._scheduler, self.verifier = scheduler, verifier
        self._counts: Counter[str] = Counter()
        self._ms: Counter[str] = Counter()
        self._verified: Counter[str] = Counter()
        self._accepted: Counter[str] = Counter()

    def observe(self, record: StepRecord) -> None:
        self._counts["steps"] += 1
        for part in ("draft_ms", "verify_ms", "sample_ms", "overhead_ms", "step_ms"):
            self._ms[part] += getattr(record, part)
        for row in record.rows:
            self._counts["prefill_tokens"] += row.prefill_tokens
            self._counts["emitted_tokens"] += row.emitted
            self._counts["discarded_tokens"] += row.discarded
            self._counts["draft_tokens"] += row.draft_len
            self._counts["verified_tokens"] += row.verify_len
            self._counts["accepted_tokens"] += row.accepted
            self._counts["drafts"] += row.verify_len > 0
            if row.drafter is not None:
                self._verified[row.drafter] += row.verify_len
                self._accepted[row.drafter] += row.accepted

    def counters(self) -> Mapping[str, float]:
        """Monotonic totals, and gauges, by their name."""
        cache = self._scheduler.cache
        return {
            **{name: float(value) for name, value in list(self._counts.items())},
            **{f"{part.removesuffix('_ms')}_seconds": value / 1e3 for part, value in list(self._ms.items())},
            "preemptions": float(self._scheduler.preemptions),
            "prefix_cache_queries": float(cache.queried_tokens),
            "prefix_cache_hits": float(cache.hit_tokens),
            "kv_usage_fraction": 1.0 - cache.free_fraction,
        }

    def warnings(self) -> list[str]:
        """A broken drafter shows in nothing but its acceptance: say so."""
        return [
            f"drafter {name}: {self._accepted[name]} of {verified} verified tokens accepted; it may not fit this model"
            for name, verified in list(self._verified.items())
            if verified >= SUSPICIOUS_AFTER and self._accepted[name] < SUSPICIOUS_BELOW * verified
        ]
