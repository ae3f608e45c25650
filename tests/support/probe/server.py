"""A whole server inside the test's own process, with the probe mounted unless told otherwise."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from support.probe.service import EXTENSION, ProbeService
from tidelog.serve.server import Mount, Node, Server
from tidelog.store.schema import Extension
from tidelog.testing import server


async def mount_probe(node: Node) -> ProbeService:
    """The probe surface on a node."""
    return ProbeService(node.committer, node.store)


@asynccontextmanager
async def running_server(
    data_dir: Path,
    *,
    mounts: Sequence[Mount] = (mount_probe,),
    extensions: Sequence[Extension] = (EXTENSION,),
    **options: Any,
) -> AsyncIterator[Server]:
    """See `tidelog.testing.server.running_server`."""
    async with server.running_server(
        data_dir, mounts=mounts, extensions=extensions, **options
    ) as running:
        yield running
