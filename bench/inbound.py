"""CPU per inbound WebSocket message, by parser; the figure behind `tidelog.web.reader`.

The same masked client frames are given to our reader, to picows' protocol (through the buffer
calls an event loop would make) and to `websockets`' sans-I/O `ServerProtocol`; no sockets are read,
so the figure is the parser alone. Prints one JSON document.
"""

import argparse
import asyncio
import json
import logging
import os
import platform
import socket
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from websockets.frames import Frame, Opcode
from websockets.server import ServerProtocol

from tidelog.web.reader import FrameReader

REQUEST = (
    b"GET / HTTP/1.1\r\nHost: bench\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


def ours() -> Callable[[bytes], int]:
    """`FrameReader`, as `tidelog.web.websocket` uses it."""
    reader = FrameReader(1 << 20)

    def feed(chunk: bytes) -> int:
        messages = 0
        reader.feed(chunk)
        while reader.take() is not None:
            messages += 1
        return messages

    return feed


class _Transport(asyncio.Transport):
    """The least that picows asks of a transport; writes go nowhere."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__({"socket": sock, "peername": None, "sockname": None})

    def write(self, data: Any) -> None:
        """Drop."""

    def get_write_buffer_size(self) -> int:
        """Nothing waits."""
        return 0


def picows(sock: socket.socket) -> Callable[[bytes], int]:
    """The `WSProtocol` of picows with a listener in Python that takes each payload as bytes."""
    from picows import WSListener
    from picows.picows import WSAutoPingStrategy, WSProtocol  # type: ignore[attr-defined]

    seen = 0

    class Listener(WSListener):
        def on_ws_frame(self, _transport: Any, frame: Any) -> None:
            nonlocal seen
            frame.get_payload_as_bytes()
            seen += 1

    logger = logging.getLogger("picows")
    logger.setLevel(logging.CRITICAL)
    protocol: Any = WSProtocol(
        None,
        None,
        False,
        lambda _request: Listener(),
        logger,
        True,
        None,
        False,
        0,
        0,
        WSAutoPingStrategy.PING_WHEN_IDLE,
        False,
        1 << 20,
        None,
        16384,
    )
    protocol.connection_made(_Transport(sock))

    def feed(chunk: bytes) -> int:
        before = seen
        at = 0
        while at < len(chunk):
            buffer = protocol.get_buffer(65536)
            part = chunk[at : at + len(buffer)]
            buffer[: len(part)] = part
            at += len(part)
            protocol.buffer_updated(len(part))
        return seen - before

    feed(REQUEST)
    return feed


def sansio() -> Callable[[bytes], int]:
    """`websockets`' `ServerProtocol`, its documented sans-I/O layer."""
    protocol = ServerProtocol(max_size=1 << 20)
    protocol.receive_data(REQUEST)
    (request,) = protocol.events_received()
    protocol.send_response(protocol.accept(request))  # type: ignore[arg-type]

    def feed(chunk: bytes) -> int:
        protocol.receive_data(chunk)
        return len(protocol.events_received())

    return feed


def measure(feed: Callable[[bytes], int], chunk: bytes, messages: int, seconds: float) -> float:
    """CPU microseconds per message, the best of five rounds."""
    best = float("inf")
    for _ in range(5):
        done = 0
        start = time.process_time()
        while time.process_time() - start < seconds / 5:
            for _ in range(20):
                done += feed(chunk)
        best = min(best, (time.process_time() - start) / done * 1e6)
        if done % messages:
            raise AssertionError("a parser lost messages")
    return round(best, 3)


async def main() -> None:
    """Measure each parser with one and with 32 messages per chunk."""
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--size-bytes", type=int, default=200)
    flags.add_argument("--seconds", type=float, default=1.0, help="per figure")
    chosen = flags.parse_args()
    payload = os.urandom(chosen.size_bytes // 2).hex().encode()
    masked = Frame(Opcode.TEXT, payload).serialize(mask=True)
    tcp = socket.socket()  # picows sets TCP options; it is never connected
    parsers = {"tidelog": ours, "picows": lambda: picows(tcp), "websockets": sansio}
    figures: dict[str, dict[str, float]] = {}
    for name, make in parsers.items():
        figures[name] = {}
        for batch in (1, 32):
            cost = measure(make(), masked * batch, batch, chosen.seconds)
            figures[name][f"us_per_message_{batch}_per_chunk"] = cost
    tcp.close()
    print(
        json.dumps(
            {
                "bench": "inbound",
                "python": platform.python_version(),
                "cpus": os.cpu_count(),
                "versions": {name: version(name) for name in ("picows", "websockets")},
                "message_bytes": chosen.size_bytes,
                "figures": figures,
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    asyncio.run(main())
