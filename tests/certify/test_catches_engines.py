"""What is caught in runners, and in engines that answer: other weights, a verifier that keeps everything."""

import time

import numpy as np
import pytest

from decodeloop.cli.certify_embedded import InProcess, check_invariance
from decodeloop.engine.build import build_engine
from decodeloop.engine.runners import RunnerOptions
from decodeloop.engine.runners.toy import ToyRunner
from decodeloop.engine.settings import EngineSettings
from decodeloop.evaluation.lossless.answers import Answer, Arm, Ask, Remembering
from decodeloop.evaluation.lossless.bugs import KeepsAll
from decodeloop.evaluation.lossless.equality import Company, check_identity


def test_invariance_is_checked_bit_for_bit():
    found = check_invariance(ToyRunner(None, RunnerOptions(block_tokens=4, options={"vocab_size": 40})))
    assert found.passed
    assert found.controlled


class Pair:
    """Plain answers of one engine, speculative ones of another."""

    def __init__(self, plain, served):
        self._plain, self._served = InProcess(plain), InProcess(served)

    def answers(self, asks, arm, at_once):
        return (self._plain if arm is Arm.PLAIN else self._served).answers(asks, arm, at_once)


@pytest.fixture
def opened(tiny):
    engines = []

    def build(**options):
        verifier = options.pop("verifier", None)
        settings = EngineSettings(runner="torch", max_context=256, kv_memory_mb=16, threads=1, **options)
        engine = build_engine(tiny, settings, clock=time.monotonic, name="tiny", verifier=verifier)
        engine.worker.start()
        engines.append(engine)
        return engine

    yield build
    for engine in engines:
        engine.close(1.0)


def identical(target, journal, count, **options):
    asks = [
        Ask(messages=({"role": "user", "content": f"the cat sat on {i} the cat"},), temperature=0.0, max_tokens=48)
        for i in range(count)
    ]
    settings = {"exact": False, "alpha": 1e-3, "must_speculate": True, **options}
    companies = [Company(arm=Arm.FORCED, at_once=4)]
    return check_identity(Remembering(target, journal), asks, companies, **settings)


def test_four_bits_passed_off_as_sixteen_are_caught(opened, journal):
    found = identical(Pair(opened(dtype="bf16"), opened(dtype="int4")), journal, 30)
    assert not found.passed
    assert found.measured["floor"] < found.measured["differ"]


@pytest.mark.parametrize("exact", [True, False])
def test_a_verifier_that_keeps_whatever_is_drafted_is_caught(opened, journal, exact):
    found = identical(InProcess(opened(verifier=KeepsAll())), journal, 24, exact=exact)
    assert not found.passed
    assert found.controlled


def test_an_engine_as_it_ships_passes(opened, journal):
    found = identical(InProcess(opened()), journal, 14)
    assert found.passed
    assert found.measured["accepted"] > 0


def test_noise_in_company_is_no_speculation(journal):
    """Half of all answers change with their company, speculative or not."""

    class Noisy:
        def answers(self, asks, arm, at_once):
            rng = np.random.default_rng([at_once, arm is Arm.PLAIN])
            return [Answer((int(rng.random() < 0.5 and at_once > 1),), 1, 1) for _ in asks]

    found = identical(Noisy(), journal, 60)
    assert found.passed
    assert found.measured["floor"] > 10
    assert found.power[0].size > 0.2


def test_too_few_questions_are_refused(journal):
    with pytest.raises(ValueError, match="5 questions are too few"):
        identical(None, journal, 5)
