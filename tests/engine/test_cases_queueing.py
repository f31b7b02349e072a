"""Who waits, for how long, and who goes first."""

import pytest

from decodeloop.types import FinishReason, RequestRefused, Slo
from rig import Rig

PROMPT = [1, 2, 3, 4, 5, 1, 2, 3]


def test_a_deadline_ends_a_request_and_frees_it():
    rig = Rig()
    late = rig.submit(PROMPT, max_tokens=500, deadline_ms=30.0)
    fine = rig.submit(PROMPT, max_tokens=50)
    rig.run()
    assert late.finish_reason is FinishReason.DEADLINE
    assert 10 < len(late.token_ids) < 60
    assert fine.finish_reason is FinishReason.LENGTH
    assert rig.no_block_leaked()


def test_a_full_queue_refuses():
    rig = Rig(max_waiting=2, max_sequences=1)
    rig.submit(PROMPT)
    rig.submit(PROMPT)
    with pytest.raises(RequestRefused, match="queue is full") as refused:
        rig.submit(PROMPT)
    assert refused.value.status == 429


def test_who_wants_a_first_token_sooner_goes_first_and_nobody_for_ever():
    rig = Rig(max_sequences=1)
    rig.submit(PROMPT, max_tokens=2)
    rig.step()
    wanted = {"patient": None, "later": 900.0, "soon": 100.0, "batch": 1.0}
    heard = {}
    for name, ttft_ms in wanted.items():
        tier = {"priority": "batch"} if name == "batch" else {}
        heard[name] = rig.submit(PROMPT, max_tokens=1, slo=Slo(ttft_ms=ttft_ms), **tier)
    ended = []
    while len(ended) < len(heard):
        rig.step()
        ended += [name for name, each in heard.items() if each.ended and name not in ended]
    assert ended == ["soon", "later", "patient", "batch"]
    rig.submit(PROMPT, max_tokens=2)
    rig.step()
    patient = rig.submit(PROMPT, max_tokens=1)
    rig.now_s += 6.0
    eager = rig.submit(PROMPT, max_tokens=1, slo=Slo(ttft_ms=1.0))
    while not patient.ended:
        rig.step()
    assert not eager.ended, "who has waited its time isn't overtaken any more"


def test_the_batch_tier_yields():
    rig = Rig(max_sequences=1)
    batch = rig.submit(PROMPT, priority="batch", max_tokens=2)
    late = rig.submit(PROMPT, max_tokens=2)
    while not late.ended:
        rig.step()
    assert not batch.ended
    rig.run()
    assert batch.ended
