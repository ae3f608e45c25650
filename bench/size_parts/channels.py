"""Channels by size: a publish by subscribed channels, a row of history by messages."""

import asyncio
import hashlib
import hmac
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import Raw

from channels import APP_ID, CONFIG, KEY, SECRET, Meter, Watcher, publish_bytes, run_senders
from size_parts.figure import Figure, Measured
from tidelog.channels.protocol.names import stream_name
from tidelog.channels.protocol.verbs import CREATE
from tidelog.channels.protocol.version import SURFACE, Body, encode_body, version_serial
from tidelog.config.schema import SCHEMA
from tidelog.log.decision import RowChange
from tidelog.log.draft import Draft, to_entry
from tidelog.store import open_store
from tidelog.store.rows import Effects, Entry, Names
from tidelog.testing.process import ServerProcess

SOCKETS = 100
PUBLISHES = 1000
"""In each round."""
ROUNDS = 7
READS = 500
BATCH = 10_000
"""Messages of one transaction of a store that is filled."""
LOG_ID = "01JSIZE0000000000000000000"


def publish_by_channels(home: Path, quick: bool) -> tuple[Measured, Measured]:
    """CPU of the server for a publish to channels that a hundred sockets share out.

    Both servers run side by side and take turns, so that both see the same machine. The publishes
    go to one channel of each socket, or the large size would be measured by first publishes.
    """
    sizes = 20_000 if quick else 100_000, 100
    with _server(home / "large") as large, _server(home / "small") as small:
        costs = asyncio.run(_publishes(tuple(zip((large, small), sizes, strict=True))))
    first, second = (
        {"channels": size, "sockets": SOCKETS, "publishes": PUBLISHES * ROUNDS, "cost": cost}
        for size, cost in zip(sizes, costs, strict=True)
    )
    return first, second


def history_by_messages(home: Path, quick: bool) -> tuple[Measured, Measured]:
    """CPU of the server for the newest row of the history of one channel."""

    def measured(messages: int) -> Measured:
        directory = home / str(messages)
        asyncio.run(fill(directory / "tidelog.db", "long", messages))
        with _server(directory) as process:
            cost = asyncio.run(_reads(process, "long"))
        return {"messages": messages, **cost}

    return measured(50_000 if quick else 1_000_000), measured(1000)


FIGURES = (
    Figure("channels: publish with 100,000 over 100 subscribed channels", "us CPU", 1.2,
           publish_by_channels),
    Figure("channels: a row of history at 1,000,000 over 1,000 messages", "us CPU", 1.5,
           history_by_messages),
)  # fmt: skip


@contextmanager
def _server(directory: Path) -> Iterator[ServerProcess]:
    directory.mkdir(exist_ok=True)
    config = directory / "tidelog.toml"
    config.write_text(CONFIG, encoding="utf-8")
    with ServerProcess(data_dir=directory, arguments=("--config", str(config))) as process:
        process.start()
        yield process


async def _publishes(servers: Sequence[tuple[ServerProcess, int]]) -> list[float]:
    """Subscribe to so many channels of each server; then the median cost of a publish."""
    loop = asyncio.get_running_loop()
    watchers = []
    for process, channels in servers:
        names = [f"channel-{number}" for number in range(channels)]
        for first in range(SOCKETS):
            _, watcher = await loop.create_connection(
                lambda first=first, names=names: Watcher(names[first::SOCKETS], None),  # type: ignore[misc]
                "127.0.0.1",
                process.port,
            )
            await watcher.ready
            watchers.append(watcher)
    costs: list[list[float]] = [[] for _ in servers]
    for number in range(1 + ROUNDS):
        for (process, _), spent in zip(servers, costs, strict=True):
            work = [publish_bytes(f"channel-{n % SOCKETS}", "a message") for n in range(PUBLISHES)]
            meter = Meter(process)
            meter.start()
            await run_senders(process.port, [work])
            if number:  # the first round builds what is built once
                spent.append(meter.stop(PUBLISHES)["server_cpu_us_each"])
    for watcher in watchers:
        watcher.close()
    return [statistics.median(spent) for spent in costs]


async def _reads(process: ServerProcess, channel: str) -> dict[str, float]:
    request = signed_get(f"/apps/{APP_ID}/channels/{channel}/history", "limit=1")
    await run_senders(process.port, [[request] * (READS // 5)])
    meter = Meter(process)
    meter.start()
    _, [sender] = await run_senders(process.port, [[request] * READS])
    cost = meter.stop(READS)
    assert b'"serial"' in sender.answers[0]
    return {"cost": cost["server_cpu_us_each"], "reads": READS}


def signed_get(path: str, question: str) -> bytes:
    """A whole signed GET, ready to be sent."""
    query = f"auth_key={KEY}&auth_timestamp={int(time.time())}&auth_version=1.0&{question}"
    text = f"GET\n{path}\n{query}"
    signature = hmac.new(SECRET.encode(), text.encode(), hashlib.sha256).hexdigest()
    return f"GET {path}?{query}&auth_signature={signature} HTTP/1.1\r\nHost: bench\r\n\r\n".encode()


async def fill(path: Path, channel: str, messages: int) -> None:
    """A log of messages of one channel, as publishes would have written it."""
    path.parent.mkdir()
    stream = stream_name(APP_ID, channel)
    store = await open_store(SCHEMA, str(path), log_id=LOG_ID, node="bench")
    try:
        for first in range(1, messages + 1, BATCH):
            loaded = await store.writer.begin(Names(), first - 1)
            now = int(time.time() * 1000)
            effects = Effects(0, loaded.head.digest, now, [], [], [], [])
            for at in range(first, min(first + BATCH, messages + 1)):
                _add(effects, stream, at)
            effects.changes.sort(key=lambda change: change.statement)
            await store.writer.commit(b"", effects)
    finally:
        await store.close()


def _add(effects: Effects, stream: str, at: int) -> None:
    """Its number is its place in the log, in the stream and in the history."""
    data = b'"message %d"' % at
    serial = version_serial(LOG_ID.lower(), effects.committed_at, at)
    body = encode_body(
        Body(
            message_id=f"m{at}",
            history_serial=at,
            name="token",
            data=Raw(data),
            data_bytes=len(data),
        )
    )
    draft = Draft(stream, SURFACE, CREATE, serial, "", APP_ID, body)
    entry: Entry = to_entry(draft, at, at, effects.committed_at, effects.digest)
    effects.entries.append(entry)
    effects.committed_id, effects.digest = at, entry.digest
    row = (at, stream, at, effects.committed_at, 0, len(data))
    effects.changes += (
        RowChange("channels_note_history", (stream, at)),
        RowChange("channels_add_message", row),
        RowChange("channels_add_version", (at, at)),
    )
