"""A member that speaks to the broker over one WebSocket, without a daemon between them."""

import asyncio
import itertools
import json
from typing import Any, Self

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from support.mesh.broker_process import TOPIC, RealMesh
from support.mesh.scripted_broker import SLUG
from tidelog.mesh.protocol.fingerprint import read_envelope
from tidelog.mesh.protocol.identity import MemberKey, from_base64url

WAIT_SECONDS = 60.0

Json = dict[str, Any]


def topic_send(body: str, topic: str = TOPIC, **more: Any) -> Json:
    """The fields of a send to a topic."""
    return {
        "envelope_version": 1,
        "destination_kind": "topic",
        "destination_ref": topic,
        "body": body,
        **more,
    }


class Caller:
    """Any number of sends may be under way; every accepted one is noted for the invariants."""

    def __init__(self, mesh: RealMesh, socket: ClientConnection) -> None:
        self._mesh = mesh
        self._socket = socket
        self._refs = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Json]] = {}
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls, mesh: RealMesh, key: MemberKey, *, url: str | None = None, slug: str = SLUG
    ) -> Self:
        """Connect, prove the key, negotiate."""
        address = (url or mesh.server.url).replace("http", "ws", 1)
        socket = await connect(f"{address}/mesh/{slug}/ws", compression=None, max_size=None)
        hello = json.loads(await socket.recv())
        signature = key.sign_hello(slug, from_base64url(hello["challenge"]))
        greeting = {"type": "hello", "member_pubkey": key.public_hex, "signature": signature}
        await socket.send(json.dumps(greeting))
        wanted = {"require": ["client_message_id_dedupe"], "optional": []}
        await socket.send(json.dumps({"type": "feature_negotiation_request", **wanted}))
        async with asyncio.timeout(WAIT_SECONDS):
            while json.loads(await socket.recv())["type"] != "feature_negotiation_response":
                pass
        caller = cls(mesh, socket)
        caller._reading = asyncio.create_task(caller._read())
        return caller

    async def _read(self) -> None:
        try:
            async for data in self._socket:
                frame = json.loads(data)
                if frame["type"] == "ack" and frame["ref"] in self._waiting:
                    self._waiting.pop(frame["ref"]).set_result(frame)
        except ConnectionClosed:
            pass
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ConnectionError("the broker is gone"))

    async def send(self, client_id: str, fields: Json, delay_seconds: float = 0.0) -> Json:
        """One send, perhaps a little later; returns its ack."""
        await asyncio.sleep(delay_seconds)
        ref = next(self._refs)
        answer: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self._waiting[ref] = answer
        frame = {
            "type": "send",
            "ref": ref,
            "client_message_id": client_id,
            "request_fingerprint": read_envelope(fields).fingerprint().hex(),
            **fields,
        }
        await self._socket.send(json.dumps(frame))
        async with asyncio.timeout(WAIT_SECONDS):
            ack = await answer
        if ack["code"] in (200, 201):
            self._mesh.accepted.append(ack)
        return ack

    async def close(self) -> None:
        """End the connection."""
        await self._socket.close()
        assert self._reading is not None
        await self._reading
