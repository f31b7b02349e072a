"""The engine's thread: what is asked of it from outside, in any order, and what it never does: hang."""

import threading
import time

import pytest

from decodeloop.engine.job import Job
from decodeloop.engine.worker import Worker
from decodeloop.types import FinishReason, Request, RequestRefused, SamplingParams
from rig import Heard, Rig

PROMPT = (1, 2, 3, 4, 5)
PATIENCE_S = 20


class Reader(Heard):
    """Says when the answer is over, however it ended."""

    def __init__(self):
        super().__init__()
        self.over = threading.Event()

    def end(self):
        super().end()
        self.over.set()

    def fail(self, error):
        super().fail(error)
        self.over.set()

    def wait(self):
        assert self.over.wait(PATIENCE_S), "no end came"
        return self


class Served:
    """A rig whose engine a worker drives."""

    def __init__(self, **rig):
        self.rig = Rig(**rig)
        self.worker = Worker(self.rig.engine, clock=time.monotonic)
        self.rig.engine._clock = time.monotonic
        self._ids = iter(range(10**6))

    def submit(self, prompt=PROMPT, **params):
        n = params.pop("n", 1)
        params = SamplingParams(**{"temperature": 0.0, "max_tokens": 16, **params})
        request = Request(
            id=f"r{next(self._ids)}", model="toy", prompt=prompt, params=params, seed=1, n=n, arrived_s=time.monotonic()
        )
        reader = Reader()

        def open_job():
            reader.job = Job(request, lambda choice: self.rig.sequence(request, choice), reader)
            return reader.job

        self.worker.submit(open_job, reader.fail)
        return reader

    def settled(self):
        """Wait until every task before now is done."""
        done = threading.Event()
        self.worker.call(done.set)
        assert done.wait(PATIENCE_S)


@pytest.fixture
def served():
    served = Served()
    served.worker.start()
    yield served
    served.worker.stop(PATIENCE_S)
    assert served.rig.no_block_leaked()


def test_many_answers_at_once(served):
    expected = Rig().generate(PROMPT).token_ids
    readers = [served.submit(n=1 + i % 3) for i in range(20)]
    for reader in readers:
        first = [t for chunk in reader.wait().chunks if chunk.index == 0 for t in chunk.token_ids]
        assert first == expected


def test_an_aborted_answer_frees_its_memory_and_its_siblings(served):
    reader = served.submit(max_tokens=4000, n=3)
    while not reader.chunks:
        time.sleep(0.001)
    served.worker.abort(lambda: reader.job)
    served.settled()
    assert not served.rig.busy
    assert not reader.ended


def test_abort_finds_a_job_that_is_still_being_opened(served):
    reader = served.submit(max_tokens=4000)
    served.worker.abort(lambda: reader.job)
    served.settled()
    assert not served.rig.busy


def test_a_job_that_cannot_be_opened_is_refused_and_others_go_on(served):
    refusals = []
    served.worker.submit(lambda: 1 / 0, refusals.append)
    assert served.submit().wait().ended
    assert refusals[0].status == 500


def test_a_step_that_raises_fails_what_runs_and_the_engine_goes_on(served):
    engine, step = served.rig.engine, served.rig.engine.step

    def broken():
        engine.step = step
        raise ZeroDivisionError("a bug")

    engine.step = broken
    assert "a bug" in str(served.submit().wait().error)
    assert served.submit().wait().ended


def test_stopping_lets_answers_end_and_refuses_new_ones():
    served = Served()
    served.worker.start()
    running = served.submit(max_tokens=200)
    served.worker.call(served.worker._begin_stop)
    late = served.submit().wait()
    assert isinstance(late.error, RequestRefused)
    assert late.error.status == 503
    served.worker.stop(PATIENCE_S)
    assert running.ended
    assert running.finish_reason in (FinishReason.LENGTH, FinishReason.STOP)


def test_stopping_ends_what_would_not_end():
    served = Served(toy={"script": {5: (7,) * 4000}})
    served.worker.start()
    endless = served.submit(max_tokens=4000)
    served.worker.stop(0.05)
    assert endless.error.status == 503
    assert served.rig.no_block_leaked()
