"""The store by what it holds: the room of entries whose content is gone."""

import asyncio
import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from channels import APP_ID, KEY, SECRET, run_senders, signed
from size_parts.figure import Figure, Measured
from tidelog.config.schema import SCHEMA
from tidelog.store.compaction import compact
from tidelog.testing.process import ServerProcess

TEXT = "some words that somebody wrote " * 6
CONFIG = f"""
[channels.versioned_messages]
enabled = true
retention_window_seconds = 1
purge_interval_seconds = 1

[[apps]]
id = "{APP_ID}"
key = "{KEY}"
secret = "{SECRET}"
"""
CONNECTIONS = 16


def purged_entries(home: Path, quick: bool) -> tuple[Measured, Measured]:
    """Bytes of the file for each entry, all of them purged: after `log compact`, and before."""
    each = 20 if quick else 200
    entries = CONNECTIONS * each * 10
    config = home / "tidelog.toml"
    config.write_text(CONFIG)
    with ServerProcess(data_dir=home / "data", arguments=("--config", str(config))) as process:
        process.start()
        asyncio.run(_publish(process.port, each))
        while _kept(home / "data"):
            time.sleep(0.2)
        process.terminate()
    done = asyncio.run(compact(SCHEMA, str(home / "data" / "tidelog.db"), lambda _done, _all: None))

    def measured(size: int) -> Measured:
        return {"entries": entries, "file_bytes": size, "cost": round(size / entries, 1)}

    return measured(done.after_bytes), measured(done.before_bytes)


FIGURES = (
    Figure("store: purged entries after compaction over before", "bytes", 0.6, purged_entries),
)


async def _publish(port: int, each: int) -> None:
    """Ten messages with each request."""
    path = f"/apps/{APP_ID}/batch_events"

    def request(channel: str) -> bytes:
        event = {"name": "said", "channel": channel, "data": TEXT}
        return signed(path, json.dumps({"batch": [event] * 10}).encode())

    work = [[request(f"room-{number}")] * each for number in range(CONNECTIONS)]
    await run_senders(port, work)


def _kept(data_dir: Path) -> int:
    """Entries that still have their content."""
    file = f"{(data_dir / 'tidelog.db').absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(file, uri=True)) as reading:
        kept: int = reading.execute("SELECT count(*) FROM log WHERE body IS NOT NULL").fetchone()[0]
        return kept
