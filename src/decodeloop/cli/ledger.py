"""`decodeloop ledger`: export, showback, what clients told."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Annotated

import typer

from decodeloop.cli.event_lines import event_lines
from decodeloop.cli.ledger_export import write_focus
from decodeloop.cli.stored import ConfigPath, with_store
from decodeloop.gateway.governance import Store
from decodeloop.gateway.store.events import open_events
from decodeloop.governance.price import NANOS
from decodeloop.governance.settings import GovernanceSettings
from decodeloop.governance.showback import showback

app = typer.Typer(no_args_is_help=True, help="The ledger: export, showback, clients' events.")

Since = Annotated[float, typer.Option(help="Unix time, in seconds.")]

FOREVER_S = 1e12


@app.command("export")
def export_ledger(
    config_file: ConfigPath,
    out: Annotated[Path | None, typer.Option(help="A .csv or .parquet file; none: CSV to stdout.")] = None,
    since: Since = 0.0,
    until: Since = FOREVER_S,
) -> None:
    """The ledger in FOCUS 1.4."""

    async def export(store: Store, settings: GovernanceSettings) -> None:
        write_focus(await store.rows(since, until), settings.currency, out)

    with_store(config_file, export)


@app.command("showback")
def show_back(
    config_file: ConfigPath,
    by: Annotated[str, typer.Option(help="organization, user, agent, capability, class, task, model or pool.")] = (
        "organization"
    ),
    since: Since = 0.0,
    until: Since = FOREVER_S,
) -> None:
    """Who used what: one line of JSON each, dearest first."""

    async def read(store: Store, settings: GovernanceSettings) -> None:
        for name, sums in showback(await store.rows(since, until), by).items():
            counts = {each.name: getattr(sums, each.name) for each in fields(sums)}
            money = {each: counts[each] / NANOS for each in ("billed", "cost")}
            told = {"name": name, **counts, **money, "margin": sums.margin / NANOS, "currency": settings.currency}
            print(json.dumps(told))

    with_store(config_file, read)


@app.command("events")
def export_events(
    config_file: ConfigPath,
    out: Annotated[Path | None, typer.Option(help="The file to write; none: stdout.")] = None,
    since: Since = 0.0,
    until: Since = FOREVER_S,
) -> None:
    """What clients told of answers: JSON lines that `decodeloop economics --events` reads.

    An event's arm is what its client said, else the pool that answered its request, or most of its session's.
    """

    async def read(store: Store, settings: GovernanceSettings) -> None:
        records = open_events(store)
        await records.start()
        lines = event_lines(await records.read(since, until), await store.rows(0.0, FOREVER_S))
        text = "".join(json.dumps(line) + "\n" for line in lines)
        print(text, end="") if out is None else out.write_text(text, encoding="utf-8")

    with_store(config_file, read)
