"""What a type checker knows of the mesh clients; checked, never run."""

from typing import Any, assert_type

from tidelog.client import (
    BlockingMeshClient,
    DaemonUnavailable,
    InboxMessage,
    MeshClient,
    MeshRefused,
    Sent,
)


async def sending() -> str | None:
    """A send through the daemon, its outcome, and what comes in."""
    async with MeshClient(mesh="ops") as mesh:
        assert_type(mesh, MeshClient)
        try:
            sent = await mesh.send("topic:alerts", "tide is out", priority="now")
        except (MeshRefused, DaemonUnavailable) as error:
            return str(error)
        assert_type(sent, Sent)
        assert_type(await mesh.wait(sent.client_message_id), dict[str, Any])
        assert_type(await mesh.received(topic="alerts"), list[InboxMessage])
        async for message in mesh.inbox(topic="alerts"):
            assert_type(message, InboxMessage)
            return message.body
    return None


def blocking() -> None:
    """The same for programs without an event loop."""
    with BlockingMeshClient(mesh="ops") as mesh:
        assert_type(mesh.send("dm:ana", "hello"), Sent)
        for message in mesh.inbox(timeout=1):
            assert_type(message, InboxMessage)
