"""Sync servers in the test's own process, and peers that speak the wire by hand."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jwt
import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from support.probe.server import mount_probe, running_server
from support.serve import workers
from support.web import wire_schema
from tidelog.base.clock import ServerClock
from tidelog.base.settings.limits import Limits
from tidelog.config.schema import SCHEMA
from tidelog.config.settings import Settings
from tidelog.serve.server import Node, Server
from tidelog.store import open_store
from tidelog.sync.front.service import SyncService
from tidelog.sync.protocol.profiles import TREE_ACTIONS
from tidelog.sync.settings import SyncSettings
from tidelog.sync.surface import SyncSurface
from tidelog.sync.upkeep.owner import SyncOwner

SECRET = "a secret of more than thirty-two bytes"
ADMIN_TOKEN = "only for the tests"
TREE, EVENT = "compatibility", "canonical"
MODEL: dict[str, Any] = {
    "model_version": 3,
    "tree_targets": {
        "t": {"kind": "tree", "actions": list(TREE_ACTIONS)},
        "v": {"kind": "value", "actions": ["set", "unset"]},
    },
    "schemas": {
        "any": True,
        "note": {
            "type": "object",
            "properties": {"title": {"type": "string"}},
            "required": ["title"],
            "additionalProperties": False,
        },
    },
}
WAIT_SECONDS = 20.0


def token(client_id: str, *, prefixes: list[str] | None = None, **claims: Any) -> str:
    """A token of `client_id` for an hour; it opens everything unless told otherwise."""
    whole = {
        "client_id": client_id,
        "exp": int(time.time()) + 3600,
        "allowed_partition_prefixes": [""] if prefixes is None else prefixes,
        **claims,
    }
    return jwt.encode(whole, SECRET, "HS256")


def note(item_id: str, *partitions: str, data: object = 1) -> dict[str, Any]:
    """A submit item of the event profile."""
    event = {"type": "event", "payload": {"schema": "any", "data": data}}
    return {"id": item_id, "partitions": list(partitions or ("p",)), "event": event}


def act(item_id: str, action: str, *partitions: str, **payload: Any) -> dict[str, Any]:
    """A submit item of the tree profile."""
    event = {"type": action, "payload": {"target": "t", **payload}}
    return {"id": item_id, "partitions": list(partitions or ("p",)), "event": event}


def push(item_id: str, node: str, *partitions: str, **options: Any) -> dict[str, Any]:
    """A `treePush` of a node that has only its id."""
    return act(item_id, "treePush", *partitions, value={"id": node}, options=options)


def move(item_id: str, node: str, *partitions: str, **options: Any) -> dict[str, Any]:
    """A `treeMove`."""
    return act(item_id, "treeMove", *partitions, options={"id": node, **options})


def envelope(kind: str, payload: object, **fields: Any) -> str:
    """The text of a message."""
    message = {
        "type": kind,
        "msg_id": "m",
        "timestamp": 1,
        "payload": payload,
        "protocol_version": "1.0",
        **fields,
    }
    return json.dumps(message)


def outcome(results: list[dict[str, Any]]) -> list[str]:
    """Of each result `committed`, or what is wrong with it."""
    return [
        "committed"
        if result["status"] == "committed"
        else " ".join([result["reason"], *(error["field"] for error in result["errors"])])
        for result in results
    ]


class SyncNode:
    """A running server with sync mounted."""

    def __init__(
        self,
        url: str,
        location: str,
        settings: Settings,
        inside: tuple[Server, SyncSurface] | None = None,
    ) -> None:
        """`location` is its store; `inside` what a server in the test's own process is made of."""
        self.url = url
        self.ws_url = url.replace("http", "ws") + "/sync"
        self.settings = settings
        self._location = location
        self._inside = inside

    @property
    def server(self) -> Server:
        """For tests that are marked `inside`, or have no part in runs with several processes."""
        assert self._inside is not None, "mark this test `inside`: it looks into the server"
        return self._inside[0]

    @property
    def _surface(self) -> SyncSurface:
        assert self._inside is not None, "mark this test `inside`: it looks into the server"
        return self._inside[1]

    @property
    def service(self) -> SyncService:
        """The front's half."""
        return self._surface.service

    @property
    def owner(self) -> SyncOwner:
        """The owner's half."""
        return self._surface.owner

    @property
    def store(self) -> Any:
        """The store, to be looked at and tampered with."""
        return self.server.store

    async def counts(self) -> tuple[int, int]:
        """The head of the log and the number of remembered keys."""
        if self._inside is not None:
            return (await self.store.head()).committed_id, await self.store.dedupe_count()
        store = await open_store(SCHEMA, self._location, log_id="", node="", read_only=True)
        try:
            return (await store.head()).committed_id, await store.dedupe_count()
        finally:
            await store.close()


def write_model(directory: Path, model: dict[str, Any] = MODEL) -> str:
    """A model file; returns its name."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "model.json"
    path.write_text(json.dumps(model), encoding="utf-8")
    return str(path)


@asynccontextmanager
async def sync_server(
    data_dir: Path,
    *,
    store: str = "",
    limits: Limits | None = None,
    model: dict[str, Any] = MODEL,
    clock: ServerClock | None = None,
    **options: Any,
) -> AsyncIterator[SyncNode]:
    """A server with sync (and the probe) for the length of the block; `options` are `[sync]`."""
    options = {"jwt_secret": SECRET, "max_messages_per_second": 100_000, **options}
    options["model_file"] = write_model(data_dir, model)
    settings = Settings(admin_token=ADMIN_TOKEN, sync=SyncSettings(**options))
    location = store or str(data_dir / "tidelog.db")
    if workers.count() and clock is None:
        served = msgspec.structs.replace(settings, limits=limits or settings.limits)
        async with workers.served(data_dir, store, served) as url:
            yield SyncNode(url, location, settings)
        return
    mounted: list[SyncSurface] = []

    async def mount(node: Node) -> SyncSurface:
        surface = await SyncSurface.open(node.committer, node.store, settings, node.clock)
        mounted.append(surface)
        return surface

    async with running_server(
        data_dir, store=store, limits=limits, mounts=(mount, mount_probe), clock=clock
    ) as server:
        yield SyncNode(server.url, location, settings, (server, mounted[0]))


UNAVAILABLE = ("server_error", "rate_limited")
"""What a server says that cannot do something now: it stops, or has lost the owner of its log."""


class ServerFailedError(ConnectionError):
    """The server said so instead of an answer; it may be asked again on another connection."""


class Peer:
    """One connection; every message is read by whoever asks for it, in order."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.received: list[dict[str, Any]] = []
        """All messages so far."""

    async def send(self, kind: str, payload: object, **fields: Any) -> None:
        """Send a message."""
        await self.socket.send(envelope(kind, payload, **fields))

    async def receive(self) -> dict[str, Any]:
        """The next message."""
        async with asyncio.timeout(WAIT_SECONDS):
            message: dict[str, Any] = msgspec.json.decode(await self.socket.recv())
        assert message["protocol_version"] == "1.0"
        wire_schema.check("sync", "server", message)
        self.received.append(message)
        return message

    async def expect(self, kind: str) -> dict[str, Any]:
        """The payload of the next message, which is of this type."""
        message = await self.receive()
        if message["type"] == "error" != kind and message["payload"]["code"] in UNAVAILABLE:
            raise ServerFailedError(message)
        assert message["type"] == kind, message
        payload: dict[str, Any] = message["payload"]
        return payload

    async def wait_for(self, kind: str) -> dict[str, Any]:
        """The payload of the next message of this type; what comes before is in `received`."""
        while (message := await self.receive())["type"] != kind:
            pass
        payload: dict[str, Any] = message["payload"]
        return payload

    async def submit(self, *items: dict[str, Any]) -> list[dict[str, Any]]:
        """Submit and wait for the results."""
        await self.send("submit_events", {"events": list(items)})
        results: list[dict[str, Any]] = (await self.wait_for("submit_events_result"))["results"]
        return results

    async def sync(self, *partitions: str, since: int = 0, **fields: Any) -> dict[str, Any]:
        """Ask for a page and wait for it."""
        payload = {"partitions": list(partitions), "since_committed_id": since, **fields}
        await self.send("sync", payload)
        return await self.wait_for("sync_response")

    async def subscribe(self, *partitions: str) -> dict[str, Any]:
        """Replace the subscriptions."""
        return await self.sync(*(partitions or ("p",)), subscription_partitions=list(partitions))

    async def broadcasts(self, count: int) -> list[dict[str, Any]]:
        """The payloads of the next messages, all broadcasts."""
        return [await self.expect("event_broadcast") for _ in range(count)]

    async def is_quiet(self) -> bool:
        """Whether nothing waits to be read: a heartbeat's answer is the next message."""
        await self.send("heartbeat", {})
        return bool((await self.receive())["type"] == "heartbeat_ack")

    async def close_code(self) -> int:
        """The code the server closes with; no message comes before it."""
        async with asyncio.timeout(WAIT_SECONDS):
            try:
                message = await self.socket.recv()
            except ConnectionClosed as closed:
                return closed.rcvd.code if closed.rcvd else 1006
        raise AssertionError(f"not closed: {message!r}")

    async def whole(self, *partitions: str, since: int = 0, **fields: Any) -> list[dict[str, Any]]:
        """Every event of the partitions, page after page."""
        events: list[dict[str, Any]] = []
        while True:
            page = await self.sync(*partitions, since=since, **fields)
            events += page["events"]
            since = page["next_since_committed_id"]
            if not page["has_more"]:
                return events


@asynccontextmanager
async def open_peer(url: str, **options: Any) -> AsyncIterator[Peer]:
    """A connection without a handshake."""
    async with connect(
        url, compression=None, max_size=None, ping_interval=None, close_timeout=2, **options
    ) as socket:
        yield Peer(socket)


@asynccontextmanager
async def connected(
    url: str,
    client_id: str = "c",
    profile: str = EVENT,
    incarnation: str | None = None,
    claims: dict[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[Peer]:
    """A connection after its handshake; `claims` are further ones of its token."""
    async with open_peer(url, **options) as peer:
        payload = {
            "token": token(client_id, **(claims or {})),
            "client_id": client_id,
            "supported_profiles": [profile],
            **({} if incarnation is None else {"incarnation": incarnation}),
        }
        await peer.send("connect", payload)
        assert (await peer.expect("connected"))["capabilities"]["profile"] == profile
        yield peer
