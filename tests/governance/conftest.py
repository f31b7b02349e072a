"""Where books are: in a file, or in a PostgreSQL and a Redis for the whole session.

Tests of those two fail where they aren't installed.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from redis.asyncio import Redis

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import stores

from open_books import Address


@pytest.fixture(scope="session")
def servers() -> Iterator[tuple[stores.Server, stores.Server]]:
    with stores.postgres() as postgres, stores.redis() as redis:
        yield postgres, redis


@pytest.fixture
def shared(servers: tuple[stores.Server, stores.Server]) -> tuple[str, str]:
    """The addresses of both, empty."""
    postgres, redis = servers
    asyncio.run(_emptied(postgres.url, redis.url))
    return postgres.url, redis.url


async def _emptied(postgres: str, redis: str) -> None:
    database = await asyncpg.connect(postgres)
    await database.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    await database.close()
    counters = Redis.from_url(redis)
    await counters.flushall()
    await counters.aclose()


@pytest.fixture(params=["sqlite", "shared"])
def path(request: pytest.FixtureRequest, tmp_path: Any) -> Address:
    """Where the books are: a file, or a database and counters."""
    return str(tmp_path / "books.sqlite3") if request.param == "sqlite" else request.getfixturevalue("shared")


@pytest.fixture
def file(tmp_path: Any) -> str:
    return str(tmp_path / "books.sqlite3")
