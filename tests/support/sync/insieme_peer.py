"""A peer that speaks insieme's dialect by hand, each message held against its description."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from support.sync.peer import WAIT_SECONDS, Peer, open_peer, token
from support.web import wire_schema

Json = dict[str, Any]


def task(item_id: str, partition: str = "tasks", project: str = "p", **fields: Any) -> Json:
    """A submit item; `fields` replace its members, and those that are None are left out."""
    whole = {
        "id": item_id,
        "partition": partition,
        "projectId": project,
        "type": "any",
        "schemaVersion": 1,
        "payload": {"title": item_id},
        "meta": {"clientTs": 5},
        **fields,
    }
    return {name: value for name, value in whole.items() if value is not None}


class InsiemePeer:
    """One connection; every message is read by whoever asks for it, in order."""

    def __init__(self, peer: Peer) -> None:
        self.socket = peer.socket
        self.close_code = peer.close_code
        self._sent = 0
        self.reply_to = ""
        """The id of the message sent last; empty if what comes next replies to none."""

    async def send(self, kind: str, payload: object, **fields: Any) -> None:
        """Send a message."""
        self._sent += 1
        self.reply_to = f"m{self._sent}"
        message = {
            "type": kind,
            "protocolVersion": "1.0",
            "timestamp": 1,
            "msgId": self.reply_to,
            "payload": payload,
            **fields,
        }
        await self.socket.send(json.dumps(message))

    async def receive(self) -> Json:
        """The next message."""
        async with asyncio.timeout(WAIT_SECONDS):
            message: Json = json.loads(await self.socket.recv())
        assert message["protocolVersion"] == "1.0"
        wire_schema.check("insieme", "server", message)
        return message

    async def expect(self, kind: str) -> Json:
        """The payload of the next message, which is of this type."""
        message = await self.receive()
        assert message["type"] == kind, message
        if kind != "event_broadcast" and self.reply_to:
            assert message["msgId"] == self.reply_to
        payload: Json = message["payload"]
        return payload

    async def error(self) -> tuple[str, str]:
        """Code and text of the next message, which is an error."""
        payload = await self.expect("error")
        return payload["code"], payload["message"]

    async def submit(self, *items: Json) -> list[Json]:
        """Submit and read the results, which are the next message."""
        await self.send("submit_events", {"events": list(items)})
        results: list[Json] = (await self.expect("submit_events_result"))["results"]
        return results

    async def sync(self, since: int = 0, project: str = "p", **fields: Any) -> Json:
        """Ask for a page and read it."""
        payload = {"projectId": project, "sinceCommittedId": since, "limit": 500, **fields}
        await self.send("sync", payload)
        return await self.expect("sync_response")

    async def whole(self, project: str = "p", **fields: Any) -> list[Json]:
        """Every event of the project, page after page."""
        events: list[Json] = []
        since = 0
        while True:
            page = await self.sync(since, project, **fields)
            events += page["events"]
            since = page["nextSinceCommittedId"]
            if not page["hasMore"]:
                return events


@asynccontextmanager
async def unconnected(url: str, **options: Any) -> AsyncIterator[InsiemePeer]:
    """A connection without a handshake."""
    async with open_peer(url, **options) as peer:
        yield InsiemePeer(peer)


@asynccontextmanager
async def connected(
    url: str, client_id: str = "c", project: str = "p", **options: Any
) -> AsyncIterator[InsiemePeer]:
    """A connection after its handshake and a sync that finds nothing new, as the package begins."""
    async with unconnected(url, **options) as peer:
        handshake = {"token": token(client_id), "clientId": client_id, "projectId": project}
        await peer.send("connect", handshake)
        told = await peer.expect("connected")
        assert (told["clientId"], told["projectId"]) == (client_id, project)
        await peer.sync(told["projectLastCommittedId"], project)
        yield peer
