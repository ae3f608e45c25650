"""A channels server with one message, which is what malformed frames and requests are about."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from support.channels.peer import ChannelsNode, channels_server

ROOM, PRIVATE = "fuzz-room", "private-fuzz"


@asynccontextmanager
async def prepared(tmp_path: Path) -> AsyncIterator[tuple[ChannelsNode, str]]:
    """A server with a message to attack, and its serial."""
    async with channels_server(tmp_path) as node:
        ack = await node.api.publish(ROOM, "text")
        await node.api.mutate("append", ROOM, ack["message_serial"], data=" more", op_id="first")
        yield node, ack["message_serial"]
