"""One broker per engine for all tests of this folder; each test has a mesh of its own."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from support.mesh.peer import Broker, running_broker
from tidelog.testing.postgresql import create_database, drop_database


@pytest.fixture(scope="module", params=("sqlite", "postgresql"))
def broker_location(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Where the store of a module's broker is."""
    if request.param == "sqlite":
        yield str(tmp_path_factory.mktemp("mesh") / "tidelog.db")
        return
    server = request.getfixturevalue("postgresql_server")
    template = request.getfixturevalue("postgresql_template")
    url = asyncio.run(create_database(server, template=template))
    yield url
    asyncio.run(drop_database(url))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def broker(
    broker_location: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Broker]:
    """A broker for the tests of a module."""
    data_dir = tmp_path_factory.mktemp("data")
    async with running_broker(data_dir, broker_location) as running:
        yield running
