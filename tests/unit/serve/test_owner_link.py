"""How a front reaches its owner."""

import asyncio
import socket
import tempfile
from pathlib import Path

import uvloop

from tidelog.serve.front import OwnerLink


async def _connects_when_there_is_room(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as owner, socket.socket(socket.AF_UNIX) as before:
        owner.bind(str(path))
        owner.listen(0)
        before.connect(str(path))  # and one more finds no room
        connecting = asyncio.ensure_future(OwnerLink(str(path), []).connect())
        await asyncio.wait({connecting}, timeout=0.1)
        taken = [owner.accept()[0]]
        async with asyncio.timeout(60):
            await connecting
        taken.append(owner.accept()[0])
        for each in taken:
            each.close()


def test_a_front_waits_for_an_owner_that_has_no_room() -> None:
    """Many of them come at once when an owner is started again; each would end, and be away."""
    with (
        tempfile.TemporaryDirectory(prefix="t") as short,  # a socket's path must be
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(_connects_when_there_is_room(Path(short) / "s"))
