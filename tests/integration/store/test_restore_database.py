"""`tidelog restore` to PostgreSQL: where nothing is and nobody runs, and whole or not at all."""

import asyncio
import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from support.store.backups import command, silent
from support.store.catalogue import Database
from tidelog.base.errors import StoreInUse, StoreUnavailable
from tidelog.config.schema import SCHEMA
from tidelog.store.backup import restore
from tidelog.store.catalogue import tables
from tidelog.testing.process import ServerProcess

SECONDS = 60.0


async def test_a_row_in_any_table_is_kept(backup_file: Path, empty_postgresql_url: str) -> None:
    """Meshes, members, settings: whatever a store holds stops a restore, also without a log."""
    database = Database(empty_postgresql_url)
    await database.at_version(SCHEMA.migrations("postgresql"))
    await database.fill()
    for table in tables(SCHEMA):
        await database.run(f"CREATE TABLE public.of_{table} AS TABLE {table}")
    every = ", ".join(tables(SCHEMA))
    await database.run(f"TRUNCATE writer, announcement, {every}")
    for table in tables(SCHEMA):
        await database.run(f"INSERT INTO {table} SELECT * FROM public.of_{table}")
        before = await database.run(f"SELECT * FROM {table}")
        found = "a log" if table in ("head", "log") else f"rows in {table}"
        with pytest.raises(StoreUnavailable, match=f"already holds {found}; .*empty database"):
            await restore(SCHEMA, backup_file, empty_postgresql_url, silent)
        assert await database.run(f"SELECT * FROM {table}") == before
        assert before
        await database.run(f"TRUNCATE {every}")  # a message brings its counters


async def test_a_running_server_stops_a_restore(
    backup_file: Path, empty_postgresql_url: str, tmp_path: Path
) -> None:
    """Also if nothing was written yet; the server goes on with the log it started with."""
    database = Database(empty_postgresql_url)
    with ServerProcess(data_dir=tmp_path / "data", store=empty_postgresql_url) as server:
        await asyncio.to_thread(server.start)
        before = await database.run("SELECT * FROM head")
        with pytest.raises(StoreInUse, match=r"another tidelog is connected.*Stop every server"):
            await restore(SCHEMA, backup_file, empty_postgresql_url, silent)
        assert await database.run("SELECT * FROM head") == before
        assert await asyncio.to_thread(put, server) == 1
        assert await asyncio.to_thread(server.terminate) == 0
    with pytest.raises(StoreUnavailable, match="already holds a log"):
        await restore(SCHEMA, backup_file, empty_postgresql_url, silent)


def put(server: ServerProcess) -> int:
    """Where a put of the probe was committed."""
    body = b'{"op": "put", "stream": "s", "key": "k", "value": 1}'
    request = urllib.request.Request(f"{server.url}/probe/entries", data=body)
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        return int(json.load(answer)["committed_id"])


async def test_a_killed_restore_leaves_nothing(
    backup_file: Path, empty_postgresql_url: str, tmp_path: Path
) -> None:
    """SIGKILL after the log was copied: no schema, a server makes a log of its own."""
    script = (
        "import asyncio, os, sys, pathlib\n"
        "from tidelog.config.schema import SCHEMA\n"
        "from tidelog.store.backup import restore\n"
        "kill = lambda done, total: os.kill(os.getpid(), 9)\n"
        "asyncio.run(restore(SCHEMA, pathlib.Path(sys.argv[1]), sys.argv[2], kill))\n"
    )
    killed = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", script, str(backup_file), empty_postgresql_url],
        check=False,
        timeout=SECONDS,
    )
    assert killed.returncode == -signal.SIGKILL
    database = Database(empty_postgresql_url)
    assert await database.columns() == {}
    await restore(SCHEMA, backup_file, empty_postgresql_url, silent)
    assert await database.run("SELECT committed_id FROM head") == [(300,)]
    with ServerProcess(data_dir=tmp_path / "data", store=empty_postgresql_url) as server:
        await asyncio.to_thread(server.start)
        assert await asyncio.to_thread(put, server) == 301
        assert await asyncio.to_thread(server.terminate) == 0


async def test_nobody_sees_half_a_restore(backup_file: Path, empty_postgresql_url: str) -> None:
    """While it fills the database there is no schema; a second restore waits and is refused."""
    database = Database(empty_postgresql_url)
    seen = []
    second: list[asyncio.Task[None]] = []

    async def look() -> None:
        seen.append(await database.columns())

    def filling(_done: int, _total: int) -> None:
        look_at = asyncio.run_coroutine_threadsafe(look(), loop)
        look_at.result(SECONDS)
        loop.call_soon_threadsafe(begin_another)

    def begin_another() -> None:
        second.append(
            asyncio.create_task(restore(SCHEMA, backup_file, empty_postgresql_url, silent))
        )

    loop = asyncio.get_running_loop()
    first = asyncio.to_thread(
        asyncio.run, restore(SCHEMA, backup_file, empty_postgresql_url, filling)
    )
    async with asyncio.timeout(SECONDS):
        await first
        assert seen == [{}]
        with pytest.raises((StoreUnavailable, StoreInUse)):
            await second[0]
    assert await database.run("SELECT count(*) FROM log") == [(300,)]


def test_a_server_that_does_not_answer_is_one_line(backup_file: Path, tmp_path: Path) -> None:
    """Both commands name the setting to look at, and leave no file."""
    nowhere = "postgresql://nobody@127.0.0.1:1/nothing"
    with pytest.raises(StoreUnavailable, match=r"PostgreSQL does not answer.*`store` setting"):
        command("restore", str(backup_file), "--store", nowhere)
    folder = tmp_path / "backups"
    folder.mkdir()
    with pytest.raises(StoreUnavailable, match=r"PostgreSQL does not answer.*`store` setting"):
        command("backup", str(folder / "b.db"), "--store", nowhere)
    assert list(folder.iterdir()) == []
