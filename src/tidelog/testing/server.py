"""A whole server inside the test's own process and event loop."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from tidelog.base.clock import ServerClock
from tidelog.base.settings.limits import Limits
from tidelog.config.settings import Settings
from tidelog.serve.server import Mount, Server
from tidelog.store.schema import Extension

__all__ = ["running_server"]


@asynccontextmanager
async def running_server(
    data_dir: Path,
    *,
    store: str = "",
    limits: Limits | None = None,
    settings: Settings | None = None,
    mounts: Sequence[Mount] = (),
    extensions: Sequence[Extension] = (),
    clock: ServerClock | None = None,
) -> AsyncIterator[Server]:
    """A server on a free port of the loopback for the length of the block.

    The same code as `tidelog serve`, with the surfaces that `mounts` opens. What was accepted is
    finished when the block ends. Of `settings` everything holds but where the data is and the port;
    `limits` is for tests that change nothing else.
    """
    given = settings or Settings(limits=limits or Limits())
    settings = msgspec.structs.replace(given, data_dir=str(data_dir), store=store, port=0)
    server = await Server.open(settings, mounts=mounts, extensions=extensions, clock=clock)
    running = asyncio.create_task(server.run())
    try:
        yield server
    finally:
        server.stop()
        await running
