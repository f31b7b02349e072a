"""A target behind an OpenAI-compatible API, and its plain mode: its own, or a second endpoint's."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from decodeloop.evaluation.client.dialects import recognised
from decodeloop.evaluation.client.http import Address, Client, Lost, Reply
from decodeloop.evaluation.client.regime import read_regime, read_version
from decodeloop.evaluation.lossless.answers import Answer, Arm, Ask, Token
from decodeloop.evaluation.lossless.outcome import Level

BARE: Mapping[str, Any] = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}  # p as the model gives it
SPECULATION = {Arm.PLAIN: "off", Arm.SERVED: "auto", Arm.FORCED: "force"}
TELLS_IDS = ("decodeloop", "vllm")
ACCEPTED = re.compile(
    r"^(?:vllm:spec_decode_num_accepted_tokens(?:_total)?|sglang:spec_accept\w*)\b.*? ([\d.e+]+)$", re.M
)
PROBE = {"role": "user", "content": "Tell me something that I have not heard before."}


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What an endpoint shows of itself.

    engine: a dialect's name. unit: what answers are compared by (token ids, token texts, or characters). steers: its
    speculation can be switched off by request. seeded: the same seed gives the same answer. extras: body fields that
    take server-side filters away, as far as it accepts them. regime: as it states it, if it does.
    """

    engine: str
    model: str
    version: str = ""
    chat: bool = True
    unit: str = "characters"
    steers: bool = False
    seeded: bool = False
    extras: Mapping[str, Any] = field(default_factory=dict)
    regime: Mapping[str, Any] | None = None
    configuration: str = ""  # whatever it tells of its own settings

    @property
    def level(self) -> Level:
        """Without a plain mode of its own or tokens to compare it is a black box, whatever stands beside it."""
        return Level.BLACK if self.unit == "characters" and not self.seeded else Level.GREY


class Endpoint:
    """One URL. Made by `connect`; `close` ends its connections."""

    def __init__(self, url: str, key: str | None, *, timeout_s: float) -> None:
        self.address = Address.of(url, key)
        self._runner = asyncio.Runner()
        self._client = Client(self.address, timeout_s=timeout_s)
        self.facts = Facts(engine="openai", model="")

    @classmethod
    def connect(
        cls, url: str, key: str | None = None, *, model: str | None = None, timeout_s: float = 300.0
    ) -> Endpoint:
        """Looks at what it is. Raises OSError when nobody answers, ValueError for what is no such API."""
        endpoint = cls(url, key, timeout_s=timeout_s)
        try:
            endpoint.facts = endpoint._runner.run(endpoint._look(model))
        except BaseException:
            endpoint.close()
            raise
        return endpoint

    def close(self) -> None:
        self._client.close()
        self._runner.close()

    def answers(self, asks: Sequence[Ask], mode: str | None, at_once: int) -> list[Answer]:
        """mode: of speculation, where it steers. Raises OSError or ValueError for the first that fails."""
        return self._runner.run(self._answers(asks, mode, at_once))

    def accepted_total(self) -> float | None:
        """Draft tokens that its metrics count as accepted; None where they tell nothing."""
        reply = self._runner.run(self._get("/metrics"))
        found = ACCEPTED.findall(reply.body.decode("utf-8", "replace")) if reply.status == 200 else []
        return sum(map(float, found)) if found else None

    async def _answers(self, asks: Sequence[Ask], mode: str | None, at_once: int) -> list[Answer]:
        places = asyncio.Semaphore(at_once)

        async def one(ask: Ask) -> Answer:
            async with places:
                return _read(await self._ask(ask, self.facts, mode), self.facts.unit)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(ask)) for ask in asks]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _ask(self, ask: Ask, facts: Facts, mode: str | None = None) -> Mapping[str, Any]:
        body: dict[str, Any] = {
            "model": facts.model,
            "max_tokens": ask.max_tokens,
            "temperature": ask.temperature,
            **facts.extras,
        }
        if facts.chat:
            body["messages"] = [dict(message) for message in ask.messages]
        else:
            body["prompt"] = "\n\n".join(message["content"] for message in ask.messages)
        if ask.seed is not None:
            body["seed"] = ask.seed
        if facts.unit == "token texts":
            body["logprobs"] = True if facts.chat else 1
        if mode is not None:
            body["decodeloop"] = {"speculation": mode}
        path = "/v1/chat/completions" if facts.chat else "/v1/completions"
        try:
            reply = await self._client.send("POST", path, orjson.dumps(body))
        except Lost:  # a connection that went stale between two batches
            reply = await self._client.send("POST", path, orjson.dumps(body))
        return _checked(reply, f"{self.address.url}{path}")

    async def _get(self, path: str) -> Reply:
        return await self._client.send("GET", path)

    async def _look(self, model: str | None) -> Facts:
        models = _checked(await self._get("/v1/models"), f"{self.address.url}/v1/models")
        names = [str(each["id"]) for each in models.get("data", ()) if isinstance(each, Mapping) and "id" in each]
        if not names or (model is not None and model not in names):
            raise ValueError(f"{self.address.url} serves {', '.join(names) or 'nothing'}, not {model or 'a model'}")
        facts = Facts(engine=recognised(models).name, model=model or names[0])
        facts = replace(facts, steers=facts.engine == "decodeloop", version=await read_version(self._client))
        if facts.steers:
            facts = replace(facts, regime=await read_regime(self._client, facts.model))
        configuration = await self._get("/server_info?config_format=text")
        if configuration.status == 200:
            facts = replace(facts, configuration=configuration.body.decode("utf-8", "replace")[:100_000])
        return await self._try(facts)

    async def _try(self, facts: Facts) -> Facts:
        """Which API, which fields, what it tells of tokens, whether seeds count: by asking."""
        ask = Ask(messages=(PROBE,), temperature=1.0, max_tokens=12, seed=11)
        ids = {"return_token_ids": True} if facts.engine in TELLS_IDS else {}
        shapes = [
            replace(facts, chat=chat, extras={**extras, **ids}, unit="token ids" if ids else "token texts")
            for chat in (True, False)
            for extras in (BARE, {"top_p": 1.0})
        ]
        shapes += [replace(shape, unit="characters") for shape in shapes] if not ids else []
        problem: Exception | None = None
        for shape in shapes:
            try:
                first = _read(await self._ask(ask, shape), shape.unit)
                again = _read(await self._ask(ask, shape), shape.unit)
                other = _read(await self._ask(replace(ask, seed=12), shape), shape.unit)
            except ValueError as error:
                problem = problem or error
                continue
            return replace(shape, seeded=first.tokens == again.tokens != other.tokens)
        raise problem or ValueError(f"{self.address.url} answers nothing")


@dataclass(frozen=True, slots=True)
class Served:
    """A Target: an endpoint, and where its plain answers come from (its own plain mode, or another endpoint)."""

    endpoint: Endpoint
    plain: Endpoint | None = None

    def __post_init__(self) -> None:
        if self.plain is None and not self.endpoint.facts.steers:
            raise ValueError(
                f"{self.endpoint.address.url} ({self.endpoint.facts.engine}) can't be told to decode plainly: give the "
                "same model served without speculation as --plain URL"
            )
        if self.plain is not None and self.plain.facts.unit != self.endpoint.facts.unit:
            raise ValueError(
                f"{self.endpoint.address.url} tells {self.endpoint.facts.unit}, {self.plain.address.url} "
                f"{self.plain.facts.unit}: answers can't be compared"
            )

    def answers(self, asks: Sequence[Ask], arm: Arm, at_once: int) -> list[Answer]:
        if arm is Arm.PLAIN and self.plain is not None:
            return self.plain.answers(asks, "off" if self.plain.facts.steers else None, at_once)
        return self.endpoint.answers(asks, SPECULATION[arm] if self.endpoint.facts.steers else None, at_once)


def _checked(reply: Reply, where: str) -> Mapping[str, Any]:
    """Raises ValueError for what isn't an answer, in the server's words; OSError where trying again may help."""
    try:
        found = orjson.loads(reply.body)
    except ValueError:
        raise ValueError(f"{where}: status {reply.status}, no JSON") from None
    if reply.status == 200 and isinstance(found, Mapping):
        return found
    error = found.get("error", found) if isinstance(found, Mapping) else found
    message = error.get("message", error) if isinstance(error, Mapping) else error
    if reply.status >= 500 or reply.status == 429:
        raise OSError(f"{where}: status {reply.status}: {message}")
    raise ValueError(f"{where}: status {reply.status}: {message}")


def _read(body: Mapping[str, Any], unit: str) -> Answer:
    """Raises ValueError where the answer lacks what its tokens are compared by."""
    try:
        choice = body["choices"][0]
        tokens = _tokens(choice, unit)
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(f"the answer has no {unit}: {error!r} is missing") from None
    own = body.get("decodeloop") or {}
    vllm = (body.get("metrics") or {}).get("speculative_decoding") or {}
    llama = body.get("timings") or {}
    return Answer(
        tokens,
        accepted=_first(own.get("accepted"), vllm.get("num_accepted_draft_tokens"), llama.get("draft_n_accepted")),
        drafted=_first(own.get("drafted"), vllm.get("num_draft_tokens"), llama.get("draft_n")),
    )


def _tokens(choice: Mapping[str, Any], unit: str) -> tuple[Token, ...]:
    if unit == "token ids":
        return tuple(int(token) for token in choice["token_ids"])
    if unit == "token texts":
        told = choice["logprobs"]
        return tuple(told["tokens"] if "tokens" in told else (str(each["token"]) for each in told["content"]))
    return tuple(choice["text"] if "text" in choice else choice["message"]["content"] or "")


def _first(*values: Any) -> int | None:
    return next((int(value) for value in values if value is not None), None)
