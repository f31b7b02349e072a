import pytest

from decodeloop.policy import PolicySettings, policies
from decodeloop.policy.fixed import FixedPolicy
from decodeloop.testing import check_policy
from decodeloop.types import Decision, Plan, Reason


@pytest.mark.parametrize("name", policies.names())
def test_policy_keeps_the_contract(name):
    check_policy(lambda: policies.load(name)(PolicySettings(), None))


class Careless(FixedPolicy):
    """A policy with one fault; the checks must find it."""

    def plan(self, load, requests):
        plan = super().plan(load, requests)
        return Plan(*(self.spoil(name, getattr(plan, name)) for name in ("draft_lens", "drafters", "reasons")))

    def spoil(self, name, values):
        return values


class OverTheCap(Careless):
    def spoil(self, name, values):
        return tuple(n and n + 9 for n in values) if name == "draft_lens" else values


class IgnoresOff(Careless):
    def spoil(self, name, values):
        return tuple(Reason.FIXED for _ in values) if name == "reasons" else values


class WrongDrafter(Careless):
    def spoil(self, name, values):
        return tuple(d and "nobody" for d in values) if name == "drafters" else values


class TooShort(Careless):
    def spoil(self, name, values):
        return values[1:]


class VerifiesTooMuch(FixedPolicy):
    def allocate(self, plan, scores):
        return Decision(plan.draft_lens, super().allocate(plan, scores).reasons)


class TrimsForced(FixedPolicy):
    def allocate(self, plan, scores):
        decision = super().allocate(plan, scores)
        return Decision(tuple(n and n - 1 for n in decision.verify_lens), decision.reasons)


class Moody(FixedPolicy):
    moods = iter(range(10**6))

    def allocate(self, plan, scores):
        decision = super().allocate(plan, scores)
        return Decision(decision.verify_lens, decision.reasons, expected_tokens=next(self.moods))


class Picky(FixedPolicy):
    def observe(self, record):
        assert all(row.draft_len <= 12 for row in record.rows)


class Unspeakable(FixedPolicy):
    def describe(self):
        return {"itself": self}


@pytest.mark.parametrize(
    "faulty",
    [OverTheCap, IgnoresOff, WrongDrafter, TooShort, VerifiesTooMuch, TrimsForced, Moody, Picky, Unspeakable],
)
def test_the_check_finds_the_fault(faulty):
    with pytest.raises((AssertionError, TypeError)):
        check_policy(lambda: faulty(PolicySettings(), None))
