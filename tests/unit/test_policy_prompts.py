"""What adaptive policies make of steps that read prompts."""

from __future__ import annotations

from dataclasses import replace

from decodeloop.policy import PolicySettings, policies
from decodeloop.policy.cost import CostSurface
from decodeloop.policy.cost_fit import CostSample
from decodeloop.types import Load, Reason, RequestClass, StepRecord, StepRow

COPY = RequestClass.CODE_EDIT
READ = StepRow(
    request_id="reading",
    tenant="t",
    request_class=RequestClass.GENERAL_CHAT,
    reason=Reason.PREFILL,
    drafter=None,
    prefill_tokens=128,
)


def step_ms(tokens: int) -> float:
    return 3.0 + 0.3 * tokens


def surface() -> CostSurface:
    return CostSurface([CostSample(n * k, 100 * n, n, step_ms(n * k)) for n in (1, 2, 4, 8, 32) for k in (1, 2, 4, 8)])


def decoding(verified: int, accepted: int) -> StepRow:
    return StepRow(
        request_id="copying",
        tenant="t",
        request_class=COPY,
        reason=Reason.THROUGHPUT,
        drafter="ngram",
        context_tokens=100,
        draft_len=verified,
        verify_len=verified,
        scores=(0.5,) * verified,
        accepted=accepted,
        emitted=accepted + 1,
        shadow_match={"ngram": accepted},
    )


def record(step: int, rows: tuple[StepRow, ...], ms: float) -> StepRecord:
    prompt = sum(row.prefill_tokens for row in rows)
    load = Load(len(rows), 0, 100 * len(rows), 1.0, prefill_tokens=prompt)
    return StepRecord(
        step=step,
        at_s=step / 50,
        load=load,
        draft_ms=0.0,
        verify_ms=ms,
        sample_ms=0.0,
        overhead_ms=0.0,
        step_ms=ms,
        predicted_ms=ms,
        rows=rows,
    )


def classes_off(slowness: float, right_every: int | None) -> list[dict[str, str]]:
    """After steps that read a prompt, in which a request verifies two tokens and every so often has both right.

    Every other prompt takes `slowness` times as long to read as one of its size elsewhere.
    """
    policy = policies.load("adaptive")(PolicySettings(), surface())
    for step in range(600):
        right = 2 * (right_every is not None and step % right_every == 1)
        if step % 4 == 0:
            rows, ms = (replace(decoding(0, 0), draft_len=0, drafter=None, scores=()),), step_ms(1)
        else:
            rows, ms = (READ, decoding(2, right)), (1.0 if step // 60 % 2 else slowness) * step_ms(131)
        policy.observe(record(step, rows, ms))
    off = policy.describe()["guard"]["off"]
    assert isinstance(off, list)
    return off


def test_a_prompt_that_takes_longer_than_foretold_is_not_laid_to_who_speculates_beside_it():
    assert not classes_off(slowness=2.5, right_every=8)  # 1.33 tokens a step, which took 1.015 of plain


def test_who_gets_nothing_for_its_drafts_beside_prompts_is_still_found():
    assert classes_off(slowness=1.0, right_every=None)
