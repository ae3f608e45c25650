"""Commits an entry to a store now and then, as another process; prints when each was committed.

Example: python bench/pipeline_parts/writer.py STORE COUNT SECONDS
"""

import json
import sqlite3
import sys
import time
from contextlib import closing

from tidelog.base.data.digest import body_digest, entry_digest

STREAM = "channels/app/fresh"


def main(path: str, count: int, pause_seconds: float) -> None:
    """Write so many entries with a pause before each."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        for serial in range(1, count + 1):
            time.sleep(pause_seconds)
            connection.execute("BEGIN IMMEDIATE")
            [head] = connection.execute("SELECT committed_id, digest FROM head")
            number, now = head[0] + 1, int(time.time() * 1000)
            body = b'{"message_id":"f","history_serial":%d,"name":"n","data":"now"}' % serial
            content, kind = body_digest(body, None), "message.create"
            place = (number, STREAM, serial, "channels", kind, f"f{serial}", "", "app", now)
            digest = entry_digest(head[1], *place, content)
            connection.execute(
                "INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL, ?, ?)",
                (*place, body, content, digest),
            )
            connection.execute(
                "UPDATE head SET committed_id = ?, digest = ?, committed_at = ?",
                (number, digest, now),
            )
            connection.execute("COMMIT")
            print(json.dumps([number, time.time()]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
