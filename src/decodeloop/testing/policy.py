"""What every policy must hold to."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import numpy as np

from decodeloop.policy import Policy
from decodeloop.types import (
    Decision,
    DecodeRequest,
    Knowledge,
    Load,
    Plan,
    Reason,
    RequestClass,
    Scores,
    Speculation,
    SpeculationMode,
    StepRecord,
    StepRow,
)

MAX_DRAFT_LEN = 12  # of the settings that the policy under test is built with
DRAFTERS = ("ngram", "suffix")
STEPS = 40


def check_policy(factory: Callable[[], Policy]) -> None:
    """Raises AssertionError, saying what was broken.

    factory: a fresh policy with PolicySettings(max_draft_len=12), or less. Whatever it decides, it must keep to the
    caps and to what the caller asked, verify no more than was drafted, and decide the same from the same history.
    """
    _keeps_to_caps_and_callers(factory())
    _force_is_obeyed(factory())
    assert _history(factory()) == _history(factory()), "the same history led to different decisions"
    _takes_any_record(factory())


def _request(name: str, *, room: int = MAX_DRAFT_LEN, cap: Reason | None = None, **other: object) -> DecodeRequest:
    fields: dict[str, object] = {
        "request_id": name,
        "tenant": "acme",
        "request_class": RequestClass.CODE_EDIT,
        "context_tokens": 100,
        "max_draft_len": room,
        "cap": cap,
        "drafters": DRAFTERS,
    }
    return DecodeRequest(**{**fields, **other})  # type: ignore[arg-type]


def _asking(mode: str, draft_len: int | None = None, drafter: str | None = None) -> Speculation:
    return Speculation(SpeculationMode(mode), draft_len, drafter)


def _mixed() -> list[DecodeRequest]:
    """Every kind of request that may meet in a step."""
    return [
        _request("free"),
        _request("near-the-limit", room=2, cap=Reason.CAPPED_LIMIT),
        _request("short-of-memory", room=0, cap=Reason.CAPPED_KV),
        _request("off", speculation=_asking("off")),
        _request("off-with-wishes", speculation=_asking("off", 5, "ngram")),
        _request("denied", speculation=Speculation(SpeculationMode.OFF, denied=True)),
        _request("forced", speculation=_asking("force", 5)),
        _request("forced-at-0", speculation=_asking("force", 0)),
        _request("forced-into-the-cap", speculation=_asking("force", 9), room=3, cap=Reason.CAPPED_KV),
        _request("length-asked", speculation=_asking("auto", 3)),
        _request("drafter-asked", speculation=_asking("auto", None, "suffix")),
        _request("no-drafter", drafters=()),
        _request("warm", temperature=1.2, entropy=3.5, request_class=RequestClass.CREATIVE_WRITING),
    ]


def _load(requests: Sequence[DecodeRequest], waiting: int = 0) -> Load:
    return Load(len(requests), waiting, sum(request.context_tokens for request in requests), 0.5)


def _scores(lens: Sequence[int], knowledge: Knowledge = Knowledge.PREFIX) -> Scores:
    return Scores(tuple(0.9 ** np.arange(1.0, length + 1) for length in lens), knowledge)


def _keeps_to_caps_and_callers(policy: Policy) -> None:
    for count in (0, 1, len(_mixed())):
        requests = _mixed()[:count]
        plan = policy.plan(_load(requests), requests)
        _check_plan(plan, requests)
        for short_by in (0, 1, MAX_DRAFT_LEN):
            drafted = [max(0, planned - short_by) for planned in plan.draft_lens]
            _check_decision(policy.allocate(plan, _scores(drafted)), plan, drafted)


def _check_plan(plan: Plan, requests: Sequence[DecodeRequest]) -> None:
    count = len(requests)
    assert not plan.held, "requests sit out only where the host says that they may"
    assert len(plan.draft_lens) == len(plan.drafters) == len(plan.reasons) == count, "a plan has an entry a request"
    for request, draft_len, drafter, reason in zip(requests, plan.draft_lens, plan.drafters, plan.reasons, strict=True):
        name, asked = request.request_id, request.speculation
        assert isinstance(reason, Reason), f"{name}: {reason!r} is no Reason"
        assert 0 <= draft_len <= request.max_draft_len, f"{name}: {draft_len} of {request.max_draft_len} allowed"
        assert (drafter is None) == (draft_len == 0), f"{name}: {draft_len} tokens of drafter {drafter}"
        assert drafter is None or drafter in request.drafters, f"{name}: {drafter} cannot serve it"
        assert drafter is None or asked.drafter in (None, drafter), f"{name}: asked for {asked.drafter}, got {drafter}"
        if asked.mode is SpeculationMode.OFF:
            off = Reason.DENIED if asked.denied else Reason.OFF_USER
            assert (draft_len, reason) == (0, off), f"{name}: {draft_len}, {reason} though it is {off}"
        if asked.mode is SpeculationMode.AUTO and asked.draft_len is not None:
            assert draft_len <= asked.draft_len, f"{name}: {draft_len}, more than the {asked.draft_len} asked for"


def _check_decision(decision: Decision, plan: Plan, drafted: Sequence[int]) -> None:
    assert len(decision.verify_lens) == len(decision.reasons) == len(drafted), "a decision has an entry a request"
    for verified, have, planned, reason in zip(
        decision.verify_lens, drafted, plan.draft_lens, decision.reasons, strict=True
    ):
        assert isinstance(reason, Reason), f"{reason!r} is no Reason"
        assert 0 <= verified <= min(have, planned), f"verifies {verified} of {have} drafted, {planned} planned"
        if planned and not have:
            assert reason is Reason.NO_PROPOSAL, f"an empty draft is {reason}, not no_proposal"


def _force_is_obeyed(policy: Policy) -> None:
    """Forced drafts have the length asked for, as far as the caps allow, and are verified whole."""
    for room in range(MAX_DRAFT_LEN + 1):
        cap = Reason.CAPPED_LIMIT if room < MAX_DRAFT_LEN else None
        requests = [_request("forced", room=room, cap=cap, speculation=_asking("force", n)) for n in (0, 1, 4)]
        plan = policy.plan(_load(requests), requests)
        assert plan.draft_lens == tuple(min(n, room) for n in (0, 1, 4)), f"forced 0, 1, 4: got {plan.draft_lens}"
        for draft_len, reason in zip(plan.draft_lens, plan.reasons, strict=True):
            assert draft_len == 0 or reason is Reason.FORCED, f"a forced draft is {reason}"
        decision = policy.allocate(plan, _scores(plan.draft_lens))
        assert decision.verify_lens == plan.draft_lens, "a forced draft is verified whole"


def _rows(plan: Plan, decision: Decision, requests: Sequence[DecodeRequest]) -> tuple[StepRow, ...]:
    return tuple(
        StepRow(
            request_id=request.request_id,
            tenant=request.tenant,
            request_class=request.request_class,
            reason=reason,
            drafter=drafter,
            context_tokens=request.context_tokens,
            draft_len=draft_len,
            verify_len=verify_len,
            scores=tuple(0.9 ** np.arange(1.0, draft_len + 1)),
            accepted=verify_len // 2,
            emitted=verify_len // 2 + 1,
            shadow_match={"ngram": 1},
        )
        for request, draft_len, drafter, verify_len, reason in zip(
            requests, plan.draft_lens, plan.drafters, decision.verify_lens, decision.reasons, strict=True
        )
    )


def _record(step: int, load: Load, rows: tuple[StepRow, ...], step_ms: float = 10.0) -> StepRecord:
    parts = {"draft_ms": step_ms / 10, "verify_ms": step_ms * 0.7, "sample_ms": step_ms / 10}
    return StepRecord(
        step=step, at_s=step * 0.01, load=load, overhead_ms=step_ms / 10, step_ms=step_ms, rows=rows, **parts
    )


def _history(policy: Policy) -> list[tuple[Plan, Decision]]:
    """A run with changing company; what was decided at each step."""
    decisions = []
    for step in range(STEPS):
        requests = _mixed()[step % 3 :: 1 + step % 2]
        load = _load(requests, waiting=step % 5)
        plan = policy.plan(load, requests)
        decision = policy.allocate(plan, _scores(plan.draft_lens))
        policy.observe(_record(step, load, _rows(plan, decision, requests)))
        decisions.append((plan, decision))
    return decisions


def _takes_any_record(policy: Policy) -> None:
    """Prefill only, nothing at all, no time measured, a request it never planned: no record may break it."""
    prefill = StepRow(
        request_id="new", tenant="acme", request_class=RequestClass.SQL, reason=Reason.PREFILL, prefill_tokens=64
    )
    stranger = StepRow(
        request_id="stranger",
        tenant="other",
        request_class=RequestClass.TRANSLATION,
        reason=Reason.THROUGHPUT,
        drafter="unheard-of",
        draft_len=50,
        verify_len=50,
        accepted=50,
        emitted=1,
        discarded=50,
    )
    for step, rows in enumerate(((), (prefill,), (stranger,), (prefill, stranger))):
        policy.observe(_record(step, Load(len(rows), 0, 0, 0.0), rows, step_ms=float(step % 2)))
        json.dumps(policy.describe(), allow_nan=False)
    _keeps_to_caps_and_callers(policy)
