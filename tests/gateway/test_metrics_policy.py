"""Metrics of the cliff and of the steps' time."""

from __future__ import annotations

import asyncio

from asgi import CHAT, call, chat
from decodeloop.gateway.app import build_app
from decodeloop.gateway.settings import GatewaySettings
from decodeloop.types import Load
from scripted import ScriptedUpstream, says


class Believing(ScriptedUpstream):
    def describe(self):
        def row(tenant: str, *ends: int | None):
            return {"tenant": tenant, "class": "sql", "drafter": "ngram", "adaptive": {"ends_between": list(ends)}}

        return {
            "cliff": [
                row("a", 16, 32),
                row("b", 8, 16),
                {**row("a", 512, None), "class": "code_edit"},
                {**row("a", None, 1), "class": "creative_writing"},
            ]
        }

    def load(self) -> Load:
        return Load(running=3, waiting=0, context_tokens=0, kv_free_fraction=1.0)


def test_the_way_to_the_cliff_and_the_share_of_verifying():
    async def run() -> None:
        app = build_app(GatewaySettings(), {"own": Believing(says("x"))})
        await call(app, "POST", CHAT, chat())
        page = (await call(app, "GET", "/metrics")).body.decode()
        for line in (
            'decodeloop_cliff_load{class="sql",drafter="ngram",engine="own"} 8.0',
            'decodeloop_cliff_distance{class="sql",drafter="ngram",engine="own"} 5.0',
            'decodeloop_cliff_load{class="code_edit",drafter="ngram",engine="own"} +Inf',
            'decodeloop_cliff_distance{class="creative_writing",drafter="ngram",engine="own"} -3.0',
            'decodeloop_verification_share{engine="own",model_name="tiny",phase="draft"} '
            f"{0.5 / (2.0 + 0.5 + 8.0 + 0.25 + 0.125)}",
        ):
            assert line in page, page

    asyncio.run(run())
