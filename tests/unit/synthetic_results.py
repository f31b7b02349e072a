"""Runs with a truth that is known: made up, and labelled so."""

import math
from dataclasses import dataclass, field, replace

import numpy as np

from decodeloop.evaluation.arms import order
from decodeloop.evaluation.results import (
    Arm,
    Drafting,
    Mode,
    PhaseTimes,
    Plan,
    RequestResult,
    Results,
    Turn,
    WorkloadFacts,
)
from decodeloop.types import RequestClass

EDIT, CHAT, STORY = RequestClass.CODE_EDIT, RequestClass.SUPPORT_CHAT, RequestClass.CREATIVE_WRITING
SHARES = {EDIT: 0.6, CHAT: 0.35, STORY: 0.05}


@dataclass(frozen=True, eq=False)
class Truth:
    """speed[arm][class]: of decoding, against the baseline's, at level 1; each doubling of the level takes `fall` off
    the gain. accept: share of drafted tokens accepted. noise: relative error of a turn. drift: shared by a block."""

    speed: dict[str, dict[RequestClass, float]] = field(
        default_factory=lambda: {
            "off": {EDIT: 1.0, CHAT: 1.0, STORY: 1.0},
            "adaptive": {EDIT: 2.0, CHAT: 1.25, STORY: 0.9},
        }
    )
    fall: float = 0.0
    accept: dict[RequestClass, float] = field(default_factory=lambda: {EDIT: 0.8, CHAT: 0.6, STORY: 0.2})
    noise: float = 0.005
    drift: float = 0.1
    levels: tuple[float, ...] = (1.0,)
    blocks: int = 8
    requests: int = 10  # of each class a turn
    tokens: int = 40
    token_ms: float = 10.0
    lossless: dict[str, bool] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)  # of each turn
    lag_s: float = 0.0
    times: bool = True


ROLES = {"off": "off", "fixed": "static", "adaptive": "adaptive", "int4": "int4"}


def plan(truth: Truth) -> Plan:
    classes = list(truth.speed["off"])
    return Plan(
        id="synthetic",
        created_at="2026-11-29T00:00:00Z",
        version="0",
        mode=Mode.SYNTHETIC,
        workload=WorkloadFacts(
            name="made up",
            sha256="0" * 64,
            requests=truth.requests * len(classes),
            counts={str(c): truth.requests for c in classes},
            shares={str(c): SHARES[c] for c in classes},
        ),
        arms=tuple(
            Arm(label=arm, target="synthetic", role=ROLES.get(arm, arm), lossless=truth.lossless.get(arm, True))
            for arm in truth.speed
        ),
        levels=truth.levels,
        blocks=truth.blocks,
        requests_per_turn=truth.requests * len(classes),
        command="decodeloop pilot synthetic.yaml",
        system={"cpu": "none"},
    )


def results(truth: Truth | None = None, *, seed: int = 0) -> Results:
    truth = truth or Truth()
    rng = np.random.default_rng(seed)
    turns, requests = [], []
    for block in range(truth.blocks):
        weather = float(rng.lognormal(0.0, truth.drift))
        for level in truth.levels:
            for place, arm in enumerate(order(list(truth.speed), block)):
                turn = int(place >= len(truth.speed))
                own, seconds, tokens = _turn(truth, arm, (level, block, turn), weather, rng)
                requests += own
                turns.append(
                    Turn(
                        arm=arm,
                        level=level,
                        block=block,
                        turn=turn,
                        began_at="2026-11-29T00:00:00Z",
                        seconds=seconds,
                        tokens=tokens,
                        requests=len(own),
                        errors=sum(r.error is not None for r in own),
                        concurrency=level,
                    )
                )
    return Results(plan(truth), tuple(turns), tuple(requests))


def _turn(truth, arm, at, weather, rng):
    level, block, turn = at
    own, now = [], 0.0
    for c, base in truth.speed[arm].items():
        speed = base - truth.fall * math.log2(level) * (arm != "off")
        for i in range(truth.requests):
            ms = truth.token_ms * weather * float(rng.lognormal(0.0, truth.noise)) / speed
            request = _request(truth, c, ms, now, f"{c}-{i}", drafting=arm != "off")
            own.append(replace(request, arm=arm, level=level, block=block, turn=turn))
            now = own[-1].ended_s
    failed = truth.errors.get(arm, 0)
    own = [replace(r, error="refused", completion_tokens=0) if i < failed else r for i, r in enumerate(own)]
    tokens = sum(r.completion_tokens for r in own)
    return own, now, round(tokens * level)


def _request(truth, c, ms, now, name, *, drafting):
    stamps = tuple(now + truth.lag_s + 0.05 + ms * i / 1e3 for i in range(truth.tokens))
    verified = truth.tokens
    accepted = round(truth.accept[c] * verified)
    drafts = verified // 4  # of four tokens each
    return RequestResult(
        arm="",
        level=1.0,
        block=0,
        turn=0,
        id=name,
        request_class=c,
        session=f"task-{name[-1]}",
        due_s=now,
        sent_s=now + truth.lag_s,
        ended_s=stamps[-1],
        chunk_s=stamps,
        chunk_tokens=(1,) * truth.tokens,
        prompt_tokens=20,
        cached_tokens=0,
        completion_tokens=truth.tokens,
        drafting=Drafting(
            drafts=drafts,
            verified=verified,
            accepted=accepted,
            drafted=verified,
            steps=2 * drafts,
            accepted_histogram=_histogram(drafts, accepted),
        )
        if drafting
        else None,
        times=PhaseTimes(
            prefill_ms=0.0,
            draft_ms=0.1 * ms * truth.tokens if drafting else 0.0,
            verify_ms=(0.9 if drafting else 1.0) * ms * truth.tokens,
        )
        if truth.times
        else None,
        finish_reason="length",
    )


def _histogram(drafts, accepted):
    """As evenly as it goes, at most 4 a draft."""
    each, more = divmod(accepted, drafts)
    counts = [0] * 5
    counts[each] = drafts - more
    if more:
        counts[each + 1] = more
    return tuple(counts)
