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
        for phase in ("draft", "verify", "sample", "overhead"):
            self._ms[phase] += getattr(record, f"{phase}_ms")
        prefill = emitted = discarded = drafted = verified = accepted = drafts = 0
        for row in record.rows:
            prefill += row.prefill_tokens
            emitted += row.emitted
            discarded += row.discarded
            drafted += row.draft_len
            verified += row.verify_len
            accepted += row.accepted
            drafts += row.verify_len > 0
            if row.drafter is not None:
                self._verified[row.drafter] += row.verify_len
                self._accepted[row.drafter] += row.accepted
        self._counts["prefill_tokens"] += prefill
        self._counts["emitted_tokens"] += emitted
        self._counts["discarded_tokens"] += discarded
        self._counts["draft_tokens"] += drafted
        self._counts["verified_tokens"] += verified
        self._counts["accepted_tokens"] += accepted
        self._counts["drafts"] += drafts

    def counters(self) -> Mapping[str, float]:
        """Totals (`_total`) and gauges by metric name, some with a label, as the gateway's Upstream contract has it."""
        cache = self._scheduler.cache
        return {
            **{f"{name}_total": float(count) for name, count in list(self._counts.items())},
            **{f'step_seconds_total{{phase="{phase}"}}': ms / 1e3 for phase, ms in list(self._ms.items())},
            **{f'drafter_verified_total{{drafter="{name}"}}': float(n) for name, n in list(self._verified.items())},
            **{f'drafter_accepted_total{{drafter="{name}"}}': float(n) for name, n in list(self._accepted.items())},
            "preemptions_total": float(self._scheduler.preemptions),
            "prefix_cache_queries_total": float(cache.queried_tokens),
            "prefix_cache_hits_total": float(cache.hit_tokens),
            "kv_cache_usage": 1.0 - cache.free_fraction,
            "drafter_warnings": float(len(self.warnings())),
        }

    def warnings(self) -> list[str]:
        """A broken drafter shows in nothing but its acceptance: say so."""
        return [
            f"drafter {name}: {self._accepted[name]} of {verified} verified tokens accepted; it may not fit this model"
            for name, verified in list(self._verified.items())
            if verified >= SUSPICIOUS_AFTER and self._accepted[name] < SUSPICIOUS_BELOW * verified
        ]
