"""One server per file and engine: the checks share it and use channels of their own."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
import pytest_asyncio

from support.channels.peer import Api, ChannelsNode, channels_server
from support.serve import workers
from tidelog.testing.postgresql import create_database

Stores = Callable[[str], Awaitable[str]]


@pytest.fixture(scope="session")
def known_stores() -> dict[tuple[str, str], str]:
    """The stores made so far, by engine and purpose."""
    return {}


@pytest.fixture(scope="session")
def kept_on_sqlite() -> Iterator[None]:
    """Ends what was kept of servers in processes of their own."""
    yield
    workers.end_kept()


@pytest.fixture(scope="session")
def kept_on_postgresql(postgresql_server: str) -> Iterator[None]:
    """The same, while there is still a PostgreSQL."""
    yield
    workers.end_kept()


@pytest.fixture(scope="module", params=("sqlite", "postgresql"))
def engine(request: pytest.FixtureRequest) -> str:
    """Name of the engine; every check runs on both."""
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def stores(
    engine: str,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
    known_stores: dict[tuple[str, str], str],
) -> Stores:
    """Where a store of the engine is; one per purpose for the whole run.

    Servers that follow each other use the same store: making a database takes longer than most
    checks, and channels have unique names.
    """
    server: str = request.getfixturevalue("postgresql_server") if engine == "postgresql" else ""
    request.getfixturevalue(f"kept_on_{engine}")

    async def store(purpose: str) -> str:
        known = known_stores.get((engine, purpose))
        if known is None and server:
            known = await create_database(server)
        elif known is None:
            known = str(tmp_path_factory.mktemp("store") / "tidelog.db")
        known_stores[engine, purpose] = known
        return known

    return store


@pytest.fixture(scope="module")
def spare_store(stores: Stores) -> Callable[[], Awaitable[str]]:
    """Where a server with settings of its own finds its store."""
    return lambda: stores("spare")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(
    stores: Stores, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ChannelsNode]:
    """A server with the contract's limits."""
    data_dir, store = tmp_path_factory.mktemp("data"), await stores("node")
    async with channels_server(data_dir, store, is_kept=True) as running:
        yield running


@pytest.fixture
def api(node: ChannelsNode) -> Api:
    """The HTTP API of that server's first app."""
    return node.api
