"""`decodeloop models`: the models that have a short name, and whether they are here."""

from __future__ import annotations

from typing import Annotated

import orjson
import typer

from decodeloop.cli.environment import read_environment
from decodeloop.cli.opening import fetch_model
from decodeloop.engine.models.sources import DEFAULT_MODEL, cached_path, list_known


def models(
    fetch: Annotated[
        str | None, typer.Option(help="Fetch this model (a name as for `serve`), print where it is.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="End with one JSON line.")] = False,
) -> None:
    """List the models that have a short name. Files, directories and hub names serve as well."""
    environment = read_environment()
    if fetch is not None:
        print(fetch_model(fetch, environment))
        return
    rows = []
    for known in list_known():
        path = cached_path(known, environment.models)
        rows.append({"name": known.name, "title": known.title, "license": known.license, "path": path and str(path)})
        default = " (default)" if known.name == DEFAULT_MODEL else ""
        print(f"{known.name:<10} {known.title}, {known.license}{default}: {path or 'not fetched'}")
    if as_json:
        print(orjson.dumps(rows).decode())
