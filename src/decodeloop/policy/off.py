"""Plain decoding: a draft length fixed at 0, unless a caller forces more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from decodeloop.policy import PolicySettings
from decodeloop.policy.fixed import verify_all
from decodeloop.policy.overrides import Choice, override, plan_of
from decodeloop.types import CostModel, Decision, DecodeRequest, Load, Plan, Reason, Scores, StepRecord


class OffPolicy:
    learns = False

    def __init__(self, settings: PolicySettings, cost: CostModel | None = None) -> None:
        self._settings = settings

    def plan(self, load: Load, requests: Sequence[DecodeRequest]) -> Plan:
        plain = Choice(0, None, Reason.FIXED)
        return plan_of(override(request, self._settings) or plain for request in requests)

    def allocate(self, plan: Plan, scores: Scores) -> Decision:
        return verify_all(plan, scores)

    def observe(self, record: StepRecord) -> None:
        """Being off learns nothing."""

    def describe(self) -> Mapping[str, Any]:
        return {"policy": "off", "max_draft_len": self._settings.max_draft_len}
