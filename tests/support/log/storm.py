"""Many writers and a subscriber that keep going through kills, and the check of what they saw."""

import asyncio
import contextlib
import json
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine
from typing import Any

from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from support.probe.service import EXTENSION
from tidelog.config.schema import SCHEMA
from tidelog.log.verify import verify
from tidelog.store import open_store
from tidelog.store.rows import Entry

STREAMS = 4
_PAUSE_SECONDS = 0.05
"""Before the next try; shorter ones only take the processor from the server that is starting."""
BREATH_SECONDS = float(os.environ.get("TIDELOG_TEST_SOAK_BREATH", "0.01"))
"""Of a writer, after each put that was acknowledged: still several are under way at any moment, and
a storm takes less of the processors than writers that only wait for their answers would. In
`scripts/soak` they do only that."""
_LOST = (OSError, EOFError, asyncio.IncompleteReadError, WebSocketException, TimeoutError)

Position = tuple[int, int]
"""(committed_id, stream_serial)."""


class HttpClient:
    """One keep-alive connection that posts puts; raw, so that it costs the machine little."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        """Answers (status, JSON body); raises one of `_LOST` when the server is gone."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        head = f"POST {path} HTTP/1.1\r\nhost: test\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        try:
            answer = await reader.readuntil(b"\r\n\r\n")
            lines = answer.decode().split("\r\n")
            length = next(int(x.split(":")[1]) for x in lines if x.startswith("content-length"))
            return int(lines[0].split(" ")[1]), json.loads(await reader.readexactly(length))
        except _LOST:
            self.close()
            raise

    def close(self) -> None:
        """Drop the connection."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


class Storm:
    """Writers with unique keys, half over HTTP and half over WebSocket, and one subscriber.

    A writer repeats a put under its key until it is acknowledged, whatever happens to the server.
    """

    def __init__(self, ports: list[int], *, writers: int) -> None:
        self.ports = ports
        self.acknowledged: dict[str, Position] = {}
        self.statuses: Counter[str] = Counter()
        self.received: list[tuple[int, int, str]] = []
        """(committed_id, stream_serial, key) that the subscriber of stream `s0` got."""
        self._writers = writers
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, *, subscriber_port: int | None = None) -> None:
        """Let everybody begin."""
        for number in range(self._writers):
            port = self.ports[number % len(self.ports)]
            work = self._write_http if number % 4 < 2 else self._write_websocket
            self._tasks.append(asyncio.create_task(work(number, port)))
        self._subscriber = asyncio.create_task(self._subscribe(subscriber_port or self.ports[0]))

    async def finish(self, timeout_seconds: float = 60.0) -> None:
        """Let every writer have its last put acknowledged, then stop; the server must be up."""
        self._stopping = True
        async with asyncio.timeout(timeout_seconds):
            await asyncio.gather(*self._tasks)
            expected = sum(key.split("/")[0] == "s0" for key in self.acknowledged)
            while len(self.received) < expected:  # noqa: ASYNC110 - a peer's progress has no event
                await asyncio.sleep(_PAUSE_SECONDS)
        self._subscriber.cancel()
        await asyncio.gather(self._subscriber, return_exceptions=True)

    def _next_put(self, writer: int, number: int) -> tuple[str, bytes]:
        stream = f"s{(writer + number) % STREAMS}"
        key = f"{stream}/{writer}-{number}"
        put = {"op": "put", "stream": stream, "key": key, "value": {"by": writer, "n": number}}
        return key, json.dumps(put).encode()

    def _answered(self, key: str, result: dict[str, Any]) -> bool:
        """Whether the put is acknowledged; one that is must always have the same position."""
        status = result.get("status", "busy")
        self.statuses[status] += 1
        if status not in ("committed", "duplicate"):
            assert status in ("failed", "busy"), result
            return False
        position = (result["committed_id"], result["stream_serial"])
        assert self.acknowledged.setdefault(key, position) == position
        return True

    async def _write_http(self, writer: int, port: int) -> None:
        client = HttpClient(port)
        number = 0
        while not self._stopping or number == 0:
            key, body = self._next_put(writer, number)
            while True:
                try:
                    status, result = await client.post("/probe/entries", body)
                except _LOST:
                    await asyncio.sleep(_PAUSE_SECONDS)
                    continue
                if self._answered(key, result):
                    assert status in (200, 201)
                    await asyncio.sleep(BREATH_SECONDS)
                    break
                await asyncio.sleep(_PAUSE_SECONDS)
            number += 1
        client.close()

    async def _write_websocket(self, writer: int, port: int) -> None:
        number = 0
        while not self._stopping or number == 0:
            with contextlib.suppress(*_LOST):
                async with connect(f"ws://127.0.0.1:{port}/probe/ws", open_timeout=5) as socket:
                    while not self._stopping or number == 0:
                        key, body = self._next_put(writer, number)
                        await socket.send(body.decode())
                        if self._answered(key, json.loads(await socket.recv())):
                            number += 1
                            await asyncio.sleep(BREATH_SECONDS)
                        else:
                            await asyncio.sleep(_PAUSE_SECONDS)
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _subscribe(self, port: int) -> None:
        """Follow `s0` through every restart, always from where it got to."""
        while True:
            with contextlib.suppress(*_LOST):
                async with connect(f"ws://127.0.0.1:{port}/probe/ws", open_timeout=5) as socket:
                    after = self.received[-1][1] if self.received else 0
                    await socket.send(
                        json.dumps({"op": "subscribe", "stream": "s0", "after": after})
                    )
                    assert json.loads(await socket.recv())["op"] == "subscribed"
                    async for message in socket:
                        entry = json.loads(message)
                        self.received.append(
                            (entry["committed_id"], entry["stream_serial"], entry["key"])
                        )
            await asyncio.sleep(_PAUSE_SECONDS)

    async def check(self, location: str, post: Callable[..., Coroutine[Any, Any, Any]]) -> int:
        """Compare what was acknowledged and received with what is stored; returns the head."""
        entries = await read_log(location)
        places = {entry.entity: (entry.committed_id, entry.stream_serial) for entry in entries}
        assert len(places) == len(entries), "a key was committed twice"
        assert [entry.committed_id for entry in entries] == list(range(1, len(entries) + 1))
        for key, position in self.acknowledged.items():
            assert places.get(key) == position, f"acknowledged {key} at {position} is not there"
        serials: dict[str, list[int]] = defaultdict(list)
        for entry in entries:
            serials[entry.stream].append(entry.stream_serial)
        for stream, found in serials.items():
            assert found == list(range(1, len(found) + 1)), stream
        stored = [
            (entry.committed_id, entry.stream_serial, entry.entity)
            for entry in entries
            if entry.stream == "probe/s0"
        ]
        assert self.received == stored[: len(self.received)], "the subscriber saw something else"
        for key in list(self.acknowledged)[:: max(1, len(self.acknowledged) // 200)]:
            writer, number = map(int, key.split("/")[1].split("-"))
            status, result = await post("/probe/entries", self._next_put(writer, number)[1])
            assert (status, result["status"]) == (200, "duplicate")
            assert (result["committed_id"], result["stream_serial"]) == self.acknowledged[key]
        return len(entries)


async def read_log(location: str) -> list[Entry]:
    """All entries of a store that verifies and whose in-transaction state agrees with them."""
    store = await open_store(
        SCHEMA.extended([EXTENSION]), location, log_id="", node="", read_only=True
    )
    try:
        async for progress in verify(store):
            assert progress.finding is None, progress
        entries: list[Entry] = []
        while page := await store.entries(len(entries)):
            entries += page
        puts = Counter(entry.stream for entry in entries)
        for stream, count in puts.items():
            [row] = await store.rows("probe_stream", (stream.removeprefix("probe/"),))
            assert row[1] == count, f"{stream}: {count} entries, state says {row}"
        keys = await store.dedupe_count()
        assert keys == len(entries)
        return entries
    finally:
        await store.close()
