"""Imports point down, and the gateway needs no torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

WITHOUT_TORCH = """
import importlib, pkgutil, sys
sys.modules["torch"] = None
for name in {packages!r}:
    module = importlib.import_module(name)
    for found in pkgutil.walk_packages(getattr(module, "__path__", []), name + "."):
        importlib.import_module(found.name)
assert not any(name.startswith(("decodeloop.engine", "transformers")) for name in sys.modules), sys.modules
"""


def test_the_import_contracts_hold() -> None:
    got = subprocess.run(
        [Path(sys.executable).with_name("lint-imports")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert got.returncode == 0, got.stdout + got.stderr


@pytest.mark.parametrize(
    "packages", [["decodeloop.types", "decodeloop.policy"], ["decodeloop.config", "decodeloop.gateway"]]
)
def test_importable_without_torch_or_the_engine(packages: list[str]) -> None:
    script = WITHOUT_TORCH.format(packages=packages)
    got = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert got.returncode == 0, got.stderr


def test_the_check_itself_can_fail() -> None:
    script = WITHOUT_TORCH.format(packages=["decodeloop.engine"])
    got = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert got.returncode != 0
