"""Commits entries to a store at a steady rate, as another process; prints when each batch was.

A message is published, then appended to: `VERSIONS` entries in all, with the rows beside the log
that a server writes. Batches are committed every tenth of a second.

Example: python bench/pipeline_parts/steady_writer.py STORE RATE SECONDS
"""

import json
import sqlite3
import sys
import time
from contextlib import closing

from tidelog.base.data.digest import body_digest, entry_digest

STREAM = "channels/app/steady"
VERSIONS = 5
BATCHES_A_SECOND = 10
_INSERT = "INSERT INTO log VALUES (?, ?, ?, 'channels', ?, ?, '', 'app', ?, ?, NULL, ?, ?)"


class Writer:
    """The end of a log."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        [head] = connection.execute("SELECT committed_id, digest FROM head")
        self._number: int = head[0]
        self._digest: bytes = head[1]
        self._serial = 0
        self._first = 0
        self._entity = ""
        self._history = 0
        connection.execute(
            "INSERT INTO channels_channel (stream, epoch, history_serial, history_floor, "
            "replay_floor) VALUES (?, 1, 0, 0, 0)",
            (STREAM,),
        )

    def commit(self, count: int) -> int:
        """Add so many entries; returns the position of the last."""
        now = int(time.time() * 1000)
        self._connection.execute("BEGIN IMMEDIATE")
        for _ in range(count):
            self._add(now)
        self._connection.execute(
            "UPDATE head SET committed_id = ?, digest = ?, committed_at = ?",
            (self._number, self._digest, now),
        )
        self._connection.execute("COMMIT")
        return self._number

    def _add(self, now: int) -> None:
        self._number += 1
        self._serial += 1
        is_new = (self._serial - 1) % VERSIONS == 0
        if is_new:
            self._history += 1
            self._first = self._number
            self._entity = f"{now:020d}:bench:{self._number:020d}"
        kind = "message.create" if is_new else "message.append"
        text = f"{self._number} the tide comes in and the tide goes out "
        body = json.dumps(
            {
                "message_id": f"m{self._number}",
                "history_serial": self._history,
                "name": "level",
                "data_bytes": 200,
                "data": text * 3,
            },
            separators=(",", ":"),
        ).encode()
        content = body_digest(body, None)
        place = (self._number, STREAM, self._serial)
        self._digest = entry_digest(
            *(self._digest, *place, "channels", kind, self._entity, "", "app", now, content)
        )
        row = (*place, kind, self._entity, now, body, content, self._digest)
        self._connection.execute(_INSERT, row)
        if is_new:
            self._connection.execute(
                "INSERT INTO channels_message (message, stream, history_serial, published_at, "
                "is_open, size_bytes, through, state, base) VALUES (?, ?, ?, ?, 0, 0, ?, NULL, "
                "NULL)",
                (self._first, STREAM, self._history, now, self._number),
            )
            self._connection.execute(
                "UPDATE channels_channel SET history_serial = ? WHERE stream = ?",
                (self._history, STREAM),
            )
        else:
            self._connection.execute(
                "UPDATE channels_message SET through = ? WHERE message = ?",
                (self._number, self._first),
            )
        self._connection.execute(
            "INSERT INTO channels_version VALUES (?, ?)", (self._first, self._number)
        )


def main(path: str, rate: int, seconds: float) -> None:
    """Write until the time is over."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=60)) as connection:
        connection.execute("PRAGMA synchronous = NORMAL")
        writer = Writer(connection)
        began, done = time.monotonic(), 0
        while (passed := time.monotonic() - began) < seconds:
            due = int(rate * passed) - done
            if due:
                done += due
                print(json.dumps([writer.commit(due), time.time()]), flush=True)
            time.sleep(1 / BATCHES_A_SECOND)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
