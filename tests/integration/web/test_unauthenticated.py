"""Requests of nobody: what is held and waited for before it is known who sends them."""

import asyncio
import contextlib
import gc
import json
import time
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from support.channels import peer as channels_peer
from support.channels.peer import APP
from support.channels.raw import signed_target
from support.probe.server import running_server
from support.sync.peer import SECRET, token
from tidelog.base.settings.limits import Limits
from tidelog.channels.front.sockets.subscribing import Subscribing
from tidelog.cli.serving import _surfaces
from tidelog.config.settings import Settings
from tidelog.mesh.front.service import MeshService
from tidelog.serve.server import Server
from tidelog.store.rows import Head
from tidelog.sync.settings import SyncSettings as Sync
from tidelog.web.http import LimitedHttp

ADMIN = "a token of an administrator"

WAIT_SECONDS = 60.0


@asynccontextmanager
async def serving(data_dir: Path, **limits: int) -> AsyncIterator[Server]:
    """A server with all surfaces."""
    settings = Settings(
        admin_token=ADMIN,
        apps=[APP],
        sync=Sync(jwt_secret=SECRET),
        limits=Limits(**limits),
    )
    mounts, extensions = _surfaces(settings)
    async with running_server(
        data_dir, settings=settings, mounts=mounts, extensions=extensions
    ) as server:
        yield server


class Peer:
    """A connection that sends exact bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    @asynccontextmanager
    async def to(cls, server: Server) -> AsyncIterator["Peer"]:
        """A connection for the length of the block."""
        port = int(server.url.rsplit(":", 1)[1])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            yield cls(reader, writer)
        finally:
            writer.close()

    def ask(self, method: str, target: str, length: int, *headers: str) -> None:
        """The head of a request that has a body."""
        lines = [f"{method} {target} HTTP/1.1", "host: x", f"content-length: {length}", *headers]
        self.send("\r\n".join([*lines, "", ""]).encode())

    def send(self, data: bytes) -> None:
        """Exact bytes."""
        self.writer.write(data)

    async def status(self) -> int:
        """Of the next answer."""
        return (await self.answer())[0]

    async def answer(self) -> tuple[int, bytes]:
        """The next answer: its status and its body."""
        async with asyncio.timeout(WAIT_SECONDS):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
            body = await self.reader.readexactly(int(fields["content-length"]))
        return int(head.split()[1]), body


def held_by_strangers(server: Server) -> float:
    """What the metric says."""
    server.metrics.render()
    return server.metrics.registry.get_sample_value("tidelog_unauthenticated_bytes") or 0.0


async def until(server: Server, reached: Callable[[float], bool]) -> None:
    """Wait until that is so."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not reached(held_by_strangers(server)):  # noqa: ASYNC110 - a metric tells nobody
            await asyncio.sleep(0.005)


def events_target(body: bytes) -> str:
    """Path and query of a signed publish."""
    return signed_target("POST", f"/apps/{APP.id}/events", body, {}, now=time.time())


def publication(size: int = 10) -> bytes:
    """A body of `POST /events`."""
    return json.dumps({"name": "x", "channel": "room", "data": "y" * size}).encode()


async def test_who_asks_is_judged_before_the_body_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal comes on the head alone; of the body not a byte has been sent or waited for."""
    monkeypatch.setattr("tidelog.web.http.LINGER_SECONDS", 3600.0)
    wrong = "authorization: Bearer wrong"
    asked = [
        ("POST", events_target(b"x")[:-1] + "!", "x: y", 401),
        ("POST", f"/apps/{APP.id}/events", "x: y", 400),
        ("POST", "/sync/v1/submit", wrong, 401),
        ("PUT", "/sync/admin/snapshot", wrong, 401),
        ("POST", "/channels/admin/forget", wrong, 401),
        ("POST", "/mesh", wrong, 401),
        ("POST", "/mesh/m/messages", wrong, 401),
        ("POST", "/dashboard/api/outbox/d/drop", "cookie: tidelog_dashboard=wrong", 401),
        ("POST", "/nowhere", "x: y", 404),
    ]

    async def refused(server: Server, method: str, target: str, header: str) -> int:
        async with Peer.to(server) as peer:
            peer.ask(method, target, 50_000, header)
            return await peer.status()

    async with serving(tmp_path) as server:
        statuses = await asyncio.gather(*(refused(server, *each[:3]) for each in asked))
    assert statuses == [status for *_, status in asked]


async def test_a_connection_that_is_gone_leaves_nothing_to_search_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a thousand refused bodies none waits for a timer or for the search for garbage."""
    monkeypatch.setattr("tidelog.web.http.LINGER_SECONDS", 3600.0)
    gone: list[weakref.ref[LimitedHttp]] = []
    made = LimitedHttp.connection_made

    def remember(self: LimitedHttp, transport: asyncio.Transport) -> None:
        gone.append(weakref.ref(self))
        made(self, transport)

    monkeypatch.setattr(LimitedHttp, "connection_made", remember)
    async with serving(tmp_path) as server:
        gc.disable()
        try:
            async with Peer.to(server) as peer:
                peer.ask("POST", "/mesh", 50_000)
                peer.send(b"x" * 30_000)
                assert await peer.status() == 401
            async with Peer.to(server) as peer:
                peer.ask("GET", "/healthz", 0)
                assert await peer.status() == 200
            async with asyncio.timeout(WAIT_SECONDS):
                while any(one() is not None for one in gone):  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.005)
        finally:
            gc.enable()
    assert len(gone) == 2


async def test_a_refusal_does_not_ask_for_the_body(tmp_path: Path) -> None:
    """`Expect: 100-continue` is answered with the refusal, or with the wish for the body."""
    body = publication()
    async with serving(tmp_path) as server:
        async with Peer.to(server) as peer:
            peer.ask("POST", "/mesh", 4, "expect: 100-continue")
            assert await peer.status() == 401
        async with Peer.to(server) as peer:
            peer.ask("POST", events_target(body), len(body), "expect: 100-continue")
            async with asyncio.timeout(WAIT_SECONDS):
                wish = await peer.reader.readuntil(b"\r\n\r\n")
            assert wish == b"HTTP/1.1 100 Continue\r\n\r\n"
            peer.send(body)
            assert await peer.status() == 200


async def test_who_is_known_may_take_the_time_and_the_room(tmp_path: Path) -> None:
    """A signed request is read though it is larger and slower than a stranger's may be."""
    body = publication(5000)
    limits = {"unauthenticated_body_bytes": 1000, "unauthenticated_timeout_ms": 50}
    async with serving(tmp_path, **limits) as server, Peer.to(server) as peer:
        peer.ask("POST", events_target(body), len(body))
        peer.send(body[:3000])
        await asyncio.sleep(0.2)
        peer.send(body[3000:])
        assert await peer.status() == 200
        peer.ask("POST", "/sync/v1/submit", 5000, f"authorization: Bearer {token('c')}")
        await asyncio.sleep(0.2)
        peer.send(b"x" * 5000)
        assert await peer.status() == 400


async def test_a_signature_is_of_one_body(tmp_path: Path) -> None:
    """Whoever sends another body than the signed one is refused when it is there."""
    body = publication()
    async with serving(tmp_path) as server, Peer.to(server) as peer:
        peer.ask("POST", events_target(body), len(body))
        await asyncio.sleep(0.05)
        peer.send(body.replace(b"room", b"door"))
        status, text = await peer.answer()
        assert (status, json.loads(text)["error"]) == (401, "body_md5 is not that of the body")


async def test_a_strangers_body_is_small(tmp_path: Path) -> None:
    """Where only the body shows who asks, 64 KiB are its end; in the surface's own words."""
    join = "/mesh/m/members"
    async with serving(tmp_path) as server:
        async with httpx.AsyncClient(base_url=server.url, verify=False) as http:
            allowed = await http.post(join, content=b"x" * 65_536)
            assert (allowed.status_code, allowed.json()["error"]) == (404, "mesh_not_found")
            refused = await http.post(join, content=b"x" * 65_537)
            assert (refused.status_code, refused.json()) == (413, {"error": "payload_too_large"})
            login = await http.post("/dashboard/login", content=b"x" * 65_537)
            assert login.status_code == 413
            assert "limits.unauthenticated_body_bytes" in login.json()["error"]
        async with Peer.to(server) as peer:  # by its length, before it is sent
            peer.ask("POST", join, 65_537)
            assert await peer.status() == 413


async def test_a_stranger_has_little_time(tmp_path: Path) -> None:
    """Head and body of a request that may be anybody's are there in time, or it ends with 408."""
    async with serving(tmp_path, unauthenticated_timeout_ms=100) as server:
        async with Peer.to(server) as peer:
            peer.send(b"POST /mesh/m/members HTTP/1.1\r\nhost:")
            assert await peer.status() == 408
        async with Peer.to(server) as peer:
            peer.ask("POST", "/mesh/m/members", 10)
            assert await peer.status() == 408
        assert server.metrics.refusals.labels("body_timeout")._value.get() == 1


async def test_a_handshake_keeps_its_time(tmp_path: Path) -> None:
    """The head of an upgrade has `header_timeout_ms`, also where a request has less."""
    async with (
        serving(tmp_path, unauthenticated_timeout_ms=100) as server,
        Peer.to(server) as peer,
    ):
        peer.send(f"GET /app/{APP.key} HTTP/1.1\r\nupgrade: websocket\r\nhost: x\r\n".encode())
        await asyncio.sleep(0.3)
        peer.send(b"connection: Upgrade\r\nsec-websocket-version: 13\r\n")
        peer.send(b"sec-websocket-key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n")
        async with asyncio.timeout(WAIT_SECONDS):
            head = await peer.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 ")


async def test_a_request_in_line_begins_when_it_is_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of a pipelined request is not what the ones before it have taken."""
    async with (
        serving(tmp_path, unauthenticated_timeout_ms=1000) as server,
        Peer.to(server) as peer,
    ):
        head = server.store.head

        async def slow_head() -> Head:
            await asyncio.sleep(1.2)
            return await head()

        monkeypatch.setattr(server.store, "head", slow_head)
        peer.send(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        peer.ask("POST", "/mesh/m/members", 10)
        assert await peer.status() == 200
        peer.send(b"0123456789")
        assert await peer.status() == 404


async def test_all_strangers_together_are_bounded(tmp_path: Path) -> None:
    """The sum of what is held has an end, and whoever has waited longest gives way."""
    held = 5000
    async with serving(tmp_path, unauthenticated_total_bytes=10 * held) as server:
        peers = []
        for number in range(20):
            opened = Peer.to(server)
            peer = await opened.__aenter__()
            peers.append((opened, peer))
            if number % 2:
                peer.ask("POST", "/mesh/m/members", held + 1)
                peer.send(b"x" * held)
            else:
                peer.send(b"GET /healthz HTTP/1.1\r\nx: " + b"y" * held)
            least = min(number + 1, 9) * held
            await until(server, lambda held, least=least: held >= least)  # type: ignore[misc]
            assert held_by_strangers(server) <= 10 * held
        for _, peer in peers[:11]:
            status, text = await peer.answer()
            assert status == 503
            assert b"limits.unauthenticated_total_bytes" in text
        async with httpx.AsyncClient(
            base_url=server.url, verify=False
        ) as http:  # others are served
            body = publication()
            assert (await http.post(events_target(body), content=body)).status_code == 200
        peers[-1][1].send(b"x")
        assert await peers[-1][1].status() == 404
        refused = server.metrics.refusals.labels("unauthenticated_bytes")._value.get()
        assert 11 <= refused <= 12
        for opened, _ in peers:
            await opened.__aexit__(None, None, None)
        await until(server, lambda held: not held)


async def test_what_was_asked_before_is_answered_before_the_end(tmp_path: Path) -> None:
    """A connection that gives way ends after the answer to what is whole."""
    body = publication()
    limit = {"unauthenticated_total_bytes": 3000}
    async with serving(tmp_path, **limit) as server, Peer.to(server) as peer:
        peer.ask("POST", events_target(body), len(body))
        peer.send(body + b"GET /healthz HTTP/1.1\r\nx: " + b"y" * 3000)
        assert await peer.status() == 200
        async with asyncio.timeout(WAIT_SECONDS):
            assert await peer.reader.read() == b""


async def test_empty_lines_are_no_way_to_stay(tmp_path: Path) -> None:
    """Lines that may stand before a request hold a connection no longer than a request may."""
    limits = {"unauthenticated_timeout_ms": 100, "max_header_bytes": 1024}
    async with serving(tmp_path, **limits) as server:
        async with Peer.to(server) as peer:
            peer.send(b"GET /healthz/live HTTP/1.1\r\nhost: x\r\n\r\n")
            assert await peer.status() == 200
            peer.send(b"\r\n")
            assert await peer.status() == 408
        async with Peer.to(server) as peer:
            peer.send(b"\r\n" * 1000)
            assert await peer.status() == 431


async def test_a_socket_that_has_proved_nothing_holds_little(tmp_path: Path) -> None:
    """Until it is known who is there, a message is a stranger's; then it is the endpoint's."""
    large = json.dumps({"type": "submit_events", "padding": "x" * 70_000})
    async with serving(tmp_path) as server:
        url = server.url.replace("http", "ws", 1) + "/sync"
        async with connect(url) as socket:
            await socket.send(large)
            with pytest.raises(ConnectionClosed) as closed:
                await socket.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1009
        async with connect(url) as socket:
            payload = {"token": token("c"), "client_id": "c"}
            message = {"type": "connect", "msg_id": "1", "protocol_version": "1.0", "timestamp": 1}
            await socket.send(json.dumps({**message, "payload": payload}))
            await socket.send(large)  # without a wait for the answer
            assert json.loads(await socket.recv())["type"] == "connected"
            assert json.loads(await socket.recv())["type"] == "error"


async def test_sockets_count_among_the_strangers(tmp_path: Path) -> None:
    """Part of a frame is held like part of a body, and gives way like one."""
    async with serving(tmp_path, unauthenticated_total_bytes=10_000) as server:
        url = server.url.replace("http", "ws", 1) + "/sync"
        async with connect(url) as first, connect(url) as second:
            part = bytes([0x81, 0x80 | 126]) + (7000).to_bytes(2, "big") + bytes(4) + b"x" * 6000
            first.transport.write(part)
            await until(server, lambda held: held >= 6000)
            second.transport.write(part)
            async with asyncio.timeout(WAIT_SECONDS):
                with pytest.raises(ConnectionClosed):
                    await first.recv()
                assert first.close_code == 1013
                second.transport.write(b"x" * 1000)
                assert json.loads(await second.recv())["type"] == "error"


@pytest.mark.parametrize(
    ("path", "held_up"),
    [
        pytest.param(f"/app/{APP.key}?protocol=2", (Subscribing, "subscribe"), id="channels"),
        pytest.param("/mesh/m/ws", (MeshService, "mesh"), id="mesh"),
    ],
)
async def test_what_waits_in_a_socket_has_few_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, held_up: tuple[type, str]
) -> None:
    """While one message is worked on, a socket of anybody is not read until memory is full."""
    goes_on = asyncio.Event()
    original = getattr(*held_up)

    async def waits(*arguments: object, **options: object) -> object:
        await goes_on.wait()
        return await original(*arguments, **options)

    monkeypatch.setattr(*held_up, waits)
    ping = json.dumps({"event": "sockudo:ping", "data": "x" * 65_000})
    subscribe = json.dumps({"event": "sockudo:subscribe", "data": {"channel": "room"}})
    async with serving(tmp_path) as server:
        url = server.url.replace("http", "ws", 1) + path
        async with connect(url, max_queue=None) as socket:
            await socket.send(subscribe)
            flood = asyncio.create_task(_flood(socket, ping, 64))
            sockets = server._websockets.sockets
            await channels_peer.until(lambda: sockets.received_bytes >= 65_000)
            await asyncio.sleep(0.2)  # for a server that goes on reading, to be noticed
            assert sockets.received_bytes < 1_000_000
            goes_on.set()
            with contextlib.suppress(ConnectionClosed):  # there is no such mesh
                async with asyncio.timeout(WAIT_SECONDS):
                    await flood
                    pongs = 0
                    while pongs < 64:
                        pongs += '"sockudo:pong"' in str(await socket.recv())


async def _flood(socket: ClientConnection, message: str, times: int) -> None:
    for _ in range(times):
        await socket.send(message)


async def test_who_does_not_read_the_answers_is_cut_off(tmp_path: Path) -> None:
    """Nobody holds a connection for ever by asking and not reading."""
    ask = b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n"
    async with serving(tmp_path, idle_timeout_ms=300) as server, Peer.to(server) as peer:
        connections = server._server.connections
        peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
        await channels_peer.until(lambda: connections)
        [served] = connections
        assert isinstance(served, LimitedHttp)

        def is_idle(heads: int) -> bool:
            if served.is_write_paused:
                return True
            return served._heads > heads and served._served is None

        while not served.is_write_paused:
            peer.send(ask)
            await channels_peer.until(partial(is_idle, served._heads))
        await channels_peer.until(lambda: not connections)
        assert server.metrics.refusals.labels("unread")._value.get() == 1


async def test_trailers_of_a_body_are_bounded(tmp_path: Path) -> None:
    """What follows a chunked body is counted, and no more is read than headers may have."""
    async with serving(tmp_path) as server, Peer.to(server) as peer:
        peer.send(b"POST /mesh/m/members HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        peer.send(b"0\r\nlong: " + b"x" * 20_000)
        await until(server, lambda held: held > 20_000)
        peer.send(b"x" * 2_000_000)
        await channels_peer.until(
            lambda: server.metrics.refusals.labels("header_size")._value.get() == 1
        )


async def test_publishes_of_one_connection_are_answered_in_their_order(tmp_path: Path) -> None:
    """Many at once, also between others; then some in two parts, which are answered by a task."""
    async with serving(tmp_path) as server, Peer.to(server) as peer:
        good, other = (
            json.dumps({"name": "e", "channel": "c", "data": data}).encode() for data in ("x", 1)
        )
        malformed, live = b"[]", b"GET /healthz/live HTTP/1.1\r\nhost: x\r\n\r\n"
        forged = events_target(good).replace("auth_version=1.0", "auth_version=1.1")
        peer.send(
            b"".join(
                [
                    whole(events_target(good), good),
                    live,
                    whole(forged, good),
                    whole(events_target(malformed), malformed),
                    whole(events_target(other), other),
                ]
            )
        )
        assert [await peer.status() for _ in range(5)] == [200, 200, 401, 400, 200]
        for body in (good, malformed, other):
            peer.ask("POST", events_target(body), len(body))
            await asyncio.sleep(0.02)  # mostly long enough for the head to be read alone
            peer.send(body)
            assert await peer.status() == (400 if body is malformed else 200)
        assert held_by_strangers(server) == 0


def whole(target: str, body: bytes) -> bytes:
    """A request in one piece."""
    head = f"POST {target} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body
