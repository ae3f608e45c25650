"""Our WebSocket class on a real server, against the real `websockets` client.

The server runs on uvloop in a thread. Well-formed bytes and violations are made by hand; what the
server answers is judged by `websockets`' sans-I/O `ClientProtocol`.
"""

import asyncio
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed
from websockets.frames import Opcode

from integration.web.live import (
    MAX_MESSAGE_BYTES,
    PATIENCE_SECONDS,
    Peer,
    Server,
    closing,
    echo,
    run,
)
from support.web.certificate import make_certificate
from tidelog.base.net.frame import BINARY, CLOSE, PING, PONG, TEXT
from tidelog.base.settings.limits import Limits
from tidelog.web.reader import CONTINUATION
from unit.web.recording import client_frame

# No shrinking: most failures are an answer that never comes, and each try would wait for it.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
EXAMPLES = settings(max_examples=60, deadline=None, phases=PHASES)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server with ordinary timeouts."""
    yield from run(Limits(send_buffer_bytes=1 << 20))


@pytest.fixture(scope="module")
def impatient() -> Iterator[Server]:
    """A server that gives its peers a fraction of a second."""
    yield from run(Limits(idle_timeout_ms=120, pong_timeout_ms=120, close_timeout_ms=120))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For 127.0.0.1, with its key."""
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def secure(certificate: Path) -> Iterator[Server]:
    """A server behind TLS."""
    limits = Limits(send_buffer_bytes=1 << 20)
    yield from run(limits, certificate)


@pytest.fixture(scope="module")
def neighbour(server: Server) -> Iterator[Peer]:
    """A connection that must go on working, whatever the others do."""
    with Peer(server) as peer:
        yield peer
        peer.send(client_frame(CLOSE))
        assert peer.until_close() == ([], 1005)
        assert peer.codes() == [1005]


masks = st.binary(min_size=4, max_size=4)
valid_codes = st.one_of(st.integers(1000, 1003), st.integers(1007, 1014), st.integers(3000, 4999))
messages = st.one_of(
    st.tuples(st.just(TEXT), st.text(max_size=300).map(str.encode)),
    st.tuples(st.just(BINARY), st.binary(max_size=300)),
    st.tuples(st.just(BINARY), st.integers(0, MAX_MESSAGE_BYTES).map(bytes)),
)
controls = st.lists(st.tuples(st.sampled_from((PING, PONG)), st.binary(max_size=125)), max_size=2)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[list[tuple[int, bytes]], list[bytes], list[bytes]]:
    """Messages, the pings between them, and the chunks of bytes in which both are sent."""
    sent = draw(st.lists(messages, max_size=5))
    pings: list[bytes] = []
    stream = b""
    for opcode, payload in sent:
        cuts = sorted(draw(st.lists(st.integers(0, len(payload)), max_size=3)))
        edges = [0, *cuts, len(payload)]
        for index, (start, end) in enumerate(pairwise(edges)):
            stream += client_frame(
                opcode if index == 0 else CONTINUATION,
                payload[start:end],
                fin=index == len(edges) - 2,
                mask=draw(masks),
            )
            # A chunk holds at most sixteen pings that must all be answered.
            for control, data in draw(controls) if len(pings) < 14 else []:
                stream += client_frame(control, data, mask=draw(masks))
                if control == PING:
                    pings.append(data)
    edges = [0, *sorted(draw(st.lists(st.integers(0, len(stream)), max_size=6))), len(stream)]
    return sent, pings, [stream[a:b] for a, b in pairwise(edges)]


@EXAMPLES
@given(conversation=conversations(), code=valid_codes)
def test_well_formed_messages(
    server: Server,
    neighbour: Peer,
    conversation: tuple[list[tuple[int, bytes]], list[bytes], list[bytes]],
    code: int,
) -> None:
    """However fragmented and cut, messages arrive once, in order, intact; pings are answered."""
    sent, pings, chunks = conversation
    with Peer(server) as peer:
        for chunk in chunks:
            peer.send(chunk)
        peer.send(closing(code, b"enough"))
        frames, echoed = peer.until_close()
        assert [each for each in frames if each[0] != PONG] == sent
        assert [payload for opcode, payload in frames if opcode == PONG] == pings
        assert echoed == code
        assert peer.frame() is None
        assert peer.codes() == [code]
    echo(neighbour)


broken_text = st.sampled_from([b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xc0\x80"])
bad_codes = st.sampled_from((0, 999, 1004, 1005, 1006, 1015, 1016, 2999, 5000, 65535))
oversize = st.integers(MAX_MESSAGE_BYTES + 1, 1 << 40)
violations: dict[str, st.SearchStrategy[tuple[bytes, int]]] = {
    "reserved bits": st.builds(
        lambda reserved, opcode: (client_frame(opcode, reserved=reserved), 1002),
        st.integers(1, 7),
        st.sampled_from((TEXT, BINARY, PING, PONG, CLOSE)),
    ),
    "reserved opcode": st.sampled_from((3, 4, 5, 6, 7, 11, 12, 13, 14, 15)).map(
        lambda opcode: (client_frame(opcode), 1002)
    ),
    "unmasked": st.builds(
        lambda opcode, data: (client_frame(opcode, data, mask=None), 1002),
        st.sampled_from((TEXT, BINARY, PING, CLOSE)),
        st.just(b"") | st.binary(max_size=125).map(bytes.hex).map(lambda text: text[:125].encode()),
    ),
    "fragmented control": st.sampled_from((PING, PONG, CLOSE)).map(
        lambda opcode: (client_frame(opcode, fin=False), 1002)
    ),
    "long control": st.builds(
        lambda opcode, size: (client_frame(opcode, b"\x03\xe8" + bytes(size)), 1002),
        st.sampled_from((PING, PONG, CLOSE)),
        st.integers(124, 1000),
    ),
    "continuation alone": st.binary(max_size=20).map(
        lambda data: (client_frame(CONTINUATION, data), 1002)
    ),
    "message in message": st.binary(max_size=20).map(
        lambda data: (client_frame(TEXT, b"a", fin=False) + client_frame(BINARY, data), 1002)
    ),
    "broken text": st.builds(
        lambda before, bad: (client_frame(TEXT, before.encode() + bad), 1007),
        st.text(max_size=20),
        broken_text,
    ),
    "broken text in fragments": st.builds(
        lambda before, bad: (
            client_frame(TEXT, before.encode() + bad[:1], fin=False)
            + client_frame(PING)
            + client_frame(CONTINUATION, bad[1:] + b"!"),
            1007,
        ),
        st.text(max_size=20),
        broken_text,
    ),
    "broken close reason": broken_text.map(lambda bad: (closing(1000, bad), 1007)),
    "bad close code": bad_codes.map(lambda code: (closing(code), 1002)),
    "one-byte close": st.binary(min_size=1, max_size=1).map(
        lambda data: (client_frame(CLOSE, data), 1002)
    ),
    "oversize header": oversize.map(
        lambda size: (
            b"\x82\xfe" + size.to_bytes(2, "big")
            if size < 65536
            else b"\x82\xff" + size.to_bytes(8, "big"),
            1009,
        )
    ),
    "oversize fragments": st.integers(1, MAX_MESSAGE_BYTES).map(
        lambda size: (
            client_frame(BINARY, bytes(size), fin=False)
            + client_frame(CONTINUATION, bytes(MAX_MESSAGE_BYTES - size + 1)),
            1009,
        )
    ),
}
"""By kind: the bytes that violate, and the RFC's close code."""


@pytest.mark.parametrize("kind", violations)
@settings(EXAMPLES, max_examples=20)
@given(data=st.data(), before=st.lists(messages, max_size=3), after=st.binary(max_size=50))
def test_violations(
    server: Server,
    neighbour: Peer,
    kind: str,
    data: st.DataObject,
    before: list[tuple[int, bytes]],
    after: bytes,
) -> None:
    """A violation gets the RFC's close code after what precedes it; what follows is dropped."""
    violating, expected = data.draw(violations[kind])
    with Peer(server) as peer:
        peer.send(b"".join(client_frame(*message) for message in before) + violating + after)
        frames, code = peer.until_close()
        assert [each for each in frames if each[0] != PONG] == before
        assert code == expected
        assert peer.frame() is None
        peer.sock.close()
        assert peer.codes() == [expected]
    echo(neighbour)


@EXAMPLES
@given(announced=st.booleans(), code=valid_codes)
def test_ends_of_every_kind(server: Server, neighbour: Peer, announced: bool, code: int) -> None:
    """Whether the server closes or the peer just goes away, the end is told exactly once."""
    with Peer(server, "/obey") as peer:
        if announced:
            peer.send(client_frame(TEXT, b"close %d" % code))
            assert peer.until_close() == ([(TEXT, b"last")], code)
            peer.send(closing(code))
            assert peer.frame() is None
        else:
            code = 1006
        peer.sock.close()
        assert peer.codes() == [code]
    echo(neighbour)
    assert len(server.codes[peer.name]) == 1


async def test_the_usual_client(server: Server) -> None:
    """The `websockets` client exchanges messages of many sizes, pings and closes as ever."""
    async with connect(
        f"ws://127.0.0.1:{server.port}/echo/usual?usual", max_size=None, ping_interval=0.01
    ) as client:
        for size in (0, 1, 125, 126, 500, MAX_MESSAGE_BYTES):
            await client.send("x" * size)
            await client.send([b"a" * (size // 2), b"b" * (size - size // 2)])
            assert await client.recv() == "x" * size
            assert await client.recv() == b"a" * (size // 2) + b"b" * (size - size // 2)
        pong = await client.ping(b"there?")
        await pong
    assert client.close_code == 1000
    async with connect(f"ws://127.0.0.1:{server.port}/echo/usual?usual") as client:
        await client.send("x" * (MAX_MESSAGE_BYTES + 1))
        with pytest.raises(ConnectionClosed):
            await client.recv()
        assert client.close_code == 1009


async def test_behind_tls(secure: Server, certificate: Path) -> None:
    """Behind TLS messages, violations, closes and slow readers end as they do without it."""
    context = ssl.create_default_context(cafile=certificate)
    base = f"wss://127.0.0.1:{secure.port}"
    async with connect(f"{base}/echo/x?tls", ssl=context) as client:
        await client.send("x" * MAX_MESSAGE_BYTES)
        assert await client.recv() == "x" * MAX_MESSAGE_BYTES
        await client.send("x" * (MAX_MESSAGE_BYTES + 1))
        with pytest.raises(ConnectionClosed):
            await client.recv()
        assert client.close_code == 1009
    async with connect(f"{base}/obey?tls", ssl=context) as client:
        await client.send("close 4000")
        assert await client.recv() == "last"
        await client.wait_closed()
        assert client.close_code == 4000
    async with connect(f"{base}/obey?slow", ssl=context, max_queue=1, close_timeout=0.1) as client:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not secure.codes["slow"]:
                with suppress(ConnectionClosed):
                    await client.send("flood 16")
                await asyncio.sleep(0.01)
    assert secure.codes == {"tls": [1009, 4000], "slow": [1013]}


def test_a_failing_conversation(server: Server, neighbour: Peer) -> None:
    """A conversation that raises closes its own connection with 1011 and no other."""
    with Peer(server, "/obey") as peer:
        peer.send(client_frame(TEXT, b"raise"))
        assert peer.until_close() == ([], 1011)
        peer.send(closing(1011))
        assert peer.codes() == [1011]
    echo(neighbour)


def test_a_slow_reader(server: Server, neighbour: Peer) -> None:
    """A peer that does not read is dropped and counted; its neighbour keeps echoing."""
    before = server.count("tidelog_slow_consumers_total") or 0
    with Peer(server, "/obey", receive_bytes=4096) as peer:
        for _ in range(20):
            peer.send(client_frame(TEXT, b"flood 16"))
            echo(neighbour)
            if server.codes[peer.name]:
                break
        assert peer.codes() == [1013]
    assert server.count("tidelog_slow_consumers_total") == before + 1
    echo(neighbour)


def test_a_ping_flood_without_reading(server: Server, neighbour: Peer) -> None:
    """A peer that pings without reading the answers is dropped or outwaited, never buffered for."""
    flood = client_frame(PING, bytes(125)) * 2000
    with Peer(server, receive_bytes=4096) as peer:
        for _ in range(20):
            peer.send(flood)
            echo(neighbour)
        peer.send(closing(1000))
        peer.sock.close()
        assert peer.codes()[0] in (1000, 1006, 1013)
    echo(neighbour)


def test_half_open_peers(impatient: Server) -> None:
    """A peer that falls silent is pinged and dropped as 1006; one that answers pings stays."""
    with Peer(impatient) as silent, Peer(impatient) as alive:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not impatient.codes[silent.name]:
            assert time.monotonic() < deadline
            got = alive.frame()
            assert got is not None
            assert got.opcode is Opcode.PING
            alive.send(client_frame(PONG, bytes(got.data)))
        assert silent.codes() == [1006]
        got = silent.frame()
        assert got is not None
        assert got.opcode is Opcode.PING
        assert silent.frame() is None
        assert impatient.codes[alive.name] == []


def test_a_peer_that_ignores_our_close(impatient: Server) -> None:
    """A peer that does not answer our close frame is dropped after the timeout."""
    with Peer(impatient, "/obey") as peer:
        peer.send(client_frame(TEXT, b"close 4000"))
        assert peer.until_close() == ([(TEXT, b"last")], 4000)
        assert peer.frame() is None
        assert peer.codes() == [4000]


def test_a_violator_that_stays(impatient: Server) -> None:
    """A peer that goes on sending after its violation is dropped after the timeout."""
    with Peer(impatient) as peer:
        peer.send(client_frame(3))
        assert peer.until_close()[1] == 1002
        with pytest.raises(OSError):  # noqa: PT012 - a broken pipe or a reset, in any send
            for _ in range(1000):
                peer.send(bytes(100))
                time.sleep(0.01)
        assert peer.codes() == [1002]


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        (b"/nowhere", b"Sec-WebSocket-Version: 13\r\n", b"404"),
        (b"/echo/x", b"Sec-WebSocket-Version: 12\r\n", b"426"),
        (b"/echo/x", b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x\r\n", b"400"),
    ],
)
def test_refusals(server: Server, path: bytes, headers: bytes, status: bytes) -> None:
    """A refused upgrade gets a whole HTTP response and the end of the connection."""
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE_SECONDS) as sock:
        sock.sendall(
            b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
            b"Connection: Upgrade\r\n" + headers + b"\r\n"
        )
        answer = b""
        while part := sock.recv(4096):
            answer += part
    head, body = answer.split(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 " + status + b" ")
    assert b"content-length: %d" % len(body) in head
