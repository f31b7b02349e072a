"""The simulator against our own engine, its scheduler and verifier included, on a clock that knows what steps cost.

The toy target decodes; its every forward takes exactly what the cost model says. So whatever differs is the simulator's
own doing: batching, prompts in chunks, drafts and their caps, ends.
"""

from __future__ import annotations

import sys
from itertools import cycle, islice, pairwise
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))

from decodeloop.engine.runners import RunnerOptions
from decodeloop.engine.runners.toy import ToyRunner
from decodeloop.evaluation.acceptance import Draft as SaidDraft
from decodeloop.evaluation.acceptance import History, Texts
from decodeloop.evaluation.fleet import Limits
from decodeloop.evaluation.policy_rule import PolicyRule
from decodeloop.evaluation.roofline import StraightLines
from decodeloop.evaluation.rules import Fixed, Off
from decodeloop.evaluation.simulate import Fleet, simulate_closed, simulate_turns
from decodeloop.evaluation.workload import Arrival
from decodeloop.policy import PolicySettings, policies
from decodeloop.speculation import NO_DRAFT, Draft, DraftBlock
from decodeloop.types import RequestClass
from rig import VOCAB, Rig

COST = StraightLines(step=6.0, token=0.4, context=0.002)
OWN_MS = 1.0  # that the rig adds to every step
SIMULATED = StraightLines(step=COST.step + OWN_MS, token=COST.token, context=COST.context)
DEPTH = 6
LIMITS = Limits(max_sequences=8, prefill_chunk=24, step_tokens=64)
PROMPTS = [[1 + (7 * i + j * j) % 50 for j in range(12 + 9 * (i % 5))] for i in range(12)]


class TimedRunner:
    """A runner whose forwards take time on the rig's clock."""

    def __init__(self):
        self._inner = ToyRunner(None, RunnerOptions(block_tokens=16, options={"vocab_size": VOCAB}))
        self.info, self.rig = self._inner.info, None

    def allocate_kv(self, blocks):
        self._inner.allocate_kv(blocks)

    def forward(self, batch):
        ends = {}
        for slot, position in zip(batch.slots.tolist(), batch.positions.tolist(), strict=True):
            ends.setdefault(slot, position)
        self.rig.now_s += COST.step_ms(len(batch.tokens), sum(ends.values()), len(ends)) / 1e3
        return self._inner.forward(batch)


class Knowing:
    """Knows the answers, and errs at every fifth position; silent at every seventh."""

    free = True

    def __init__(self, answers):
        self._answers = answers  # prompt -> answer

    def said(self, prompt, out):
        answer = self._answers[prompt]
        if out % 7 == 6:
            return ()
        return tuple(
            token if (out + k) % 5 else (token + 1) % VOCAB for k, token in enumerate(answer[out : out + DEPTH])
        )

    def propose(self, requests):
        return DraftBlock(tuple(self._draft(request) for request in requests))

    def _draft(self, request):
        prompt = next(p for p in self._answers if tuple(request.tokens[: len(p)]) == p)
        tokens = self.said(prompt, len(request.tokens) - len(prompt))[: request.draft_len]
        confidence = tuple(0.8 ** (k + 1) for k in range(len(tokens)))
        return Draft(tokens, confidence=confidence, drafter="ngram") if tokens else NO_DRAFT

    def finish(self, *_):
        pass

    def memory_bytes(self):
        return {}


def rig(policy, drafters=None, **settings):
    runner = TimedRunner()
    made = Rig(
        drafters,
        policy=policy,
        runner=runner,
        max_sequences=LIMITS.max_sequences,
        prefill_chunk=LIMITS.prefill_chunk,
        max_step_tokens=LIMITS.step_tokens,
        max_draft_len=DEPTH,
        prefix_caching=False,
        **settings,
    )
    runner.rig = made
    return made


def tokens_of(i):
    return 16 + 4 * (i % 6)


@pytest.fixture(scope="module")
def answers():
    return {
        tuple(prompt): rig("off").generate(prompt, max_tokens=tokens_of(i), ignore_eos=True).token_ids
        for i, prompt in enumerate(PROMPTS)
    }


def engine_paces(policy, answers, load, **settings):
    """(tokens a second, [ms a token] of the requests): a closed loop over all prompts."""
    running = rig(policy, {"ngram": Knowing(answers)}, **settings)
    waiting, open_, first, paces, tokens = list(enumerate(PROMPTS)), {}, {}, [], 0
    while waiting or open_:
        while waiting and len(open_) < load:
            i, prompt = waiting.pop(0)
            open_[i] = running.submit(prompt, max_tokens=tokens_of(i), ignore_eos=True)
        running.step()
        for i, heard in list(open_.items()):
            if heard.token_ids and i not in first:
                first[i] = running.now_s
            if heard.finish_reason is not None:
                tokens += len(heard.token_ids)
                paces.append(1e3 * (running.now_s - first[i]) / (len(heard.token_ids) - 1))
                del open_[i]
    return tokens / running.now_s, paces


def engine_turn(policy, answers, load, start, tokens):
    """(seconds, [ms a token] of requests that began and ended within): from when all decode until `tokens` are out."""
    running = rig(policy, {"ngram": Knowing(answers)}, draft_len=3)
    stream = islice(cycle(enumerate(PROMPTS)), start, None)
    open_, first, paces, began_s, out = [], {}, [], None, 0
    while out < tokens:
        for i, prompt in islice(stream, load - len(open_)):
            open_.append(running.submit(prompt, max_tokens=tokens_of(i), ignore_eos=True))
        before = sum(len(heard.token_ids) for heard in open_)
        running.step()
        if began_s is None:
            began_s = running.now_s if all(heard.token_ids for heard in open_) else None
            first |= {id(heard): None for heard in open_}
            continue
        out += sum(len(heard.token_ids) for heard in open_) - before
        for heard in open_:
            if heard.token_ids:
                first.setdefault(id(heard), running.now_s)
        for heard in [heard for heard in open_ if heard.finish_reason is not None]:
            open_.remove(heard)
            if first[id(heard)] is not None:
                paces.append(1e3 * (running.now_s - first[id(heard)]) / (len(heard.token_ids) - 1))
    return running.now_s - began_s, paces


def known(answers):
    """The requests as the simulator takes them, and their drafts."""
    said, histories, arrivals = Knowing(answers), [], []
    for i, (prompt, answer) in enumerate(answers.items()):
        drafts = []
        for out in range(len(answer)):
            draft = said.said(prompt, out)
            wrong = [k for k, (a, b) in enumerate(zip(draft, answer[out:], strict=False)) if a != b]
            right = wrong[0] if wrong else len(draft)
            drafts.append(SaidDraft(len(draft), right, [0.8 ** (k + 1) for k in range(len(draft))]))
        histories.append(History(RequestClass.GENERAL_CHAT, drafts))
        arrivals.append(Arrival(0.0, len(prompt), len(answer), text=i))
    return arrivals, Texts(histories)


def simulated_paces(rule, answers, load):
    arrivals, texts = known(answers)
    fleet = Fleet(replicas=1, cost=SIMULATED, rule=rule, acceptance=texts, limits=LIMITS)
    stream = iter(arrivals)
    found, served = simulate_closed(fleet, list(islice(stream, load)), seconds=1e6, following=stream)
    return found.tokens_per_s, [s.tpot_ms for s in served]


@pytest.mark.parametrize("load", [1, 3, 8])
@pytest.mark.parametrize("policy", ["off", "fixed", "adaptive"])
def test_the_simulator_and_the_engine_take_the_same_time(policy, load, answers):
    rules = {
        "off": Off,
        "fixed": lambda: Fixed(SIMULATED, 3, paid=False),
        "adaptive": lambda: PolicyRule(
            policies.load("adaptive")(PolicySettings(DEPTH), None), SIMULATED, max_draft_len=DEPTH
        ),
    }
    rate, paces = engine_paces(policy, answers, load, draft_len=3)
    said_rate, said_paces = simulated_paces(rules[policy], answers, load)
    assert len(paces) == len(said_paces) == len(PROMPTS)
    assert said_rate == pytest.approx(rate, rel=0.005 if policy != "adaptive" else 0.03)
    said, true = (float(np.quantile(each, 0.95)) for each in (said_paces, paces))
    assert said == pytest.approx(true, rel=0.01 if policy != "adaptive" else 0.05)


@pytest.mark.parametrize("load", [1, 4])
@pytest.mark.parametrize("policy", ["off", "fixed"])
def test_short_turns_are_simulated_as_they_are_measured(policy, load, answers):
    """Prompts of the first requests aren't counted, and few requests begin and end within: what such a turn gives is
    not what the loop gives in the long run, least of all if only those few are simulated."""
    tokens, starts = 60 * load, [0, 5, 10]
    rule = {"off": Off, "fixed": lambda: Fixed(SIMULATED, 3, paid=False)}[policy]
    arrivals, texts = known(answers)
    fleet = Fleet(replicas=1, cost=SIMULATED, rule=rule, acceptance=texts, limits=LIMITS)
    streams = (islice(cycle(arrivals), start, None) for start in starts)
    turns = list(simulate_turns(fleet, streams, load=load, tokens=tokens))
    assert len(turns) == len(starts)
    for start, (found, served) in zip(starts, turns, strict=True):
        seconds, paces = engine_turn(policy, answers, load, start, tokens)
        assert found.seconds == pytest.approx(seconds, rel=0.005)
        assert sorted(s.tpot_ms for s in served) == pytest.approx(sorted(paces), rel=0.01)


def test_rules_keep_what_they_learned_from_turn_to_turn_and_requests_end_with_theirs(answers):
    made = []

    def rule():
        made.append(Off())
        return made[-1]

    arrivals, texts = known(answers)
    fleet = Fleet(replicas=1, cost=SIMULATED, rule=rule, acceptance=texts, limits=LIMITS)
    turns = list(simulate_turns(fleet, (cycle(arrivals) for _ in range(3)), load=4, tokens=200))
    assert len(made) == 1
    seconds = [found.seconds for found, _ in turns]
    assert seconds == pytest.approx([seconds[0]] * 3)


def test_a_policy_sees_a_step_begin_where_the_last_one_ended(answers):
    """As in the engine: policies that keep objectives time answers by it."""
    policy, seen = policies.load("off")(PolicySettings(DEPTH), None), []
    policy.observe = seen.append
    simulated_paces(lambda: PolicyRule(policy, SIMULATED, max_draft_len=DEPTH), answers, 3)
    assert seen[0].at_s == 0.0
    gaps = [b.at_s - a.at_s - a.step_ms / 1e3 for a, b in pairwise(seen)]
    assert max(map(abs, gaps)) < 1e-9
