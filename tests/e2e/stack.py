"""The whole product on a free port: gateway, upstream, engine, model."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from openai import OpenAI

from decodeloop.engine.build import EmbeddedEngine, build_engine
from decodeloop.engine.models import Checkpoint
from decodeloop.engine.recorder import StepRecorder
from decodeloop.engine.regime import read_regime
from decodeloop.engine.settings import EngineSettings
from decodeloop.engine.upstream import EmbeddedUpstream
from decodeloop.gateway.app import build_app
from decodeloop.gateway.settings import GatewaySettings
from listening import listening


@dataclass(frozen=True)
class Stack:
    url: str
    engine: EmbeddedEngine
    clients: ExitStack

    def client(self, **options: Any) -> OpenAI:
        """Closed with the server: a client that is garbage may leave its sockets open, and that is an error."""
        return self.clients.enter_context(OpenAI(base_url=f"{self.url}/v1", api_key="any", max_retries=0, **options))

    def settled(self) -> None:
        """Wait until the engine holds nothing."""
        scheduler = self.engine.engine.scheduler
        while scheduler.running or scheduler.waiting:
            time.sleep(0.01)

    def leaked_blocks(self) -> int:
        """After everything has ended."""
        self.settled()
        cache = self.engine.engine.scheduler.cache
        return cache.blocks - cache.available_blocks


@contextmanager
def stack(
    checkpoint: Checkpoint,
    *,
    gateway: GatewaySettings | None = None,
    recorder: StepRecorder | None = None,
    **settings: Any,
) -> Iterator[Stack]:
    gateway = gateway or GatewaySettings()
    own = EngineSettings(**settings)
    engine = build_engine(checkpoint, own, clock=time.monotonic, name="model", recorder=recorder)
    upstream = EmbeddedUpstream(engine, created=1, regime=partial(read_regime, engine, own))
    app = build_app(gateway, {"embedded": upstream})
    with listening(app, gateway) as (_, port), ExitStack() as clients:
        yield Stack(f"http://127.0.0.1:{port}", engine, clients)
