"""Stores from their very beginning: what a database is like before anything was started on it."""

import asyncio
from collections.abc import Iterator

import pytest

from tidelog.testing.postgresql import create_database, drop_database


@pytest.fixture
def postgresql_url(postgresql_server: str) -> Iterator[str]:
    """URL of an empty database of its own."""
    url = asyncio.run(create_database(postgresql_server))
    yield url
    asyncio.run(drop_database(url))
