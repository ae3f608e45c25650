"""A program that reads a store as a front does: all the time, several reads at once.

Arguments: the file, and the socket of its owner.
"""

import asyncio
import sqlite3
import sys
import time
from pathlib import Path

from tidelog.config.schema import SCHEMA
from tidelog.link.unix import front_link
from tidelog.serve.read_pauses import VOCABULARY, PausingFront
from tidelog.store.sqlite import LANE_READERS, SqliteStore

READ_SECONDS = 0.25
"""Longer than the writer waits for what it cannot pause."""


def read(connection: sqlite3.Connection) -> None:
    """For a while what is now in the store."""
    connection.execute("BEGIN")
    try:
        connection.execute("SELECT committed_id FROM head").fetchall()
        time.sleep(READ_SECONDS)
    finally:
        connection.execute("COMMIT")


async def read_on(store: SqliteStore) -> None:
    """One read after the other."""
    while True:
        await store._long.read(read)


async def main(path: str, socket: str) -> None:
    """Until it is killed, or its owner is gone."""
    store = SqliteStore(SCHEMA, Path(path), log_id="", read_only=True)
    gone = asyncio.Event()
    link, [end] = front_link([VOCABULARY], gone.set)
    reading = []
    for _ in range(LANE_READERS + 1):  # one always waits for another to end
        reading.append(asyncio.create_task(read_on(store)))
        await asyncio.sleep(READ_SECONDS / LANE_READERS)
    await asyncio.get_running_loop().create_unix_connection(lambda: link, socket)
    PausingFront(end, store.read_gate)
    await gone.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
