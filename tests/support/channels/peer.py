"""Channels servers in the test's own process, and peers that speak the wire by hand.

Nothing here uses the server's own code for signatures, names or frames: what is signed and compared
is written from the contract a second time.
"""

import asyncio
import hashlib
import hmac
import itertools
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import httpx
import jwt
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from support.probe.server import running_server
from support.serve import workers
from support.web import wire_schema
from tidelog.base.clock import ServerClock
from tidelog.base.settings.limits import Limits
from tidelog.channels.settings import (
    AiTransport,
    App,
    Channels,
    ConnectionRecovery,
    History,
    VersionedMessages,
)
from tidelog.channels.surface import ChannelsSurface
from tidelog.config.schema import SCHEMA
from tidelog.config.settings import Settings
from tidelog.serve.server import Node, Server
from tidelog.store import open_store
from tidelog.store.engine import Store

WAIT_SECONDS = 60.0
UUID4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
VERSION_SERIAL = re.compile(r"\d{20}:[^:\s]+:\d{20}")
V1_QUERY = "protocol=7&client=js&version=8.6.0&flash=false"
V2_QUERY = "protocol=2&client=python&version=2.2.0&flash=false&format=json"

APP = App(
    id="tide",
    key="tide-key",
    secret="a secret of the first app, longer than 32 bytes",
    enable_client_messages=True,
    enable_user_authentication=True,
)
"""What the tests talk to unless they say otherwise."""

PLAIN = App(id="plain", key="plain-key", secret="a secret of the second app, longer than 32 bytes")
"""An app with neither client events nor sign-in."""

CLOSED = App(id="closed", key="closed-key", secret="any", enabled=False)

_SECTIONS = {
    "versioned_messages": VersionedMessages,
    "ai_transport": AiTransport,
    "history": History,
    "connection_recovery": ConnectionRecovery,
}
_numbers = itertools.count(1)


def unique(prefix: str = "room") -> str:
    """A channel that no other test uses."""
    return f"{prefix}-{next(_numbers)}"


# Signatures (channels 2.2, 2.5, 4.1).


def sign(text: str, app: App = APP) -> str:
    """HMAC-SHA256 in lower-case hex."""
    return hmac.new(app.secret.encode(), text.encode(), hashlib.sha256).hexdigest()


def channel_auth(
    socket_id: str, channel: str, channel_data: str | None = None, app: App = APP
) -> str:
    """The `auth` of a private or presence subscription."""
    text = f"{socket_id}:{channel}" + ("" if channel_data is None else f":{channel_data}")
    return f"{app.key}:{sign(text, app)}"


def signin_auth(socket_id: str, user_data: str, app: App = APP) -> str:
    """The `auth` of a sign-in."""
    return f"{app.key}:{sign(f'{socket_id}::user::{user_data}', app)}"


def token(
    client_id: str = "ana",
    capability: object = None,
    *,
    app: App = APP,
    kid: str | None = None,
    secret: str | None = None,
    **claims: Any,
) -> str:
    """A capability token of an hour; a claim given as `None` is left out."""
    now = int(time.time())
    whole = {
        "x-sockudo-client-id": client_id,
        "x-sockudo-capability": {"*": ["subscribe"]} if capability is None else capability,
        "iat": now,
        "exp": now + 3600,
        "jti": f"t{next(_numbers)}",
        **claims,
    }
    return jwt.encode(
        {name: value for name, value in whole.items() if value is not None},
        secret or app.secret,
        "HS256",
        headers={"kid": kid or app.key},
    )


class Api:
    """The HTTP API of one app, signed by hand."""

    def __init__(self, url: str, client: httpx.AsyncClient, app: App = APP) -> None:
        self.url = url
        self.app = app
        self._client = client
        self.now = time.time
        """What requests are stamped with."""

    async def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        params: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        key: str | None = None,
        timestamp: object = None,
        md5: str | None = "",
        sent: bytes | None = None,
    ) -> httpx.Response:
        """One request; `path` is below `/apps/{id}` and percent-encoded already.

        `key`, `timestamp` and `md5` (none: left out) replace what a correct request would have,
        and `sent` is the body that is sent instead of the one that was signed.
        """
        path = f"/apps/{self.app.id}{path}"
        query = {name: str(value) for name, value in (params or {}).items()}
        query |= {
            "auth_key": key or self.app.key,
            "auth_timestamp": str(int(self.now()) if timestamp is None else timestamp),
            "auth_version": "1.0",
        }
        if md5 == "":
            md5 = None if body is None else hashlib.md5(body).hexdigest()
        if md5 is not None:
            query["body_md5"] = md5
        signed = "&".join(f"{name.lower()}={query[name]}" for name in sorted(query))
        query["auth_signature"] = sign(f"{method}\n{path}\n{signed}", self.app)
        return await self._client.request(
            method,
            f"{self.url}{path}?{urlencode(query)}",
            content=body if sent is None else sent,
            headers={"Content-Type": "application/json", **(headers or {})},
        )

    async def post(self, path: str, body: object, **options: Any) -> httpx.Response:
        """POST a JSON body."""
        return await self.request("POST", path, json.dumps(body).encode(), **options)

    async def get(self, path: str, **params: Any) -> httpx.Response:
        """GET with query parameters."""
        return await self.request("GET", path, params=params)

    async def events(self, channel: str | None = None, **fields: Any) -> httpx.Response:
        """POST to `/events`; the name is `chat.message` unless given."""
        body = {"name": "chat.message", **fields}
        if channel is not None:
            body["channel"] = channel
        return await self.post("/events", body)

    async def publish(self, channel: str, data: object = "hi", **fields: Any) -> dict[str, Any]:
        """Publish and answer the acknowledgement with its serials."""
        response = await self.events(channel, data=data, info="subscription_count", **fields)
        answer: dict[str, Any] = ok(response)["channels"][channel]
        return answer

    async def try_mutate(
        self, action: str, channel: str, serial: str, **body: Any
    ) -> httpx.Response:
        """POST to a mutation endpoint."""
        return await self.post(f"{message_path(channel, serial)}/{action}", body)

    async def mutate(self, action: str, channel: str, serial: str, **body: Any) -> dict[str, Any]:
        """A mutation that is accepted."""
        return ok(await self.try_mutate(action, channel, serial, **body))

    async def item(self, channel: str, serial: str) -> dict[str, Any]:
        """The latest state of a message."""
        answer = ok(await self.get(message_path(channel, serial)))
        assert set(answer) == {"channel", "item"}
        assert answer["channel"] == channel
        item: dict[str, Any] = answer["item"]
        return item

    async def versions(self, channel: str, serial: str, **params: Any) -> dict[str, Any]:
        """A page of versions."""
        return ok(await self.get(f"{message_path(channel, serial)}/versions", **params))

    async def history(self, channel: str, **params: Any) -> dict[str, Any]:
        """A page of history."""
        return ok(await self.get(f"{channel_path(channel)}/history", **params))


def channel_path(channel: str) -> str:
    """The path of a channel below the app's."""
    return f"/channels/{quote(channel, safe='')}"


def message_path(channel: str, serial: str) -> str:
    """The path of a message below the app's."""
    return f"{channel_path(channel)}/messages/{quote(serial, safe='')}"


def ok(response: httpx.Response) -> dict[str, Any]:
    """The JSON body of a response with status 200."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("application/json")
    body: dict[str, Any] = response.json()
    return body


def refused(response: httpx.Response, status: int, code: str, **extra: Any) -> str:
    """The text of an error; its envelope is exactly that of channels 8.2, with `extra` members."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"].startswith("application/json")
    body = response.json()
    text = body.pop("error")
    assert isinstance(text, str)
    assert text
    assert body == {"code": code, "status": status, **extra}
    return text


# Sockets.


class Peer:
    """One socket; every frame is read by whoever asks for it, in order."""

    def __init__(self, socket: ClientConnection, app: App, protocol: int) -> None:
        self.socket = socket
        self.app = app
        self.socket_id = ""
        self.prefix = "sockudo" if protocol == 2 else "pusher"
        self.is_v2 = protocol == 2

    async def send(self, event: str, data: object = None, **fields: Any) -> None:
        """Send a frame; an event without a prefix gets that of the protocol."""
        is_whole = ":" in event or event.startswith(("client-", "ai-"))
        name = event if is_whole else f"{self.prefix}:{event}"
        frame = {"event": name, **fields}
        if data is not None:
            frame["data"] = data
        await self.socket.send(json.dumps(frame))

    async def receive(self) -> dict[str, Any]:
        """The next frame. Every V2 frame but a pong has a `message_id`, no V1 frame has one."""
        async with asyncio.timeout(WAIT_SECONDS):
            payload = await self.socket.recv()
        assert isinstance(payload, str), "frames are text"
        frame: dict[str, Any] = json.loads(payload)
        has_id = self.is_v2 and frame["event"] not in {"sockudo:pong", "sockudo:ping"}
        assert ("message_id" in frame) is has_id, frame
        wire_schema.check("channels", "server", frame)
        return frame

    async def expect(self, event: str, channel: str | None = None) -> dict[str, Any]:
        """The next frame, which is this one; a leading `:` or `_` stands for the prefix."""
        frame = await self.receive()
        name = f"{self.prefix}{event}" if event[0] == ":" else event
        name = f"{self.prefix}_internal:{event[1:]}" if event[0] == "_" else name
        assert (frame["event"], frame.get("channel")) == (name, channel), frame
        return frame

    async def expect_error(self, code: int) -> str:
        """The text of the next frame, an error of that code."""
        frame = await self.expect(":error")
        assert set(frame) - {"message_id"} == {"event", "data"}
        assert set(frame["data"]) == {"code", "message"}, frame
        assert frame["data"]["code"] == code, frame
        text = frame["data"]["message"]
        assert isinstance(text, str)
        assert text
        return text

    async def expect_refused(
        self, channel: str, reason: str, ai_code: int | None, message_id: str | None = None
    ) -> str:
        """The text of the next frame: an event of a run was refused, and the socket stays."""
        frame = await self.expect(":error", channel)
        assert set(frame) == {"event", "channel", "data", "message_id"}
        data = dict(frame["data"])
        text = data.pop("message")
        expected = {"code": 4301, "reason": reason, "channel": channel}
        expected |= {} if ai_code is None else {"ai_code": ai_code}
        expected |= {} if message_id is None else {"message_id": message_id}
        assert data == expected, frame
        assert frame["message_id"] != message_id, "clients drop a frame whose id they have seen"
        assert isinstance(text, str)
        assert text
        return text

    async def quiet(self) -> None:
        """Nothing waits to be read: the answer to a ping is the next frame."""
        await self.send("ping", {})
        assert await self.receive() == {"event": f"{self.prefix}:pong"}

    async def closed(self) -> int:
        """The code the server closes with; no frame comes before it."""
        async with asyncio.timeout(WAIT_SECONDS):
            try:
                frame = await self.socket.recv()
            except ConnectionClosed as closed:
                return closed.rcvd.code if closed.rcvd else 1006
        raise AssertionError(f"not closed: {frame!r}")

    async def expect_close(self, code: int) -> None:
        """Closed with this code; an error frame of the same code may come first."""
        try:
            await self.expect_error(code)
        except ConnectionClosed as closed:
            end = closed.rcvd
        else:
            assert await self.closed() == code
            return
        assert end is not None
        assert end.code == code

    async def attach(self, channel: str, user: object = None, **fields: Any) -> None:
        """Send a subscription, signed where the channel needs it; `user` is the channel data."""
        data: dict[str, Any] = {"channel": channel, **fields}
        channel_data = None
        if user is not None:
            channel_data = user if isinstance(user, str) else json.dumps(user)
            data["channel_data"] = channel_data
        if channel.startswith(("private-", "presence-")) and "auth" not in fields:
            data["auth"] = channel_auth(self.socket_id, channel, channel_data, self.app)
        await self.send("subscribe", data)

    async def subscribe(self, channel: str, user: object = None, **fields: Any) -> dict[str, Any]:
        """Subscribe; returns the frame that says so."""
        await self.attach(channel, user, **fields)
        return await self.expect("_subscription_succeeded", channel)

    async def expect_denied(self, channel: str, code: int = 4009) -> None:
        """The two frames of a refused subscription."""
        text = await self.expect_error(code)
        frame = await self.expect(":subscription_error", channel)
        assert set(frame) - {"message_id"} == {"event", "channel", "data"}
        data = dict(frame["data"])
        assert isinstance(data.pop("error"), str)
        if code == 4009:
            assert data == {"type": "AuthError", "status": 401}, frame
        assert text

    async def signin(self, user_id: str, capabilities: object = None, **fields: Any) -> None:
        """Sign in; `capabilities` maps operations to patterns."""
        user = {"id": user_id, **fields}
        if capabilities is not None:
            user["capabilities"] = capabilities
        user_data = json.dumps(user)
        auth = signin_auth(self.socket_id, user_data, self.app)
        await self.send("signin", {"auth": auth, "user_data": user_data})
        frame = await self.expect(":signin_success")
        assert frame["data"] == {"user_data": user_data}

    async def resume(self, **positions: Any) -> None:
        """Send a resume with these positions."""
        await self.send("resume", {"channel_positions": positions})

    async def resumed(self) -> dict[str, Any]:
        """The aggregate at the end of a resume, which is the next frame."""
        frame = await self.expect(":resume_success")
        assert isinstance(frame["data"], str)
        answer: dict[str, Any] = json.loads(frame["data"])
        return answer


class ChannelsNode:
    """A running server with channels mounted."""

    def __init__(
        self,
        url: str,
        client: httpx.AsyncClient,
        location: str,
        inside: tuple[Server, ChannelsSurface] | None = None,
    ) -> None:
        """`location` is its store; `inside` what a server in the test's own process is made of."""
        self._location = location
        self._inside = inside
        self._url = url
        self.ws_url = url.replace("http", "ws")
        self.api = Api(url, client)
        self.plain = Api(url, client, PLAIN)
        self.client = client

    @property
    def server(self) -> Server:
        """For tests that are marked `inside`."""
        assert self._inside is not None, "mark this test `inside`: it looks into the server"
        return self._inside[0]

    @property
    def surface(self) -> ChannelsSurface:
        """For tests that are marked `inside`."""
        assert self._inside is not None, "mark this test `inside`: it looks into the server"
        return self._inside[1]

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._url.rsplit(":", 1)[1])

    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        """What it has stored, read beside it."""
        store = await open_store(SCHEMA, self._location, log_id="", node="", read_only=True)
        try:
            yield store
        finally:
            await store.close()

    def url(self, query: str, key: str = APP.key) -> str:
        """The socket's URL."""
        return f"{self.ws_url}/app/{key}?{query}"

    @asynccontextmanager
    async def open(
        self, query: str, app: App = APP, protocol: int = 1, compression: str | None = None
    ) -> AsyncIterator[Peer]:
        """A socket of which nothing has been read."""
        async with connect(
            self.url(query, app.key),
            compression=compression,
            max_size=None,
            ping_interval=None,
            close_timeout=2,
        ) as socket:
            yield Peer(socket, app, protocol)

    @asynccontextmanager
    async def v1(self, app: App = APP) -> AsyncIterator[Peer]:
        """A V1 socket after its handshake."""
        async with self.open(V1_QUERY, app) as peer:
            await handshake(peer)
            yield peer

    @asynccontextmanager
    async def v2(self, app: App = APP, **query: str) -> AsyncIterator[Peer]:
        """A V2 socket after its handshake."""
        text = f"{V2_QUERY}&{urlencode(query)}" if query else V2_QUERY
        async with self.open(text, app, 2) as peer:
            await handshake(peer)
            yield peer


async def handshake(peer: Peer) -> dict[str, Any]:
    """Read the first frame and remember the socket id; returns the frame's data."""
    frame = await peer.expect(":connection_established")
    data: dict[str, Any] = json.loads(frame["data"])
    peer.socket_id = data["socket_id"]
    return data


@asynccontextmanager
async def channels_server(
    data_dir: Path,
    store: str = "",
    *,
    limits: Limits | None = None,
    apps: tuple[App, ...] = (APP, PLAIN, CLOSED),
    clock: ServerClock | None = None,
    admin_token: str = "",
    compression: bool = False,
    is_kept: bool = False,
    **options: Any,
) -> AsyncIterator[ChannelsNode]:
    """A server with channels for the length of the block; `options` are those of `[channels]`.

    A section is given as a dict. Versioned messages are on, as in the contract's test setup.
    `is_kept` is that of `workers.served`, and says nothing of a server in this process.
    """
    options["versioned_messages"] = {"enabled": True, **options.get("versioned_messages", {})}
    for name, section in _SECTIONS.items():
        if name in options:
            options[name] = section(**options[name])
    settings = Settings(
        apps=list(apps),
        channels=Channels(**options),
        limits=limits or Limits(),
        admin_token=admin_token,
        compression=compression,
    )
    http = httpx.AsyncClient(
        verify=False, limits=httpx.Limits(keepalive_expiry=1), timeout=WAIT_SECONDS
    )
    location = store or str(data_dir / "tidelog.db")
    if workers.count() and clock is None:
        processes = workers.served(data_dir, store, settings, is_kept=is_kept)
        async with processes as url, http as client:
            yield ChannelsNode(url, client, location)
        return
    workers.end_kept(location)
    mounted: list[ChannelsSurface] = []

    async def mount(node: Node) -> ChannelsSurface:
        surface = await ChannelsSurface.open(node.committer, node.store, node.settings, node.clock)
        mounted.append(surface)
        return surface

    async with (
        running_server(
            data_dir, store=store, settings=settings, mounts=(mount,), extensions=(), clock=clock
        ) as server,
        http as client,
    ):
        yield ChannelsNode(server.url, client, location, (server, mounted[0]))


# What a version looks like in a frame and in an answer.


def headers_of(
    action: str, ack: dict[str, Any], timestamp_ms: int, **headers: Any
) -> dict[str, Any]:
    """The five runtime headers of a version next to the publisher's own."""
    return {
        **headers,
        "sockudo_action": f"message.{action}",
        "sockudo_message_serial": ack["message_serial"],
        "sockudo_version_serial": ack["version_serial"],
        "sockudo_version_timestamp_ms": timestamp_ms,
        "sockudo_history_serial": ack["history_serial"],
    }


def plain_frame(frame: dict[str, Any]) -> dict[str, Any]:
    """A V2 frame without what differs from run to run: ids and the five headers, which it has.

    The headers are compared with the frame itself, so that a test need only state what it gave.
    """
    frame = json.loads(json.dumps(frame))
    assert frame.pop("message_id")
    assert UUID4.fullmatch(frame.pop("stream_id"))
    assert isinstance(frame.pop("serial"), int)
    headers = frame["extras"]["headers"]
    assert VERSION_SERIAL.fullmatch(headers.pop("sockudo_message_serial"))
    assert VERSION_SERIAL.fullmatch(headers.pop("sockudo_version_serial"))
    assert isinstance(headers.pop("sockudo_version_timestamp_ms"), int)
    assert isinstance(headers.pop("sockudo_history_serial"), int)
    frame["action"] = headers.pop("sockudo_action")
    if not headers:
        del frame["extras"]["headers"]
    if not frame["extras"]:
        del frame["extras"]
    return dict(frame)


async def nothing_else(api: Api, channel: str, *peers: Peer) -> dict[str, Any]:
    """Subscribers of a channel have been sent nothing more: what is published now comes next.

    A ping alone would not prove it: frames leave when their commit is seen, which may be after the
    answer to the request that made them.
    """
    ack = await api.publish(channel, "m", name="marker")
    for peer in peers:
        await peer.expect("marker", channel)
    return ack


async def unoccupied(api: Api, channel: str) -> None:
    """Wait until nobody is subscribed any more."""
    async with asyncio.timeout(WAIT_SECONDS):
        while ok(await api.get(f"/channels/{channel}"))["occupied"]:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.005)


async def until(condition: Any) -> None:
    """Wait until something becomes true that nothing tells of."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not condition():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.005)
