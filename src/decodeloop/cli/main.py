"""`decodeloop`: composes the parts. One file a command."""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_group

from decodeloop import __version__
from decodeloop.cli.log_lines import LineFormatter

EXIT_USAGE = 2

# Where each command is, in the order that --help lists them: a function, or an app with commands of its own.
COMMANDS = {
    "serve": "serve:serve",
    "generate": "generate:generate",
    "models": "models:models",
    "doctor": "doctor:doctor",
    "economics": "economics:economics",
    "frontier": "frontier:frontier",
    "pilot": "pilot:pilot",
    "report": "report:report",
    "bench": "bench:bench",
    "cliff": "cliff:cliff",
    "compare": "compare:compare_command",
    "workload": "workload:app",
    "results": "results:app",
    "policy": "policy:app",
    "certify": "certify:app",
    "simulate": "simulate:simulate_command",
    "keys": "keys:app",
    "grants": "grants:app",
    "budgets": "budgets:app",
    "ledger": "ledger:app",
    "audit": "audit:app",
    "config": "configuration:app",
}


class _Commands(TyperGroup):
    """Imports the command that is asked for, and no other: an import of them all takes longer than most of them."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            ctx.fail(f"no command {cmd_name!r}; choose from {', '.join(COMMANDS)}")
        module, attribute = COMMANDS[cmd_name].split(":")
        found: Any = getattr(import_module(f"decodeloop.cli.{module}"), attribute)
        alone = typer.Typer(callback=lambda: None, add_completion=False, pretty_exceptions_enable=False)
        if isinstance(found, typer.Typer):
            alone.add_typer(found, name=cmd_name)
        else:
            alone.command(cmd_name)(found)
        return get_group(alone).commands[cmd_name]


app = typer.Typer(
    name="decodeloop",
    cls=_Commands,
    help="Fast, cheap and provably unchanged LLM decoding.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"decodeloop {__version__}")
        raise typer.Exit


@app.callback()
def root(
    verbose: bool = typer.Option(False, "--verbose", "-v", help="Log what happens inside."),
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Print the version."),
) -> None:
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False  # no line says them
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=logging.DEBUG if verbose else logging.WARNING, handlers=[handler])


def main() -> None:
    """Run a command. What a user can mend is one line on stderr and exit code 2."""
    try:
        app()
    except (ValueError, OSError, MemoryError, RuntimeError, ImportError) as error:
        logging.getLogger(__name__).debug("the command failed", exc_info=error)
        print(f"decodeloop: {error}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
