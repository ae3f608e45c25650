"""One live server with traffic on all surfaces, and daemons, for the whole folder."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from support.dashboard.stage import Stage, staged


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    """A live server on which everything has happened once."""
    async with staged(tmp_path_factory.mktemp("stage")) as made:
        yield made
