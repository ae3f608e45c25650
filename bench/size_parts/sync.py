"""Sync by size: a reconnect by partitions, a fetch by the size of its events."""

import asyncio
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import jwt
import psutil

from size_parts.figure import Figure, Measured
from sync_parts.logs import MODEL, Place
from sync_parts.wire import SCHEMA, SECRET, encode
from tidelog.client import SyncClient
from tidelog.client.backoff import Backoff
from tidelog.sync.protocol.profiles import CANONICAL, Model
from tidelog.testing.process import ServerProcess

EVENTS_PER_PARTITION = 20
LARGE_BYTES, SMALL_BYTES = 900_000, 9000
BATCH_BYTES = 1_000_000


def reconnect_by_partitions(home: Path, quick: bool) -> tuple[Measured, Measured]:
    """CPU of client and server for connections that find nothing new."""
    rounds = 5 if quick else 20

    def measured(partitions: int) -> Measured:
        names = [f"partition-{number:04}" for number in range(partitions)]
        with _server(home / str(partitions)) as process:
            _fill(process, [(name, 100) for name in names for _ in range(EVENTS_PER_PARTITION)])
            costs = asyncio.run(_reconnects(process, home / f"{partitions}.db", names, rounds))
        return {"partitions": partitions, "reconnects": rounds, **costs}

    return measured(1000), measured(10)


def fetch_by_event_size(home: Path, quick: bool) -> tuple[Measured, Measured]:
    """CPU of client and server for the first fetch of a partition."""
    total = 10_000_000 if quick else 100_000_000

    def measured(size: int) -> Measured:
        with _server(home / str(size)) as process:
            _fill(process, [("p", size)] * (total // size))
            costs = asyncio.run(_reconnects(process, home / f"{size}.db", ["p"], 0))
        return {"event_bytes": size, "events": total // size, **costs}

    return measured(LARGE_BYTES), measured(SMALL_BYTES)


FIGURES = (
    Figure("sync: reconnect with 1,000 over 10 partitions", "ms CPU", 5.0, reconnect_by_partitions),
    Figure("sync: fetch of the same bytes in large over small events", "ms CPU", 1.5,
           fetch_by_event_size),
)  # fmt: skip


@contextmanager
def _server(home: Path) -> Iterator[ServerProcess]:
    with Place(home, None).server() as process:
        yield process


def _token(client_id: str) -> str:
    claims = {
        "client_id": client_id,
        "exp": int(time.time()) + 86_400,
        "allowed_partition_prefixes": [""],
    }
    return jwt.encode(claims, SECRET, "HS256")


def _fill(process: ServerProcess, events: list[tuple[str, int]]) -> None:
    """Commit events of a partition and a size each."""
    numbers = count()
    each = max(1, min(100, BATCH_BYTES // max(size + 200 for _, size in events)))
    headers = {"authorization": f"Bearer {_token('writer')}", "x-sync-profile": CANONICAL}
    for start in range(0, len(events), each):
        batch = events[start : start + each]
        items = [_item(next(numbers), partition, size) for partition, size in batch]
        message = {
            "type": "submit_events",
            "msg_id": "m",
            "timestamp": 0,
            "payload": {"events": items},
            "protocol_version": "1.0",
        }
        request = urllib.request.Request(
            f"{process.url}/sync/v1/submit", encode(message), headers, method="POST"
        )
        with urllib.request.urlopen(request) as answer:
            assert answer.read().count(b'"committed_id"') == len(items)


def _item(number: int, partition: str, size: int) -> dict[str, Any]:
    data = {"number": number, "text": "x" * size}
    event = {"type": "event", "payload": {"schema": SCHEMA, "data": data}}
    return {"id": f"e{number}", "partitions": [partition], "event": event}


async def _reconnects(
    process: ServerProcess, path: Path, names: list[str], rounds: int
) -> dict[str, Any]:
    """CPU of one reconnect after the first fetch; without rounds that of the fetch."""
    spent = _stopwatch(process)
    async with SyncClient(
        process.url.replace("http", "ws") + "/sync",
        client_id="reader",
        token=_token("reader"),
        store=path,
        model=Model.parse(MODEL["tree_targets"], MODEL["schemas"], MODEL["model_version"]),
        profile=CANONICAL,
        partitions=names,
        backoff=Backoff(first=0.001, most=0.001),
    ) as client:
        await client.sync()
        core = client._opened  # noqa: SLF001 - what it checks by itself is part of the fetch
        while core is not None and core.store.unchecked:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
        if not rounds:
            return spent(1)
        await _reconnected(client)  # notes that everything was checked
        spent = _stopwatch(process)
        for _ in range(rounds):
            await _reconnected(client)
        return spent(rounds)


async def _reconnected(client: SyncClient) -> None:
    """End the connection, and wait for the next."""
    changes = client.changes()
    core, link = client._opened, client._link  # noqa: SLF001 - as a network would do it
    assert core is not None
    assert link is not None
    core.stop("bench")
    link.wake()
    async for change in changes:
        if change.name == "status_changed" and change.data["synced"]:
            return


def _stopwatch(process: ServerProcess) -> Callable[[int], dict[str, Any]]:
    """Started: gives CPU and time per operation, in milliseconds."""
    server = psutil.Process(process.pid)

    def now() -> tuple[float, float, float]:
        times = server.cpu_times()
        return time.process_time(), times.user + times.system, time.perf_counter()

    began = now()

    def spent(operations: int) -> dict[str, Any]:
        client, served, seconds = (
            1000 * (end - start) / operations for start, end in zip(began, now(), strict=True)
        )
        return {
            "cost": round(client + served, 2),
            "client_cpu_ms": round(client, 2),
            "server_cpu_ms": round(served, 2),
            "ms": round(seconds, 2),
        }

    return spent
