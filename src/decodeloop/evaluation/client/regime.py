"""What a server tells of itself: version, and our own its regime."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson

from decodeloop.evaluation.client.http import Client

TRIES, WAIT_S = 120, 0.5


async def read_json(client: Client, path: str) -> Mapping[str, Any]:
    """{} where there is nothing like it. Raises Lost."""
    reply = await client.send("GET", path)
    try:
        found = orjson.loads(reply.body) if reply.status == 200 else {}
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, Mapping) else {}


async def read_version(client: Client) -> str:
    """ "" where it isn't told."""
    return str((await read_json(client, "/version")).get("version", ""))


async def read_regime(client: Client, model: str) -> Mapping[str, Any] | None:
    """Of the only upstream that serves the model; two may be in different regimes. Waits while it is being read."""
    for _ in range(TRIES):
        views = [view for view in (await read_json(client, "/v1/policy")).get("data", ()) if model in view["models"]]
        told = views[0]["policy"] if len(views) == 1 else {}
        if told.get("regime") is not None or "regime" not in told:
            regime: Mapping[str, Any] | None = told.get("regime")
            return regime
        await asyncio.sleep(WAIT_S)
    return None


def settings_of(regime: Mapping[str, Any]) -> dict[str, Any]:
    """A regime as an arm's settings, in a card's words; what isn't known is left out."""
    target = {
        "sha256": regime.get("model_hash"),
        "precision": regime.get("weight_format"),
        "tokenizer_sha256": regime.get("tokenizer_hash"),
        "template_sha256": regime.get("template_hash"),
    }
    told = {
        "engine_version": regime.get("version"),
        "verifier": regime.get("verifier"),
        "policy": regime.get("policy"),
        "policy_version": regime.get("policy_version"),
        "drafters": regime.get("drafter"),
        "threads": regime.get("threads"),
        "batch_invariant": regime.get("numerics") == "batch-invariant" or None,
        "synthetic": False if regime.get("verifier") else None,
        "target": {name: value for name, value in target.items() if value} or None,
    }
    return {name: value for name, value in told.items() if value not in (None, "")}
