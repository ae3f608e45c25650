"""WebSocket: one connection's life between a recording transport and a recording conversation."""

import asyncio
import logging
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tidelog.base.metrics import Metrics
from tidelog.base.net.frame import BINARY, CLOSE, PING, PONG, TEXT, text_frame
from tidelog.base.serving.surface import Conversation, Endpoint, HttpResponse, Upgrade
from tidelog.base.settings.limits import Limits
from tidelog.web.fanout import Fanout
from tidelog.web.websocket import WebSocketService
from unit.web.recording import (
    RecordingConversation,
    RecordingTransport,
    client_frame,
    server_frames,
)

KEY = b"dGhlIHNhbXBsZSBub25jZQ=="


def request(path: bytes = b"/app/k", method: bytes = b"GET", **changed: bytes | None) -> bytes:
    """An upgrade request as `LimitedHttp` puts it together; a header given as None is left out."""
    headers: dict[str, bytes | None] = {
        "host": b"localhost",
        "upgrade": b"websocket",
        "connection": b"Upgrade",
        "sec-websocket-version": b"13",
        "sec-websocket-key": KEY,
        **{name.replace("_", "-"): value for name, value in changed.items()},
    }
    lines = [b"%s: %s" % (name.encode(), value) for name, value in headers.items() if value]
    return b"\r\n".join([method + b" " + path + b" HTTP/1.1", *lines]) + b"\r\n\r\n"


def closing(code: int, reason: bytes = b"") -> bytes:
    """A client's close frame."""
    return client_frame(CLOSE, code.to_bytes(2, "big") + reason)


def compressed(text: bytes) -> bytes:
    """A compressed message of a client."""
    compressor = zlib.compressobj(wbits=-15)
    payload = compressor.compress(text) + compressor.flush(zlib.Z_SYNC_FLUSH)
    return client_frame(TEXT, payload.removesuffix(b"\0\0\xff\xff"), reserved=4)


class Site:
    """A service with one endpoint, and connections to it."""

    def __init__(
        self,
        accept: Callable[[Upgrade], Conversation | HttpResponse] | None = None,
        *,
        heartbeat: bool = True,
        deflates: bool = False,
        **limits: int,
    ) -> None:
        self.metrics = Metrics()
        self.limits = Limits(**limits)
        self.upgrades: list[Upgrade] = []
        fanout = Fanout(asyncio.get_running_loop(), self.metrics, self.limits)
        endpoint = Endpoint(
            path="/app/{key}",
            accept=accept or self._accept,
            max_message_bytes=1000,
            heartbeat=heartbeat,
            slow_consumer_code=4100,
        )
        self.service = WebSocketService(
            [endpoint], fanout, self.metrics, self.limits, deflates=deflates
        )
        self.conversation = RecordingConversation()
        self.connections: set[Any] = set()

    def _accept(self, upgrade: Upgrade) -> Conversation:
        self.upgrades.append(upgrade)
        return self.conversation

    def connect(
        self, data: bytes | None = None, transport: RecordingTransport | None = None
    ) -> "Line":
        """A connection whose upgrade request was received."""
        return Line(self, request() if data is None else data, transport or RecordingTransport())

    def count(self, name: str, **labels: str) -> float | None:
        """A metric's value."""
        return self.metrics.registry.get_sample_value(name, labels)


class Line:
    """One connection, with HTTP played by the constructor."""

    def __init__(self, site: Site, data: bytes, transport: RecordingTransport) -> None:
        self.socket: Any = site.service.connection(site.connections)
        self.transport = transport
        self.transport.protocol = self.socket
        self.socket.connection_made(self.transport)
        self.socket.data_received(data)

    async def say(self, *data: bytes) -> list[tuple[int, bytes]]:
        """Receive bytes, run one turn, and return the frames written since the handshake."""
        for chunk in data:
            self.socket.data_received(chunk)
        await asyncio.sleep(0)
        return server_frames(b"".join(self.transport.writes[1:]))


async def turns() -> None:
    """Let everything that is scheduled for now happen."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_handshake() -> None:
    """A correct upgrade is answered as in RFC 6455, 1.3, and the endpoint sees it taken apart."""
    site = Site()
    line = site.connect(request(b"/app/a%2Fb?x=1"))
    (response,) = line.transport.writes
    assert response.startswith(b"HTTP/1.1 101 ")
    assert b"sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in response
    (upgrade,) = site.upgrades
    assert (upgrade.raw_path, upgrade.query_string) == (b"/app/a%2Fb", b"x=1")
    assert upgrade.params == {"key": "a/b"}
    assert (b"host", b"localhost") in upgrade.headers
    assert upgrade.peer == site.conversation.outlet.peer == "192.0.2.1"
    assert site.count("tidelog_connections", surface="") == 1
    assert site.connections == {line.socket}


@pytest.mark.parametrize("deflates", [True, False])
async def test_messages_are_compressed_only_if_both_sides_want_it(deflates: bool) -> None:
    """The reply names the extension, and frames use it, if the server was told to."""
    site = Site(deflates=deflates)
    offer = b"permessage-deflate; client_max_window_bits"
    asking = site.connect(request(sec_websocket_extensions=offer))
    (response,) = asking.transport.writes
    assert (b"\r\nsec-websocket-extensions: permessage-deflate" in response) == deflates
    asking.socket.push(text_frame(b"again " * 100))
    await asyncio.sleep(0)
    assert (len(asking.transport.writes[1]) < 100) == deflates
    plain = site.connect()
    assert b"extensions" not in plain.transport.writes[0]
    assert plain.socket.deflates is False


@pytest.mark.parametrize(("size", "deflates"), [(4, False), (4, True), (900, True)])
async def test_a_peer_with_much_to_say_takes_turns(size: int, deflates: bool) -> None:
    """Many messages are delivered in several turns, and nothing more is read meanwhile.

    What they cost is not the size in which they came.
    """
    site = Site(deflates=True)
    line = site.connect(request(sec_websocket_extensions=b"permessage-deflate"))
    texts = [b"%04d" % number + bytes(size - 4) for number in range(600)]
    framed = compressed if deflates else partial(client_frame, TEXT)
    line.socket.data_received(b"".join([framed(text) for text in texts]))
    messages = site.conversation.messages
    assert 0 < len(messages) <= 256
    assert not line.transport.reading
    await turns()
    assert [text for text, _ in messages] == texts
    assert line.transport.reading


async def test_a_close_is_found_after_much_that_was_said() -> None:
    """Also if the server has begun to close meanwhile, and messages do not matter any more."""
    site = Site(deflates=True)
    line = site.connect(request(sec_websocket_extensions=b"permessage-deflate"))
    line.socket.data_received(compressed(bytes(900)) * 300 + closing(1000))
    site.conversation.outlet.close(4000)
    await turns()
    assert site.conversation.codes == [4000]


@pytest.mark.parametrize(
    ("data", "status", "header"),
    [
        (request(b"/nowhere"), b"404", b"content-type: application/json"),
        (request(b"nonsense"), b"400", b"content-type: application/json"),
        (request(method=b"POST"), b"405", b"allow: GET"),
        (request(sec_websocket_version=b"8"), b"426", b"sec-websocket-version: 13"),
        (request(sec_websocket_version=None), b"426", b"sec-websocket-version: 13"),
        (request(sec_websocket_key=None), b"400", b"connection: close"),
        (request(sec_websocket_key=b"c2hvcnQ="), b"400", b"connection: close"),
        (request(sec_websocket_key=b"no base64!"), b"400", b"connection: close"),
    ],
)
async def test_refused_upgrades(data: bytes, status: bytes, header: bytes) -> None:
    """An upgrade to nowhere or against the RFC gets its HTTP status and the connection ends."""
    site = Site()
    line = site.connect(data)
    head, body = line.transport.writes[0].split(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 " + status + b" ")
    assert header in head.split(b"\r\n")
    assert body.startswith(b'{"error":')
    assert line.transport.ended == ["close"]
    await turns()
    assert site.upgrades == []
    assert site.connections == set()


async def test_an_endpoint_refuses() -> None:
    """An HTTP response from `accept` is sent as it is and the connection ends."""
    answer = HttpResponse(
        status=403, body=b"no", content_type="text/plain", headers=((b"x", b"y"),)
    )
    site = Site(lambda _: answer)
    line = site.connect()
    assert b"".join(line.transport.writes) == (
        b"HTTP/1.1 403 Forbidden\r\ncontent-type: text/plain\r\ncontent-length: 2\r\nx: y\r\n"
        b"connection: close\r\n\r\nno"
    )
    assert line.transport.ended == ["close"]
    assert site.count("tidelog_refusals_total", reason="endpoint") == 1


async def test_an_endpoint_fails(caplog: pytest.LogCaptureFixture) -> None:
    """An exception in `accept` is logged and answered 500."""

    def accept(_upgrade: Upgrade) -> Conversation:
        raise RuntimeError("secret")

    line = Site(accept).connect()
    assert line.transport.writes[0].startswith(b"HTTP/1.1 500 ")
    assert "accept failed" in caplog.text
    assert "secret" not in caplog.text


async def test_connection_limit() -> None:
    """Beyond the limit an upgrade is answered 503 with Retry-After, until a connection ends."""
    site = Site(max_connections=1)
    first = site.connect()
    refused = site.connect().transport.writes[0]
    assert refused.startswith(b"HTTP/1.1 503 ")
    assert b"\r\nretry-after: 5\r\n" in refused
    assert site.count("tidelog_refusals_total", reason="connections") == 1
    first.transport.close()
    await turns()
    assert site.connect().transport.writes[0].startswith(b"HTTP/1.1 101 ")


async def test_messages_and_pongs() -> None:
    """Messages reach the conversation whole and in order; pings are answered with their payload."""
    site = Site()
    line = site.connect()
    frames = await line.say(
        client_frame(TEXT, b"a", fin=False) + client_frame(PING, b"p"),
        client_frame(0, b"b") + client_frame(BINARY, b"\xff") + client_frame(PONG),
    )
    assert site.conversation.messages == [(b"ab", True), (b"\xff", False)]
    assert frames == [(PONG, b"p")]


async def test_a_flood_of_pings_gets_few_pongs() -> None:
    """Of the pings in one chunk the first sixteen and the last are answered."""
    site = Site()
    pings = b"".join(client_frame(PING, b"%d" % i) for i in range(1000))
    line = site.connect()
    await line.say(pings)
    await turns()
    assert await line.say() == [(PONG, b"%d" % i) for i in (*range(16), 999)]


@pytest.mark.parametrize(
    ("sent", "echoed", "code"),
    [
        (closing(1000, b"bye"), (1000).to_bytes(2, "big"), 1000),
        (closing(4321), (4321).to_bytes(2, "big"), 4321),
        (client_frame(CLOSE), b"", 1005),
    ],
)
async def test_the_peer_closes(sent: bytes, echoed: bytes, code: int) -> None:
    """A close frame is echoed after what was pushed, ends the connection and is told once."""
    site = Site()
    line = site.connect()
    site.conversation.outlet.push(text_frame(b"last"))
    frames = await line.say(sent + client_frame(TEXT, b"ignored"))
    assert frames == [(TEXT, b"last"), (CLOSE, echoed)]
    assert line.transport.ended == ["close"]
    await turns()
    assert site.conversation.codes == [code]
    assert site.conversation.messages == []
    assert site.count("tidelog_connections", surface="") == 0
    assert site.connections == set()


async def test_we_close() -> None:
    """Our close follows what was pushed, nothing passes after it, and its answer ends all."""
    site = Site()
    line = site.connect()
    outlet = site.conversation.outlet
    outlet.push(text_frame(b"last"))
    outlet.close(4001, "done")
    outlet.push(text_frame(b"dropped"))
    outlet.close(4002)
    frames = await line.say(client_frame(TEXT, b"late") + client_frame(PING))
    assert frames == [(TEXT, b"last"), (CLOSE, (4001).to_bytes(2, "big") + b"done")]
    assert line.transport.ended == []
    await line.say(closing(4001))
    assert line.transport.ended == ["close"]
    await turns()
    assert site.conversation.messages == []
    assert site.conversation.codes == [4001]


async def test_both_close_in_one_turn() -> None:
    """When the peer's close is read before ours was written, ours is still sent."""
    site = Site()
    line = site.connect()
    site.conversation.outlet.close(4001)
    frames = await line.say(closing(1000))
    assert frames == [(CLOSE, (4001).to_bytes(2, "big"))]
    assert line.transport.ended == ["close"]
    await turns()
    assert site.conversation.codes == [4001]


@pytest.mark.parametrize(("half_close", "ended"), [(True, ["eof"]), (False, ["close"])])
async def test_violation(half_close: bool, ended: list[str]) -> None:
    """A violation is answered with its code after what preceded it, and the rest is dropped."""
    site = Site()
    transport = RecordingTransport()
    transport.half_close = half_close
    line = site.connect(transport=transport)
    good, bad = client_frame(TEXT, b"good"), client_frame(TEXT, b"\xff")
    frames = await line.say(good + bad + good, good)
    ((opcode, payload),) = frames
    assert (opcode, payload[:2]) == (CLOSE, (1007).to_bytes(2, "big"))
    assert line.transport.ended == ended
    assert site.conversation.messages == [(b"good", True)]
    line.transport.close()
    await turns()
    assert site.conversation.codes == [1007]


async def test_a_violation_after_our_close_ends_the_connection() -> None:
    """A peer that answers our close with nonsense is not answered again."""
    site = Site()
    line = site.connect()
    site.conversation.outlet.close(4001)
    await line.say()
    frames = await line.say(client_frame(3))
    assert frames == [(CLOSE, (4001).to_bytes(2, "big"))]
    assert line.transport.ended == ["eof"]


async def test_lost_connection() -> None:
    """A connection that is lost without a close frame is told as 1006, and its outlet is inert."""
    site = Site()
    line = site.connect()
    outlet = site.conversation.outlet
    line.socket.eof_received()
    line.socket.connection_lost(ConnectionResetError())
    outlet.push(b"x")
    outlet.close(1000)
    outlet.pause_reading()
    outlet.resume_reading()
    await turns()
    assert site.conversation.codes == [1006]
    assert len(line.transport.writes) == 1


@pytest.mark.parametrize("call", ["opened", "received"])
async def test_a_failing_conversation(call: str, caplog: pytest.LogCaptureFixture) -> None:
    """A conversation that raises is logged without payload and closed with 1011; `closed` comes."""
    site = Site()
    site.conversation = RecordingConversation(call)
    line = site.connect()
    with caplog.at_level(logging.ERROR):
        frames = await line.say(client_frame(TEXT, b"secret") + closing(1000))
    assert frames == [(CLOSE, (1011).to_bytes(2, "big"))]
    (record,) = caplog.records
    assert record.getMessage() == f"{call} failed in a surface"
    assert "secret" not in str(vars(record))
    assert vars(record)["error"] == "RuntimeError"
    await turns()
    assert site.conversation.codes == [1011]


async def test_a_conversation_that_fails_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    """An exception in `closed` is logged; the connection is still counted out."""
    site = Site()
    site.conversation = RecordingConversation("closed")
    line = site.connect()
    line.transport.abort()
    await turns()
    assert "closed failed" in caplog.text
    assert site.count("tidelog_connections", surface="") == 0


async def test_paused_reading_delivers_nothing() -> None:
    """After `pause_reading` not even what was already read is delivered, until `resume_reading`."""
    site = Site()
    received: list[bytes] = []

    class Pausing(RecordingConversation):
        def received(self, payload: bytes, *, is_text: bool) -> None:
            received.append(payload)
            self.outlet.pause_reading()

    site.conversation = Pausing()
    line = site.connect()
    await line.say(b"".join(client_frame(TEXT, b"%d" % i) for i in range(3)))
    assert (received, line.transport.reading) == ([b"0"], False)
    site.conversation.outlet.resume_reading()
    await turns()
    assert (received, line.transport.reading) == ([b"0", b"1"], False)
    site.conversation.outlet.resume_reading()
    site.conversation.outlet.pause_reading()
    await turns()
    assert (received, line.transport.reading) == ([b"0", b"1"], False)
    site.conversation.outlet.resume_reading()
    await turns()
    site.conversation.outlet.resume_reading()
    await turns()
    assert (received, line.transport.reading) == ([b"0", b"1", b"2"], True)


async def test_closing_while_paused_reads_again() -> None:
    """A close of a paused connection reads on, to find the peer's answer; messages are dropped."""
    site = Site()
    line = site.connect()
    site.conversation.outlet.pause_reading()
    await line.say(client_frame(TEXT, b"held") + closing(1000))
    assert site.conversation.messages == []
    site.conversation.outlet.close(4001)
    await turns()
    assert line.transport.ended == ["close"]
    assert site.conversation.messages == []
    assert site.conversation.codes == [4001]


async def test_a_silent_peer_is_pinged_then_dropped() -> None:
    """Silence brings a ping, an answer resets it, further silence drops the connection as 1006."""
    site = Site(idle_timeout_ms=1000, pong_timeout_ms=500)
    line = site.connect()
    start = line.socket.heard_at
    line.socket.sweep(start + 0.9)
    assert await line.say() == []
    line.socket.sweep(start + 1.0)
    line.socket.sweep(start + 1.4)
    assert await line.say() == [(PING, b"")]
    line.socket.heard_at = start + 1.45
    line.socket.sweep(start + 2.0)
    assert await line.say() == [(PING, b"")]
    line.socket.sweep(start + 2.45)
    assert await line.say() == [(PING, b"")] * 2
    line.socket.sweep(start + 2.95)
    assert line.transport.ended == ["abort"]
    await turns()
    assert site.conversation.codes == [1006]


async def test_heartbeat_can_be_left_to_the_surface() -> None:
    """An endpoint without heartbeat is never pinged or dropped, nor is a paused connection."""
    site = Site(heartbeat=False)
    line = site.connect()
    line.socket.sweep(line.socket.heard_at + 1e6)
    paused_site = Site()
    paused = paused_site.connect()
    paused_site.conversation.outlet.pause_reading()
    paused.socket.sweep(paused.socket.heard_at + 1e6)
    assert await line.say() == await paused.say() == []


async def test_any_bytes_are_a_sign_of_life() -> None:
    """`heard_at` moves with every chunk, also in the middle of a frame."""
    site = Site()
    line = site.connect()
    line.socket.heard_at = 0.0
    await line.say(client_frame(TEXT, b"abc")[:3])
    assert site.conversation.outlet.heard_at == pytest.approx(
        asyncio.get_running_loop().time(), abs=5
    )


async def test_a_peer_that_ignores_our_close_is_dropped() -> None:
    """Without an answer to the close frame the connection is dropped after the timeout."""
    site = Site(close_timeout_ms=20)
    line = site.connect()
    site.conversation.outlet.close(4001)
    async with asyncio.timeout(5):
        await site.service.close_all()
    assert line.transport.ended == ["abort"]
    assert site.conversation.codes == [4001]


async def test_a_slow_consumer_is_told_the_endpoints_code() -> None:
    """A peer that does not read is dropped and its conversation told the endpoint's own code."""
    site = Site(send_buffer_bytes=100)
    line = site.connect(transport=RecordingTransport(room=1000))
    site.conversation.outlet.push(bytes(2000))
    await turns()
    assert line.transport.ended == ["abort"]
    assert site.conversation.codes == [4100]
    assert site.count("tidelog_slow_consumers_total") == 1


@pytest.mark.parametrize(("timeout_ms", "patience"), [(40, None), (3_600_000, 0.04)])
async def test_close_all(timeout_ms: int, patience: float | None) -> None:
    """Shutdown closes all with 1001, refuses new connections and returns when the last is gone.

    A peer that does not reply is dropped after the timeout, or when patience ends.
    """
    site = Site(close_timeout_ms=timeout_ms)
    answering, silent = site.connect(), site.connect()
    async with asyncio.timeout(60):
        ending = asyncio.create_task(site.service.close_all(patience))
        await turns()
        assert site.connect().transport.writes[0].startswith(b"HTTP/1.1 503 ")
        frames = await answering.say(closing(1001))
        assert frames == [(CLOSE, (1001).to_bytes(2, "big"))]
        await ending
    assert answering.transport.ended == ["close"]
    assert silent.transport.ended == ["abort"]
    assert site.conversation.codes == [1001, 1001]
    assert len(site.service.sockets) == 0


async def test_the_server_stops_us() -> None:
    """The call that a server makes on every connection when it stops closes with 1001."""
    line = Site().connect()
    line.socket.shutdown()
    assert await line.say() == [(CLOSE, (1001).to_bytes(2, "big"))]


async def test_received_bytes_are_counted() -> None:
    """The metric has every byte received in frames once the connections are gone."""
    site = Site()
    line = site.connect()
    message = client_frame(TEXT, b"x" * 50)
    await line.say(message, message)
    line.transport.abort()
    await turns()
    assert site.count("tidelog_received_bytes_total") == 2 * len(message)
