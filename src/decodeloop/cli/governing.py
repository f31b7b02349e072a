"""`decodeloop keys, grants, budgets, ledger, audit, config`: governance from the command line.

They work on the store that the configuration names; a gateway that is running sees a change within a second.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from decodeloop import config
from decodeloop.cli.environment import read_environment
from decodeloop.cli.event_lines import event_lines
from decodeloop.cli.ledger_export import write_focus
from decodeloop.cli.pool_certificates import read_certificates
from decodeloop.cli.reloading import read_config
from decodeloop.cli.serve import ServeConfig
from decodeloop.gateway.governance import Store, language_of
from decodeloop.gateway.registrar import directory_of, record_of
from decodeloop.gateway.store import StoreUnavailable
from decodeloop.gateway.store.audit_file import chain_files, verify_file
from decodeloop.gateway.store.events import open_events
from decodeloop.gateway.store.opening import open_store
from decodeloop.gateway.upstreams.remote import RemoteUpstream
from decodeloop.governance.audit import Head, plain_seal, sealed
from decodeloop.governance.capability import Grant
from decodeloop.governance.keys import SECRET_BYTES, compose, digest_of, id_of
from decodeloop.governance.price import NANOS
from decodeloop.governance.scope import Scope
from decodeloop.governance.settings import GovernanceSettings, KeySettings, LimitSettings, scope_text
from decodeloop.governance.showback import showback

T = TypeVar("T")

keys = typer.Typer(no_args_is_help=True, help="Virtual keys: make, list, revoke.")
grants = typer.Typer(no_args_is_help=True, help="Grants: what identities may exercise.")
budgets = typer.Typer(no_args_is_help=True, help="Budgets and rate limits.")
ledger = typer.Typer(no_args_is_help=True, help="The ledger: export, showback, clients' events.")
audit = typer.Typer(no_args_is_help=True, help="The audit chain.")
configuration = typer.Typer(no_args_is_help=True, help="Configuration files.")

ConfigPath = Annotated[Path, typer.Option("--config", help="The YAML that `serve` reads.")]
Organization = Annotated[str, typer.Option(help="* : each on its own; empty: all together.")]
Name = Annotated[str, typer.Option()]
Id = Annotated[str, typer.Argument()]
Since = Annotated[float, typer.Option(help="Unix time, in seconds.")]

FOREVER_S = 1e12


@keys.command("create")
def create_key(
    config_file: ConfigPath,
    organization: Name = "local",
    user: Name = "",
    agent: Name = "",
    capability: Name = "",
    days: Annotated[float | None, typer.Option(help="That it is good for.")] = None,
) -> None:
    """Make a key, and print it: only its digest is kept."""
    text = compose(secrets.token_bytes(6), secrets.token_bytes(SECRET_BYTES))
    made = KeySettings(
        id=id_of(text) or "",
        digest=digest_of(text),
        organization=organization,
        user=user,
        agent=agent,
        capability=capability,
        until_s=None if days is None else time.time() + 86400 * days,
    )
    _with_store(config_file, lambda store, _: store.put(record_of("key", made)))
    print(text)


@keys.command("list")
def list_keys(config_file: ConfigPath) -> None:
    """One line of JSON a key, without what opens anything."""
    _list(config_file, "key")


@keys.command("revoke")
def revoke_key(id: Id, config_file: ConfigPath) -> None:
    """Remove a key."""
    _remove(config_file, "key", id)


@grants.command("put")
def put_grant(
    file: Annotated[Path, typer.Argument(help="JSON or YAML: one grant as in the configuration; - : stdin.")],
    config_file: ConfigPath,
) -> None:
    """Add a grant, or replace the one of that id."""
    grant = config.load(_text(file), Grant, env=read_environment().variables, source=str(file))
    _with_store(config_file, lambda store, _: store.put(record_of("grant", grant)))


@grants.command("list")
def list_grants(config_file: ConfigPath) -> None:
    """One line of JSON a grant."""
    _list(config_file, "grant")


@grants.command("remove")
def remove_grant(id: Id, config_file: ConfigPath) -> None:
    """Remove a grant."""
    _remove(config_file, "grant", id)


@budgets.command("set")
def set_budget(
    id: Id,
    amount: Annotated[float, typer.Argument(help="Requests, tokens, or money in the currency.")],
    config_file: ConfigPath,
    unit: Annotated[str, typer.Option(help="requests, tokens or money.")] = "money",
    window: Annotated[str, typer.Option(help="second, minute, hour, day, month or total.")] = "month",
    organization: Organization = "",
    user: Organization = "",
    agent: Organization = "",
    capability: Organization = "",
) -> None:
    """Set a limit."""
    given = {"id": id, "amount": amount, "unit": unit, "window": window}
    scope = Scope(organization, user, agent, capability)
    try:
        made = msgspec.convert({**given, "scope": asdict(scope)}, LimitSettings)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
    _with_store(config_file, lambda store, _: store.put(record_of("limit", made)))


@budgets.command("list")
def list_budgets(config_file: ConfigPath) -> None:
    """Every limit, configured or stored."""

    async def read(store: Store, settings: GovernanceSettings) -> None:
        for limit in directory_of(settings, await store.read()).limits:
            amount = limit.amount / NANOS if limit.unit.value == "money" else limit.amount
            print(f"{limit.id}  {scope_text(limit.scope)}  {amount:g} {limit.unit.value} a {limit.window.value}")

    _with_store(config_file, read)


@budgets.command("remove")
def remove_budget(id: Id, config_file: ConfigPath) -> None:
    """Remove a limit."""
    _remove(config_file, "limit", id)


@ledger.command("export")
def export_ledger(
    config_file: ConfigPath,
    out: Annotated[Path | None, typer.Option(help="A .csv or .parquet file; none: CSV to stdout.")] = None,
    since: Since = 0.0,
    until: Since = FOREVER_S,
) -> None:
    """The ledger in FOCUS 1.4."""

    async def export(store: Store, settings: GovernanceSettings) -> None:
        write_focus(await store.rows(since, until), settings.currency, out)

    _with_store(config_file, export)


@ledger.command("showback")
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

    _with_store(config_file, read)


@ledger.command("events")
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

    _with_store(config_file, read)


@audit.command("verify")
def verify_audit(
    directory: Annotated[Path, typer.Argument(help="Where the chains are.")],
    config_file: Annotated[Path | None, typer.Option("--config", help="For the key that seals them.")] = None,
    head: Annotated[str | None, typer.Option(help="COUNT:SEAL of one chain's head, kept elsewhere.")] = None,
) -> None:
    """Check every chain. Exit code 1 where one was edited, cut, reordered or removed."""
    environment = read_environment()
    key = "" if config_file is None else read_config(config_file, ServeConfig, environment).governance.audit.key
    seal = sealed(key) if key else plain_seal
    paths = chain_files(directory)
    if not paths:
        raise ValueError(f"no audit chain in {directory}")
    expected = None if head is None else _head(head)
    if expected is not None and len(paths) > 1:
        raise ValueError("a head belongs to one chain: give a directory with that one alone")
    good = True
    for path in paths:
        got, fault = verify_file(path, seal, expected)
        good = good and fault is None
        told = (
            f"{got.count} entries, head {got.count}:{got.seal}"
            if fault is None
            else f"entry {fault.place}: {fault.what}"
        )
        print(f"{path}: {told}")
    if not good:
        sys.exit(1)


@configuration.command("validate")
def validate_config(file: Annotated[Path, typer.Argument(help="The YAML that `serve` reads.")]) -> None:
    """Whether a file can be served; exit code 2 and the reason where not."""
    settings = read_config(file, ServeConfig, read_environment())
    language_of(settings.governance.cedar)
    directory = directory_of(settings.governance, ())
    read_certificates(settings.gateway.pools)
    for name, each in settings.gateway.upstreams.items():
        RemoteUpstream(name, each)
    counts = f"{len(directory.keys)} keys, {len(directory.grants)} grants, {len(directory.limits)} limits"
    print(f"{file}: good; {counts}, {len(settings.gateway.upstreams)} upstreams, {len(settings.gateway.pools)} pools")


@configuration.command("schema")
def print_schema() -> None:
    """The JSON schema of configuration files, for editors and checks."""
    print(json.dumps(msgspec.json.schema(ServeConfig), indent=2))


def _head(text: str) -> Head:
    count, _, seal = text.partition(":")
    if not count.isdecimal() or not seal:
        raise ValueError(f"{text!r} is no head: COUNT:SEAL, as `audit verify` prints it")
    return Head(int(count), seal)


def _text(file: Path) -> str:
    return sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")


def _list(config_file: Path, kind: str) -> None:
    async def read(store: Store, settings: GovernanceSettings) -> None:
        stored = {record.id: json.loads(record.body) for record in await store.read() if record.kind == kind}
        configured = {each.id: msgspec.to_builtins(each) for each in getattr(settings, f"{kind}s")}
        for value in {**stored, **configured}.values():
            print(json.dumps({name: each for name, each in value.items() if name not in ("key", "digest")}))

    _with_store(config_file, read)


def _remove(config_file: Path, kind: str, id: str) -> None:
    async def remove(store: Store, settings: GovernanceSettings) -> None:
        if not await store.remove(kind, id):
            raise ValueError(f"no {kind} {id!r} is stored (what is configured is removed in {config_file})")

    _with_store(config_file, remove)


def _with_store(config_file: Path, work: Callable[[Store, GovernanceSettings], Awaitable[T]]) -> T:
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
