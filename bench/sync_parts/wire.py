"""What the generator says to each kind of server, and the connections it says it on."""

import os
import socket
import time
from collections.abc import Sequence
from typing import Any

import jwt
import msgspec

# As in tidelog.web.reader: the C function of `websockets`.
from websockets.frames import apply_mask  # type: ignore[attr-defined]

from tidelog.sync.protocol.profiles import CANONICAL

EVENT_BYTES = 200
SECRET = "bench-secret-of-at-least-32-bytes!"
PARTITION = "bench"
TREE_PARTITION = "tree"
SCHEMA = "bench.note"
TIMEOUT_SECONDS = 60.0

encode = msgspec.json.encode


def event(number: int) -> dict[str, Any]:
    """The event that both servers are sent, `EVENT_BYTES` long as JSON."""
    made: dict[str, Any] = {
        "type": "event",
        "payload": {"schema": SCHEMA, "data": {"number": number, "text": ""}},
    }
    made["payload"]["data"]["text"] = "x" * (EVENT_BYTES - len(encode(made)))
    return made


def client_frame(payload: bytes) -> bytes:
    """A masked text frame."""
    size = len(payload)
    if size < 126:
        head = bytes((0x81, 0x80 | size))
    elif size < 65536:
        head = b"\x81\xfe" + size.to_bytes(2, "big")
    else:
        head = b"\x81\xff" + size.to_bytes(8, "big")
    key = os.urandom(4)
    masked: bytes = apply_mask(payload, key)
    return head + key + masked


class Channel:
    """A WebSocket connection by hand, one message after another."""

    def __init__(self, port: int, path: str) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_SECONDS)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.sendall(
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode()
        )
        self._input = self.sock.makefile("rb", buffering=1 << 20)
        line = self._input.readline()
        if b" 101 " not in line:
            raise AssertionError(f"the server refused: {line!r}")
        while line not in (b"\r\n", b""):
            line = self._input.readline()

    def ask(self, message: dict[str, Any], answer: str) -> bytes:
        """Send a message and answer the next one, which must be of that type."""
        self.sock.sendall(client_frame(encode(message)))
        received = self.read()
        if b'"type":"%s"' % answer.encode() not in received[:200]:
            raise AssertionError(f"not {answer}: {received[:300]!r}")
        return received

    def read(self) -> bytes:
        """The next message."""
        head = self._input.read(2)
        if len(head) < 2 or head[0] != 0x81:
            raise AssertionError(f"the server closed the connection or sent no text: {head!r}")
        size = head[1]
        if size > 125:
            size = int.from_bytes(self._input.read(2 if size == 126 else 8), "big")
        payload: bytes = self._input.read(size)
        return payload

    def release(self) -> socket.socket:
        """The socket, for whoever polls; nothing may be on its way."""
        self.sock.setblocking(False)
        return self.sock

    def close(self) -> None:
        """Cut it."""
        self._input.close()
        self.sock.close()


class Dialect:
    """What the generator says to one kind of server."""

    path = "/"

    def submitter(self, port: int, client: str) -> Channel:
        """A connection that may submit and gets no broadcasts."""
        raise NotImplementedError

    def peer(self, port: int, client: str) -> Channel:
        """A connection that gets all broadcasts."""
        raise NotImplementedError

    def submit(self, first: int, ids: Sequence[str]) -> bytes:
        """The text of a submit of events numbered from `first`."""
        raise NotImplementedError


class Tidelog(Dialect):
    """Our protocol."""

    path = "/sync"

    def message(self, kind: str, payload: dict[str, Any]) -> dict[str, Any]:
        """An envelope."""
        return {
            "type": kind,
            "msg_id": "m",
            "timestamp": 0,
            "protocol_version": "1.0",
            "payload": payload,
        }

    def connect(self, port: int, client: str, profile: str = CANONICAL) -> Channel:
        """A connection after the handshake."""
        claims = {
            "client_id": client,
            "exp": int(time.time()) + 86_400,
            "allowed_partitions": [PARTITION, TREE_PARTITION],
        }
        payload = {
            "token": jwt.encode(claims, SECRET, algorithm="HS256"),
            "client_id": client,
            "supported_profiles": [profile],
        }
        channel = Channel(port, self.path)
        channel.ask(self.message("connect", payload), "connected")
        return channel

    def submitter(self, port: int, client: str) -> Channel:
        """See `Dialect.submitter`."""
        return self.connect(port, client)

    def peer(self, port: int, client: str) -> Channel:
        """See `Dialect.peer`; after the head there is nothing to be sent."""
        channel = self.connect(port, client)
        payload = {
            "partitions": [PARTITION],
            "subscription_partitions": [PARTITION],
            "since_committed_id": 2**53 - 1,
        }
        channel.ask(self.message("sync", payload), "sync_response")
        return channel

    def submit(self, first: int, ids: Sequence[str]) -> bytes:
        """See `Dialect.submit`."""
        events = [
            {"id": name, "partitions": [PARTITION], "event": event(first + offset)}
            for offset, name in enumerate(ids)
        ]
        return encode(self.message("submit_events", {"events": events}))


class Insieme(Dialect):
    """The protocol of insieme 2.1.0."""

    def __init__(self) -> None:
        self._has_events = False

    def _message(self, kind: str, payload: dict[str, Any]) -> dict[str, Any]:
        return {"type": kind, "msgId": "m", "protocolVersion": "1.0", "payload": payload}

    def peer(self, port: int, client: str) -> Channel:
        """See `Dialect.peer`: whoever is connected gets all events of its project."""
        channel = Channel(port, self.path)
        payload = {"token": client, "clientId": client, "projectId": PARTITION}
        channel.ask(self._message("connect", payload), "connected")
        return channel

    def submitter(self, port: int, client: str) -> Channel:
        """See `Dialect.submitter`: no broadcasts while a sync has more pages to come."""
        channel = self.peer(port, client)
        if not self._has_events:
            self._has_events = True
            text = self.submit(0, ["first", "second"])
            channel.ask(msgspec.json.decode(text), "submit_events_result")
        payload = {"projectId": PARTITION, "sinceCommittedId": 0, "limit": 1}
        answer = channel.ask(self._message("sync", payload), "sync_response")
        if b'"hasMore":true' not in answer:
            raise AssertionError(f"the sync is finished: {answer!r}")
        return channel

    def submit(self, first: int, ids: Sequence[str]) -> bytes:
        """See `Dialect.submit`."""
        events = []
        for offset, name in enumerate(ids):
            content = event(first + offset)
            events.append(
                {
                    "id": name,
                    "partition": PARTITION,
                    "projectId": PARTITION,
                    "type": content["type"],
                    "schemaVersion": 1,
                    "payload": content["payload"],
                    "meta": {"clientTs": first},
                }
            )
        return encode(self._message("submit_events", {"events": events}))
