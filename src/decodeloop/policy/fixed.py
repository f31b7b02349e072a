"""The same draft length for everyone: what an adaptive policy has to beat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from decodeloop.policy import PolicySettings
from decodeloop.policy.overrides import Choice, choose, override, plan_of
from decodeloop.types import CostModel, Decision, DecodeRequest, Knowledge, Load, Plan, Reason, Scores, StepRecord


class FixedPolicy:
    """`settings.draft_len` tokens, or what the caller asked for; all of a draft is verified."""

    learns = False

    def __init__(self, settings: PolicySettings, cost: CostModel | None = None) -> None:
        if not 0 <= settings.draft_len <= settings.max_draft_len:
            raise ValueError(f"draft_len {settings.draft_len} is not within 0..max_draft_len {settings.max_draft_len}")
        self._settings = settings

    def plan(self, load: Load, requests: Sequence[DecodeRequest]) -> Plan:
        return plan_of(self._choice(request) for request in requests)

    def _choice(self, request: DecodeRequest) -> Choice:
        asked = request.speculation.draft_len
        wanted = self._settings.draft_len if asked is None else asked
        return override(request, self._settings) or choose(wanted, Reason.FIXED, request, self._settings)

    def allocate(self, plan: Plan, scores: Scores) -> Decision:
        return verify_all(plan, scores)

    def observe(self, record: StepRecord) -> None:
        """A fixed length learns nothing."""

    def describe(self) -> Mapping[str, Any]:
        return {
            "policy": "fixed",
            "draft_len": self._settings.draft_len,
            "max_draft_len": self._settings.max_draft_len,
            "drafter": self._settings.drafter,
        }


def verify_all(plan: Plan, scores: Scores) -> Decision:
    """Verify whatever was drafted, never more than was planned; a planned draft that came out empty says so.

    Needs no score's value, hence admissible with any Knowledge.
    """
    verify_lens = tuple(
        min(planned, len(values)) for planned, values in zip(plan.draft_lens, scores.values, strict=True)
    )
    reasons = tuple(
        Reason.NO_PROPOSAL if planned and not verified else reason
        for planned, verified, reason in zip(plan.draft_lens, verify_lens, plan.reasons, strict=True)
    )
    return Decision(verify_lens, reasons, knowledge=Knowledge.PREFIX)
