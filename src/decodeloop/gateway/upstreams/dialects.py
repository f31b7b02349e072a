"""How engines differ where they all speak OpenAI's API: a row each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["DIALECTS", "Dialect", "Gauges"]


@dataclass(frozen=True, slots=True)
class Gauges:
    """Prometheus names; several values of one name (a label each) are added up, but `kv_usage`, whose most counts."""

    running: str = ""
    waiting: str = ""
    kv_usage: str = ""  # share of the KV cache, 0 to 1


@dataclass(frozen=True, slots=True)
class Dialect:
    """asks: fields added to every body. keeps: whether it understands our own `decodeloop` field.
    refuses_speculating: fields that it refuses while speculation is on. info: a page that tells its configuration."""

    name: str
    gauges: Gauges = Gauges()
    asks: Mapping[str, Any] = field(default_factory=dict)
    keeps: bool = False
    refuses_speculating: frozenset[str] = frozenset()
    stream_usage: bool = True  # it understands stream_options.include_usage
    info: str = ""


DIALECTS: Mapping[str, Dialect] = {
    row.name: row
    for row in (
        Dialect("openai"),
        Dialect(
            "decodeloop",
            Gauges("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"),
            keeps=True,
            info="/v1/policy",
        ),
        Dialect(
            "vllm",
            Gauges("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"),
            refuses_speculating=frozenset({"min_p", "logit_bias"}),
            info="/version",
        ),
        Dialect(
            "sglang",
            Gauges("sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:token_usage"),
            asks={"return_spec_tokens_details": True},
            info="/get_server_info",
        ),
        Dialect("tensorrt_llm", Gauges("num_requests_running", "num_requests_waiting")),
        Dialect("llamacpp", Gauges("llamacpp:requests_processing", "llamacpp:requests_deferred"), info="/props"),
    )
}
