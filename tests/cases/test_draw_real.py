"""A runner's own draw changes no answer, and is used where it may be."""

from dataclasses import replace

import pytest

from real import Tiny, differences, every_kind, request
from tiny import tiny_hf


class WithoutDraws:
    """A runner whose rows the verifier judges all by itself."""

    def __init__(self, runner):
        self.info, self.forward, self.copy_kv = runner.info, runner.forward, runner.copy_kv
        self.allocate_kv = runner.allocate_kv


class Counting(WithoutDraws):
    """One that counts the sequences' rows that it was asked to draw, and those that it did draw."""

    def __init__(self, runner):
        super().__init__(runner)
        self._runner, self.asked, self.drawn = runner, 0, 0

    def draw_coupled(self, logits, asked):
        self.asked += len(asked)
        drawn = self._runner.draw_coupled(logits, asked)
        self.drawn += len(asked) - drawn.count(None)
        return drawn


@pytest.fixture(scope="module")
def native(models):
    return Tiny.open(tiny_hf("llama", models / "drawn", vocab_size=320), runner="native")


def test_every_kind_of_request_is_answered_alike(native):
    asked = every_kind(native)
    counting = Counting(native.runner)
    expected = replace(native, runner=WithoutDraws(native.runner)).plain(*asked)
    for tiny in (native, replace(native, runner=counting)):
        with tiny.engine() as running:
            assert not differences(running.ask(*asked), expected)
    assert 0 < counting.asked < sum(len(tokens) for a in expected for tokens in a.token_ids.values())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_requests_without_a_state_are_drawn_by_the_runner_alone(native, temperature):
    counting = Counting(native.runner)
    with replace(native, runner=counting).engine(policy="off", drafters=()) as running:
        answer = running.one(temperature=temperature, logprobs=2)
        assert counting.asked == answer.usage.completion
        assert all(0.0 <= entropy < 6.0 for row in running.rows for entropy in row.entropy)
        assert any(entropy > 0.0 for row in running.rows for entropy in row.entropy) == (temperature > 0)
        before = counting.asked
        running.one(temperature=temperature, presence_penalty=0.5)
        assert counting.asked == before


@pytest.mark.parametrize(
    "filters", [{"top_p": 0.9}, {"top_k": 40}, {"min_p": 0.05}, {"top_p": 0.9, "top_k": 40, "min_p": 0.05}], ids=str
)
def test_filtered_requests_are_drawn_by_the_runner_and_answered_alike(native, filters):
    asked = [request(temperature=1.2, max_tokens=24, seed=seed, logprobs=1, **filters) for seed in range(4)]
    expected = replace(native, runner=WithoutDraws(native.runner)).plain(*asked)
    assert len({tuple(answer.token_ids[0]) for answer in expected}) > 1
    counting = Counting(native.runner)
    with replace(native, runner=counting).engine() as running:
        assert not differences(running.ask(*asked), expected)
    assert counting.drawn == counting.asked > 0


def test_both_ways_report_the_same_entropies(native):
    def entropies(tiny):
        with tiny.engine(policy="off", drafters=()) as running:
            running.one(temperature=1.0)
            return [entropy for row in running.rows for entropy in row.entropy]

    assert entropies(native) == pytest.approx(entropies(replace(native, runner=WithoutDraws(native.runner))), abs=1e-4)


def test_another_verifier_judges_itself(native):
    counting = Counting(native.runner)
    with replace(native, runner=counting).engine(verifier="rejection") as running:
        running.ask(request(temperature=1.0))
    assert counting.asked == 0
