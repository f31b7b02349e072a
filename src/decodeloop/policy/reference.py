"""The rules of thumb that the field's reports recommend: the baseline that an adaptive policy has to beat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from decodeloop.policy import PolicySettings
from decodeloop.policy.bounded import make_room
from decodeloop.policy.fixed import verify_all
from decodeloop.policy.overrides import Choice, choose, override, plan_of
from decodeloop.types import (
    CostModel,
    Decision,
    DecodeRequest,
    Load,
    Plan,
    Reason,
    RequestClass,
    Scores,
    StepRecord,
)

HIGH_LOAD = 32
HOT = 0.8  # temperature
LOW_ACCEPTANCE = 0.65  # accepted / verified
PREDICTABLE = frozenset(
    {
        RequestClass.CODE_EDIT,
        RequestClass.CODE_SYNTHESIS,
        RequestClass.STRUCTURED_JSON,
        RequestClass.RAG_SUMMARY,
        RequestClass.SQL,
        RequestClass.TOOL_CALL,
    }
)
MEMORY = 1.0 / 64  # a draft's weight in the recent acceptance
RETRY = 1.0 / 2048  # a plain step's pull of it back towards 1: a class is not off for ever


class ReferencePolicy:
    """Five rules, in this order: high load, off; what the caller asked; creative and hot, off; predictable, on;
    low recent acceptance, off. Else on: `settings.draft_len` tokens, all verified."""

    learns = False

    def __init__(self, settings: PolicySettings, cost: CostModel | None = None) -> None:
        self._settings = settings
        self._acceptance: dict[tuple[str, RequestClass], float] = {}

    def plan(self, load: Load, requests: Sequence[DecodeRequest]) -> Plan:
        return plan_of(self._choice(load, request) for request in requests)

    def _choice(self, load: Load, request: DecodeRequest) -> Choice:
        asked = override(request, self._settings)
        if asked is not None:
            return asked
        off = self._off(load, request)
        if off is not None:
            return Choice(0, None, off)
        length = request.speculation.draft_len
        wanted = self._settings.draft_len if length is None else length
        return choose(wanted, Reason.FIXED, request, self._settings)

    def _off(self, load: Load, request: DecodeRequest) -> Reason | None:
        if load.running >= HIGH_LOAD:
            return Reason.OFF_LOAD
        if request.request_class is RequestClass.CREATIVE_WRITING and request.temperature > HOT:
            return Reason.OFF_ACCEPTANCE
        if request.request_class in PREDICTABLE:
            return None
        recent = self._acceptance.get((request.tenant, request.request_class), 1.0)
        return Reason.OFF_ACCEPTANCE if recent < LOW_ACCEPTANCE else None

    def allocate(self, plan: Plan, scores: Scores) -> Decision:
        return verify_all(plan, scores)

    def observe(self, record: StepRecord) -> None:
        for row in record.rows:
            key = row.tenant, row.request_class
            recent = self._acceptance.get(key, 1.0)
            if row.verify_len:
                recent += MEMORY * (row.accepted / row.verify_len - recent)
            else:
                recent += RETRY * (1.0 - recent)
            make_room(self._acceptance, key)
            self._acceptance[key] = recent

    def describe(self) -> Mapping[str, Any]:
        return {
            "policy": "reference",
            "draft_len": self._settings.draft_len,
            "max_draft_len": self._settings.max_draft_len,
            "acceptance_rate": [
                {"tenant": tenant, "class": str(request_class), "recent": round(recent, 4)}
                for (tenant, request_class), recent in list(self._acceptance.items())
            ],
        }
