"""A fault ends the request that it belongs to: never another's, never the engine. (Cases 18, 22, 29.)"""

import numpy as np
import pytest

from decodeloop.speculation import Draft, DraftBlock
from decodeloop.speculation.drafters.scripted import ScriptedDrafter
from decodeloop.types import FinishReason, RequestRefused
from rig import Rig
from test_worker import Served

PROMPT = (1, 2, 3, 4, 5)


@pytest.fixture
def served():
    served = Served()
    served.worker.start()
    yield served
    served.worker.stop(20)
    assert served.rig.no_block_leaked()


def test_all_choices_of_a_request_may_fail_in_one_step(served):
    forward, calls = served.rig.runner.forward, []

    def broken(batch):
        calls.append(batch)
        if len(calls) == 4:
            raise ZeroDivisionError("a bug")
        return forward(batch)

    served.rig.runner.forward = broken
    assert "a bug" in str(served.submit(n=3, max_tokens=50).wait().error)
    assert served.submit(n=3).wait().ended


def test_nan_in_several_choices_is_one_failure():
    served = Served(toy={"nan_at": 50})
    served.worker.start()
    sick, well = served.submit((1, 50, 2), n=4), served.submit(banned_token_ids=(50,))
    assert sick.wait().error.status == 500
    assert well.wait().ended
    served.worker.stop(20)
    assert served.rig.no_block_leaked()


def wrong_shape(tokens, logits):
    return logits[:3]


def raising(tokens, logits):
    if len(tokens) > 8:
        raise KeyError("the caller's own bug")
    return logits


@pytest.mark.parametrize("hook", [wrong_shape, raising])
def test_a_broken_logit_hook_ends_its_own_request(hook):
    rig = Rig({"scripted": ScriptedDrafter([[1, 2]] * 30)}, policy="fixed")
    broken, well = rig.submit(PROMPT, logit_hook=hook), rig.submit(PROMPT)
    rig.run()
    assert broken.error is not None
    assert well.token_ids == Rig().generate(PROMPT).token_ids
    assert not rig.engine.proposers.failed
    assert rig.no_block_leaked()


def test_what_a_request_excludes_itself_is_its_senders_mistake(served):
    """Every token forbidden: 400, which no client retries, in words."""
    reader = served.submit(allowed_token_ids=(7,), banned_token_ids=(7,)).wait()
    assert isinstance(reader.error, RequestRefused)
    assert (reader.error.status, reader.error.code) == (400, "nothing_left")
    assert "exclude every one" in reader.error.message


def test_a_fault_in_a_requests_text_ends_that_request():
    rig = Rig()
    broken, well = rig.submit(PROMPT), rig.submit(PROMPT)
    broken.job.sequences[0].output.push = lambda token: 1 / 0
    rig.run()
    assert broken.error is not None
    assert well.ended
    assert rig.no_block_leaked()


def test_a_fault_at_the_deadline_ends_that_request():
    rig = Rig()
    late, well = rig.submit(PROMPT, max_tokens=500, deadline_ms=5.0), rig.submit(PROMPT)
    late.job.sequences[0].output.finish = lambda: 1 / 0
    rig.run()
    assert late.error is not None
    assert well.finish_reason is not FinishReason.ERROR
    assert rig.no_block_leaked()


class Impostor(ScriptedDrafter):
    """Breaks the contract in one way each."""

    def __init__(self, answer):
        super().__init__([])
        self._answer = answer

    def propose(self, requests):
        return DraftBlock(self._answer(len(requests)))


@pytest.mark.parametrize(
    "answer",
    [
        lambda count: (),
        lambda count: (Draft((1,)),) * (count + 1),
        lambda count: (Draft((1, 2), parents=(-1, -1)),) * count,
    ],
    ids=["none for anyone", "one too many", "a tree, where chains are verified"],
)
def test_a_drafter_that_breaks_its_contract_is_set_aside(answer):
    rig = Rig({"impostor": Impostor(answer)}, policy="fixed")
    assert rig.generate(PROMPT).token_ids == Rig().generate(PROMPT).token_ids
    assert "impostor" in rig.engine.proposers.failed


@pytest.mark.parametrize("verifier", ["rejection", "block"])
def test_a_draft_that_was_not_drawn_from_its_q_ends_the_request_it_was_for(verifier):
    """The verdict would be worthless: q says that the token can't have been drawn."""

    class Liar(ScriptedDrafter):
        def propose(self, requests):
            q = np.zeros(64)
            q[9] = 1.0
            return DraftBlock(
                tuple(
                    Draft((7,), q=(q,), confidence=(0.5,), drafter="liar") if request.chance.key[0] % 2 else Draft()
                    for request in requests
                )
            )

    rig = Rig({"liar": Liar([])}, policy="fixed", verifier=verifier)
    heard = [rig.submit(PROMPT, temperature=1.0, seed=seed, ignore_eos=True) for seed in range(8)]
    rig.run()
    lied_to = [reader.job.sequences[0].chance.key[0] % 2 for reader in heard]
    assert 0 < sum(lied_to) < 8
    for reader, lied in zip(heard, lied_to, strict=True):
        assert (reader.error is not None) == bool(lied)
    assert rig.no_block_leaked()


def test_the_batch_tier_yields_but_does_not_starve():
    """Under a load that never ends it runs once it has waited its time."""
    rig = Rig(max_sequences=1)
    rig.submit(PROMPT, max_tokens=2)
    batch = rig.submit(PROMPT, priority="batch", max_tokens=2)
    ended_s = []
    for _ in range(200):
        rig.submit(PROMPT, max_tokens=2)
        rig.step()
        rig.now_s += 1.0
        if batch.ended:
            ended_s.append(rig.now_s)
    assert batch.ended
    assert 30 < ended_s[0] < 120
