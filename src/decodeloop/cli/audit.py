"""`decodeloop audit`: the audit chain."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from decodeloop.cli.environment import read_environment
from decodeloop.cli.reloading import read_config
from decodeloop.cli.serve import ServeConfig
from decodeloop.gateway.store.audit_file import chain_files, verify_file
from decodeloop.governance.audit import Head, plain_seal, sealed

app = typer.Typer(no_args_is_help=True, help="The audit chain.")


@app.command("verify")
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


def _head(text: str) -> Head:
    count, _, seal = text.partition(":")
    if not count.isdecimal() or not seal:
        raise ValueError(f"{text!r} is no head: COUNT:SEAL, as `audit verify` prints it")
    return Head(int(count), seal)
