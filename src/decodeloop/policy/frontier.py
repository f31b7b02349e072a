"""Where on the frontier an engine runs: tokens a second in total, against tokens a second for each of its users."""

from __future__ import annotations

from typing import Any

from decodeloop.types import StepRecord

MEMORY = 0.02  # a step's weight


class Point:
    """An average over the latest steps that decoded anything."""

    def __init__(self) -> None:
        self._total = self._user = 0.0  # tokens a ms
        self._seen = False

    def see(self, record: StepRecord) -> None:
        rows = [row for row in record.rows if row.emitted + row.discarded and not row.prefill_tokens]
        if not rows or record.step_ms <= 0.0:
            return
        rate = sum(row.accepted + 1 for row in rows) / record.step_ms
        gain = MEMORY if self._seen else 1.0
        self._total += gain * (rate - self._total)
        self._user += gain * (rate / len(rows) - self._user)
        self._seen = True

    def describe(self) -> dict[str, Any]:
        return {
            "tokens_per_s": round(1e3 * self._total, 2),
            "tokens_per_s_per_user": round(1e3 * self._user, 2),
        }
