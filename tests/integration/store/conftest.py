"""Stores from their very beginning: what a database is like before anything was started on it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.log.nodes import put_item, running_node
from support.store.backups import silent
from tidelog.config.schema import SCHEMA
from tidelog.store.backup import back_up
from tidelog.testing.postgresql import create_database, drop_database


@pytest.fixture
def postgresql_url(postgresql_server: str) -> Iterator[str]:
    """URL of an empty database of its own."""
    url = asyncio.run(create_database(postgresql_server))
    yield url
    asyncio.run(drop_database(url))


@pytest.fixture
def backup_file(tmp_path: Path) -> Path:
    """A sound backup of some pages."""
    source = str(tmp_path / "source" / "tidelog.db")
    target = tmp_path / "sound-backup.db"

    async def make() -> None:
        async with running_node(source) as node:
            value = b'"' + b"x" * 300 + b'"'
            await node.put_many([put_item("s", f"key-{n:04}", value) for n in range(300)])
        await back_up(SCHEMA, source, target, silent)

    asyncio.run(make())
    return target
