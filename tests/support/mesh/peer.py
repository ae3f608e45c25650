"""Brokers in the test's own process, and members that speak the wire by hand."""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from support.probe.server import running_server
from support.store.catalogue import Database
from support.web import wire_schema
from tidelog.base.clock import ServerClock
from tidelog.config.settings import Settings
from tidelog.daemon.key_file import new_key
from tidelog.mesh.protocol.fingerprint import read_envelope
from tidelog.mesh.protocol.identity import MemberKey, from_base64url
from tidelog.mesh.settings import MeshSettings
from tidelog.mesh.surface import MeshSurface
from tidelog.serve.server import Node, Server

ADMIN_TOKEN = "an administrator's token"
WAIT_SECONDS = 60.0

Json = dict[str, Any]

_numbers = itertools.count(1)


def unique(prefix: str = "id") -> str:
    """A name that nothing else in this run has."""
    return f"{prefix}-{next(_numbers)}"


def envelope(kind: str = "topic", ref: str = "alerts", body: str = "hello", **more: Any) -> Json:
    """The fields of a send."""
    return {
        "envelope_version": 1,
        "destination_kind": kind,
        "destination_ref": ref,
        "body": body,
        **more,
    }


def fingerprint(fields: Mapping[str, Any]) -> str:
    """What a daemon would compute for a send."""
    return read_envelope(fields).fingerprint().hex()


class BrokerAt:
    """A broker seen from outside, in whatever process it runs."""

    def __init__(self, url: str, location: str) -> None:
        self.url = url
        self.database = Database(location)
        # Without TLS; to read the authorities of the world would take longer than most requests.
        self.http = httpx.AsyncClient(verify=False, base_url=self.url, timeout=30)

    def now_ms(self) -> int:
        """Its time."""
        return time.time_ns() // 1_000_000

    def table(self, name: str) -> str:
        """A relation of the contract under the name it has on this engine."""
        return f"mesh_{name}" if self.database.is_sqlite else f"mesh.{name}"

    async def rows(self, query: str, *names: str) -> list[tuple[Any, ...]]:
        """Run a query whose `{}` are relations of the contract."""
        return await self.database.run(query.format(*map(self.table, names)))

    async def admin(self, method: str, path: str, body: object = None) -> httpx.Response:
        """A request with the admin token."""
        content = None if body is None else json.dumps(body).encode()
        headers = {"authorization": f"Bearer {ADMIN_TOKEN}"}
        return await self.http.request(method, path, content=content, headers=headers)

    async def mesh(self, slug: str | None = None, **settings: Any) -> str:
        """A new mesh; returns its slug."""
        slug = slug or unique("mesh")
        created = await self.admin("POST", "/mesh", {"slug": slug, **settings})
        assert created.status_code == 201, created.text
        return slug

    async def member(self, slug: str, name: str | None = None) -> "Member":
        """A new member."""
        member = Member(self, slug, new_key(), name or unique("member"))
        assert (await member.join()).status_code == 201
        return member


class Broker(BrokerAt):
    """A server with nothing but the mesh on it, in this process."""

    def __init__(self, server: Server, surface: MeshSurface, location: str) -> None:
        super().__init__(server.url, location)
        self.server = server
        self.surface = surface
        self.owner = surface.owner
        self.service = surface.service

    def now_ms(self) -> int:
        """See `BrokerAt.now_ms`."""
        return self.service.clock.now_ms()

    def metric(self, name: str, **labels: str) -> float:
        """The value of a metric, 0 if it has none yet."""
        return self.server.metrics.registry.get_sample_value(name, labels) or 0.0


@asynccontextmanager
async def running_broker(
    data_dir: Path, location: str, clock: ServerClock | None = None, **settings: Any
) -> AsyncIterator[Broker]:
    """A broker on the store at `location`."""
    surfaces: list[MeshSurface] = []

    async def mount(node: Node) -> MeshSurface:
        surfaces.append(
            await MeshSurface.open(node.committer, node.store, node.settings, node.clock)
        )
        return surfaces[0]

    given = Settings(admin_token=ADMIN_TOKEN, mesh=MeshSettings(**settings))
    async with running_server(
        data_dir, store=location, settings=given, mounts=(mount,), extensions=(), clock=clock
    ) as server:
        broker = Broker(server, surfaces[0], location)
        async with broker.http, broker.database:
            yield broker


class Member:
    """A member that talks to the broker directly."""

    def __init__(self, broker: BrokerAt, slug: str, key: MemberKey, name: str) -> None:
        self.broker = broker
        self.slug = slug
        self.key = key
        self.name = name

    @property
    def address(self) -> str:
        """Its public key."""
        return self.key.public_hex

    async def join(self, invite: str | None = None) -> httpx.Response:
        """Join with an invite, a new one if none is given."""
        if invite is None:
            invited = await self.broker.admin("POST", f"/mesh/{self.slug}/invites")
            invite = invited.json()["invite"]
        body = {
            "invite": invite,
            "member_pubkey": self.address,
            "name": self.name,
            "signature": self.key.sign_join(self.slug, invite, self.name),
        }
        return await self.broker.http.post(f"/mesh/{self.slug}/members", json=body)

    def token(self, **more: Any) -> str:
        """A fresh token."""
        now = self.broker.now_ms() / 1000
        return self.key.token(self.slug, **{"unix_now": now, "jti": unique("jti"), **more})

    async def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        slug: str | None = None,
    ) -> httpx.Response:
        """A request with a member token."""
        content = body if isinstance(body, bytes) else None
        if body is not None and content is None:
            content = json.dumps(body).encode()
        return await self.broker.http.request(
            method,
            f"/mesh/{slug or self.slug}{path}",
            content=content,
            headers={"authorization": f"Bearer {token or self.token()}", **(headers or {})},
        )

    async def post(self, client_id: str, fields: Json | bytes, **more: Any) -> httpx.Response:
        """Send a message over HTTP."""
        headers = {"idempotency-key": client_id}
        return await self.request("POST", "/messages", fields, headers=headers, **more)

    async def topic(self, name: str) -> None:
        """Create a topic and subscribe to it."""
        assert (await self.request("POST", "/topics", {"topic": name})).status_code in (200, 201)
        await self.subscribe(name)

    async def subscribe(self, name: str) -> None:
        """Subscribe to a topic."""
        answer = await self.request("PUT", f"/topics/{name}/subscription")
        assert answer.status_code == 200, answer.text

    @asynccontextmanager
    async def connected(self, instance: str = "") -> AsyncIterator["Wire"]:
        """A connection that has negotiated, of the process that calls itself so."""
        async with Wire.open(self) as wire:
            await wire.hello(instance=instance)
            await wire.negotiate()
            yield wire


class Wire:
    """One WebSocket connection."""

    def __init__(self, member: Member, socket: ClientConnection) -> None:
        self.member = member
        self.socket = socket
        self.challenge = b""
        self._refs = itertools.count(1)
        self._kept: list[Json] = []

    @classmethod
    @asynccontextmanager
    async def open(cls, member: Member, slug: str | None = None) -> AsyncIterator[Self]:
        """A connection on which nothing was said."""
        url = f"{member.broker.url.replace('http', 'ws', 1)}/mesh/{slug or member.slug}/ws"
        async with connect(url, max_size=None) as socket:
            yield cls(member, socket)

    async def receive(self) -> Json:
        """The next frame."""
        async with asyncio.timeout(WAIT_SECONDS):
            frame: Json = json.loads(await self.socket.recv())
        wire_schema.check("mesh", "server", frame)
        return frame

    async def until(self, kind: str, **fields: Any) -> Json:
        """The next frame of a kind with these fields; others are kept for later."""
        for index, frame in enumerate(self._kept):
            if _fits(frame, kind, fields):
                return self._kept.pop(index)
        while True:
            frame = await self.receive()
            if _fits(frame, kind, fields):
                return frame
            self._kept.append(frame)

    async def send(self, frame: object) -> None:
        """Any frame."""
        text = frame if isinstance(frame, (str, bytes)) else json.dumps(frame)
        await self.socket.send(text)

    async def greeting(self) -> Json:
        """The broker's hello."""
        hello = await self.until("hello")
        self.challenge = from_base64url(hello["challenge"])
        return hello

    async def hello(
        self,
        signature: str | None = None,
        instance: str = "",
        host: str | None = None,
        incarnation: str = "",
    ) -> Json:
        """Prove the key, with a host by version 2; returns the welcome."""
        await self.prove(signature, instance, host, incarnation)
        return await self.until("welcome")

    async def prove(
        self,
        signature: str | None = None,
        instance: str = "",
        host: str | None = None,
        incarnation: str = "",
    ) -> None:
        """Answer the challenge."""
        if not self.challenge:
            await self.greeting()
        signed = signature or self.member.key.sign_hello(self.member.slug, self.challenge, host)
        proof: Json = {"member_pubkey": self.member.address, "signature": signed}
        if host is not None:
            proof |= {"hello_version": 2, "host": host}
        about = {"daemon_instance": instance, "incarnation": incarnation}
        await self.send({"type": "hello", **proof, **about})

    async def negotiate(self, *require: str) -> Json:
        """Ask for the features; returns the response."""
        await self.send(
            {
                "type": "feature_negotiation_request",
                "require": list(require) or ["client_message_id_dedupe"],
                "optional": ["max_payload"],
            }
        )
        return await self.until("feature_negotiation_response")

    async def ask(self, kind: str, **fields: Any) -> Json:
        """A frame with a ref, and its answer."""
        ref = next(self._refs)
        await self.send({"type": kind, "ref": ref, **fields})
        answer = "history_page" if kind == "history" else "ack"
        return await self.until(answer, ref=ref)

    async def post(self, client_id: str, fields: Json) -> Json:
        """A send and its ack."""
        return await self.ask(
            "send", client_message_id=client_id, request_fingerprint=fingerprint(fields), **fields
        )

    async def close_code(self) -> int:
        """Why the broker closed the connection."""
        return (await self.closing())[0]

    async def closing(self) -> tuple[int, str]:
        """Code and reason of the broker's close."""
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while True:
                    await self.socket.recv()
        except ConnectionClosed as closed:
            return (1006, "") if closed.rcvd is None else (closed.rcvd.code, closed.rcvd.reason)


def _fits(frame: Json, kind: str, fields: Mapping[str, Any]) -> bool:
    return frame["type"] == kind and all(frame.get(name) == fields[name] for name in fields)
