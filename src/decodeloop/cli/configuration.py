"""`decodeloop config`: configuration files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from decodeloop.cli.environment import read_environment
from decodeloop.cli.pool_certificates import read_certificates
from decodeloop.cli.reloading import read_config
from decodeloop.cli.serve import ServeConfig
from decodeloop.gateway.governance import language_of
from decodeloop.gateway.registrar import directory_of
from decodeloop.gateway.upstreams.remote import RemoteUpstream

app = typer.Typer(no_args_is_help=True, help="Configuration files.")


@app.command("validate")
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


@app.command("schema")
def print_schema() -> None:
    """The JSON schema of configuration files, for editors and checks."""
    print(json.dumps(msgspec.json.schema(ServeConfig), indent=2))
