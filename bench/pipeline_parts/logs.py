"""A long log of channel messages, written straight into an SQLite store with valid digests.

A message is created, grows by two appends, is updated and grows again or is deleted, so five
entries are a message; bodies are padded to about 250 bytes.
"""

import asyncio
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from tidelog.base.data.digest import body_digest, entry_digest
from tidelog.config.schema import SCHEMA
from tidelog.store import open_store

BODY_BYTES = 250
CHANNELS = 100
VERSIONS = 5
"""Entries of a message."""
ROUND = CHANNELS * VERSIONS
"""Entries in which each channel gets a message."""
BEGIN_MS = 1_780_000_000_000
RATE = 500
"""Entries of a second, as in the bench of the service."""
LOG_ID = "bench"
_BATCH = 20_000
_INSERT = "INSERT INTO log VALUES (?, ?, ?, 'channels', ?, ?, '', 'app', ?, ?, NULL, ?, ?)"
_FILLING = "the tide comes in and the tide goes out " * 8


class Version(NamedTuple):
    """An entry before it has its place."""

    channel: int
    kind: str
    first: int
    """Position at which its message was created."""
    history_serial: int


def log_of(folder: Path, entries: int) -> Path:
    """A store of so many entries; made once and kept in the folder."""
    schema = len(SCHEMA.migrations("sqlite"))
    path = folder / f"log-{entries}-schema-{schema}-{RATE}" / "tidelog.db"
    if not path.exists():
        fresh = folder / f"log-{entries}.new"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        asyncio.run(_create(fresh / "tidelog.db"))
        with closing(_connection(fresh / "tidelog.db")) as connection:
            connection.execute("PRAGMA journal_mode = OFF")
            _add(connection, _versions(0, entries))
            connection.execute("PRAGMA journal_mode = WAL")
        fresh.rename(path.parent)
    return path


def add_entries(path: Path, count: int) -> int:
    """Commit so many more entries; returns where the log ends then.

    First the newest message of each channel gets an append, then there are new messages.
    """
    with closing(_connection(path)) as connection:
        [(head,)] = connection.execute("SELECT committed_id FROM head")
        _add(connection, _appends(connection, CHANNELS))
        return _add(connection, _versions(head + CHANNELS, count - CHANNELS))


def _connection(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, timeout=30)
    connection.execute("PRAGMA synchronous = OFF")
    return connection


async def _create(path: Path) -> None:
    store = await open_store(SCHEMA, str(path), log_id=LOG_ID, node=LOG_ID)
    await store.close()


def _versions(after: int, count: int) -> Iterator[Version]:
    """In rounds: each channel gets a message, which then grows; they come after a position."""
    for number in range(count):
        done, step = divmod(number, ROUND)
        version, channel = divmod(step, CHANNELS)
        if version == 4 and done % 10 == 9:
            kind = "delete"
        else:
            kind = ("create", "append", "append", "update", "append")[version]
        first = after + done * ROUND + channel + 1
        yield Version(channel, kind, first, first // ROUND + 1)


def _time(number: int) -> int:
    """When an entry is committed, milliseconds since 1970."""
    return BEGIN_MS + number * 1000 // RATE


def _appends(connection: sqlite3.Connection, count: int) -> list[Version]:
    """One for each of the newest messages."""
    newest = connection.execute(
        "SELECT message, stream, history_serial FROM channels_message "
        "ORDER BY message DESC LIMIT ?",
        (count,),
    )
    return [
        Version(int(stream.rpartition("-")[2]), "append", message, serial)
        for message, stream, serial in newest
    ]


def _add(connection: sqlite3.Connection, versions: Iterable[Version]) -> int:
    """Commit entries in one transaction; returns where the log ends then."""
    before: int
    [(before, digest)] = connection.execute("SELECT committed_id, digest FROM head")
    serials = dict(connection.execute("SELECT stream, max(stream_serial) FROM log GROUP BY stream"))
    number, at = before, BEGIN_MS
    rows, places = [], []
    connection.execute("BEGIN")
    for number, version in enumerate(versions, before + 1):
        stream = f"channels/app/room-{version.channel}"
        serial = serials[stream] = serials.get(stream, 0) + 1
        kind, at = f"message.{version.kind}", _time(number)
        entity = f"{_time(version.first):020d}:bench:{version.first:020d}"
        head = (
            f'{{"message_id":"m{number}","history_serial":{version.history_serial},"name":"level",'
            f'"client_id":"device-{number % 97}","data_bytes":200,"data":"{number} '
        )
        body = (head + _FILLING[: BODY_BYTES - len(head) - 2] + '"}').encode()
        content = body_digest(body, None)
        digest = entry_digest(
            digest, number, stream, serial, "channels", kind, entity, "", "app", at, content
        )
        rows.append((number, stream, serial, kind, entity, at, body, content, digest))
        places.append((version.first, number))
        if len(rows) == _BATCH:
            _insert(connection, rows, places)
            rows, places = [], []
    _insert(connection, rows, places)
    _derive(connection, before)
    connection.execute(
        "UPDATE head SET log_id = ?, committed_id = ?, digest = ?, committed_at = ?",
        (LOG_ID, number, digest, at),
    )
    connection.execute("COMMIT")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return number


def _insert(
    connection: sqlite3.Connection,
    rows: Sequence[tuple[object, ...]],
    places: Sequence[tuple[int, int]],
) -> None:
    connection.executemany(_INSERT, rows)
    connection.executemany("INSERT INTO channels_version VALUES (?, ?)", places)


def _derive(connection: sqlite3.Connection, before: int) -> None:
    """The rows beside the log that a server would have written with entries after a position."""
    connection.execute(
        "INSERT INTO channels_message (message, stream, history_serial, published_at, is_open, "
        "size_bytes, through, state, base) SELECT committed_id, stream, "
        "json_extract(CAST(body AS TEXT), '$.history_serial'), committed_at, 0, 0, committed_id, "
        "NULL, NULL FROM log WHERE committed_id > ? AND kind = 'message.create'",
        (before,),
    )
    connection.execute(
        "UPDATE channels_message AS m SET through = v.through FROM (SELECT message, "
        "max(committed_id) AS through FROM channels_version WHERE committed_id > ? "
        "GROUP BY message) AS v WHERE v.message = m.message",
        (before,),
    )
    connection.execute("DELETE FROM channels_channel")
    connection.execute(
        "INSERT INTO channels_channel (stream, epoch, history_serial, history_floor, replay_floor) "
        "SELECT stream, 1, max(history_serial), 0, 0 FROM channels_message GROUP BY stream"
    )
