"""A short form of benchmarks/chaos.py: kills under load, and every answer in the ledger."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import chaos


@pytest.mark.timeout(600)
def test_nothing_durable_is_lost_and_budgets_hold() -> None:
    found = asyncio.run(chaos.run(kills=3, clients=4, seed=7, order=("gateway", "redis", "postgres")))
    assert found["whole"] > 0
    assert found["insisted"] > 0
    assert found["rows"] >= found["whole"]
