"""What servers of other makes tell of their own configuration, by the page that tells it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from decodeloop.gateway.losslessness import SILENT, Told, told_by_policy

__all__ = ["told_by"]

VLLM_SPECULATES = b"vllm:spec_decode_num_draft"  # counters that a vLLM has if it speculates


def told_by(engine: str, page: bytes, metrics: bytes) -> Told:
    """page: what the dialect's `info` path answered. Raises ValueError for one that can't be read."""
    value = orjson.loads(page)
    if not isinstance(value, dict):
        raise ValueError("no JSON object")
    if engine == "vllm":
        return Told(str(value.get("version", "")), (VLLM_SPECULATES in metrics) if metrics else None)
    if engine == "sglang":
        return _by_sglang(value)
    if engine == "llamacpp":
        return Told(str(value.get("build_info", "")))
    if engine == "decodeloop":
        return _by_decodeloop(value)
    return SILENT


def _by_sglang(value: Mapping[str, Any]) -> Told:
    """Its thresholds below 1 accept drafts that the target might not have drawn."""
    method = value.get("speculative_algorithm")
    limits = [value.get(f"speculative_accept_threshold_{name}", 1.0) for name in ("single", "acc")]
    lossless = all(isinstance(each, int | float) and each >= 1.0 for each in limits)
    methods = (str(method).lower(),) if method else ()
    return Told(str(value.get("version", "")), bool(method), methods, lossless if method else None)


def _by_decodeloop(value: Mapping[str, Any]) -> Told:
    """Of a gateway of ours: that of its only upstream."""
    rows = value.get("data")
    if isinstance(rows, list) and len(rows) == 1 and isinstance(rows[0], dict):
        view = rows[0].get("policy")
        return told_by_policy(view) if isinstance(view, dict) else SILENT
    return SILENT
