"""A machine that lacks what a runner needs: its user is told what to install."""

import subprocess
import sys

import pytest

from decodeloop.cli import main

LOAD_WITHOUT = """
import sys
sys.modules[{lacking!r}] = None
try:
    {load}
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("lacking", "load", "advice"),
    [
        (
            "torch",
            "from decodeloop.engine.runners import runners; runners.load('torch')",
            "torch is not installed: pip install 'decodeloop[torch]'",
        ),
        (
            "decodeloop.engine.kernels._native",
            "from decodeloop.engine import kernels; kernels.load()",
            "reinstall decodeloop where a C++ compiler is found",
        ),
    ],
)
def test_what_is_missing_is_named(lacking, load, advice):
    script = LOAD_WITHOUT.format(lacking=lacking, load=load)
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert advice in said


def test_a_command_without_its_runner_ends_with_one_line(monkeypatch, capsys):
    def lack():
        raise ImportError("torch is not installed")

    monkeypatch.setattr(main, "app", lack)
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == "decodeloop: torch is not installed\n"
