"""Decide how much to speculate. Pure numpy: no torch, no I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from decodeloop.registry import Registry
from decodeloop.types import Decision, DecodeRequest, Knowledge, Load, Plan, Scores, StepRecord


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """draft_len: what `fixed` and `reference` draft; max_draft_len: the most any policy drafts.

    drafter: preferred (None: first).
    verifier_admits: the most that verify lengths may know of a sampled draft (the verifier's `admits`).
    may_hold: whether the host can let a request sit a step out (Plan.held).
    options: the operator's, checked by the policy.
    """

    max_draft_len: int = 12
    draft_len: int = 4
    drafter: str | None = None
    verifier_admits: Knowledge = Knowledge.SELF
    may_hold: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


class Policy(Protocol):
    """Built as `cls(settings, cost)`; cost is None until the machine has been measured.

    learns: whether it wants costs measured at start and free drafters asked and scored at every step; its class says.
    """

    learns: bool

    def plan(self, load: Load, requests: Sequence[DecodeRequest]) -> Plan:
        """Before anything is drawn: per request a draft_len and a drafter."""
        ...

    def allocate(self, plan: Plan, scores: Scores) -> Decision:
        """After drafting: how much of each draft is verified."""
        ...

    def observe(self, record: StepRecord) -> None: ...

    def describe(self) -> Mapping[str, Any]:
        """What it believes now, as JSON-able values, for `GET /v1/policy`."""
        ...


policies = Registry[Policy](
    "policies",
    {
        "off": "decodeloop.policy.off:OffPolicy",
        "fixed": "decodeloop.policy.fixed:FixedPolicy",
        "reference": "decodeloop.policy.reference:ReferencePolicy",
        "throughput": "decodeloop.policy.throughput:ThroughputPolicy",
        "interactive": "decodeloop.policy.interactive:InteractivePolicy",
        "adaptive": "decodeloop.policy.throughput:PlainGuardedPolicy",
    },
)
