"""`decodeloop grants`: what identities may exercise."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from decodeloop import config
from decodeloop.cli.environment import read_environment
from decodeloop.cli.stored import ConfigPath, Id, list_records, remove_record, with_store
from decodeloop.gateway.registrar import record_of
from decodeloop.governance.capability import Grant

app = typer.Typer(no_args_is_help=True, help="Grants: what identities may exercise.")


@app.command("put")
def put_grant(
    file: Annotated[Path, typer.Argument(help="JSON or YAML: one grant as in the configuration; - : stdin.")],
    config_file: ConfigPath,
) -> None:
    """Add a grant, or replace the one of that id."""
    grant = config.load(_text(file), Grant, env=read_environment().variables, source=str(file))
    with_store(config_file, lambda store, _: store.put(record_of("grant", grant)))


@app.command("list")
def list_grants(config_file: ConfigPath) -> None:
    """One line of JSON a grant."""
    list_records(config_file, "grant")


@app.command("remove")
def remove_grant(id: Id, config_file: ConfigPath) -> None:
    """Remove a grant."""
    remove_record(config_file, "grant", id)


def _text(file: Path) -> str:
    return sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
