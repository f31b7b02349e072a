"""A workload: the requests that are served in a measurement, and how much real volume each stands for."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from decodeloop.evaluation.plan import WorkloadFacts
from decodeloop.types import RequestClass


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkRequest:
    """One request.

    Exactly one of prompt and messages, or neither: traces know only lengths, and are filled with texts before they can
    be served. params: further body fields of OpenAI's API (max_tokens, temperature, tools, ...). weight: real volume it
    stands for, relative to the others. arrival_s: from the workload's start. session: groups requests of one task.
    prompt_tokens, output_tokens: as the source counted them. prefix: ids of the prompt's leading blocks, equal where
    prompts share them.
    """

    id: str
    request_class: RequestClass = RequestClass.GENERAL_CHAT
    weight: float = 1.0
    prompt: str | None = None
    messages: tuple[Mapping[str, Any], ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict)
    arrival_s: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    session: str | None = None
    prefix: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.prompt is not None and self.messages:
            raise ValueError(f"request {self.id}: either prompt or messages, not both")
        if not self.weight > 0.0:
            raise ValueError(f"request {self.id}: weight {self.weight} is not positive")
        if self.arrival_s is not None and not self.arrival_s >= 0.0:
            raise ValueError(f"request {self.id}: arrival_s {self.arrival_s} is before the start")

    @property
    def has_text(self) -> bool:
        return self.prompt is not None or bool(self.messages)

    @property
    def text_length(self) -> int:
        """Characters of all its texts."""
        if self.prompt is not None:
            return len(self.prompt)
        return sum(len(text) for message in self.messages for text in _texts(message.get("content")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """sources: where it came from. began_at: ISO 8601 of arrival 0, as its source had it."""

    name: str
    requests: tuple[WorkRequest, ...]
    sources: tuple[str, ...] = ()
    licence: str = ""
    began_at: str | None = None

    def __post_init__(self) -> None:
        doubled = [id for id, count in Counter(request.id for request in self.requests).items() if count > 1]
        if doubled:
            raise ValueError(f"workload {self.name}: ids occur more than once: {', '.join(doubled[:5])}")

    @property
    def sha256(self) -> str:
        """Of what is served: the requests, in order. Name, sources and licence don't count."""
        digest = hashlib.sha256()
        for request in self.requests:
            digest.update(encoded(request) + b"\n")
        return digest.hexdigest()

    @property
    def shares(self) -> dict[RequestClass, float]:
        """Class -> share of the real volume, by the requests' weights."""
        total = sum(request.weight for request in self.requests)
        found: Counter[RequestClass] = Counter()
        for request in self.requests:
            found[request.request_class] += request.weight / total  # type: ignore[assignment]
        return {kind: float(found[kind]) for kind in RequestClass if kind in found}

    @property
    def counts(self) -> dict[RequestClass, int]:
        found = Counter(request.request_class for request in self.requests)
        return {kind: found[kind] for kind in RequestClass if kind in found}

    def facts(self) -> WorkloadFacts:
        return WorkloadFacts(
            name=self.name,
            sha256=self.sha256,
            requests=len(self.requests),
            counts={str(kind): count for kind, count in self.counts.items()},
            shares={str(kind): share for kind, share in self.shares.items()},
            sources=self.sources,
            licence=self.licence,
        )


def fields_of(request: WorkRequest) -> dict[str, Any]:
    """As one line of a workload file says it: what has its default value is left out."""
    found: dict[str, Any] = {"id": request.id, "class": str(request.request_class)}
    if request.weight != 1.0:
        found["weight"] = request.weight
    for name in ("prompt", "arrival_s", "prompt_tokens", "output_tokens", "session"):
        if (value := getattr(request, name)) is not None:
            found[name] = value
    for name in ("messages", "params", "prefix"):
        if value := getattr(request, name):
            found[name] = value
    return found


def encoded(request: WorkRequest) -> bytes:
    """Canonical JSON: sorted keys, no spaces."""
    return orjson.dumps(fields_of(request), option=orjson.OPT_SORT_KEYS)


def _texts(content: Any) -> Sequence[str]:
    if isinstance(content, str):
        return (content,)
    if isinstance(content, list):
        return [part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)]
    return ()
