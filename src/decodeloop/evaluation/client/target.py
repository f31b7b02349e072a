"""What is measured: something that answers requests and can forget them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

import orjson

from decodeloop.evaluation.client.answer import Answer, CutOff, read_answer, refusal
from decodeloop.evaluation.client.dialects import OWN, Dialect, recognised
from decodeloop.evaluation.client.http import Address, Client, Interrupted, Lost, clock
from decodeloop.evaluation.client.regime import read_regime, read_version, settings_of
from decodeloop.evaluation.plan import Arm
from decodeloop.evaluation.workloads.workload import WorkRequest

COUNTERS = ("vllm:", "sglang:", "llamacpp:", "decodeloop_")
SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(\{[^}]*\})? ([-+.\deE]+)(?: \d+)?$")
POSITION = re.compile(r'position="(\d+)"')


class Target(Protocol):
    """An arm's server, or an engine in this process. Answers never raise: what went wrong is their `error`. Cancelled
    serving stops the server's work and raises CutOff."""

    async def serve(self, request: WorkRequest) -> Answer: ...

    async def reset(self) -> str:
        """Empty the prefix cache; how it was done, `none` if it can't be."""
        ...

    async def counters(self) -> Mapping[str, float]:
        """The server's running totals, by name; {} where it has none."""
        ...

    def close(self) -> None: ...


class HttpTarget:
    """An endpoint under an arm's fields. Made by `connect`."""

    def __init__(self, client: Client, model: str, spoken: Dialect, fields: Mapping[str, Any]) -> None:
        self._client, self.model, self.dialect, self._fields = client, model, spoken, fields

    async def serve(self, request: WorkRequest) -> Answer:
        sent_s = clock()
        try:
            path = "/v1/completions" if request.prompt is not None else "/v1/chat/completions"
            return read_answer(await self._client.send("POST", path, self.body(request)))
        except Lost as error:
            return Answer(sent_s=sent_s, ended_s=clock(), error=str(error))
        except Interrupted as cut:
            raise CutOff(replace(read_answer(cut.reply), ended_s=clock())) from None

    def body(self, request: WorkRequest) -> bytes:
        text = {"messages": request.messages} if request.prompt is None else {"prompt": request.prompt}
        spoken = self.dialect
        declared = {"decodeloop": {"class": str(request.request_class)}} if spoken.declares_class else {}
        whole = {
            "model": self.model,
            **text,
            "stream": True,
            "stream_options": spoken.stream_options,
            **spoken.fields,
            **spoken.fresh,
            **merged(request.params, merged(declared, self._fields)),
        }
        return orjson.dumps(whole)

    async def reset(self) -> str:
        if self.dialect.fresh:
            return "not used: " + ", ".join(f"{name} {value}" for name, value in self.dialect.fresh.items())
        if self.dialect.reset is None:
            return "none"
        reply = await self._client.send("POST", self.dialect.reset)
        return f"POST {self.dialect.reset}" if reply.status == 200 else "none"

    async def described(self) -> Mapping[str, Any]:
        """What it tells of itself, as an arm's settings."""
        version = await read_version(self._client)
        regime = await read_regime(self._client, self.model) if self.dialect.name == OWN else None
        return {**({"engine_version": version} if version else {}), **settings_of(regime or {})}

    async def counters(self) -> Mapping[str, float]:
        try:
            reply = await self._client.send("GET", "/metrics")
        except Lost:
            return {}
        return read_metrics(reply.body.decode(errors="replace")) if reply.status == 200 else {}

    def close(self) -> None:
        self._client.close()


async def connect(arm: Arm, *, key: str | None = None, spoken: Dialect | None = None) -> HttpTarget:
    """To an arm's endpoint; its model is the only one that is served there unless the arm names one.

    Raises Lost when nobody answers, ValueError for an answer that is not OpenAI's, or a choice of models.
    """
    client = Client(Address.of(arm.target, key))
    try:
        reply = await client.send("GET", "/v1/models")
        if reply.status != 200:
            raise ValueError(f"{arm.target}: {refusal(reply.status, reply.body)}")
        models = orjson.loads(reply.body)
        names = [str(model["id"]) for model in models["data"]]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        client.close()
        raise ValueError(f"{arm.target}/v1/models is not what OpenAI's API answers ({error!r})") from error
    except (Lost, ValueError):
        client.close()
        raise
    if not arm.model and len(names) != 1:
        client.close()
        raise ValueError(f"{arm.target} serves {', '.join(names) or 'no model'}: say which model is meant")
    return HttpTarget(client, arm.model or names[0], spoken or recognised(models), arm.fields)


def merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """`other` over `one`, objects key by key."""
    found = dict(one)
    for key, value in other.items():
        before = found.get(key)
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        found[key] = merged(before, value) if both else value  # type: ignore[arg-type]
    return found


def read_metrics(text: str) -> dict[str, float]:
    """Totals of a Prometheus page, summed over labels; of those per draft position, each."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        sample = SAMPLE.match(line)
        if sample is None or not sample[1].startswith(COUNTERS) or not sample[1].endswith(("_total", "_sum", "_count")):
            continue
        position = POSITION.search(sample[2] or "")
        name = f'{sample[1]}{{position="{position[1]}"}}' if position else sample[1]
        found[name] = found.get(name, 0.0) + float(sample[3])
    return found


def growth(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """What grew, and by how much. A counter that fell was reset, and grew from 0."""
    found = {name: value - before.get(name, 0.0) for name, value in after.items()}
    return {name: grown if grown > 0 else after[name] for name, grown in found.items() if grown}
