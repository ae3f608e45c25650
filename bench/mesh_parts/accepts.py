"""Durable, deduplicated accepts a second with so many senders at once, on either broker.

A sender has one message under way: it sends the next when the last was acknowledged. Several share
a connection, as the rows of one daemon do. Ours are raw sockets with frames made beforehand, those
of NATS are `nats-py`; the CPU of this process is reported, so that it is seen which was the limit.
"""

import asyncio
import gc
import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import nats
import psutil
from nats.js.api import StorageType, StreamConfig
from nats.js.client import JetStreamContext

# As in tidelog.web.reader: the C function of `websockets`.
from websockets.frames import apply_mask  # type: ignore[attr-defined]

from by_part import PartMeter
from by_part import medians as parts_of
from mesh_parts.brokers import SLUG, TOPIC, Nats, Tidelog
from tidelog.mesh.protocol.fingerprint import make_envelope
from tidelog.mesh.protocol.identity import MemberKey, from_base64url

if TYPE_CHECKING:
    from nats.aio.client import Client

PAYLOAD_BYTES = 200
ACK_SECONDS = 60.0
"""No acknowledgement may take longer."""

encode = msgspec.json.encode


class Shape(NamedTuple):
    """How the senders are spread."""

    connections: int
    each: int
    """Senders on one connection."""

    @property
    def name(self) -> str:
        """As it is in the document."""
        return f"{self.connections}_connections_of_{self.each}"


def payload(number: int) -> str:
    """What both brokers are sent."""
    return f"{number:08d}".ljust(PAYLOAD_BYTES, "x")


class Round(NamedTuple):
    """What one round saw."""

    seconds: float
    latencies: list[float]
    own_cpu: float


class _Sends(asyncio.Protocol):
    """One connection of a member to our broker, once it is open."""

    def __init__(self, key: MemberKey) -> None:
        self.is_ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ended: asyncio.Future[None] = self.is_ready
        self._key = key
        self._buffer = b""
        self._take: Callable[[bytes], None] = self._greet
        self._is_open = False
        self._frames: Sequence[bytes] = ()
        self._next = 0
        self._sent_at: list[float] = []
        self._acknowledged = 0
        self.latencies: list[float] = []
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: Any) -> None:
        """Upgrade."""
        self._transport = transport
        transport.write(
            f"GET /mesh/{SLUG}/ws HTTP/1.1\r\nHost: bench\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode()
        )

    def data_received(self, data: bytes) -> None:
        """Take every whole frame."""
        data = self._buffer + data
        if not self._is_open:
            head, mark, data = data.partition(b"\r\n\r\n")
            if not mark:
                self._buffer = head
                return
            self._is_open = True
        at = 0
        while len(data) - at >= 2:
            size, start = data[at + 1], at + 2
            if size == 126:
                size, start = int.from_bytes(data[at + 2 : at + 4], "big"), at + 4
            if len(data) < start + size:
                break
            self._take(data[start : start + size])
            at = start + size
        self._buffer = data[at:]

    def connection_lost(self, error: Exception | None) -> None:
        """The broker must not hang up."""
        if not self.ended.done():
            self.ended.set_exception(error or RuntimeError("the broker hung up"))

    def _greet(self, frame: bytes) -> None:
        said = msgspec.json.decode(frame)
        match said["type"]:
            case "hello":
                signature = self._key.sign_hello(SLUG, from_base64url(said["challenge"]))
                self._write(
                    {
                        "type": "hello",
                        "member_pubkey": self._key.public_hex,
                        "signature": signature,
                    }
                )
            case "welcome":
                self._write(
                    {
                        "type": "feature_negotiation_request",
                        "require": ["client_message_id_dedupe"],
                        "optional": [],
                    }
                )
            case "feature_negotiation_response":
                self._take = self._acknowledge
                self.is_ready.set_result(None)

    def _write(self, message: dict[str, Any]) -> None:
        assert self._transport is not None
        self._transport.write(masked(encode(message)))

    def go(self, frames: Sequence[bytes], window: int) -> "asyncio.Future[None]":
        """Send these with so many under way; resolved when all are acknowledged."""
        self._frames, self._next, self._acknowledged = frames, 0, 0
        self._sent_at, self.latencies = [0.0] * len(frames), []
        self.ended = asyncio.get_running_loop().create_future()
        for _ in range(min(window, len(frames))):
            self._send_next()
        return self.ended

    def _send_next(self) -> None:
        assert self._transport is not None
        self._sent_at[self._next] = time.perf_counter()
        self._transport.write(self._frames[self._next])
        self._next += 1

    def _acknowledge(self, frame: bytes) -> None:
        if b'"code":201' not in frame:
            if b'"type":"peer_' not in frame:
                self.ended.set_exception(RuntimeError(f"not accepted: {frame[:300]!r}"))
            return
        ref = int(frame[frame.index(b'"ref":') + 6 : frame.index(b',"code"')])
        self.latencies.append(time.perf_counter() - self._sent_at[ref - 1])
        self._acknowledged += 1
        if self._next < len(self._frames):
            self._send_next()
        elif self._acknowledged == len(self._frames):
            self.ended.set_result(None)

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.abort()


def masked(text: bytes) -> bytes:
    """A client's text frame."""
    size = len(text)
    head = bytes((0x81, 0x80 | size)) if size < 126 else b"\x81\xfe" + size.to_bytes(2, "big")
    key = os.urandom(4)
    content: bytes = apply_mask(text, key)
    return head + key + content


def send_frame(ref: int, topic: str, client_message_id: str, body: str) -> bytes:
    """A send as a daemon makes it."""
    envelope = make_envelope(destination_kind="topic", destination_ref=topic, body=body.encode())
    fields = {
        "type": "send",
        "ref": ref,
        "client_message_id": client_message_id,
        "request_fingerprint": envelope.fingerprint().hex(),
        **msgspec.json.decode(envelope.payload()),
    }
    return masked(encode(fields))


class TidelogSenders:
    """Connections to our broker."""

    def __init__(self, broker: Tidelog) -> None:
        self.pid = broker.pid
        self.parts = PartMeter(getattr(broker, "process", None))
        self._broker = broker
        self._members: list[tuple[MemberKey, str]] = []
        """Each with a topic of its own, so that nobody receives anything."""
        self._sends: list[_Sends] = []
        self._round = 0

    async def open(self, connections: int) -> None:
        """Connect and negotiate."""
        loop = asyncio.get_running_loop()
        for number in range(connections):
            if number == len(self._members):
                topic = f"{TOPIC}-{number}"
                self._members.append((self._broker.member(f"member-{number}", topic), topic))
            key, _ = self._members[number]
            _, sends = await loop.create_connection(
                lambda key=key: _Sends(key),  # type: ignore[misc]
                "127.0.0.1",
                self._broker.port,
            )
            await asyncio.wait_for(sends.is_ready, ACK_SECONDS)
            self._sends.append(sends)

    async def drive(self, each: int, messages: int) -> Round:
        """One round; each message has an id of its own."""
        self._round += 1
        count = messages // len(self._sends)
        frames = [
            [
                send_frame(ref, topic, f"{os.getpid()}-{self._round}-{number}-{ref}", payload(ref))
                for ref in range(1, count + 1)
            ]
            for number, (_, topic) in enumerate(self._members[: len(self._sends)])
        ]
        gc.collect()
        gc.disable()
        own, started = time.process_time(), time.perf_counter()
        try:
            async with asyncio.timeout(ACK_SECONDS + messages / 100):
                await asyncio.gather(
                    *(
                        sends.go(own_frames, each)
                        for sends, own_frames in zip(self._sends, frames, strict=True)
                    )
                )
        finally:
            gc.enable()
        took = time.perf_counter() - started
        latencies = [second for sends in self._sends for second in sends.latencies]
        return Round(took, latencies, time.process_time() - own)

    async def close(self) -> None:
        """Hang up."""
        for sends in self._sends:
            sends.close()
        self._sends = []


class NatsSenders:
    """Connections of `nats-py`."""

    def __init__(self, broker: Nats) -> None:
        self.pid = broker.pid
        self.parts = PartMeter(None)
        self._broker = broker
        self._clients: list[Client] = []
        self._streams: list[JetStreamContext] = []
        self._round = 0

    async def open(self, connections: int) -> None:
        """Connect; the stream keeps ids for two minutes, its default."""
        for _ in range(connections):
            client = await nats.connect(f"nats://127.0.0.1:{self._broker.port}")
            self._clients.append(client)
            self._streams.append(client.jetstream())
        stream = StreamConfig(
            name="bench", subjects=[TOPIC], storage=StorageType.FILE, duplicate_window=120
        )
        await self._streams[0].add_stream(stream)

    async def drive(self, each: int, messages: int) -> Round:
        """One round; each message has an id of its own."""
        self._round += 1
        count = messages // (len(self._streams) * each)
        bodies = [payload(number).encode() for number in range(count)]
        latencies: list[float] = []

        async def publish(stream: JetStreamContext, sender: str) -> None:
            for number, body in enumerate(bodies):
                headers = {"Nats-Msg-Id": f"{sender}-{number}"}
                at = time.perf_counter()
                ack = await stream.publish(TOPIC, body, timeout=ACK_SECONDS, headers=headers)
                if ack.duplicate:
                    raise RuntimeError("NATS took a new id for an old one")
                latencies.append(time.perf_counter() - at)

        gc.collect()
        gc.disable()
        own, started = time.process_time(), time.perf_counter()
        try:
            await asyncio.gather(
                *(
                    publish(stream, f"{os.getpid()}-{self._round}-{number}-{sender}")
                    for number, stream in enumerate(self._streams)
                    for sender in range(each)
                )
            )
        finally:
            gc.enable()
        return Round(time.perf_counter() - started, latencies, time.process_time() - own)

    async def close(self) -> None:
        """Hang up."""
        for client in self._clients:
            await client.close()
        self._clients, self._streams = [], []


Senders = TidelogSenders | NatsSenders


def _cpu(pid: int) -> float:
    used = psutil.Process(pid).cpu_times()
    return used.user + used.system


async def _measured(senders: Senders, shape: Shape, messages: int) -> dict[str, Any]:
    senders.parts.start()
    before = _cpu(senders.pid)
    done = await senders.drive(shape.each, messages)
    server, count = _cpu(senders.pid) - before, len(done.latencies)
    latencies = sorted(done.latencies)
    return {
        "accepts": count,
        "accepts_per_s": count / done.seconds,
        "p50_ms": latencies[count // 2] * 1000,
        "p99_ms": latencies[count * 99 // 100] * 1000,
        "server_cpu_us_each": server / count * 1e6,
        "server_cpu_share": server / done.seconds,
        "generator_cpu_share": done.own_cpu / done.seconds,
        **senders.parts.stop(count),
    }


async def measure_accepts(
    brokers: dict[str, Senders], shapes: Sequence[Shape], repeats: int, messages: int
) -> dict[str, Any]:
    """Every shape on every broker; they take turns, and the median of the rounds counts."""
    document: dict[str, Any] = {}
    for shape in shapes:
        rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in brokers}
        for senders in brokers.values():
            await senders.open(shape.connections)
            await senders.drive(shape.each, max(messages // 8, shape.connections * shape.each))
        for _ in range(repeats):
            for name, senders in brokers.items():
                rounds[name].append(await _measured(senders, shape, messages))
        for senders in brokers.values():
            await senders.close()
        document[shape.name] = {name: _medians(found) for name, found in rounds.items()}
    return document


def _medians(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    medians: dict[str, Any] = {
        name: round(statistics.median(one[name] for one in rounds), 2)
        for name in rounds[0]
        if name != "cpu_us_by_part"
    }
    medians |= parts_of(rounds)
    medians["accepts_per_s_rounds"] = [round(one["accepts_per_s"]) for one in rounds]
    return medians
