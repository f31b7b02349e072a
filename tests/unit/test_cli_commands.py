"""The command line as a whole: every command is there, and one command imports no other."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from decodeloop.cli.main import COMMANDS, app


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_explains_itself(name: str) -> None:
    shown = CliRunner().invoke(app, [name, "--help"])
    assert shown.exit_code == 0, shown.output
    assert f" {name} " in shown.output
    assert "completion" not in shown.output


def test_the_whole_help_names_every_command() -> None:
    shown = CliRunner().invoke(app, ["--help"])
    assert shown.exit_code == 0
    assert all(f" {name} " in shown.output for name in COMMANDS)


def test_an_unknown_command_is_told_the_choices() -> None:
    shown = CliRunner().invoke(app, ["simulat"])
    assert shown.exit_code == 2
    assert "simulat" in shown.output
    assert all(name in shown.output for name in COMMANDS)


def test_a_light_command_imports_no_heavy_part() -> None:
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from decodeloop.cli.main import app\n"
        "assert CliRunner().invoke(app, ['keys', '--help']).exit_code == 0\n"
        "print([name for name in ('torch', 'transformers',"
        " 'decodeloop.evaluation') if name in sys.modules])\n"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"
