"""What an operator may set about governance: the `governance` section, and the bodies of stored records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from decodeloop.governance.capability import Grant
from decodeloop.governance.component import DrafterComponent
from decodeloop.governance.keys import VirtualKey, digest_of
from decodeloop.governance.price import NANOS, Price, nanos
from decodeloop.governance.quota import Limit, Unit, Window
from decodeloop.governance.scope import LEVELS, Scope
from decodeloop.types import Identity

__all__ = [
    "AdminSettings",
    "AuditSettings",
    "CaptureSettings",
    "EventSettings",
    "GovernanceSettings",
    "IdempotencySettings",
    "JwtSettings",
    "KeySettings",
    "LimitSettings",
    "PriceSettings",
    "ProxySettings",
]


MOST_COUNTED = 2**53  # every count up to it is exact as a JSON number, and fits in a store's column


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySettings:
    """A virtual key and whose it is. One of key (its text: better from the environment) and digest."""

    id: str
    key: str = field(default="", repr=False)
    digest: str = ""
    organization: str = "local"
    user: str = ""
    agent: str = ""
    capability: str = ""
    until_s: float | None = None
    enabled: bool = True

    def __post_init__(self) -> None:
        if bool(self.key.strip()) == bool(self.digest):
            raise ValueError(f"key {self.id!r} needs one of key and digest")

    def record(self) -> VirtualKey:
        return VirtualKey(
            id=self.id,
            digest=self.digest or digest_of(self.key.strip()),
            identity=Identity(self.organization, self.user, self.agent, self.capability, self.id),
            until_s=self.until_s,
            enabled=self.enabled,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """money: in currency units; tokens and requests: whole numbers."""

    id: str
    scope: Scope = Scope()
    unit: Unit
    amount: float
    window: Window

    def __post_init__(self) -> None:
        most = MOST_COUNTED / NANOS if self.unit is Unit.MONEY else MOST_COUNTED
        if not 0 <= self.amount <= most:
            raise ValueError(f"limit {self.id}: the amount must be between 0 and {most:g}, not {self.amount:g}")
        if self.unit is not Unit.MONEY and self.amount != int(self.amount):
            raise ValueError(f"limit {self.id}: {self.unit.value} are counted whole")
        self.record()

    def record(self) -> Limit:
        amount = nanos(self.amount) if self.unit is Unit.MONEY else int(self.amount)
        return Limit(id=self.id, scope=self.scope, unit=self.unit, amount=amount, window=self.window)


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceSettings:
    """Per million tokens; the first that matches model and pool (`*` as in file names) holds."""

    model: str = "*"
    pool: str = "*"
    prompt: float = 0.0
    cached: float | None = None  # null: as fresh ones
    completion: float = 0.0
    second_cost: float = 0.0

    def __post_init__(self) -> None:
        self.record()

    def record(self) -> Price:
        cached = self.prompt if self.cached is None else self.cached
        return Price(self.prompt, cached, self.completion, self.second_cost)


@dataclass(frozen=True, slots=True, kw_only=True)
class JwtSettings:
    """keys: a JWK set as JSON (public keys, or secrets for HS256). organization_claim: where the organization is.

    `sub` is the user, `act.sub` the agent, and the first `scope` that starts with capability_prefix the capability.
    """

    keys: str = field(repr=False)
    issuer: str
    audience: str
    algorithms: tuple[str, ...] = ("Ed25519", "ES256", "RS256")
    organization_claim: str = "org"
    capability_prefix: str = "decodeloop:"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySettings:
    """A proxy in front that names the caller in x-decodeloop-{organization,user,agent,capability}.

    addresses: networks it speaks from. secret: what it must send in x-decodeloop-proxy.
    """

    addresses: tuple[str, ...]
    secret: str = field(repr=False)

    def __post_init__(self) -> None:
        if not self.addresses:
            raise ValueError("a trusted proxy needs addresses")
        if len(self.secret) < 16:
            raise ValueError("a trusted proxy needs a secret of at least 16 characters")


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """directory: where each gateway writes its own chain. key: makes the chain unforgeable without it."""

    directory: str | None = None
    key: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class AdminSettings:
    """The admin API, on a port of its own. Without tokens there is none."""

    host: str = "127.0.0.1"
    port: int = 8001
    tokens: tuple[str, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ValueError("port must be between 0 and 65535")
        if any(len(token) < 16 for token in self.tokens):
            raise ValueError("admin tokens need at least 16 characters")


@dataclass(frozen=True, slots=True)
class IdempotencySettings:
    """How answers to requests with an Idempotency-Key are kept, to be given again. max_answer_kb 0: none is.

    max_mb: of one organization's answers; its oldest go first. wait_s: that a repeat waits while the first is answered.
    """

    ttl_s: float = 86400.0
    max_answer_kb: int = 1024
    max_mb: int = 64
    wait_s: float = 10.0

    def __post_init__(self) -> None:
        if self.ttl_s <= 0:
            raise ValueError("ttl_s must be above 0")
        if min(self.max_answer_kb, self.max_mb, self.wait_s) < 0:
            raise ValueError("max_answer_kb, max_mb and wait_s must not be negative")


@dataclass(frozen=True, slots=True)
class CaptureSettings:
    """directory: where requests are written down whose sender consents and whose grant says capture_content; null: none
    are. redact: without what has the form of personal data. patterns: further ones, kind -> regular expression.
    max_files: the newest of all in the directory."""

    directory: str | None = None
    redact: bool = True
    patterns: Mapping[str, str] = field(default_factory=dict)
    max_file_mb: int = 64
    max_files: int = 16

    def __post_init__(self) -> None:
        if min(self.max_file_mb, self.max_files) < 1:
            raise ValueError("max_file_mb and max_files must be at least 1")


@dataclass(frozen=True, slots=True)
class EventSettings:
    """What clients tell of answers. per_minute: of one identity, to one gateway. max_events: kept, the newest.
    most_days: that an event may lie back when it is told."""

    per_minute: int = 600
    max_events: int = 1_000_000
    most_days: float = 7.0

    def __post_init__(self) -> None:
        if min(self.per_minute, self.max_events, self.most_days) <= 0:
            raise ValueError("per_minute, max_events and most_days must be above 0")


@dataclass(frozen=True, slots=True)
class GovernanceSettings:
    """store: "" (nothing is governed or recorded), sqlite:PATH or postgresql://... (with redis://... in counters)."""

    store: str = ""
    counters: str = ""
    currency: str = "USD"
    keys: tuple[KeySettings, ...] = ()
    jwt: JwtSettings | None = None
    trusted_proxy: ProxySettings | None = None
    grants: tuple[Grant, ...] = ()
    limits: tuple[LimitSettings, ...] = ()
    prices: tuple[PriceSettings, ...] = ()
    drafters: tuple[DrafterComponent, ...] = ()
    cedar: str = ""  # policies in Cedar
    refuse_denied_overrides: bool = False
    answer_tokens: int = 1024  # reserved at a time for answers without max_tokens
    prompt_bytes_per_token: float = 1.0  # 1: the bound that no tokenizer exceeds
    template_tokens: int = 64  # that a chat template may add
    checkpoint_s: float = 2.0
    lease_s: float = 15.0  # a gateway not heard of for so long is dead
    full_sync: bool = False  # SQLite: survive a loss of power, for a disk write a commit
    idempotency: IdempotencySettings = IdempotencySettings()
    captures: CaptureSettings = field(default_factory=CaptureSettings)
    events: EventSettings = EventSettings()
    audit: AuditSettings = AuditSettings()
    admin: AdminSettings = AdminSettings()

    def __post_init__(self) -> None:
        for name in ("answer_tokens", "prompt_bytes_per_token", "checkpoint_s", "lease_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0")
        if self.template_tokens < 0:
            raise ValueError("template_tokens must not be negative")
        for kind in ("keys", "grants", "limits"):
            ids = [each.id for each in getattr(self, kind)]
            twice = next((id for id in ids if ids.count(id) > 1), None)
            if twice is not None:
                raise ValueError(f"{kind}: {twice!r} is there twice")
        governed = any((self.keys, self.grants, self.limits, self.jwt, self.trusted_proxy))
        if governed and not self.store:
            raise ValueError("keys, grants and limits need a store: sqlite:PATH or postgresql://...")


def scope_text(scope: Scope) -> str:
    """For people: organization/user/agent/capability, "-" where a level is not named."""
    return "/".join(getattr(scope, level) or "-" for level in LEVELS)
