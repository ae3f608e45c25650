"""A broker in a few lines that does what a script says; the daemon's tests need its faults.

It keeps the promises a daemon relies on (one message per id, redelivery until acknowledged) and
breaks everything else on request: answers get lost, directions fall silent, features vanish.
"""

import asyncio
import itertools
import json
import os
import threading
from collections import Counter, defaultdict
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from tidelog.mesh.protocol import identity, negotiation
from tidelog.mesh.protocol.fingerprint import read_envelope

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

SLUG = "harbour"

Json = dict[str, Any]


class ScriptedBroker:
    """A WebSocket server for one mesh; everything it saw and stored can be looked at."""

    def __init__(self, slug: str = SLUG) -> None:
        self.slug = slug
        self.port = 0
        self.hello_versions: list[int] | None = [1, 2]
        """What its hello says it takes; None for a broker that is older than version 2."""
        self.hellos: list[Json] = []
        """What daemons answered to its hello."""
        self.offer: Json = negotiation.offered(mode="retention_scoped", dedupe_retention_days=365)
        self.members: dict[str, str] = {}
        """Name of each member by key; a key that is not here is added as it comes."""
        self.topics: dict[str, set[str]] = defaultdict(set)
        self.messages: dict[str, Json] = {}
        """What was accepted, by `client_message_id`."""
        self.received: list[Json] = []
        """Every frame after negotiation, in the order it came."""
        self.sends: Counter[str] = Counter()
        """Attempts by `client_message_id`."""
        self.closes: list[int | None] = []
        """Code with which each connection ended."""
        self.failures: list[Json] = []
        """`feature_negotiation_failed` frames."""
        self.acknowledged: list[str] = []
        """`broker_message_id` of every `client_ack`."""
        self.history: tuple[str, int] | None = None
        """`incarnation` and `began` of its welcomes; None for a broker that knows nothing of it."""
        self.connections = 0
        self.loop: asyncio.AbstractEventLoop | None = None
        self.judge: Callable[[Json], Json | None] = lambda frame: None
        """An answer other than the honest one."""
        self.is_silent = False
        """Nothing leaves the broker while set; answers are kept and come late."""
        self.redelivery_s = 0.2
        """Lease of a delivery."""
        self._late: list[tuple[ServerConnection, Json]] = []
        self._live: dict[str, ServerConnection] = {}
        self._due: dict[str, dict[str, Json]] = defaultdict(dict)
        """Undelivered envelopes of each member by `broker_message_id`."""
        self._claims = itertools.count(1)
        self._server: Server | None = None
        self._redelivering: asyncio.Task[None] | None = None

    def call(self, work: "Callable[[], Coroutine[Any, Any, None]]") -> None:
        """Do something on the loop of `running`, from another thread."""
        assert self.loop is not None
        asyncio.run_coroutine_threadsafe(work(), self.loop).result(60)

    @property
    def url(self) -> str:
        """What a daemon is given as its broker."""
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen; on the same port as before, if there was one."""
        self._server = await serve(
            self._converse,
            "127.0.0.1",
            self.port,
            max_size=64 * 1024**2,
            compression=None,
            close_timeout=0.2,
        )
        self.port = next(iter(self._server.sockets)).getsockname()[1]
        self._redelivering = asyncio.create_task(self._redeliver())

    async def stop(self) -> None:
        """Close every connection and the port."""
        assert self._server is not None
        if self._redelivering is None:
            return
        self._redelivering.cancel()
        self._redelivering = None
        self.cut()
        self._server.close()
        await self._server.wait_closed()

    def cut(self) -> None:
        """End every connection without a word."""
        for socket in self._live.values():
            socket.transport.abort()

    async def speak_again(self) -> None:
        """End a silence; what was held back is sent now."""
        self.is_silent = False
        late, self._late = self._late, []
        for socket, frame in late:
            with suppress(ConnectionClosed):
                await socket.send(json.dumps(frame))

    async def push(self, frame: Json) -> None:
        """Send a frame to every daemon."""
        for socket in self._live.values():
            await socket.send(json.dumps(frame))

    async def _converse(self, socket: ServerConnection) -> None:
        self.connections += 1
        key = ""
        try:
            key = await self._introduced(socket)
            if not key:
                return
            self._live[key] = socket
            while True:
                frame = json.loads(await socket.recv())
                if frame["type"] == _REQUEST:
                    await self._negotiate(socket, frame)
                elif frame["type"] == "feature_negotiation_failed":
                    self.failures.append(frame)
                else:
                    self.received.append(frame)
                    await self._take(socket, key, frame)
        except ConnectionClosed:
            pass
        finally:
            self.closes.append(socket.close_code)
            if self._live.get(key) is socket:
                del self._live[key]

    async def _introduced(self, socket: ServerConnection) -> str:
        assert socket.request is not None
        challenge = os.urandom(identity.CHALLENGE_BYTES)
        hello: Json = {
            "type": "hello",
            "challenge": identity.to_base64url(challenge),
            "server_time": "2026-01-01T00:00:00Z",
            "broker_version": "scripted",
        }
        if self.hello_versions is not None:
            hello["hello_versions"] = self.hello_versions
        await socket.send(json.dumps(hello))
        answer = json.loads(await socket.recv())
        self.hellos.append(answer)
        key = str(answer["member_pubkey"])
        host = answer["host"] if answer.get("hello_version") == 2 else None
        signed = identity.hello_message(self.slug, challenge, host)
        if not identity.is_signed(key, signed, answer["signature"]):
            await socket.close(4401, "bad signature")
            return ""
        if socket.request.path != f"/mesh/{self.slug}/ws":
            await socket.close(4404, "unknown mesh")
            return ""
        name = self.members.setdefault(key, f"member-{len(self.members)}")
        welcome = {
            "type": "welcome",
            "mesh_id": "m1",
            "member_id": key[:8],
            "name": name,
            "history_seq": len(self.messages),
        }
        if self.history is not None:
            welcome |= {"incarnation": self.history[0], "began": self.history[1]}
        await socket.send(json.dumps(welcome))
        return key

    async def _negotiate(self, socket: ServerConnection, frame: Json) -> None:
        supported, missing = negotiation.response(frame["require"], frame["optional"], self.offer)
        answer = {
            "type": "feature_negotiation_response",
            "supported": supported,
            "missing_required": missing,
        }
        await socket.send(json.dumps(answer))

    async def _take(self, socket: ServerConnection, key: str, frame: Json) -> None:
        match frame["type"]:
            case "send":
                self.sends[frame["client_message_id"]] += 1
                answer = self.judge(frame) or self._accepted(key, frame)
                await self._answer(socket, {"type": "ack", "ref": frame["ref"], **answer})
                await self._deliver_due()
            case "client_ack":
                self.acknowledged.append(frame["broker_message_id"])
                self._due[key].pop(frame["broker_message_id"], None)
            case "subscribe":
                self.topics[frame["topic"]].add(key)
                await self._answer(socket, {"type": "ack", "ref": frame["ref"], "code": 200})
            case "unsubscribe":
                self.topics[frame["topic"]].discard(key)
                await self._answer(socket, {"type": "ack", "ref": frame["ref"], "code": 200})
            case "topics":
                listed = [
                    {"name": name, "subscribed": key in keys}
                    for name, keys in sorted(self.topics.items())
                ]
                answer = {"type": "ack", "ref": frame["ref"], "code": 200, "topics": listed}
                await self._answer(socket, answer)
            case "history":
                await self._answer(socket, self._history(key, frame))

    async def _answer(self, socket: ServerConnection, frame: Json) -> None:
        if self.is_silent:
            self._late.append((socket, frame))
        else:
            await socket.send(json.dumps(frame))

    def _accepted(self, key: str, frame: Json) -> Json:
        envelope = read_envelope(frame)
        fingerprint = envelope.fingerprint().hex()
        message_id = frame["client_message_id"]
        stored = self.messages.get(message_id)
        if stored is not None:
            same = stored["request_fingerprint"] == fingerprint
            if not same or stored["sender_pubkey"] != key:
                return {"code": 409, "error": "idempotency_key_reused"}
            return {
                "code": 200,
                "broker_message_id": stored["broker_message_id"],
                "client_message_id": message_id,
                "history_id": stored["history_id"],
                "duplicate": True,
                "history_available": True,
            }
        if fingerprint != frame["request_fingerprint"]:
            return {"code": 409, "error": "idempotency_key_reused"}
        message = {
            "broker_message_id": f"B{len(self.messages) + 1:025d}",
            "client_message_id": message_id,
            "history_id": len(self.messages) + 1,
            "mesh": self.slug,
            "topic": frame["destination_ref"] if frame["destination_kind"] == "topic" else None,
            "sender_pubkey": key,
            "sender_name": self.members[key],
            "priority": frame["priority"],
            "reply_to_id": frame["reply_to_id"],
            "meta": frame["meta"],
            "body": frame["body"],
            "body_encoding": frame["body_encoding"],
            "created_at": "2026-01-01T00:00:00Z",
            "request_fingerprint": fingerprint,
            "destination_kind": frame["destination_kind"],
            "destination_ref": frame["destination_ref"],
            "supersedes": frame.get("supersedes"),
        }
        self.messages[message_id] = message
        for recipient in self._recipients(key, message):
            self._due[recipient][message["broker_message_id"]] = message
        answer = {name: message[name] for name in ("broker_message_id", "history_id")}
        return {"code": 201, **answer, "client_message_id": message_id, "duplicate": False}

    def _recipients(self, sender: str, message: Json) -> set[str]:
        if message["destination_kind"] == "topic":
            return self.topics[message["destination_ref"]] - {sender}
        return {message["destination_ref"]} if message["destination_kind"] == "dm" else set()

    def _history(self, key: str, frame: Json) -> Json:
        visible = [
            message
            for message in self.messages.values()
            if message["history_id"] > frame["after"]
            and (
                key in (message["destination_ref"], message["sender_pubkey"])
                or key in self.topics.get(message["topic"] or "", ())
            )
        ]
        items = visible[: frame["limit"]]
        return {
            "type": "history_page",
            "ref": frame["ref"],
            "items": items,
            "next_after": items[-1]["history_id"] if items else frame["after"],
            "has_more": len(visible) > len(items),
        }

    async def _deliver_due(self) -> None:
        if self.is_silent:
            return
        for key, socket in tuple(self._live.items()):
            for message in tuple(self._due[key].values()):
                if message.get(f"claimed {key}", 0) > asyncio.get_running_loop().time():
                    continue
                message[f"claimed {key}"] = asyncio.get_running_loop().time() + self.redelivery_s
                frame = {**message, "type": "deliver", "claim_id": f"c{next(self._claims)}"}
                with suppress(ConnectionClosed):
                    await socket.send(json.dumps(frame))

    async def _redeliver(self) -> None:
        while True:
            await asyncio.sleep(self.redelivery_s / 2)
            await self._deliver_due()


_REQUEST = "feature_negotiation_request"


@contextmanager
def running(broker: ScriptedBroker) -> "Iterator[ScriptedBroker]":
    """The broker on a loop in a thread, for tests that wait for processes."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="scripted-broker", daemon=True)
    thread.start()
    broker.loop = loop
    broker.call(broker.start)
    try:
        yield broker
    finally:
        broker.call(broker.stop)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
