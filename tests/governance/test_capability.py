"""What a request may exercise, and what it is told when it may not."""

from __future__ import annotations

import pytest

from books_rig import ANA
from decodeloop.governance.capability import Ask, Denial, Grant, Place, Ruling, rule
from decodeloop.governance.component import DrafterComponent, unfit
from decodeloop.governance.directory import Directory
from decodeloop.governance.price import Price
from decodeloop.governance.scope import Scope
from decodeloop.types import Identity, Speculation, SpeculationMode

FORCE = Speculation(SpeculationMode.FORCE, 8, "suffix")
OFF = Speculation(SpeculationMode.OFF)
AUTO = Speculation()
FOUR = Speculation(SpeculationMode.FORCE, 4, "suffix")
UNNAMED = Speculation(SpeculationMode.FORCE, 8)


def ruled(grant: Grant | None, *, speculation: Speculation = AUTO, **ask: object) -> Ruling:
    place = ask.pop("place", Place())
    grants = [] if grant is None else [grant]
    return rule(grants, ANA, Ask(model="tiny", speculation=speculation, **ask), place, now_s=100.0)  # type: ignore[arg-type]


def granted(**what: object) -> Grant:
    return Grant(id="g", **what)  # type: ignore[arg-type]


def test_without_grants_everything_is_allowed() -> None:
    got = ruled(None, speculation=FORCE, pool="fast")
    assert (got.allowed, got.speculation, got.denials, got.choose_pool) == (True, FORCE, (), True)


@pytest.mark.parametrize(
    ("scope", "covered"),
    [
        (Scope(), True),
        (Scope("acme"), True),
        (Scope("acme", "*", "coder"), True),
        (Scope("acme", "ana", "coder", "chat"), True),
        (Scope("other"), False),
        (Scope("acme", "bob"), False),
        (Scope("", "", "", "review"), False),
    ],
)
def test_a_grant_holds_for_its_scope(scope: Scope, covered: bool) -> None:
    got = ruled(granted(scope=scope))
    assert got.allowed is covered
    assert covered or got.explanation == "no grant covers acme/ana/coder/chat"


@pytest.mark.parametrize(
    ("grant", "ask", "capability", "why"),
    [
        ({"models": ("big-*",)}, {}, "model", "grant 'g' does not hold for model 'tiny'"),
        ({"pools": ("batch",)}, {}, "pool", "grant 'g' does not hold for pool 'embedded'"),
        ({"slo_tiers": ("batch",)}, {"slo_tier": "interactive"}, "slo_tier", "'interactive'"),
        ({"max_price": 3.0}, {"place": Place(price=Price(1, 1, 4))}, "max_price", "allows 3 per million tokens, not 4"),
    ],
)
def test_what_is_not_granted_is_refused_with_the_reason(
    grant: dict[str, object], ask: dict[str, object], capability: str, why: str
) -> None:
    got = ruled(granted(**grant), **ask)
    assert not got.allowed
    assert [denial.capability for denial in got.denials] == [capability]
    assert why in got.explanation


@pytest.mark.parametrize(
    ("grant", "asked", "given", "denied"),
    [
        ({}, FORCE, Speculation(drafter="suffix"), ["speculation"]),
        ({}, OFF, OFF, []),
        ({"speculation": ()}, OFF, Speculation(), ["speculation"]),
        ({"speculation": ("force",)}, FORCE, FORCE, []),
        ({"speculation": ("force",), "max_draft_len": 4}, FORCE, FOUR, ["max_draft_len"]),
        ({"speculation": ("force",), "drafters": ("ngram",)}, FORCE, UNNAMED, ["drafter"]),
        ({"max_draft_len": 4}, Speculation(), Speculation(draft_len=4), []),
        ({"max_draft_len": 4}, Speculation(draft_len=2), Speculation(draft_len=2), []),
        ({"max_draft_len": 0}, Speculation(), Speculation(SpeculationMode.OFF, denied=True), []),
        ({"max_draft_len": 0}, FORCE, Speculation(SpeculationMode.OFF, denied=True), ["max_draft_len"]),
    ],
)  # fmt: skip
def test_overrides_fall_back_to_what_is_granted(
    grant: dict[str, object], asked: Speculation, given: Speculation, denied: list[str]
) -> None:
    got = ruled(granted(**grant), speculation=asked)
    assert got.allowed
    assert got.speculation == given
    assert [denial.capability for denial in got.denials] == denied


def test_a_pool_is_chosen_where_that_is_granted() -> None:
    assert [denial.capability for denial in ruled(granted(), pool="fast").denials] == ["choose_pool"]
    assert ruled(granted(choose_pool=True), pool="fast") == Ruling(allowed=True, grant="g", choose_pool=True)


def test_the_grant_that_gives_most_is_used() -> None:
    small, large = Grant(id="small"), Grant(id="large", speculation=("force", "off"), interference=0.1)
    got = rule([small, large], ANA, Ask(model="tiny", speculation=FORCE), Place(), now_s=0)
    assert (got.grant, got.speculation, got.interference) == ("large", FORCE, 0.1)
    got = rule([Grant(id="no", models=("other",)), small], ANA, Ask(model="tiny"), Place(), now_s=0)
    assert (got.allowed, got.grant) == (True, "small")


def test_a_grant_ends() -> None:
    assert ruled(granted(until_s=101.0)).allowed
    assert not ruled(granted(until_s=100.0)).allowed


def test_a_policy_language_only_takes_away() -> None:
    class Never:
        def forbids(self, identity: Identity, ask: Ask, place: Place | None) -> Denial:
            return Denial("policy", "not on Sundays")

    got = rule([granted()], ANA, Ask(model="tiny"), Place(), now_s=0, language=Never())
    assert (got.allowed, got.explanation) == (False, "not on Sundays")


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ({"speculation": ("always",)}, "no override 'always'; choose from force, off"),
        ({"max_draft_len": -1}, "must not be negative"),
        ({"interference": 1.5}, "between 0 and 1"),
    ],
)
def test_grants_that_mean_nothing(what: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        granted(**what)


@pytest.mark.parametrize(
    ("component", "why"),
    [
        (None, "not a registered component"),
        (DrafterComponent(name="d"), "nobody owns"),
        (DrafterComponent(name="d", owner="ml"), "has no licence"),
        (DrafterComponent(name="d", owner="ml", licence="Apache-2.0"), "no consent to the data"),
        (DrafterComponent(name="d", owner="ml", licence="Apache-2.0", consent=True), None),
        (DrafterComponent(name="d", owner="ml", trained=False), None),
    ],
)
def test_drafters_are_governed(component: DrafterComponent | None, why: str | None) -> None:
    components = {} if component is None else {"d": component}
    got = unfit("d", components)
    assert (got is None) if why is None else (got is not None and why in got)
    if component is not None:
        ask = Ask(model="tiny", speculation=Speculation(drafter="d"))
        assert Directory(drafters=components).rule(ANA, ask, Place(), 0.0).allowed is (why is None)


def test_names_cannot_reach_into_each_others_counters() -> None:
    scope = Scope("*", "*")
    assert scope.share(Identity("a/b", "c")) != scope.share(Identity("a", "b/c"))
    assert scope.share(Identity("a%2Fb", "c")) != scope.share(Identity("a/b", "c"))
