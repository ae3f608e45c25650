"""A long log of channel messages, written straight into an SQLite store with valid digests.

A message is created, grows by two appends, is updated and grows again or is deleted, so five
entries are a message; bodies are padded to about 250 bytes.
"""

import asyncio
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from tidelog.base.data.digest import body_digest, entry_digest
from tidelog.config.schema import SCHEMA
from tidelog.store import open_store

BODY_BYTES = 250
CHANNELS = 100
VERSIONS = 5
"""Entries of a message."""
BEGIN_MS = 1_780_000_000_000
LOG_ID = "bench"
_BATCH = 20_000
_INSERT = "INSERT INTO log VALUES (?, ?, ?, 'channels', ?, ?, '', 'app', ?, ?, NULL, ?, ?)"


def log_of(folder: Path, entries: int) -> Path:
    """A store of so many entries; made once and kept in the folder."""
    path = folder / f"log-{entries}" / "tidelog.db"
    if not path.exists():
        fresh = folder / f"log-{entries}.new"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        asyncio.run(_create(fresh / "tidelog.db"))
        _fill(fresh / "tidelog.db", entries)
        fresh.rename(path.parent)
    return path


async def _create(path: Path) -> None:
    store = await open_store(SCHEMA, str(path), log_id=LOG_ID, node=LOG_ID)
    await store.close()


def _fill(path: Path, entries: int) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        rows, versions = [], []
        digest = bytes(16)
        connection.execute("BEGIN")
        for row in _entries(entries):
            number, stream, serial, kind, entity, at, body, message = row
            content = body_digest(body, None)
            digest = entry_digest(
                digest, number, stream, serial, "channels", kind, entity, "", "app", at, content
            )
            rows.append((number, stream, serial, kind, entity, at, body, content, digest))
            versions.append((message, number))
            if len(rows) == _BATCH:
                connection.executemany(_INSERT, rows)
                connection.executemany("INSERT INTO channels_version VALUES (?, ?)", versions)
                rows, versions = [], []
        connection.executemany(_INSERT, rows)
        connection.executemany("INSERT INTO channels_version VALUES (?, ?)", versions)
        _derive(connection)
        connection.execute(
            "UPDATE head SET log_id = ?, committed_id = ?, digest = ?, committed_at = ?",
            (LOG_ID, entries, digest, BEGIN_MS + entries // 50),
        )
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _entries(count: int) -> Iterator[tuple[Any, ...]]:
    """Position, stream and serial, kind, message, time, body and the message's first position."""
    filling = "the tide comes in and the tide goes out " * 8
    serials = [0] * CHANNELS
    for number in range(1, count + 1):
        group, step = divmod(number - 1, CHANNELS * VERSIONS)
        version, place = divmod(step, CHANNELS)
        stream = f"channels/app/room-{place}"
        serials[place] += 1
        first = group * CHANNELS * VERSIONS + place + 1
        at = BEGIN_MS + number // 50
        if version == 0:
            kind = "create"
        elif version == 3:
            kind = "update"
        elif version == 4 and group % 10 == 9:
            kind = "delete"
        else:
            kind = "append"
        head = (
            f'{{"message_id":"m{number}","history_serial":{group + 1},"name":"level",'
            f'"client_id":"device-{number % 97}","data_bytes":200,"data":"{number} '
        )
        body = head + filling[: BODY_BYTES - len(head) - 2] + '"}'
        entity = f"{BEGIN_MS + first // 50:020d}:bench:{first:020d}"
        yield (
            number,
            stream,
            serials[place],
            f"message.{kind}",
            entity,
            at,
            body.encode(),
            first,
        )


def _derive(connection: sqlite3.Connection) -> None:
    """The rows beside the log that a server would have written."""
    connection.execute(
        "INSERT INTO channels_message "
        "SELECT v.message, l.stream, json_extract(CAST(l.body AS TEXT), '$.history_serial'), "
        "l.committed_at, 0, 0, max(v.committed_id), NULL, NULL "
        "FROM channels_version v JOIN log l ON l.committed_id = v.message GROUP BY v.message"
    )
    connection.execute(
        "INSERT INTO channels_channel "
        "SELECT stream, 1, max(history_serial), 0, 0 FROM channels_message GROUP BY stream"
    )
