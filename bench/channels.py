"""Channels under load: publishes, appends, token streams to subscribers, and what they cost.

The server is the real process with its SQLite log, fsync on. The generator is this process: it
sends bytes that were signed before the clock started, on raw sockets, reads answers by their length
and frames by a pattern, and reports its own CPU, so that it is seen not to be the limit. Prints one
JSON document; what the server's CPU was for is in `cpu_us_by_part` (`by_part.py`).
"""

import argparse
import asyncio
import hashlib
import hmac
import json
import os
import platform
import random
import re
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import uvloop
from websockets.asyncio.client import connect

from by_part import PartMeter, SampledServer
from tidelog.testing.process import ServerProcess

APP_ID, KEY, SECRET = "bench", "bench-key", "a secret for the bench, long enough to be one"
CONFIG = f"""
[channels.versioned_messages]
enabled = true

[channels.ai_transport]
max_appends_per_message = 1000000

[limits]
send_buffer_messages = 100000

[[apps]]
id = "{APP_ID}"
key = "{KEY}"
secret = "{SECRET}"
"""
TOKEN = "{stream:06d}-{number:06d} token"
SEEN = re.compile(rb'"data":"(\d{6})-(\d{6}) ')
MARK = "message-"
COUNTED = MARK.encode()
"""What each frame that only is counted has once."""


def signed(path: str, body: bytes) -> bytes:
    """A whole signed POST, ready to be sent."""
    params = {
        "auth_key": KEY,
        "auth_timestamp": str(int(time.time())),
        "auth_version": "1.0",
        "body_md5": hashlib.md5(body).hexdigest(),
    }
    query = "&".join(f"{name}={value}" for name, value in sorted(params.items()))
    text = f"POST\n{path}\n{query}"
    signature = hmac.new(SECRET.encode(), text.encode(), hashlib.sha256).hexdigest()
    head = (
        f"POST {path}?{query}&auth_signature={signature} HTTP/1.1\r\nHost: bench\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def publish_bytes(channel: str, data: str, *, wants_serial: bool = False) -> bytes:
    """A signed publish."""
    body: dict[str, Any] = {"name": "token", "channel": channel, "data": data}
    if wants_serial:
        body["info"] = "subscription_count"
    return signed(f"/apps/{APP_ID}/events", json.dumps(body).encode())


def append_bytes(channel: str, serial: str, data: str) -> bytes:
    """A signed append."""
    path = (
        f"/apps/{APP_ID}/channels/{quote(channel, safe='')}/messages/"
        f"{quote(serial, safe='')}/append"
    )
    return signed(path, json.dumps({"data": data}).encode())


class Sender(asyncio.Protocol):
    """One keep-alive connection: sends the next request when the last was answered."""

    def __init__(self, requests: Sequence[bytes], sent: Callable[[int], None] | None) -> None:
        self.requests = requests
        self.answers: list[bytes] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.seconds: list[float] = []
        self._sent = sent
        self._at = 0
        self._started = 0.0
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: Any) -> None:
        """Wait for `go`."""
        self._transport = transport

    def go(self) -> None:
        """Send the next request, if there is one."""
        if self._at == len(self.requests):
            if not self.done.done():
                self.done.set_result(None)
            return
        if self._sent is not None:
            self._sent(self._at)
        self._started = time.perf_counter()
        assert self._transport is not None
        self._transport.write(self.requests[self._at])
        self._at += 1

    def data_received(self, data: bytes) -> None:
        """Look whether an answer is complete."""
        self._buffer += data
        head, mark, rest = self._buffer.partition(b"\r\n\r\n")
        if not mark:
            return
        length = int(re.search(rb"content-length: (\d+)", head, re.IGNORECASE)[1])  # type: ignore[index]
        if len(rest) < length:
            return
        if not head.startswith(b"HTTP/1.1 200"):
            self.done.set_exception(RuntimeError((head + rest)[:400].decode()))
            return
        self.seconds.append(time.perf_counter() - self._started)
        self.answers.append(rest[:length])
        self._buffer = rest[length:]
        self.go()

    def connection_lost(self, error: Exception | None) -> None:
        """The server must not hang up."""
        if not self.done.done():
            self.done.set_exception(error or RuntimeError("the server hung up"))

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.close()


async def run_senders(
    port: int,
    work: Sequence[Sequence[bytes]],
    sent: Callable[[int, int], None] | None = None,
) -> tuple[float, list[Sender]]:
    """Send each list of requests on a connection of its own; seconds, and the connections."""
    loop = asyncio.get_running_loop()
    senders = []
    for number, requests in enumerate(work):
        note = None if sent is None else (lambda at, number=number: sent(number, at))

        def make(requests: Sequence[bytes] = requests, note: Any = note) -> Sender:
            return Sender(requests, note)

        _, sender = await loop.create_connection(make, "127.0.0.1", port)
        senders.append(sender)
    started = time.perf_counter()
    for sender in senders:
        sender.go()
    await asyncio.gather(*(sender.done for sender in senders))
    took = time.perf_counter() - started
    for sender in senders:
        sender.close()
    return took, senders


class Watcher(asyncio.Protocol):
    """A V2 subscriber on a raw socket: counts frames, and notes when each token came."""

    def __init__(
        self, channels: Sequence[str], arrived: dict[tuple[int, int], float] | None
    ) -> None:
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.frames = 0
        self._channels = channels
        self._arrived = arrived
        self._rest = b""
        self._subscribed = 0
        self._is_open = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: Any) -> None:
        """Upgrade."""
        self._transport = transport
        transport.write(
            f"GET /app/{KEY}?protocol=2 HTTP/1.1\r\nHost: bench\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode()
        )

    def _subscribe(self) -> None:
        assert self._transport is not None
        for channel in self._channels:
            frame = json.dumps({"event": "sockudo:subscribe", "data": {"channel": channel}})
            payload = frame.encode()
            self._transport.write(bytes((0x81, 0x80 | len(payload))) + bytes(4) + payload)

    def data_received(self, data: bytes) -> None:
        """Count."""
        now = time.perf_counter()
        if not self.ready.done():
            self._rest += data
            if not self._is_open and b"\r\n\r\n" in self._rest:
                self._is_open = True
                self._subscribe()
            self._subscribed = self._rest.count(b"subscription_succeeded")
            if self._subscribed == len(self._channels):
                self._rest = b""
                self.ready.set_result(None)
            return
        data = self._rest + data
        end = 0
        for found in SEEN.finditer(data):
            self.frames += 1
            end = found.end()
            if self._arrived is not None:
                self._arrived[int(found[1]), int(found[2])] = now
        self._rest = data[max(end, len(data) - 64) :]

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.close()


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Meter:
    """CPU of the server and of this process over a block, and its wall time."""

    def __init__(self, server: ServerProcess) -> None:
        self._pid = server.pid
        self._parts = PartMeter(server)

    def start(self) -> None:
        """Begin."""
        self._parts.start()
        self._at = time.perf_counter()
        self._server, self._own = cpu_seconds(self._pid), time.process_time()

    def stop(self, operations: int) -> dict[str, Any]:
        """What `operations` cost."""
        took = time.perf_counter() - self._at
        server, own = cpu_seconds(self._pid) - self._server, time.process_time() - self._own
        return {
            "per_second": round(operations / took, 1),
            "server_cpu_us_each": round(server / operations * 1e6, 1),
            "server_cpu_share": round(server / took, 3),
            "generator_cpu_us_each": round(own / operations * 1e6, 1),
            "generator_cpu_share": round(own / took, 3),
            **self._parts.stop(operations),
        }


def quantiles(seconds: Sequence[float]) -> dict[str, float]:
    """p50 and p99 in milliseconds."""
    cuts = statistics.quantiles(seconds, n=100)
    return {"p50_ms": round(cuts[49] * 1000, 2), "p99_ms": round(cuts[98] * 1000, 2)}


async def create_messages(port: int, channels: Sequence[str]) -> list[str]:
    """One message per channel; their serials."""
    work = [[publish_bytes(channel, "", wants_serial=True)] for channel in channels]
    _, senders = await run_senders(port, work)
    answers = [json.loads(sender.answers[0])["channels"] for sender in senders]
    return [a[c]["message_serial"] for a, c in zip(answers, channels, strict=True)]


async def publishes(port: int, meter: Meter, connections: int, each: int) -> dict[str, Any]:
    """Publishes on keep-alive connections, a channel for each."""
    work = [
        [publish_bytes(f"publish-{c}", f"message {n} of {c}") for n in range(each)]
        for c in range(connections)
    ]
    meter.start()
    _, senders = await run_senders(port, work)
    cost = meter.stop(connections * each)
    return {"connections": connections, **cost, **_answer_times(senders)}


async def appends(port: int, meter: Meter, connections: int, each: int) -> dict[str, Any]:
    """Appends on keep-alive connections, a message for each."""
    channels = [f"append-{c}" for c in range(connections)]
    serials = await create_messages(port, channels)
    work = [
        [append_bytes(channel, serial, f"token {n} ") for n in range(each)]
        for channel, serial in zip(channels, serials, strict=True)
    ]
    meter.start()
    _, senders = await run_senders(port, work)
    cost = meter.stop(connections * each)
    return {"connections": connections, **cost, **_answer_times(senders)}


def _answer_times(senders: Sequence[Sender]) -> dict[str, float]:
    return quantiles([s for sender in senders for s in sender.seconds])


async def token_streams(
    port: int, meter: Meter, streams: int, each: int, subscribers: int
) -> dict[str, Any]:
    """Streams of appends, every one delivered to several subscribers."""
    loop = asyncio.get_running_loop()
    channels = [f"stream-{n}" for n in range(streams)]
    serials = await create_messages(port, channels)
    arrived: dict[tuple[int, int], float] = {}
    watchers: list[Watcher] = []
    for number in range(subscribers):
        noted = arrived if number == 0 else None
        _, watcher = await loop.create_connection(
            lambda noted=noted: Watcher(channels, noted),  # type: ignore[misc]
            "127.0.0.1",
            port,
        )
        await watcher.ready
        watchers.append(watcher)
    work = [
        [append_bytes(channel, serial, TOKEN.format(stream=number, number=n)) for n in range(each)]
        for number, (channel, serial) in enumerate(zip(channels, serials, strict=True))
    ]
    sent: dict[tuple[int, int], float] = {}

    def note(stream: int, number: int) -> None:
        sent[stream, number] = time.perf_counter()

    meter.start()
    took, _ = await run_senders(port, work, note)
    expected = streams * each
    await _delivered(watchers, expected)
    cost = meter.stop(expected)
    for watcher in watchers:
        watcher.close()
    delays = [arrived[key] - at for key, at in sent.items() if key in arrived]
    return {
        "streams": streams,
        "appends_each": each,
        "subscribers": subscribers,
        "appends_per_second": round(expected / took, 1),
        "deliveries_per_second": round(sum(w.frames for w in watchers) / took, 1),
        "delivered": sum(w.frames for w in watchers),
        "expected": expected * subscribers,
        **{name: value for name, value in cost.items() if name != "per_second"},
        "request_to_delivery": quantiles(delays),
    }


async def _delivered(watchers: Sequence[Watcher], frames: int) -> None:
    """Wait until each has so many, or half a minute."""
    deadline = time.perf_counter() + 30
    while any(w.frames < frames for w in watchers) and time.perf_counter() < deadline:  # noqa: ASYNC110 - protocols count
        await asyncio.sleep(0.005)


class Counter(Watcher):
    """A subscriber that only counts, so that fifty of them do not hold up the publishers."""

    def data_received(self, data: bytes) -> None:
        """Count."""
        if not self.ready.done():
            super().data_received(data)
            return
        data = self._rest + data
        self.frames += data.count(COUNTED)
        self._rest = data[1 - len(COUNTED) :]


async def publishes_to_many(
    port: int, meter: Meter, connections: int, each: int, subscribers: int
) -> dict[str, Any]:
    """Publishes to one channel, as many as the server takes, delivered to its subscribers."""
    loop = asyncio.get_running_loop()
    counters: list[Counter] = []
    for _ in range(subscribers):
        _, counter = await loop.create_connection(
            lambda: Counter(["publish-to-many"], None), "127.0.0.1", port
        )
        await counter.ready
        counters.append(counter)

    async def run(each: int) -> list[Sender]:
        work = [
            [publish_bytes("publish-to-many", f"{MARK}{n} of {c}") for n in range(each)]
            for c in range(connections)
        ]
        expected = counters[0].frames + connections * each
        meter.start()
        _, senders = await run_senders(port, work)
        await _delivered(counters, expected)
        return senders

    await run(5)  # the channel is there, and what a first publish makes
    before = sum(counter.frames for counter in counters)
    senders = await run(each)
    cost = meter.stop(connections * each)
    for counter in counters:
        counter.close()
    return {
        "connections": connections,
        "subscribers": subscribers,
        "delivered": sum(counter.frames for counter in counters) - before,
        "expected": connections * each * subscribers,
        **cost,
        **_answer_times(senders),
    }


class Asker(asyncio.Protocol):
    """One keep-alive connection that sends when it is told to, and counts the answers."""

    def __init__(self) -> None:
        self.answers = 0
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        """Ready."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Answers are small, and come one by one."""
        self.answers += data.count(b"HTTP/1.1 200")


async def paced(
    port: int, meter: Meter, rate: int, seconds: float, subscribers: int
) -> dict[str, Any]:
    """Publishes at a moderate rate, when chance has them, to the subscribers of one channel.

    Three of them note when each came: the first that subscribed, one in the middle, and the last.
    """
    loop = asyncio.get_running_loop()
    probes: list[dict[tuple[int, int], float]] = []
    watchers: list[Watcher] = []
    for number in range(subscribers):
        probed: dict[tuple[int, int], float] | None = None
        if number in (0, subscribers // 2, subscribers - 1):
            probed = {}
            probes.append(probed)
        _, watcher = await loop.create_connection(
            lambda probed=probed: (Counter if probed is None else Watcher)(["paced"], probed),  # type: ignore[misc]
            "127.0.0.1",
            port,
        )
        await watcher.ready
        watchers.append(watcher)
    chance = random.Random(1)
    waits = [chance.expovariate(rate) for _ in range(int(rate * seconds))]
    work = [
        publish_bytes("paced", TOKEN.format(stream=0, number=n) + MARK + "x" * 100)
        for n in range(len(waits))
    ]
    # So many that none is asked again before it has answered.
    askers = [(await loop.create_connection(Asker, "127.0.0.1", port))[1] for _ in range(128)]
    sent: dict[tuple[int, int], float] = {}
    meter.start()
    due = time.perf_counter()
    for number, (wait, request) in enumerate(zip(waits, work, strict=True)):
        due += wait
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        sent[0, number] = time.perf_counter()
        askers[number % len(askers)].transport.write(request)
    await _delivered(watchers, len(work))
    cost = meter.stop(len(work))
    for watcher in watchers:
        watcher.close()
    for asker in askers:
        asker.transport.close()
    return {
        "rate": rate,
        "subscribers": subscribers,
        "answered": sum(asker.answers for asker in askers),
        "delivered": sum(w.frames for w in watchers),
        "expected": len(work) * subscribers,
        **cost,
        "request_to_delivery": quantiles(
            [arrived[key] - at for arrived in probes for key, at in sent.items()]
        ),
    }


async def long_message(port: int, rounds: int, total: int) -> dict[str, Any]:
    """What the last of many appends to one message costs over an early one."""
    loop = asyncio.get_running_loop()
    ratios, early_ms, late_ms = [], [], []
    for number in range(rounds):
        channel = f"long-{number}"
        [serial] = await create_messages(port, [channel])
        _, watcher = await loop.create_connection(
            lambda channel=channel: Watcher([channel], None),  # type: ignore[misc]
            "127.0.0.1",
            port,
        )
        await watcher.ready
        work = [
            append_bytes(channel, serial, TOKEN.format(stream=number, number=n))
            for n in range(total)
        ]
        _, [sender] = await run_senders(port, [work])
        watcher.close()
        early = statistics.median(sender.seconds[10:210])
        late = statistics.median(sender.seconds[-200:])
        ratios.append(late / early)
        early_ms.append(early * 1000)
        late_ms.append(late * 1000)
    return {
        "appends": total,
        "rounds": rounds,
        "early_ms": round(statistics.median(early_ms), 3),
        "late_ms": round(statistics.median(late_ms), 3),
        "late_over_early": round(statistics.median(ratios), 3),
        "all_ratios": [round(ratio, 3) for ratio in ratios],
    }


async def bytes_on_disk(port: int, data_dir: Path, token_bytes: int, count: int) -> dict[str, Any]:
    """How much the data directory grows for appended text."""
    [serial] = await create_messages(port, ["disk"])
    work = [append_bytes("disk", serial, "x" * token_bytes) for _ in range(count)]
    before = _stored_bytes(data_dir)
    await run_senders(port, [work])
    grown = _stored_bytes(data_dir) - before
    return {
        "token_bytes": token_bytes,
        "appends": count,
        "bytes_per_append": round(grown / count, 1),
        "bytes_per_appended_byte": round(grown / count / token_bytes, 2),
    }


def _stored_bytes(data_dir: Path) -> int:
    """Bytes of all tables and indexes that hold something; free pages do not count."""
    with sqlite3.connect(f"file:{data_dir / 'tidelog.db'}?mode=ro", uri=True) as database:
        [(pages,)] = database.execute("SELECT page_count FROM pragma_page_count()")
        [(free,)] = database.execute("SELECT freelist_count FROM pragma_freelist_count()")
        [(size,)] = database.execute("SELECT page_size FROM pragma_page_size()")
    return int((pages - free) * size)


async def check(port: int) -> None:
    """The sockets really are what the protocol says, once, by a real client."""
    async with connect(f"ws://127.0.0.1:{port}/app/{KEY}?protocol=2") as socket:
        assert json.loads(await socket.recv())["event"] == "sockudo:connection_established"


async def main() -> None:
    """Run every part against one server."""
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--connections", type=int, default=64)
    flags.add_argument("--requests", type=int, default=500, help="per connection")
    flags.add_argument("--streams", type=int, default=200)
    flags.add_argument("--appends", type=int, default=500, help="per stream")
    flags.add_argument("--subscribers", type=int, default=5)
    flags.add_argument("--long", type=int, default=4000, help="appends to one message")
    flags.add_argument("--rate", type=int, default=500, help="paced publishes per second, to 50")
    flags.add_argument("--only", default="", help="comma list of parts")
    chosen = flags.parse_args()
    wanted = set(chosen.only.split(",")) - {""}
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as directory:
        data_dir = Path(directory) / "data"
        config = Path(directory) / "tidelog.toml"
        config.write_text(CONFIG)
        with SampledServer(data_dir=data_dir, arguments=("--config", str(config))) as server:
            server.start()
            port, meter = server.port, Meter(server)
            await check(port)
            parts: dict[str, Callable[[], Any]] = {
                "publish": lambda: publishes(port, meter, chosen.connections, chosen.requests),
                "publish_to_50": lambda: publishes_to_many(
                    port, meter, chosen.connections, chosen.requests, 50
                ),
                "append": lambda: appends(port, meter, chosen.connections, chosen.requests),
                "token_streams": lambda: token_streams(
                    port, meter, chosen.streams, chosen.appends, chosen.subscribers
                ),
                "paced": lambda: paced(port, meter, chosen.rate, 10.0, 50),
                "long_message": lambda: long_message(port, 5, chosen.long),
                "disk": lambda: bytes_on_disk(port, data_dir, 6, 4000),
                "disk_large": lambda: bytes_on_disk(port, data_dir, 200, 4000),
            }
            figures = {}
            for name, part in parts.items():
                if not wanted or name in wanted:
                    figures[name] = await part()
    print(
        json.dumps(
            {
                "bench": "channels",
                "python": platform.python_version(),
                "cpus": os.cpu_count(),
                "load_average": os.getloadavg(),
                "store": "sqlite, synchronous=FULL",
                "figures": figures,
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
