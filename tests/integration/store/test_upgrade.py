"""Data directories that earlier versions wrote are opened, migrated and continued by this one.

The archives in `tests/fixtures/upgrade` were written by the code of earlier commits; their README
says how.
"""

import asyncio
import hashlib
import json
import sqlite3
import tarfile
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from support.cli.command import tidelog
from support.log.nodes import Witness
from tidelog.client import ChannelPublisher
from tidelog.config.schema import SCHEMA
from tidelog.testing.process import ServerProcess

ARCHIVES = Path(__file__).parents[2] / "fixtures" / "upgrade"
SECONDS = 60.0


class Earlier:
    """An unpacked data directory and what was recorded of it when it was made."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.data_dir = folder
        with tarfile.open(ARCHIVES / f"{name}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
        recorded = json.loads((ARCHIVES / f"{name}.json").read_text(encoding="utf-8"))
        self.schema_version: int = recorded["schema_version"]
        self.entries: list[dict[str, Any]] = recorded["entries"]

    @property
    def database(self) -> Path:
        """The SQLite file."""
        return self.data_dir / "tidelog.db"


@pytest.fixture(params=["first", "previous", "reserved"])
def earlier(request: pytest.FixtureRequest, tmp_path: Path) -> Earlier:
    """Each of the earlier versions in turn."""
    return Earlier(request.param, tmp_path / "data")


def listed(location: str, through: int) -> list[dict[str, Any]]:
    """The entries up to a position, as the recording shows them."""
    names = (
        *("committed_id", "stream", "stream_serial", "surface", "kind", "entity", "ref", "actor"),
        *("committed_at", "body", "data", "body_digest", "digest"),
    )
    query = f"SELECT {', '.join(names)} FROM log WHERE committed_id <= {through} ORDER BY 1"
    with closing(Witness(location)) as witness:
        return [
            {
                name: {"hex": value.hex()} if isinstance(value, bytes) else value
                for name, value in zip(names, row, strict=True)
            }
            for row in witness.rows(query)
        ]


def schema_version(database: Path) -> int:
    """What the file says of itself."""
    with closing(sqlite3.connect(database)) as connection:
        [(version,)] = connection.execute("PRAGMA user_version")
        return int(version)


def put(server: ServerProcess, stream: str, key: str, value: object) -> dict[str, Any]:
    """A put of the probe."""
    body = json.dumps({"op": "put", "stream": stream, "key": key, "value": value}).encode()
    request = urllib.request.Request(f"{server.url}/probe/entries", data=body)
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        result: dict[str, Any] = json.load(answer)
        return result


async def test_an_earlier_data_directory_is_served(earlier: Earlier) -> None:
    """It opens, has every entry as it was, verifies, knows its keys and goes on behind its end."""
    assert (
        schema_version(earlier.database)
        == earlier.schema_version
        < len(SCHEMA.migrations("sqlite"))
    )
    location, head = str(earlier.database), len(earlier.entries)
    with ServerProcess(data_dir=earlier.data_dir, arguments=("--dev",)) as server:
        await asyncio.to_thread(server.start)
        assert schema_version(earlier.database) == len(SCHEMA.migrations("sqlite"))
        assert listed(location, head) == earlier.entries
        again = put(server, "s0", "key-0-\u00fc", 1)
        assert (again["status"], again["committed_id"]) == ("duplicate", 1)
        pruned = put(server, "s1", "key-1-\u00fc", "\u00e9\U0001f30a")
        assert (pruned["status"], pruned["available"]) == ("duplicate", False)
        new = put(server, "s0", "after the upgrade", 2)
        assert (new["committed_id"], new["stream_serial"]) == (head + 1, 11)
        async with asyncio.timeout(SECONDS):
            async with ChannelPublisher(server.url, "app-id", "app-key", "app-secret") as app:
                receipt = await app.publish("room-0", "said", "new", message_id="after")
        assert receipt.history_serial == count_in_room(earlier) + 1
        assert await asyncio.to_thread(server.terminate) == 0
    verdict = await tidelog("log", "verify", "--data-dir", str(earlier.data_dir))
    assert (verdict["sound"], verdict["verified"], verdict["pruned"]) == (True, head + 2, 2)
    assert listed(location, head) == earlier.entries


def count_in_room(earlier: Earlier) -> int:
    """The messages that were created in the channel the test publishes to."""
    created = [entry for entry in earlier.entries if entry["kind"] == "message.create"]
    return sum(entry["stream"].endswith("room-0") for entry in created)


async def test_messages_of_the_previous_version_are_what_they_were(tmp_path: Path) -> None:
    """A publish under an old id is a retry: it gets the old serials and writes nothing."""
    earlier = Earlier("previous", tmp_path / "data")
    created = [entry for entry in earlier.entries if entry["kind"] == "message.create"]
    with ServerProcess(data_dir=earlier.data_dir, arguments=("--dev",)) as server:
        await asyncio.to_thread(server.start)
        async with asyncio.timeout(SECONDS):
            async with ChannelPublisher(server.url, "app-id", "app-key", "app-secret") as app:
                for number, entry in enumerate(created):
                    data = {"n": number, "text": "\u00e9\U0001f30a"}
                    receipt = await app.publish(
                        f"room-{number % 2}", "said", data, message_id=f"m-{number}"
                    )
                    assert receipt.message_serial == entry["entity"]
        with closing(Witness(str(earlier.database))) as witness:
            assert witness.end()[0] == len(earlier.entries)


async def test_an_earlier_store_moves_to_postgresql(
    earlier: Earlier, empty_postgresql_url: str
) -> None:
    """Its file is a backup: restored to the other engine it has every entry and verifies."""
    with closing(sqlite3.connect(earlier.database)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")  # one file, as a backup is
    head = len(earlier.entries)
    restored = await tidelog("restore", str(earlier.database), "--store", empty_postgresql_url)
    assert restored["head"] == head
    assert listed(empty_postgresql_url, head) == earlier.entries
    assert schema_version(earlier.database) == earlier.schema_version, "the backup was changed"


@pytest.mark.parametrize("name", ["reserved"])
def test_what_a_migration_does_never_changes(engine: str, name: str) -> None:
    """A store has been through it already: a number that was empty stays empty."""
    recorded = json.loads((ARCHIVES / f"{name}.json").read_text(encoding="utf-8"))
    done = recorded["migrations"][engine]
    assert len(done) == recorded["schema_version"]
    for number, (digest, script) in enumerate(
        zip(done, SCHEMA.migrations(engine), strict=False), 1
    ):
        lines = [line for line in script.splitlines() if not line.startswith("--")]
        found = hashlib.sha256("\n".join(lines).encode()).hexdigest()
        assert found == digest, f"migration {number} was changed: add one instead"
