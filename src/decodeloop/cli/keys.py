"""`decodeloop keys`: virtual keys."""

from __future__ import annotations

import secrets
import time
from typing import Annotated

import typer

from decodeloop.cli.stored import ConfigPath, Id, list_records, remove_record, with_store
from decodeloop.gateway.registrar import record_of
from decodeloop.governance.keys import SECRET_BYTES, compose, digest_of, id_of
from decodeloop.governance.settings import KeySettings

app = typer.Typer(no_args_is_help=True, help="Virtual keys: make, list, revoke.")

Name = Annotated[str, typer.Option()]


@app.command("create")
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
    with_store(config_file, lambda store, _: store.put(record_of("key", made)))
    print(text)


@app.command("list")
def list_keys(config_file: ConfigPath) -> None:
    """One line of JSON a key, without what opens anything."""
    list_records(config_file, "key")


@app.command("revoke")
def revoke_key(id: Id, config_file: ConfigPath) -> None:
    """Remove a key."""
    remove_record(config_file, "key", id)
