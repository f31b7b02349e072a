"""An engine behind HTTP that speaks OpenAI's API: vLLM, SGLang, TensorRT-LLM, llama.cpp, a vendor, or one of ours."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

import orjson

from decodeloop.gateway.losslessness import SILENT, Told
from decodeloop.gateway.upstreams import ModelCard, UpstreamFailed
from decodeloop.gateway.upstreams.dialects import DIALECTS, Gauges
from decodeloop.gateway.upstreams.http import Answer, Broken, HttpClient, NoRoom, Take
from decodeloop.gateway.upstreams.regimes import told_by
from decodeloop.gateway.wire.body import dumped
from decodeloop.types import Load, RequestRefused

__all__ = ["RemoteSettings", "RemoteUpstream", "read_gauges"]

log = logging.getLogger(__name__)

UNKNOWN_CONTEXT = 0  # of a server that doesn't say
POLLS_A_CONFIGURATION = 30
MAX_PAGE_BYTES = 16 * 2**20  # of models, or of metrics
IDLE = Load(running=0, waiting=0, context_tokens=0, kv_free_fraction=1.0)


@dataclass(frozen=True, slots=True)
class RemoteSettings:
    """url: up to where `/v1` begins. models: served name -> the server's own; empty: all that it lists. authorities: a
    PEM file, see HttpClient."""

    url: str
    engine: str = "openai"
    api_key: str | None = None
    authorities: str | None = None
    models: Mapping[str, str] = field(default_factory=dict)
    connect_timeout_s: float = 5.0
    silence_timeout_s: float = 120.0  # without a byte
    poll_s: float = 2.0  # between looks at its models and metrics

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url must begin with http:// or https://, not {self.url!r}")
        if self.url.rstrip("/").endswith("/v1"):
            raise ValueError(f"url must be given without /v1: {self.url!r}")
        if self.engine not in DIALECTS:
            raise ValueError(f"no engine {self.engine!r}; choose from {', '.join(DIALECTS)}")
        for name in ("connect_timeout_s", "silence_timeout_s", "poll_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0")


@dataclass(slots=True)
class _Seen:
    """What the last look at the server told."""

    cards: list[ModelCard] = field(default_factory=list)
    load: Load = IDLE
    answers: bool = False
    told: Told = SILENT
    tells_load: bool = True
    polls: int = 0
    failures: int = 0


class RemoteUpstream:
    def __init__(self, name: str, settings: RemoteSettings) -> None:
        """Raises ValueError or OSError for authorities that are none."""
        self.name, self.settings = name, settings
        self.dialect = DIALECTS[settings.engine]
        self._seen = _Seen(cards=[_card(served) for served in settings.models])
        self._client = HttpClient(
            settings.url,
            {"authorization": f"Bearer {settings.api_key}"} if settings.api_key else {},
            connect_s=settings.connect_timeout_s,
            silence_s=settings.silence_timeout_s,
            authorities=settings.authorities,
        )
        self._poller: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """A server that is down doesn't keep the gateway down: it is looked for until it answers."""
        await self._look()
        self._poller = asyncio.create_task(self._keep_looking())

    async def close(self) -> None:
        if self._poller is not None:
            self._poller.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._poller
        await self._client.close()

    def ready(self) -> bool:
        return self._seen.answers and bool(self._seen.cards)

    def models(self) -> Sequence[ModelCard]:
        return self._seen.cards

    def load(self) -> Load:
        """As it was last told: up to `poll_s` old."""
        return self._seen.load

    def counters(self) -> Mapping[str, float]:
        return {"polls_total": self._seen.polls, "poll_failures_total": self._seen.failures}

    def told(self) -> Told:
        """What it says of its own configuration."""
        return self._seen.told

    def describe(self) -> Mapping[str, Any]:
        return {"engine": self.settings.engine, "policy": None}

    def ask(
        self, path: str, body: Mapping[str, Any], trace: Mapping[str, str]
    ) -> AbstractAsyncContextManager[RemoteAnswer]:
        return _Asking(self.name, self._client, path, dumped(self._translated(body)), trace)

    def _translated(self, body: Mapping[str, Any]) -> dict[str, Any]:
        told = {**body, **self.dialect.asks}
        if not self.dialect.keeps:
            told.pop("decodeloop", None)
        model = body.get("model")
        if isinstance(model, str) and model in self.settings.models:
            told["model"] = self.settings.models[model]
        if body.get("stream") and self.dialect.stream_usage:
            told["stream_options"] = {**(body.get("stream_options") or {}), "include_usage": True}
        return told

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(self.settings.poll_s)
            await self._look()

    async def _look(self) -> None:
        self._seen.polls += 1
        try:
            listed = await self._get("/v1/models")
            self._seen.cards = self._cards(orjson.loads(listed))
            answers = True
        except NoRoom:
            return  # it is as it was
        except (Broken, TimeoutError, ValueError) as error:
            self._seen.failures += 1
            answers = False
            if self._seen.answers or self._seen.polls == 1:
                log.warning("upstream %s does not answer: %s", self.name, _why(error))
        if answers and not self._seen.answers:
            log.info("upstream %s answers: %s", self.name, ", ".join(card.id for card in self._seen.cards))
        is_new = answers and not self._seen.answers
        self._seen.answers = answers
        metrics = b""
        if answers and self.dialect.gauges != Gauges():
            metrics = await self._look_at_metrics()
        if answers and self.dialect.info and (is_new or self._seen.polls % POLLS_A_CONFIGURATION == 0):
            await self._look_at_configuration(metrics)

    async def _look_at_configuration(self, metrics: bytes) -> None:
        """A server that doesn't tell it serves all the same."""
        try:
            self._seen.told = told_by(self.settings.engine, await self._get(self.dialect.info), metrics)
        except (Broken, TimeoutError, ValueError):
            self._seen.told = SILENT

    async def _look_at_metrics(self) -> bytes:
        """A server without them serves all the same: what this gateway sends there, it counts itself."""
        try:
            page = await self._get("/metrics")
            self._seen.load = read_gauges(page, self.dialect.gauges)
            self._seen.tells_load = True
            return page
        except (Broken, TimeoutError, ValueError) as error:
            if self._seen.tells_load:
                log.warning("upstream %s tells no load: %s", self.name, error)
            self._seen.tells_load = False
            self._seen.load = IDLE
            return b""

    async def _get(self, path: str) -> bytes:
        async with asyncio.timeout(self.settings.connect_timeout_s):
            answer = await self._client.get(path)
            try:
                if answer.status != 200:
                    raise ValueError(f"{path}: {answer.status}")
                return await answer.read(MAX_PAGE_BYTES)
            finally:
                answer.close()

    def _cards(self, listed: Any) -> list[ModelCard]:
        rows = listed.get("data") if isinstance(listed, dict) else None
        if not isinstance(rows, list):
            raise ValueError("/v1/models is no list")
        found = {row["id"]: row for row in rows if isinstance(row, dict) and isinstance(row.get("id"), str)}
        names = self.settings.models or {name: name for name in found}
        return [_card(served, found[own]) for served, own in names.items() if own in found]


class RemoteAnswer:
    def __init__(self, name: str, answer: Answer) -> None:
        self._name, self._answer = name, answer
        self.status = answer.status
        self.retry_after_s = _seconds(answer.headers.get(b"retry-after"))

    async def each(self, take: Take) -> None:
        try:
            await self._answer.each(take)
        except Broken as error:
            raise UpstreamFailed(f"upstream {self._name} broke off ({error})") from error

    def close(self) -> None:
        self._answer.close()


class _Asking:
    """Of a server called `name`: the answer from its beginning to where it is left."""

    def __init__(self, name: str, client: HttpClient, path: str, body: bytes, trace: Mapping[str, str]) -> None:
        self._name, self._client = name, client
        self._request = path, body, trace
        self._answer: RemoteAnswer | None = None

    async def __aenter__(self) -> RemoteAnswer:
        try:
            self._answer = RemoteAnswer(self._name, await self._client.post(*self._request))
        except NoRoom:
            raise RequestRefused(
                "the gateway has no connection left; try again soon", status=503, code="server_busy"
            ) from None
        except Broken as error:
            raise UpstreamFailed(f"upstream {self._name} can't be reached ({error})") from error
        return self._answer

    async def __aexit__(self, *raised: object) -> None:
        if self._answer is not None:
            self._answer.close()


def _why(error: Exception) -> str:
    """For the log, which may say what clients are not told: the names in a certificate."""
    detail = getattr(error.__cause__, "verify_message", "")
    return f"{error} ({detail})" if detail else str(error) or type(error).__name__


def read_gauges(page: bytes, gauges: Gauges) -> Load:
    """The load that a page of Prometheus text tells; what it doesn't tell is 0."""
    wanted = {name.encode(): name for name in (gauges.running, gauges.waiting, gauges.kv_usage) if name}
    found: dict[str, list[float]] = {name: [] for name in wanted.values()}
    for line in page.splitlines():
        name = wanted.get(line.partition(b" ")[0].partition(b"{")[0])
        if name is not None:
            try:
                found[name].append(float(line.rpartition(b"}")[2].split()[0 if b"}" in line else 1]))
            except (ValueError, IndexError):
                continue
    return Load(
        running=int(sum(found.get(gauges.running, ()))),
        waiting=int(sum(found.get(gauges.waiting, ()))),
        context_tokens=0,
        kv_free_fraction=min(1.0, max(0.0, 1.0 - max(found.get(gauges.kv_usage, ()), default=0.0))),
    )


def _card(served: str, row: Mapping[str, Any] = {}) -> ModelCard:
    created, context = row.get("created"), row.get("max_model_len")
    return ModelCard(
        served,
        created=created if isinstance(created, int) else int(time.time()),
        max_context=context if isinstance(context, int) else UNKNOWN_CONTEXT,
        owned_by=str(row.get("owned_by") or "upstream"),
    )


def _seconds(text: bytes | None) -> float | None:
    try:
        return None if text is None else max(0.0, float(text))
    except ValueError:
        return None
