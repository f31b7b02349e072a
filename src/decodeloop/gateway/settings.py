"""What an operator may set about the gateway."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from decodeloop.gateway.batches import BatchSettings
from decodeloop.gateway.breaker import BreakerSettings
from decodeloop.gateway.pools import PoolSettings
from decodeloop.gateway.upstreams.remote import RemoteSettings
from decodeloop.types import RequestClass

__all__ = ["AliasSettings", "AnswerCacheSettings", "GatewaySettings", "Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what one client, and all together, can make the gateway hold or wait for."""

    max_concurrent_requests: int = 1024  # completions being answered; more are refused with 429
    max_body_bytes: int = 4 * 2**20
    max_header_bytes: int = 32 * 2**10  # request line included
    max_json_depth: int = 64
    max_choices: int = 128  # prompts times n
    header_timeout_s: float = 10.0  # from connection, or a request's first byte, to the end of its headers
    body_timeout_s: float = 30.0
    request_timeout_s: float = 600.0  # from the parsed request to the end of its answer
    stall_timeout_s: float = 60.0  # a client that reads nothing for so long is cut off
    keep_alive_s: int = 75
    drain_s: int = 30  # for running requests at shutdown

    def __post_init__(self) -> None:
        for limit in fields(self):
            if getattr(self, limit.name) <= 0:
                raise ValueError(f"{limit.name} must be above 0")


@dataclass(frozen=True, slots=True)
class AnswerCacheSettings:
    """max_mb 0: none is kept."""

    max_mb: int = 0
    ttl_s: float = 3600.0

    def __post_init__(self) -> None:
        if self.max_mb < 0:
            raise ValueError("max_mb must not be negative")
        if self.ttl_s <= 0:
            raise ValueError("ttl_s must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallerSettings:
    """A model that answers requests of these classes. guessed: of those too whose class was guessed, not declared."""

    model: str
    classes: tuple[RequestClass, ...]
    guessed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasSettings:
    """A name that clients ask for. model: what it stands for. smaller: models that may answer instead, in order."""

    model: str
    smaller: tuple[SmallerSettings, ...] = ()


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    host: str = "127.0.0.1"
    port: int = 8000  # 0: any free one
    api_keys: tuple[str, ...] = ()  # empty: everyone may ask
    heartbeat_s: float = 15.0  # of silence in a stream before a comment is sent
    retry_after_s: int = 1  # told to clients with 429 and 503
    limits: Limits = Limits()
    upstreams: Mapping[str, RemoteSettings] = field(default_factory=dict)  # beside what this process embeds
    pools: Mapping[str, PoolSettings] = field(default_factory=dict)  # none: all upstreams are one
    aliases: Mapping[str, AliasSettings] = field(default_factory=dict)  # names that clients ask for
    breaker: BreakerSettings = BreakerSettings()
    answer_cache: AnswerCacheSettings = AnswerCacheSettings()
    batches: BatchSettings = BatchSettings()

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ValueError("port must be between 0 and 65535")
        if self.heartbeat_s <= 0:
            raise ValueError("heartbeat_s must be above 0")
        if self.retry_after_s < 0:
            raise ValueError("retry_after_s must not be negative")
        again = [name for name, alias in self.aliases.items() if alias.model in self.aliases]
        if again:
            raise ValueError(f"alias {again[0]!r} stands for another alias")
        if any(not key.strip() for key in self.api_keys):
            raise ValueError("api_keys must not be blank")
