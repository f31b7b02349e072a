"""Work on the store that a configuration names; a gateway that is running sees a change within a second."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from decodeloop.cli.environment import read_environment
from decodeloop.cli.reloading import read_config
from decodeloop.cli.serve import ServeConfig
from decodeloop.gateway.governance import Store
from decodeloop.gateway.store import StoreUnavailable
from decodeloop.gateway.store.opening import open_store
from decodeloop.governance.settings import GovernanceSettings

T = TypeVar("T")

ConfigPath = Annotated[Path, typer.Option("--config", help="The YAML that `serve` reads.")]
Id = Annotated[str, typer.Argument()]


def with_store(config_file: Path, work: Callable[[Store, GovernanceSettings], Awaitable[T]]) -> T:
    """What `work` gives of the open store. Raises OSError where the store can't be used."""
    settings = read_config(config_file, ServeConfig, read_environment()).governance

    async def run() -> T:
        store: Any = open_store(settings, instance=f"cli-{secrets.token_hex(4)}", clock=time.time)
        await store.start()
        try:
            return await work(store, settings)
        finally:
            await store.close()

    try:
        return asyncio.run(run())
    except StoreUnavailable as error:
        raise OSError(f"the store can't be used: {error}") from None


def list_records(config_file: Path, kind: str) -> None:
    """One line of JSON a record, stored or configured, without what opens anything."""

    async def read(store: Store, settings: GovernanceSettings) -> None:
        stored = {record.id: json.loads(record.body) for record in await store.read() if record.kind == kind}
        configured = {each.id: msgspec.to_builtins(each) for each in getattr(settings, f"{kind}s")}
        for value in {**stored, **configured}.values():
            print(json.dumps({name: each for name, each in value.items() if name not in ("key", "digest")}))

    with_store(config_file, read)


def remove_record(config_file: Path, kind: str, id: str) -> None:
    """Raises ValueError where none of that id is stored."""

    async def remove(store: Store, settings: GovernanceSettings) -> None:
        if not await store.remove(kind, id):
            raise ValueError(f"no {kind} {id!r} is stored (what is configured is removed in {config_file})")

    with_store(config_file, remove)
