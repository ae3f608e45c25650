"""A real server on uvloop in a thread, and a raw client that `websockets` itself checks."""

import asyncio
import socket
import ssl
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import uvloop
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import Event
from websockets.uri import parse_uri

from tidelog.base.metrics import Metrics
from tidelog.base.net.frame import BINARY, CLOSE, TEXT, frame, text_frame
from tidelog.base.serving.surface import Endpoint, Outlet, Upgrade
from tidelog.base.settings.limits import Limits, PerAddress
from tidelog.web.addresses import Addresses
from tidelog.web.app import HttpApp
from tidelog.web.fanout import Fanout
from tidelog.web.http import http_protocol
from tidelog.web.server import PortServer
from tidelog.web.tls import TlsListener
from tidelog.web.websocket import WebSocketService
from unit.web.recording import client_frame

MAX_MESSAGE_BYTES = 2000
PATIENCE_SECONDS = 60.0


class Echo:
    """Sends every message back; does what a few text commands ask. Its codes go to the server."""

    def __init__(self, codes: list[int]) -> None:
        self._codes = codes
        self._outlet: Outlet

    def opened(self, outlet: Outlet) -> None:
        """Remember."""
        self._outlet = outlet

    def received(self, payload: bytes, *, is_text: bool) -> None:
        """Echo."""
        self._outlet.push(frame(TEXT if is_text else BINARY, payload))

    def closed(self, code: int) -> None:
        """Report."""
        self._codes.append(code)


class Obey(Echo):
    """Does what a text message asks."""

    def received(self, payload: bytes, *, is_text: bool) -> None:
        """`close <code>`, `flood <count>` of 64 KiB each, or `raise`."""
        assert is_text
        match payload.decode().split():
            case ["close", code]:
                self._outlet.push(text_frame(b"last"))
                self._outlet.close(int(code), "asked to")
                self._outlet.push(text_frame(b"never"))
            case ["flood", count]:
                for _ in range(int(count)):
                    self._outlet.push(frame(BINARY, bytes(65536)))
            case _:
                raise RuntimeError("asked to")


@dataclass
class Server:
    """A running server, as the tests see it."""

    port: int
    metrics: Metrics
    codes: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """What `Conversation.closed` was told, by the connection's query string."""

    def count(self, name: str) -> float | None:
        """A metric's value."""
        return self.metrics.registry.get_sample_value(name)

    @property
    def connections(self) -> float | None:
        """How many connections it counts."""
        return self.metrics.registry.get_sample_value("tidelog_connections", {"surface": ""})


def run(limits: Limits, certificate: Path | None = None) -> Iterator[Server]:
    """Serve in a thread; when stopped, no connection may be left."""
    metrics = Metrics()
    listener = socket.create_server(("127.0.0.1", 0))
    server = Server(listener.getsockname()[1], metrics)
    started: list[Callable[[], object]] = []
    """How it is told to end."""
    failures: list[BaseException] = []

    async def serve() -> None:
        def accepting(kind: type[Echo]) -> Callable[[Upgrade], Echo]:
            return lambda upgrade: kind(server.codes[upgrade.query_string.decode()])

        endpoints = [
            Endpoint(path=path, accept=accepting(kind), max_message_bytes=MAX_MESSAGE_BYTES)
            for path, kind in (("/echo/{name}", Echo), ("/obey", Obey))
        ]
        fanout = Fanout(asyncio.get_running_loop(), metrics, limits)
        service = WebSocketService(endpoints, fanout, metrics, limits)
        addresses = Addresses(PerAddress())
        app = HttpApp([], metrics, limits, addresses)
        http = http_protocol(
            app, limits, metrics, addresses, service.unauthenticated, fanout, service.sockets
        )
        tls = None
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            tls = TlsListener(context, limits, metrics, addresses)
        port = PortServer(http, service.connection, 5, service.close_all, tls)
        listener.setblocking(False)
        loop = asyncio.get_running_loop()
        started.append(lambda: loop.call_soon_threadsafe(port.end))
        await port.serve(listener)
        assert len(service.sockets) == 0
        assert len(asyncio.all_tasks()) == 1

    def main() -> None:
        try:
            uvloop.run(serve())
        except BaseException as failure:  # noqa: BLE001 - raised again in the test's thread
            failures.append(failure)

    thread = threading.Thread(target=main)
    thread.start()
    eventually(lambda: bool(failures) or bool(started))
    yield server
    started[0]()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    assert failures == []
    assert not server.connections


def eventually(reached: Callable[[], bool]) -> None:
    """Wait until `reached`, but not forever."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Peer:
    """A raw socket that sends exact bytes and reads through `websockets`' own protocol."""

    serial = 0

    def __init__(self, server: Server, path: str = "/echo/x", receive_bytes: int = 0) -> None:
        Peer.serial += 1
        self.name = f"peer={Peer.serial}"
        self._server = server
        self._protocol = ClientProtocol(
            parse_uri(f"ws://127.0.0.1:{server.port}{path}?{self.name}"), max_size=None
        )
        self.sock = socket.socket()
        if receive_bytes:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.sock.settimeout(PATIENCE_SECONDS)
        self.sock.connect(("127.0.0.1", server.port))
        self._protocol.send_request(self._protocol.connect())
        self.send(b"".join(self._protocol.data_to_send()))
        self._events: list[Event] = []
        response = self._next()
        assert isinstance(response, Response)
        assert response.status_code == 101
        assert "Sec-WebSocket-Extensions" not in response.headers

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, data: bytes) -> None:
        """Send exact bytes."""
        self.sock.sendall(data)

    def _next(self) -> Event | None:
        while not self._events:
            try:
                data = self.sock.recv(65536)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._protocol.receive_data(data)
            self._events += self._protocol.events_received()
            assert self._protocol.parser_exc is None
        return self._events.pop(0)

    def frame(self) -> Frame | None:
        """The next frame, checked by `websockets`; None at the end of the connection."""
        event = self._next()
        assert event is None or isinstance(event, Frame)
        return event

    def until_close(self) -> tuple[list[tuple[int, bytes]], int]:
        """Everything up to the server's close frame, and its code (1005 if it has none)."""
        frames: list[tuple[int, bytes]] = []
        while (got := self.frame()) is not None:
            if got.opcode is Opcode.CLOSE:
                return frames, int.from_bytes(got.data[:2], "big") or 1005
            frames.append((int(got.opcode), bytes(got.data)))
        raise AssertionError("the connection ended without a close frame")

    def codes(self) -> list[int]:
        """What the server's conversation was told, once it was."""
        eventually(lambda: bool(self._server.codes[self.name]))
        return self._server.codes[self.name]


def echo(peer: Peer, payload: bytes = b"still here") -> None:
    """The peer's connection works."""
    peer.send(client_frame(BINARY, payload))
    got = peer.frame()
    assert got is not None
    assert (got.opcode, bytes(got.data)) == (Opcode.BINARY, payload)


def closing(code: int, reason: bytes = b"") -> bytes:
    """A client's close frame."""
    return client_frame(CLOSE, code.to_bytes(2, "big") + reason)
