"""`decodeloop`: composes the parts. One file a command."""

from __future__ import annotations

import logging
import sys

import typer

from decodeloop import __version__
from decodeloop.cli.bench import bench
from decodeloop.cli.certify import app as certify
from decodeloop.cli.cliff import cliff
from decodeloop.cli.compare import compare_command
from decodeloop.cli.doctor import doctor
from decodeloop.cli.economics import economics
from decodeloop.cli.frontier import frontier
from decodeloop.cli.generate import generate
from decodeloop.cli.governing import audit, budgets, configuration, grants, keys, ledger
from decodeloop.cli.models import models
from decodeloop.cli.pilot import pilot
from decodeloop.cli.policy import app as policy
from decodeloop.cli.report import report
from decodeloop.cli.results import app as results
from decodeloop.cli.serve import serve
from decodeloop.cli.simulate import simulate_command
from decodeloop.cli.workload import app as workload

EXIT_USAGE = 2

app = typer.Typer(
    name="decodeloop",
    help="Fast, cheap and provably unchanged LLM decoding.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(serve)
app.command()(generate)
app.command()(models)
app.command()(doctor)
app.command()(economics)
app.command()(frontier)
app.command()(pilot)
app.command()(report)
app.command()(bench)
app.command()(cliff)
app.command("compare")(compare_command)
app.add_typer(workload)
app.add_typer(results)
app.add_typer(policy)
app.add_typer(certify)
app.command("simulate")(simulate_command)
app.add_typer(keys, name="keys")
app.add_typer(grants, name="grants")
app.add_typer(budgets, name="budgets")
app.add_typer(ledger, name="ledger")
app.add_typer(audit, name="audit")
app.add_typer(configuration, name="config")


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"decodeloop {__version__}")
        raise typer.Exit


@app.callback()
def root(
    verbose: bool = typer.Option(False, "--verbose", "-v", help="Log what happens inside."),
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Print the version."),
) -> None:
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )


def main() -> None:
    """Run a command. What a user can mend is one line on stderr and exit code 2."""
    try:
        app()
    except (ValueError, OSError, MemoryError, RuntimeError, ImportError) as error:
        logging.getLogger(__name__).debug("the command failed", exc_info=error)
        print(f"decodeloop: {error}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
