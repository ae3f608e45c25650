"""Writing a small log straight into a store, without a server.

As a program it is a live writer: it appends batches until it is told to stop.
"""

import asyncio
import contextlib
import random
import secrets
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tidelog.config.schema import SCHEMA
from tidelog.log.draft import Draft, to_entry
from tidelog.store import Store, open_store
from tidelog.store.rows import Effects, Entry, Names

FIRST_MS = 1_700_000_000_000
"""Clock of the first entry."""

_END_SECONDS = 60.0


def draft(
    number: int = 0, *, surface: str = "channels", stream: str = "", **changed: object
) -> Draft:
    """An entry to be, different for each number."""
    plain = Draft(
        stream=stream or f"{surface}/app/{number % 3}",
        surface=surface,
        kind="message.create",
        entity=f"e{number}",
        ref="",
        actor=f"a{number % 2}",
        body=b'{"number": %d}' % number,
    )
    return plain._replace(**changed)  # type: ignore[arg-type]


async def append(store: Store, drafts: Sequence[Draft], at_ms: int = FIRST_MS) -> list[Entry]:
    """Commit drafts as one batch, at that time or right after the batch before it."""
    streams = tuple({each.stream for each in drafts})
    loaded = await store.writer.begin(Names(streams=streams), (await store.head()).committed_id)
    serials, head = loaded.serials, loaded.head
    at, digest, entries = head.committed_id, head.digest, list[Entry]()
    for each in drafts:
        at += 1
        serials[each.stream] = serials.get(each.stream, 0) + 1
        entry = to_entry(each, at, serials[each.stream], max(at_ms, head.committed_at + 1), digest)
        digest = entry.digest
        entries.append(entry)
    last = entries[-1]
    await store.writer.commit(
        secrets.token_bytes(16),
        Effects(at, digest, last.committed_at, entries, dedupe=[], forgotten=[], changes=[]),
    )
    return entries


async def _write(location: str, drafts: Sequence[Draft], log_id: str, at_ms: int) -> None:
    store = await open_store(SCHEMA, location, log_id=log_id, node="test")
    try:
        if drafts:
            await append(store, drafts, at_ms)
    finally:
        await store.close()


def write_log(
    location: str,
    drafts: Iterable[Draft],
    *,
    log_id: str | None = None,
    at_ms: int = FIRST_MS,
) -> None:
    """Append to the log at a location, which may be new; nothing is open afterwards."""
    if not location.startswith("postgresql://"):
        Path(location).parent.mkdir(parents=True, exist_ok=True)
    asyncio.run(_write(location, list(drafts), log_id or secrets.token_hex(8), at_ms))


async def _read(location: str) -> list[Entry]:
    store = await open_store(SCHEMA, location, log_id="", node="", read_only=True)
    try:
        entries: list[Entry] = []
        while page := await store.entries(len(entries)):
            entries += page
        return entries
    finally:
        await store.close()


def read_log(location: str) -> list[Entry]:
    """Every entry, as the server reads them."""
    return asyncio.run(_read(location))


async def _keep_writing(location: str, stop: Path, pause_seconds: float) -> None:
    store = await open_store(SCHEMA, location, log_id=secrets.token_hex(8), node="test")
    rng, number = random.Random(7), 0
    try:
        while not stop.exists():  # noqa: ASYNC240 - nothing else runs here
            batch = [draft(number + i) for i in range(rng.randint(1, 40))]
            number += len(batch)
            await append(store, batch)
            time.sleep(pause_seconds)  # noqa: ASYNC251 - nothing else runs here
    finally:
        await store.close()


@contextlib.contextmanager
def live_writer(location: str, stop: Path, pause_seconds: float = 0.05) -> Iterator[None]:
    """Another process that appends to the log for the length of the block.

    It ends when there is a file at `stop`, after a whole batch.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "support.log.log_writer", location, str(stop), str(pause_seconds)],
        cwd=Path(__file__).parents[2],
    )
    try:
        yield
        stop.touch()
        assert process.wait(_END_SECONDS) == 0
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    asyncio.run(_keep_writing(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])))
