"""What servers that speak OpenAI's API add to it: how each is asked for exact counts, and how its cache is emptied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """owned_by: what its /v1/models says. fields, stream_options: added to every request. reset: POSTed to empty the
    prefix cache; fresh: fields that keep a request from finding anything in it."""

    name: str
    owned_by: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    stream_options: Mapping[str, Any] = field(default_factory=lambda: {"include_usage": True})
    reset: str | None = None
    fresh: Mapping[str, Any] = field(default_factory=dict)
    declares_class: bool = False


OWN = "decodeloop"
COUNTED = {"include_usage": True, "continuous_usage_stats": True}
OPENAI = Dialect(name="openai")
DIALECTS = (
    Dialect(
        name=OWN,
        owned_by=OWN,
        fields={"return_token_ids": True},
        stream_options=COUNTED,
        declares_class=True,
    ),
    Dialect(
        name="vllm",
        owned_by="vllm",
        fields={"return_token_ids": True},
        stream_options=COUNTED,
        reset="/reset_prefix_cache",
    ),
    Dialect(name="sglang", owned_by="sglang", stream_options=COUNTED, reset="/flush_cache"),
    Dialect(name="llamacpp", owned_by="llamacpp", fields={"timings_per_token": True}, fresh={"cache_prompt": False}),
    OPENAI,
)


def dialect(name: str) -> Dialect:
    """Raises ValueError with the choices."""
    for each in DIALECTS:
        if each.name == name:
            return each
    raise ValueError(f"no dialect {name!r}; choose from {', '.join(each.name for each in DIALECTS)}")


def recognised(models: Mapping[str, Any]) -> Dialect:
    """By the answer to /v1/models; plain OpenAI when it says nothing else."""
    owners = {str(model.get("owned_by", "")) for model in models.get("data", ()) if isinstance(model, Mapping)}
    return next((each for each in DIALECTS if each.owned_by and each.owned_by in owners), OPENAI)
