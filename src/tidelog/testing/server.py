"""A whole server inside the test's own process and event loop."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tidelog.base.clock import Clock
from tidelog.base.settings import Limits, Settings
from tidelog.store.engine import Extension
from tidelog.testing.probe.service import EXTENSION, ProbeService
from tidelog.web.server import Mount, Node, Server

__all__ = ["mount_probe", "running_server"]


async def mount_probe(node: Node) -> ProbeService:
    """The probe surface on a node."""
    return ProbeService(node.committer, node.store)


@asynccontextmanager
async def running_server(
    data_dir: Path,
    *,
    store: str = "",
    limits: Limits | None = None,
    mounts: Sequence[Mount] = (mount_probe,),
    extensions: Sequence[Extension] = (EXTENSION,),
    clock: Clock | None = None,
) -> AsyncIterator[Server]:
    """A server on a free port of the loopback for the length of the block.

    The same code as `tidelog serve`, with the probe mounted unless told otherwise. What was
    accepted is finished when the block ends.
    """
    settings = Settings(data_dir=str(data_dir), store=store, port=0, limits=limits or Limits())
    server = await Server.open(settings, mounts=mounts, extensions=extensions, clock=clock)
    running = asyncio.create_task(server.run())
    try:
        yield server
    finally:
        server.stop()
        await running
