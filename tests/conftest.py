"""Fixtures shared by every tier: one PostgreSQL per run, one database per test."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog.testing.postgresql import create_database, throwaway_postgresql

ENGINES = ("sqlite", "postgresql")


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    """URL of a real PostgreSQL server for the whole run."""
    with throwaway_postgresql() as url:
        yield url


@pytest.fixture
def postgresql_url(postgresql_server: str) -> str:
    """URL of an empty database of its own."""
    return asyncio.run(create_database(postgresql_server))


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    """Name of the engine; a test that takes it runs on both."""
    name: str = request.param
    return name


@pytest.fixture
def store_location(engine: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """Where an empty store of the engine is: a path or a URL."""
    if engine == "sqlite":
        return str(tmp_path / "store" / "tidelog.db")
    url: str = request.getfixturevalue("postgresql_url")
    return url
