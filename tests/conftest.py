"""Fixtures shared by every tier: one PostgreSQL per run, one database per test."""

import asyncio
import contextlib
import importlib.util
import os
import random
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest
from hypothesis import settings

from support.serve import workers
from support.store import array_types
from support.warm import NURSERY, PROBED
from tidelog.base.garbage_collection import leave_startup_out
from tidelog.testing.postgresql import (
    TEMPLATE_VARIABLE,
    create_database,
    create_template,
    drop_database,
    throwaway_postgresql,
)
from tidelog.testing.process import ServerProcess

ServerProcess.spawn = staticmethod(NURSERY.start)
ServerProcess.program = PROBED
if workers.count():
    ServerProcess.spawn = staticmethod(workers.spawner(workers.count()))
    ServerProcess.program = "tidelog"  # the probe has no halves
ENGINES = ("sqlite", "postgresql")
LEFT_OUT = (
    *(("inside", "one_front") if workers.count() else ()),
    *(("one_node",) if workers.nodes() > 1 else ()),
)
"""Marks of what cannot be so with the processes that servers of this run have."""

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # So a shell starts what it runs in the background, and what tests interrupt inherits it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

array_types.remember()

if importlib.util.find_spec("sniffio") is None:
    # httpx looks for it in every folder of the path at every request, which was a tenth of what a
    # test in its own process takes. So Python knows at once that there is none.
    sys.modules["sniffio"] = None  # type: ignore[assignment]

settings.register_profile(
    "tidelog",
    deadline=None,
    max_examples=int(os.environ.get("TIDELOG_TEST_SOAK_EXAMPLES", "50")),
)
settings.load_profile("tidelog")
"""No deadline for an example: tiers run side by side, and a busy machine breaks no property. There
are more examples in `scripts/soak`."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs a server of one process, or a single one on its log."""
    left_out = [item for item in items if any(map(item.get_closest_marker, LEFT_OUT))]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    """Let no search for garbage go through all that was imported and collected, which stays.

    It took about a twentieth of the processor time of `tests/unit`.
    """
    leave_startup_out()


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    """URL of a real PostgreSQL server for the whole run."""
    with throwaway_postgresql(in_memory=True) as url:
        yield url


@pytest.fixture(scope="session")
def postgresql_template(postgresql_server: str) -> str:
    """Name of a database that has the newest schema and no log; all tiers share one."""
    made = os.environ.get(TEMPLATE_VARIABLE)
    return made or asyncio.run(create_template(postgresql_server))


class Databases:
    """Databases of single tests, by one connection of a loop of its own.

    To connect twice for each would take another third of what it takes to make and drop it.
    """

    def __init__(self, server: str) -> None:
        self._server = server
        self._loop = asyncio.new_event_loop()
        self._connection = self._loop.run_until_complete(asyncpg.connect(server))

    @contextlib.contextmanager
    def made(self, template: str = "template1") -> Iterator[str]:
        """URL of one for the length of the block."""
        making = create_database(self._server, template=template, by=self._connection)
        url = self._loop.run_until_complete(making)
        yield url
        self._loop.run_until_complete(drop_database(url, by=self._connection))

    def close(self) -> None:
        """End the connection."""
        self._loop.run_until_complete(self._connection.close())
        self._loop.close()


@pytest.fixture(scope="session")
def postgresql_databases(postgresql_server: str) -> Iterator[Databases]:
    """Where databases of tests come from."""
    with contextlib.closing(Databases(postgresql_server)) as databases:
        yield databases


@pytest.fixture
def postgresql_url(postgresql_databases: Databases, postgresql_template: str) -> Iterator[str]:
    """URL of a database of its own that is migrated and has no log."""
    with postgresql_databases.made(postgresql_template) as url:
        yield url


@pytest.fixture
def empty_postgresql_url(postgresql_databases: Databases) -> Iterator[str]:
    """URL of a database of its own with nothing in it, to be migrated or restored to."""
    with postgresql_databases.made() as url:
        yield url


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    """Name of the engine; a test that takes it runs on both."""
    name: str = request.param
    return name


@pytest.fixture
def store_location(engine: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """Where a store of the engine is that has no log yet: a path or a URL."""
    if engine == "sqlite":
        return str(tmp_path / "store" / "tidelog.db")
    url: str = request.getfixturevalue("postgresql_url")
    return url


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: a Unix socket's may have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="tdl-") as name:
        yield Path(name)


@pytest.fixture
def free_port() -> int:
    """A port that nobody has, also when its server is started again.

    The system gives none of these away by itself, as it does to the tests that run beside this.
    """
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
