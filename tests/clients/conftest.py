"""What tests of clients share: a channels server per engine, a place for documents' commands."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from support.channels.javascript import chromium
from support.channels.process import channels_process
from tidelog.testing.postgresql import create_database
from tidelog.testing.process import ServerProcess


@pytest.fixture(scope="session")
def sqlite_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A running process on SQLite."""
    with channels_process(tmp_path_factory.mktemp("channels")) as server:
        server.start()
        yield server


@pytest.fixture(scope="session")
def postgresql_channels_server(
    tmp_path_factory: pytest.TempPathFactory, postgresql_server: str
) -> Iterator[ServerProcess]:
    """A running process on PostgreSQL."""
    store = asyncio.run(create_database(postgresql_server))
    with channels_process(tmp_path_factory.mktemp("channels"), store) as server:
        server.start()
        yield server


@pytest.fixture(scope="session", params=("sqlite_server", "postgresql_channels_server"))
def server(request: pytest.FixtureRequest) -> ServerProcess:
    """A running process with versioned messages; a test that takes it runs on both engines."""
    running: ServerProcess = request.getfixturevalue(request.param)
    return running


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """A real Chromium."""
    async with chromium() as launched:
        yield launched
