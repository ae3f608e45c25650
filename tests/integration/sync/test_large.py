"""Partitions whose events are large: fetched in pages that fit a socket, by whoever asks."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.sync.peer import (
    EVENT,
    MODEL,
    Peer,
    SyncNode,
    connected,
    envelope,
    note,
    outcome,
    sync_server,
    token,
)
from tidelog.base.settings.limits import Limits
from tidelog.client import SyncClient
from tidelog.client.backoff import Backoff
from tidelog.sync.protocol.profiles import Model

WAIT_SECONDS = 60
PAGE_BYTES = 1_048_576
KB = 1000
BACKLOG = int(os.environ.get("TIDELOG_TEST_SOAK_BACKLOG", "5000"))
"""Drafts of a long time offline, a hundred batches; `scripts/soak` has more."""


def client_of(url: str | None, folder: Path, name: str = "ada", **settings: Any) -> SyncClient:
    """A client of the event profile that counts the events of `p`."""
    return SyncClient(
        url,
        client_id=name,
        token=token(name),
        store=folder / f"{name}.db",
        model=Model.parse(MODEL["tree_targets"], MODEL["schemas"], MODEL["model_version"]),
        profile=EVENT,
        reduce=lambda state, event: {"n": state.get("n", 0) + 1},
        backoff=Backoff(first=0.02, most=0.2),
        **{"partitions": ["p"], **settings},
    )


async def fill(url: str, count: int, size: int) -> None:
    """Commit events of about that many bytes."""
    each = max(1, min(100, 900 * KB // size))
    async with connected(url, "writer") as writer:
        for start in range(0, count, each):
            numbers = range(start, min(start + each, count))
            items = [note(f"e{number}", data=f"{number:06}" + "x" * size) for number in numbers]
            assert outcome(await writer.submit(*items)) == ["committed"] * len(items)


@asynccontextmanager
async def filled(
    folder: Path, location: str, count: int, size: int, **options: Any
) -> AsyncIterator[SyncNode]:
    """A server with a partition `p` of events of that size."""
    async with sync_server(folder, store=location, **options) as node:
        await fill(node.ws_url, count, size)
        yield node


@pytest.mark.parametrize(("count", "size"), [(55, 900 * KB), (150, 60 * KB)])
async def test_a_client_fetches_a_partition_of_large_events(
    tmp_path: Path, store_location: str, count: int, size: int
) -> None:
    """The smallest page by number is 45 MB here, or 3 MB: more than is ever sent at once."""
    async with (
        asyncio.timeout(WAIT_SECONDS),
        filled(tmp_path, store_location, count, size) as node,
        client_of(node.ws_url, tmp_path) as client,
    ):
        changes = client.changes()
        await client.sync()
        assert client.view("p") == {"n": count}
        told = [change.name for change in list(changes._waiting)]
        assert "error" not in told
        assert told.count("connected") == 1
        assert node.server.metrics.slow_consumers._value.get() == 0


async def test_pages_are_cut_by_bytes(tmp_path: Path, store_location: str) -> None:
    """By those asked for, never more than a mebibyte, and at least one event."""
    count, size = 60, 60 * KB
    async with (
        filled(tmp_path, store_location, count, size) as node,
        connected(node.ws_url) as peer,
    ):

        async def events(**fields: Any) -> int:
            return len((await peer.sync("p", limit=1000, **fields))["events"])

        assert await events() == PAGE_BYTES // size
        assert await events(max_bytes=10**9) == PAGE_BYTES // size
        assert await events(max_bytes=200 * KB) == 3
        assert await events(max_bytes=200_000.0) == 3
        for tiny in (1, 0, -5, size):
            assert await events(max_bytes=tiny) == 1
        several = await peer.sync("p", "q", max_bytes=200 * KB)
        assert [event["committed_id"] for event in several["events"]] == [1, 2, 3]
        assert (several["next_since_committed_id"], several["has_more"]) == (3, True)
        whole = await peer.whole("p", max_bytes=300 * KB)
        assert [event["committed_id"] for event in whole] == list(range(1, count + 1))
        last = await peer.sync("p", since=count - 1, max_bytes=1)
        assert (len(last["events"]), last["has_more"]) == (1, False)
        for wrong in ("many", None, True, 1.5):
            await peer.send(
                "sync", {"partitions": ["p"], "since_committed_id": 0, "max_bytes": wrong}
            )
            assert (await peer.expect("error"))["code"] == "bad_request"


async def test_pages_that_were_asked_for_in_advance_wait_for_their_reader(
    tmp_path: Path, store_location: str
) -> None:
    """Forty pages of a megabyte make nobody a slow consumer who reads them later."""
    async with (
        asyncio.timeout(WAIT_SECONDS),
        filled(tmp_path, store_location, 2, 900 * KB) as node,
        connected(node.ws_url, "late") as late,
        connected(node.ws_url, "other") as other,
    ):
        late.socket.transport.pause_reading()
        for _ in range(40):
            await late.send("sync", {"partitions": ["p"], "since_committed_id": 0})
        for _ in range(60):  # time enough for the server to make all of them, if it did
            await other.sync("p")
        assert node.server.metrics.slow_consumers._value.get() == 0
        late.socket.transport.resume_reading()
        for _ in range(40):
            assert len((await late.expect("sync_response"))["events"]) == 1


async def test_the_least_number_of_events_holds_for_small_ones(
    tmp_path: Path, store_location: str
) -> None:
    """A wish for two is served as fifty, whatever the bytes asked for allow beyond that."""
    async with (
        filled(tmp_path, store_location, 120, 10) as node,
        connected(node.ws_url) as peer,
    ):
        assert len((await peer.sync("p", limit=2))["events"]) == 50
        assert len((await peer.sync("p", limit=2, max_bytes=PAGE_BYTES))["events"]) == 50
        assert len((await peer.sync("p", limit=1000))["events"]) == 120


async def test_pages_over_http_are_cut_by_bytes(tmp_path: Path, store_location: str) -> None:
    """The same request, the same page."""
    size = 60 * KB
    headers = {"authorization": f"Bearer {token('c')}", "x-sync-profile": EVENT}
    async with (
        filled(tmp_path, store_location, 40, size) as node,
        httpx.AsyncClient(base_url=node.server.url, headers=headers, verify=False) as http,
    ):
        seen: list[int] = []
        more: dict[str, Any] = {"since_committed_id": 0}
        lengths = []
        while more:
            payload = {"partitions": ["p"], "max_bytes": 500 * KB, **more}
            answer = await http.post("/sync/v1/sync", content=envelope("sync", payload))
            assert answer.status_code == 200, answer.text
            page = answer.json()["payload"]
            seen += [event["committed_id"] for event in page["events"]]
            lengths.append(len(page["events"]))
            more = {
                "since_committed_id": page["next_since_committed_id"],
                "sync_to_committed_id": page["sync_to_committed_id"],
            }
            more = more if page["has_more"] else {}
        assert seen == list(range(1, 41))
        assert lengths == [8, 8, 8, 8, 8]
        payload = {"partitions": ["p"], "since_committed_id": 0}
        answer = await http.post("/sync/v1/sync", content=envelope("sync", payload))
        assert len(answer.json()["payload"]["events"]) == PAGE_BYTES // size


async def test_an_answer_makes_nobody_a_slow_consumer(tmp_path: Path) -> None:
    """However small the send buffer is; broadcasts that pile up still do."""
    limits = Limits(send_buffer_bytes=65_536)
    async with (
        filled(tmp_path, "", 30, 300 * KB, limits=limits) as node,
        connected(node.ws_url, max_queue=1) as reader,
        connected(node.ws_url, "writer") as writer,
    ):
        slow = node.server.metrics.slow_consumers._value
        assert len(await reader.whole("p")) == 30
        assert slow.get() == 0
        await reader.subscribe("p")
        await pile_up(node, writer)
        assert slow.get() == 1


async def pile_up(node: SyncNode, writer: Peer) -> None:
    """Broadcast until somebody who does not read is dropped."""
    number = 0
    while not node.server.metrics.slow_consumers._value.get():
        number += 1
        await writer.submit(note(f"more{number}", data="x" * 900 * KB))


class Line:
    """A proxy on this machine whose connections are slow, or break after so many bytes."""

    def __init__(self, url: str, *, bytes_per_second: int = 0, breaks_after: int = 0) -> None:
        self._target = httpx.URL(url)
        self._bytes_per_second = bytes_per_second
        self._breaks_after = breaks_after
        self._tasks: set[asyncio.Task[None]] = set()
        self.url = ""
        self.connections = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Line"]:
        """Listen for the length of the block."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        self.url = str(self._target.copy_with(port=port))
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(
        self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter
    ) -> None:
        self.connections += 1
        host, port = self._target.host, self._target.port
        from_server, to_server = await asyncio.open_connection(host, port, limit=65_536)
        for way in (self._up(from_client, to_server), self._down(from_server, to_client)):
            task = asyncio.create_task(way)
            self._tasks.add(task)
            task.add_done_callback(lambda _: to_client.close())
            task.add_done_callback(lambda _: to_server.close())

    async def _up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()

    async def _down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        passed = 0
        while data := await reader.read(8192):
            passed += len(data)
            if self._breaks_after and passed > self._breaks_after:
                return
            writer.write(data)
            await writer.drain()
            if self._bytes_per_second:
                await asyncio.sleep(len(data) / self._bytes_per_second)


async def test_a_slow_line_makes_progress(tmp_path: Path) -> None:
    """An event takes longer than the heartbeat's time, and each part of it is a sign of life."""
    count = 3
    async with (
        asyncio.timeout(WAIT_SECONDS),
        filled(tmp_path, "", count, 900 * KB, heartbeat_timeout_ms=2000) as node,
        Line(node.ws_url, bytes_per_second=250 * KB).open() as line,
        client_of(line.url, tmp_path) as client,
    ):
        await client.sync()
        assert client.view("p") == {"n": count}


async def test_a_line_that_breaks_is_asked_for_less(tmp_path: Path) -> None:
    """No connection lasts for a whole page of the usual size; halves of halves do pass."""
    count = 200
    async with (
        asyncio.timeout(WAIT_SECONDS),
        filled(tmp_path, "", count, 8 * KB) as node,
        Line(node.ws_url, breaks_after=300 * KB).open() as line,
        client_of(line.url, tmp_path) as client,
    ):
        await client.sync()
        assert client.view("p") == {"n": count}
        assert line.connections > 2


def write_drafts(client: SyncClient, count: int) -> None:
    """A backlog from a long time offline, in one transaction: each would be a sync of the disk."""
    store = client._core.store
    with store._file.transaction():
        for number in range(1, count + 1):
            event = note("", data=number)["event"]
            store._file.run(
                "sync_insert_draft",
                *(f"d{number:05}", event["type"], json.dumps(event["payload"]), None, '["p"]'),
                *(store.client_id, number, number),
            )


@pytest.mark.parametrize(
    ("count", "options"),
    [
        (BACKLOG, {}),
        (250, {"max_in_flight_drafts": 30}),
        (5, {"max_in_flight_drafts": 1}),
    ],
)
async def test_a_backlog_drains(tmp_path: Path, count: int, options: dict[str, Any]) -> None:
    """However long it is, and however few drafts may be in flight."""
    async with asyncio.timeout(WAIT_SECONDS), sync_server(tmp_path, **options) as node:
        async with client_of(None, tmp_path) as client:
            write_drafts(client, count)
        async with client_of(node.ws_url, tmp_path) as client:
            changes = client.changes()
            await client.wait(f"d{count:05}")
            assert client.pending() == []
            assert client.view("p") == {"n": count}
            assert "error" not in [change.name for change in list(changes._waiting)]
        async with connected(node.ws_url) as peer:
            events = await peer.whole("p", limit=1000)
        assert [event["id"] for event in events] == [f"d{n:05}" for n in range(1, count + 1)]


async def test_no_larger_batch_is_invited_than_may_be_in_flight(tmp_path: Path) -> None:
    """Any client that keeps to what the handshake says gets through."""
    async with (
        sync_server(tmp_path, max_in_flight_drafts=3) as node,
        connected(node.ws_url) as peer,
    ):
        assert peer.received[0]["payload"]["limits"]["max_batch_size"] == 3
        await peer.send("submit_events", {"events": [note(f"a{n}") for n in range(4)]})
        assert (await peer.expect("error"))["code"] == "rate_limited"
        assert outcome(await peer.submit(*(note(f"b{n}") for n in range(3)))) == ["committed"] * 3


async def test_pruning_a_live_client_fetches_nothing_again(
    tmp_path: Path, store_location: str
) -> None:
    """What it was told of and what it wrote itself, while it was connected, is in the snapshot."""
    async with (
        asyncio.timeout(WAIT_SECONDS),
        filled(tmp_path, store_location, 100, 10) as node,
        client_of(node.ws_url, tmp_path) as client,
        connected(node.ws_url, "writer") as writer,
    ):
        await client.sync()
        await writer.submit(*(note(f"live{number}") for number in range(60)))
        draft = await client.submit(partitions=["p"], event=note("")["event"])
        await client.wait(draft.id)
        assert client.view("p") == {"n": 161}
        assert client.save_snapshot("p") == 161
        assert client.prune() == 161
        changes = client.changes()
        node.service.clients["ada"].close(1001)
        async for change in changes:
            if change.name == "status_changed" and change.data["synced"]:
                break
            if change.name == "sync_page":
                assert (change.data["events"], change.data["through"]) == (0, 161)
        assert client.view("p") == {"n": 161}
        assert list(client._core.store.rows()) == []
