"""The serving regime as a governed capability: grants, and the ruling on what a request exercises.

Without any grant everything is allowed. With grants, a request needs one that covers its identity and its model, and
is served within it. An override of speculation, or of the pool, that isn't granted changes nothing about the answer's
text, so the request falls back to what is granted (and says so); everything else that isn't granted is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Protocol

from decodeloop.governance.price import FREE, Price
from decodeloop.governance.scope import Scope
from decodeloop.types import Identity, Speculation, SpeculationMode
from decodeloop.types.routing import DEMANDS, Losslessness

__all__ = ["Ask", "Denial", "Grant", "Place", "PolicyLanguage", "Ruling", "rule"]

OVERRIDES = (SpeculationMode.FORCE.value, SpeculationMode.OFF.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What identities of `scope` may exercise. Names may hold `*` as in file names.

    speculation: overrides they may ask for (`force`, `off`). max_draft_len: None: any; 0: they are served plainly.
    interference: the largest share of others' plain speed that their forced drafts may cost. max_price: no place
    dearer than this (per million tokens) serves them. smaller_models: that may answer where an alias's class allows it.
    lossless: they are served only where the pool is at least `claimed` or `certified`. until_s: Unix time.
    """

    id: str
    scope: Scope = Scope()
    models: tuple[str, ...] = ("*",)
    pools: tuple[str, ...] = ("*",)
    choose_pool: bool = False
    speculation: tuple[str, ...] = (SpeculationMode.OFF.value,)
    drafters: tuple[str, ...] = ("*",)
    max_draft_len: int | None = None
    slo_tiers: tuple[str, ...] = ("*",)
    interference: float = 0.0
    max_price: float | None = None
    capture_content: bool = False
    smaller_models: tuple[str, ...] = ("*",)
    lossless: str = ""
    until_s: float | None = None

    def __post_init__(self) -> None:
        if not self.id:
            raise ValueError("a grant needs an id")
        unknown = set(self.speculation) - set(OVERRIDES)
        if unknown:
            raise ValueError(f"grant {self.id}: no override {min(unknown)!r}; choose from {', '.join(OVERRIDES)}")
        if self.max_draft_len is not None and self.max_draft_len < 0:
            raise ValueError(f"grant {self.id}: max_draft_len must not be negative")
        if self.lossless and self.lossless not in DEMANDS:
            raise ValueError(f"grant {self.id}: no lossless {self.lossless!r}; choose from {', '.join(DEMANDS)}")
        if not 0 <= self.interference <= 1:
            raise ValueError(f"grant {self.id}: interference must be between 0 and 1")

    def holds(self, identity: Identity, now_s: float) -> bool:
        return self.scope.covers(identity) and (self.until_s is None or now_s < self.until_s)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request would run, as the router chose: what is authorised is what is used."""

    pool: str = "embedded"
    upstream: str = "embedded"
    regime: str = ""  # hash of the serving regime
    price: Price = FREE
    losslessness: Losslessness = Losslessness.UNKNOWN
    certificate: str = ""  # hash of the one that holds for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a request exercises. pool: the one that it names; slo_tier: the class of service that it claims. smaller:
    the model that answers in place of `model`, an alias; "": none does."""

    model: str
    smaller: str = ""
    speculation: Speculation = Speculation()
    pool: str | None = None
    slo_tier: str = ""


@dataclass(frozen=True, slots=True)
class Denial:
    """One capability that was not granted: its name and a sentence."""

    capability: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """allowed: whether it may run here; speculation: as it may; denials: why not, or what was left out."""

    allowed: bool
    speculation: Speculation = Speculation()
    grant: str = ""
    denials: tuple[Denial, ...] = ()
    choose_pool: bool = False
    capture_content: bool = False
    interference: float = 0.0

    @property
    def explanation(self) -> str:
        return "; ".join(denial.why for denial in self.denials)


class PolicyLanguage(Protocol):
    """Further rules in a language of their own. They can only take away."""

    def forbids(self, identity: Identity, ask: Ask, place: Place | None) -> Denial | None: ...


def rule(
    grants: Sequence[Grant],
    identity: Identity,
    ask: Ask,
    place: Place | None,
    *,
    now_s: float,
    language: PolicyLanguage | None = None,
) -> Ruling:
    """The ruling of the grant that gives most: the first with no denial, else the first that allows, else why none.

    place None: not chosen yet, so nothing is said about it.
    """
    forbidden = None if language is None else language.forbids(identity, ask, place)
    if forbidden is not None:
        return Ruling(allowed=False, denials=(forbidden,))
    if not grants:
        return Ruling(allowed=True, speculation=ask.speculation, choose_pool=True, interference=1.0)
    rulings = [_under(grant, ask, place) for grant in grants if grant.holds(identity, now_s)]
    if not rulings:
        return Ruling(allowed=False, denials=(Denial("capability", f"no grant covers {_who(identity)}"),))
    for ruling in rulings:
        if ruling.allowed and not ruling.denials:
            return ruling
    return next((ruling for ruling in rulings if ruling.allowed), rulings[0])


def _under(grant: Grant, ask: Ask, place: Place | None) -> Ruling:
    refusals = _refusals(grant, ask, place)
    if refusals:
        return Ruling(allowed=False, grant=grant.id, denials=refusals)
    speculation, denials = _speculation(grant, ask.speculation)
    if grant.lossless and speculation.lossless != "certified":
        speculation = replace(speculation, lossless=grant.lossless)
    if ask.pool is not None and not grant.choose_pool:
        denials += (Denial("choose_pool", f"grant {grant.id!r} does not let requests choose their pool"),)
    return Ruling(
        allowed=True,
        speculation=speculation,
        grant=grant.id,
        denials=denials,
        choose_pool=grant.choose_pool,
        capture_content=grant.capture_content,
        interference=grant.interference,
    )


def _refusals(grant: Grant, ask: Ask, place: Place | None) -> tuple[Denial, ...]:
    by = f"grant {grant.id!r}"
    found = []
    if not _named(ask.model, grant.models):
        found.append(Denial("model", f"{by} does not hold for model {ask.model!r}"))
    if ask.smaller and not _named(ask.smaller, grant.smaller_models):
        found.append(Denial("smaller_model", f"{by} does not let {ask.smaller!r} answer for {ask.model!r}"))
    if place is not None and not place.losslessness.meets(grant.lossless):
        found.append(
            Denial("lossless", f"{by} demands {grant.lossless}, and pool {place.pool!r} is {place.losslessness.value}")
        )
    if place is not None and not _named(place.pool, grant.pools):
        found.append(Denial("pool", f"{by} does not hold for pool {place.pool!r}"))
    if not _named(ask.slo_tier, grant.slo_tiers):
        found.append(Denial("slo_tier", f"{by} does not hold for service tier {ask.slo_tier!r}"))
    if place is not None and grant.max_price is not None and place.price.ceiling > grant.max_price:
        found.append(
            Denial("max_price", f"{by} allows {grant.max_price:g} per million tokens, not {place.price.ceiling:g}")
        )
    return tuple(found)


def _speculation(grant: Grant, asked: Speculation) -> tuple[Speculation, tuple[Denial, ...]]:
    by = f"grant {grant.id!r}"
    if grant.max_draft_len == 0:
        wanted = asked.mode is SpeculationMode.FORCE
        denial = Denial("max_draft_len", f"{by} allows no drafting")
        plain = Speculation(SpeculationMode.OFF, denied=True, lossless=asked.lossless)
        return plain, (denial,) if wanted else ()
    given, denials = asked, []
    if asked.mode is not SpeculationMode.AUTO and asked.mode.value not in grant.speculation:
        denials.append(Denial("speculation", f"{by} does not allow speculation {asked.mode.value!r}"))
        given = Speculation(SpeculationMode.AUTO, drafter=asked.drafter, lossless=asked.lossless)
    if given.drafter is not None and not _named(given.drafter, grant.drafters):
        denials.append(Denial("drafter", f"{by} does not hold for drafter {given.drafter!r}"))
        given = replace(given, drafter=None)
    if grant.max_draft_len is not None and given.mode is not SpeculationMode.OFF:
        if given.draft_len is not None and given.draft_len > grant.max_draft_len:
            denials.append(Denial("max_draft_len", f"{by} allows {grant.max_draft_len} drafted tokens a step"))
        if given.draft_len is None or given.draft_len > grant.max_draft_len:
            given = replace(given, draft_len=grant.max_draft_len)
    return given, tuple(denials)


def _named(name: str, patterns: Iterable[str]) -> bool:
    return any(pattern in ("*", name) or fnmatchcase(name, pattern) for pattern in patterns)


def _who(identity: Identity) -> str:
    parts = (identity.organization, identity.user, identity.agent, identity.capability)
    return "/".join(part or "-" for part in parts)
