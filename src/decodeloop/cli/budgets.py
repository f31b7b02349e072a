"""`decodeloop budgets`: budgets and rate limits."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import msgspec
import typer

from decodeloop.cli.stored import ConfigPath, Id, remove_record, with_store
from decodeloop.gateway.governance import Store
from decodeloop.gateway.registrar import directory_of, record_of
from decodeloop.governance.price import NANOS
from decodeloop.governance.scope import Scope
from decodeloop.governance.settings import GovernanceSettings, LimitSettings, scope_text

app = typer.Typer(no_args_is_help=True, help="Budgets and rate limits.")

Who = Annotated[str, typer.Option(help="* : each on its own; empty: all together.")]


@app.command("set")
def set_budget(
    id: Id,
    amount: Annotated[float, typer.Argument(help="Requests, tokens, or money in the currency.")],
    config_file: ConfigPath,
    unit: Annotated[str, typer.Option(help="requests, tokens or money.")] = "money",
    window: Annotated[str, typer.Option(help="second, minute, hour, day, month or total.")] = "month",
    organization: Who = "",
    user: Who = "",
    agent: Who = "",
    capability: Who = "",
) -> None:
    """Set a limit."""
    given = {"id": id, "amount": amount, "unit": unit, "window": window}
    scope = Scope(organization, user, agent, capability)
    try:
        made = msgspec.convert({**given, "scope": asdict(scope)}, LimitSettings)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
    with_store(config_file, lambda store, _: store.put(record_of("limit", made)))


@app.command("list")
def list_budgets(config_file: ConfigPath) -> None:
    """Every limit, configured or stored."""

    async def read(store: Store, settings: GovernanceSettings) -> None:
        for limit in directory_of(settings, await store.read()).limits:
            amount = limit.amount / NANOS if limit.unit.value == "money" else limit.amount
            print(f"{limit.id}  {scope_text(limit.scope)}  {amount:g} {limit.unit.value} a {limit.window.value}")

    with_store(config_file, read)


@app.command("remove")
def remove_budget(id: Id, config_file: ConfigPath) -> None:
    """Remove a limit."""
    remove_record(config_file, "limit", id)
