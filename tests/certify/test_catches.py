"""What a certificate must catch, in targets that decode wrongly; and the right ones that must pass."""

import time
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np
import pytest

from decodeloop.cli.certify_embedded import InProcess, check_invariance
from decodeloop.engine.build import build_engine
from decodeloop.engine.runners import RunnerOptions
from decodeloop.engine.runners.toy import ToyRunner
from decodeloop.engine.settings import EngineSettings
from decodeloop.evaluation.lossless import rules
from decodeloop.evaluation.lossless.algorithm import check_algorithm, default_policies
from decodeloop.evaluation.lossless.answers import Answer, Arm, Ask, Journal, Remembering
from decodeloop.evaluation.lossless.bugs import KeepsAll, Pinned
from decodeloop.evaluation.lossless.declaration import check_declaration
from decodeloop.evaluation.lossless.distributions import check_distributions
from decodeloop.evaluation.lossless.equality import Company, check_identity
from decodeloop.evaluation.lossless.outcome import Verdict, verdict_of
from decodeloop.evaluation.lossless.sampler import Row, check_sampler, drawing
from decodeloop.evaluation.lossless.shaped import FilteredAtTheEnd, Stale
from decodeloop.evaluation.lossless.tables import everywhere, sampled_draft
from decodeloop.evaluation.lossless.texts import Effort, check_texts
from decodeloop.speculation import Draft
from decodeloop.speculation.sampling import Distribution
from decodeloop.speculation.verifiers import verifiers
from decodeloop.speculation.verifiers.block import BlockVerifier
from decodeloop.speculation.verifiers.coupled import CoupledVerifier
from decodeloop.speculation.verifiers.rejection import RejectionVerifier
from wrong_targets import Simulated

SAMPLED = [RejectionVerifier, BlockVerifier]
P, Q = everywhere(0.5, 0.3, 0.2), everywhere(0.2, 0.3, 0.5)
ASK = Ask(messages=({"role": "user", "content": "x"},), temperature=1.0, max_tokens=3)


@pytest.fixture
def journal(tmp_path):
    opened = Journal(tmp_path / "journal.jsonl")
    yield opened
    opened.close()


def sampled(target, journal, **options):
    settings = {"samples": 600, "length": 3, "arm": Arm.SERVED, "at_once": 1, "alpha": 1e-3, "must_speculate": True}
    return check_distributions(Remembering(target, journal), [ASK], **{**settings, **options})


# By enumeration.


def enumerated(**options):
    names = ("rejection", "block")
    settings = {"seeds": 1, "cuts": (), **options}
    return check_algorithm({name: verifiers.load(name) for name in names}, settings.pop("policies", {}), **settings)


def test_what_ships_passes_and_every_violation_put_in_is_caught():
    shipped = {name: verifiers.load(name) for name in verifiers.names()}
    found = check_algorithm(shipped, default_policies(["fixed"]), seeds=1)
    assert found.passed
    assert found.controlled
    assert len(found.controls) > 30


@pytest.mark.parametrize("rule", rules.UNSOUND)
def test_an_unsound_way_to_cut_fails_by_enumeration(rule):
    found = enumerated(cuts=(rule,))
    assert not found.passed
    assert found.measured["total_variation"] >= rules.INSTANCES[rule].least


@pytest.mark.parametrize("rows", [FilteredAtTheEnd, Stale])
def test_rows_that_are_shaped_wrongly_fail_by_enumeration(rows):
    assert not enumerated(rows=rows).passed


def test_pinned_acceptance_fails_by_enumeration():
    found = check_algorithm({"synthetic": lambda: Pinned(0.7)}, {}, seeds=1)
    assert not found.passed


# By sampling: a target of which only answers are seen.


@pytest.mark.parametrize("verifier", SAMPLED)
@pytest.mark.parametrize("rule", rules.UNSOUND)
def test_an_unsound_way_to_cut_is_caught(rule, verifier, journal):
    shown = rules.INSTANCES[rule]
    target = Simulated(shown.target, lambda dice: rule(dice, shown.q, shown.depth), verifier())
    found = sampled(target, journal)
    assert not found.passed
    assert found.controlled


@pytest.mark.parametrize("verifier", SAMPLED)
def test_a_drafter_whose_q_is_not_the_one_it_drew_from_is_caught(verifier, journal):
    reported = np.array([0.5, 0.3, 0.2]) ** 2
    reported /= reported.sum()
    target = Simulated(P, lambda dice: Draft(sampled_draft(dice, P, 2).tokens, (reported,) * 2), verifier())
    assert not sampled(target, journal).passed


class FilterAtTheEnd:
    """The request's filter (here: no token 2) acts on the bonus token alone."""

    def __init__(self, table, tokens):
        self._filtered, self._last = table[()], len(tokens)

    def __getitem__(self, i):
        return self._filtered if i == self._last else Distribution.of(np.array([0.4, 0.3, 0.3]))

    def position(self, i):
        return i


@pytest.mark.parametrize("verifier", SAMPLED)
def test_a_filter_on_the_bonus_token_alone_is_caught(verifier, journal):
    filtered = everywhere(0.57, 0.43, 0.0)
    bare = everywhere(0.4, 0.3, 0.3)
    target = Simulated(filtered, lambda dice: sampled_draft(dice, bare, 1), verifier(), rows=FilterAtTheEnd)
    assert not sampled(target, journal).passed


class HotWhereDrafted:
    """The request's temperature reaches the bonus token alone, whatever stands in memory the rows of the draft."""

    def __init__(self, table, tokens):
        self._cool, self._last = table[()], len(tokens)

    def __getitem__(self, i):
        probs = self._cool.probs**0.1
        return self._cool if i == self._last else Distribution.of(probs / probs.sum())

    def position(self, i):
        return i


@pytest.mark.parametrize("verifier", [*SAMPLED, CoupledVerifier])
def test_a_temperature_that_misses_the_rows_of_a_draft_is_caught(verifier, journal):
    """As vLLM's CPU build 0.32 does: greedy answers are right, sampled ones go wrong where a draft was rejected."""
    target = Simulated(P, lambda dice: sampled_draft(dice, Q, 1), verifier(), rows=HotWhereDrafted)
    assert not sampled(target, journal).passed


@dataclass
class WrongAtFirst:
    """Decodes wrongly until so many answers were given, and rightly from then on: undefined memory, say."""

    wrong: Simulated
    right: Simulated
    left: int

    def answers(self, asks, arm, at_once):
        self.left -= len(asks) if arm is not Arm.PLAIN else 0
        return (self.wrong if self.left >= 0 else self.right).answers(asks, arm, at_once)


def test_a_failure_that_is_not_seen_again_is_no_pass(journal):
    wrong, right = (Simulated(P, lambda dice: sampled_draft(dice, Q, 2), v) for v in (Pinned(1.0), RejectionVerifier()))
    found = sampled(WrongAtFirst(wrong, right, 600), journal)
    assert found.passed
    assert found.unsettled
    assert verdict_of([found]) is Verdict.INVALID
    assert "before these were drawn anew" in found.found


@pytest.mark.parametrize("acceptance", [0.5, 1.0])
def test_pinned_acceptance_is_caught(acceptance, journal):
    target = Simulated(P, lambda dice: sampled_draft(dice, Q, 2), Pinned(acceptance))
    assert not sampled(target, journal).passed


@pytest.mark.parametrize("verifier", [*SAMPLED, CoupledVerifier])
@pytest.mark.parametrize("rule", [rules.whole, rules.stop_on_max_q])
def test_the_sound_pass(rule, verifier, journal):
    target = Simulated(P, lambda dice: rule(dice, Q, 3), verifier())
    found = sampled(target, journal)
    assert found.passed
    assert found.controlled
    assert not found.idle
    assert not found.unsettled


def test_a_target_that_never_speculates_proves_nothing(journal):
    target = Simulated(P, lambda dice: Draft(), RejectionVerifier())
    assert sampled(target, journal).idle


@pytest.mark.parametrize(("acceptance", "passes"), [(None, True), (1.0, False)])
def test_texts_alone_tell_pinned_acceptance(acceptance, passes, journal):
    verifier = RejectionVerifier() if acceptance is None else Pinned(acceptance)
    target = Simulated(P, lambda dice: sampled_draft(dice, Q, 3), verifier)
    effort = Effort(samples=40, length=6, permutations=1999, rounds=6, alpha=1e-3)
    asks = [replace(ASK, max_tokens=6, messages=({"role": "user", "content": str(i)},)) for i in range(4)]
    found = check_texts(Remembering(target, journal), asks, effort, at_once=1)
    assert found.passed is passes


# What a target says of itself.


@pytest.mark.parametrize(
    ("configuration", "passes"),
    [
        ("", True),
        ("speculative_config: {'rejection_sample_method': 'standard'}", True),
        ("speculative_config: {'rejection_sample_method': 'synthetic'}", False),
        ('{"rejection_sample_method": "fly"}', False),
        ("speculative_accept_threshold_single=1.0", True),
        ("speculative_accept_threshold_single=0.8", False),
    ],
)
def test_a_lossy_rule_that_is_told_fails(configuration, passes):
    found = check_declaration(configuration, {})
    assert found.passed is passes
    assert found.controlled
    assert check_declaration("", {"speculation": configuration}).passed is passes


# The sampler.


def rows():
    rng = np.random.default_rng(0)
    return [Row((1, 2, i), Distribution.of(rng.dirichlet(np.ones(60) * 0.3))) for i in range(2)]


@pytest.mark.parametrize("verifier", [*SAMPLED, CoupledVerifier])
def test_the_shipped_samplers_follow_p(verifier):
    found = check_sampler(drawing(verifier()), rows(), draws=1500, alpha=1e-3)
    assert found.passed
    assert found.controlled


def warm(row):
    return replace(row, p=Distribution(row.p.log_weights * 0.8, row.p.vocab_size))


@pytest.mark.parametrize(
    "draw",
    [
        lambda row, asked: drawing(CoupledVerifier())(warm(row), asked),
        lambda row, asked: drawing(CoupledVerifier())(row, [(chance, 7) for chance, _ in asked]),
        lambda row, asked: drawing(CoupledVerifier())(
            row, [(asked[i - i % 2][0], at) for i, (_, at) in enumerate(asked)]
        ),
    ],
    ids=["another temperature", "noise that forgets the position", "noise that forgets seeds"],
)
def test_a_wrong_sampler_fails(draw):
    assert not check_sampler(draw, rows(), draws=1500, alpha=1e-3).passed


# Runners and engines.


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


# Journals.


def test_an_interrupted_collection_goes_on(tmp_path):
    class Breaks:
        asked = 0

        def answers(self, asks, arm, at_once):
            Breaks.asked += len(asks)
            if Breaks.asked > 130:
                raise OSError("gone")
            return [Answer((ask.seed, "text"), None, None) for ask in asks]

    asks = [replace(ASK, seed=seed) for seed in range(200)]
    path = tmp_path / "deep" / "j.jsonl"
    with closing(Journal(path)) as first, pytest.raises(OSError, match="gone"):
        Remembering(Breaks(), first).collect(asks, Arm.PLAIN, at_once=1)
    with path.open("a") as file:
        file.write('["torn')
    Breaks.asked = 0
    with closing(Journal(path)) as kept:
        assert len(kept) == 128
        got = Remembering(Breaks(), kept).collect(asks, Arm.PLAIN, at_once=1)
    assert [answer.tokens for answer in got] == [(seed, "text") for seed in range(200)]
    assert Breaks.asked == 72
    with closing(Journal(path)) as whole:
        assert len(whole) == 200


def test_answers_are_told_apart_by_all_that_was_asked():
    other = [
        replace(ASK, seed=1),
        replace(ASK, temperature=0.5),
        replace(ASK, max_tokens=4),
        replace(ASK, messages=({"role": "user", "content": "y"},)),
    ]
    keys = {ASK.key(Arm.PLAIN, 1, 0), ASK.key(Arm.SERVED, 1, 0), ASK.key(Arm.PLAIN, 2, 0), ASK.key(Arm.PLAIN, 1, 1)}
    assert len(keys | {ask.key(Arm.PLAIN, 1, 0) for ask in other}) == 8
