"""A store that is not what was written is refused at start; nothing of it is touched."""

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
import pytest

from support.cli.command import run as run_command
from support.log.nodes import put_item, running_node
from tidelog.base.errors import StoreDamaged, StoreInUse, StoreUnavailable
from tidelog.base.sql.sqlitefile import DirectoryLock
from tidelog.config.schema import SCHEMA
from tidelog.store import Store, open_store
from tidelog.store.sqlite import APPLICATION_ID
from tidelog.testing.process import CREDENTIALS, ServerProcess

if TYPE_CHECKING:
    import subprocess

PAGE_BYTES = 4096
HEADER_BYTES = 100
"""Counters and the journal mode, which opening for writing may change."""


async def opened(location: str | Path, *, read_only: bool = False) -> Store:
    """Open and close again: a start that succeeds."""
    store = await open_store(SCHEMA, str(location), log_id="L", node="n", read_only=read_only)
    await store.close()
    return store


@pytest.fixture
async def store_file(tmp_path: Path) -> Path:
    """A sound log of some 40 pages in one file, without a WAL."""
    path = tmp_path / "data" / "tidelog.db"
    async with running_node(str(path)) as node:
        value = b'"' + b"x" * 200 + b'"'
        await node.put_many([put_item("s", f"key-{number:05}", value) for number in range(200)])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    return path


def content(path: Path) -> bytes:
    """The file as it is on disk."""
    return path.read_bytes()


def page_of(path: Path, table: str) -> int:
    """Number, from 0, of a leaf page in the middle of a table's tree."""
    with closing(sqlite3.connect(path)) as connection:
        pages = connection.execute(
            "SELECT pageno FROM dbstat WHERE name = ? AND pagetype = 'leaf' ORDER BY pageno",
            (table,),
        ).fetchall()
    page: int = pages[len(pages) // 2][0]
    return page - 1


def overwrite(path: Path, offset: int, data: bytes) -> None:
    """Change the file behind SQLite's back."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def garbage_header(path: Path) -> None:
    """The first page is noise."""
    overwrite(path, 0, bytes(range(1, 101)))


def not_a_database(path: Path) -> None:
    """Somebody put another kind of file there."""
    path.write_text("dear diary, today I learned about file formats\n" * 200)


def truncated_to_a_page(path: Path) -> None:
    """Everything after the first page is gone."""
    os.truncate(path, PAGE_BYTES)


def truncated_in_the_middle(path: Path) -> None:
    """The second half is gone, at the end of a page."""
    os.truncate(path, path.stat().st_size // PAGE_BYTES // 2 * PAGE_BYTES)


def truncated_inside_a_page(path: Path) -> None:
    """The end is gone, in the middle of a page."""
    os.truncate(path, path.stat().st_size - PAGE_BYTES // 2)


def truncated_to_a_few_bytes(path: Path) -> None:
    """Not even a header is left."""
    os.truncate(path, 50)


def zeroed_log_page(path: Path) -> None:
    """A page of the log reads as zeros, as after a lost write."""
    overwrite(path, page_of(path, "log") * PAGE_BYTES, bytes(PAGE_BYTES))


def noise_in_a_log_page(path: Path) -> None:
    """A page of the log is noise."""
    overwrite(path, page_of(path, "log") * PAGE_BYTES, bytes(range(256)) * 16)


def noise_in_a_dedupe_page(path: Path) -> None:
    """A page of the remembered keys is noise."""
    overwrite(path, page_of(path, "dedupe") * PAGE_BYTES, bytes(range(256)) * 16)


@pytest.mark.parametrize(
    "damage",
    [
        garbage_header,
        not_a_database,
        truncated_to_a_page,
        truncated_in_the_middle,
        truncated_inside_a_page,
        truncated_to_a_few_bytes,
        zeroed_log_page,
        noise_in_a_log_page,
        noise_in_a_dedupe_page,
    ],
)
async def test_a_damaged_file_is_refused(store_file: Path, damage: Callable[[Path], None]) -> None:
    """Whatever happened to the file: the start fails, names the way back and changes nothing."""
    damage(store_file)
    before = content(store_file)
    with pytest.raises(StoreDamaged) as refusal:
        await opened(store_file)
    assert f"tidelog restore BACKUP --data-dir {store_file.parent}" in str(refusal.value)
    assert str(store_file) in str(refusal.value)
    assert content(store_file)[HEADER_BYTES:] == before[HEADER_BYTES:]
    DirectoryLock(store_file.with_name("tidelog.db.lock")).release()  # nobody holds it any more


async def test_a_sound_file_is_opened(store_file: Path) -> None:
    """The files that the other tests damage were sound before."""
    await opened(store_file)
    await opened(store_file, read_only=True)


@pytest.mark.parametrize("left", ["nothing", "an empty file"])
async def test_a_wal_without_its_file_is_refused(tmp_path: Path, left: str) -> None:
    """Commits that only the WAL holds are not thrown away because the main file is gone."""
    path = tmp_path / "a" / "tidelog.db"
    moved = tmp_path / "b" / "tidelog.db"
    moved.parent.mkdir()
    async with running_node(str(path)) as node:
        await node.put("s", "k")
        shutil.copy(path.with_name("tidelog.db-wal"), moved.with_name("tidelog.db-wal"))
    if left == "an empty file":
        moved.touch()
    size = moved.with_name("tidelog.db-wal").stat().st_size
    with pytest.raises(StoreDamaged, match="tidelog restore"):
        await opened(moved)
    assert moved.with_name("tidelog.db-wal").stat().st_size == size > 0


async def test_an_empty_file_becomes_a_log(tmp_path: Path) -> None:
    """A start killed before its first write leaves an empty file; the next one succeeds."""
    path = tmp_path / "tidelog.db"
    path.touch()
    async with running_node(str(path)) as node:
        assert (await node.put("s", "k")).committed_id == 1


HEADS = {
    "behind": "UPDATE head SET committed_id = 2",
    "ahead": "UPDATE head SET committed_id = 4",
    "far ahead": "UPDATE head SET committed_id = 400",
    "at the start": "UPDATE head SET committed_id = 0",
    "another digest": "UPDATE head SET digest = (SELECT digest FROM log WHERE committed_id = 2)",
    "last entry gone": "DELETE FROM log WHERE committed_id = 3",
    "last entry moved": "UPDATE log SET committed_id = 9 WHERE committed_id = 3",
    "all entries gone": "DELETE FROM log",
    "head row gone": "DELETE FROM head",
}


async def execute(location: str, statement: str) -> None:
    """Run a statement behind the store's back."""
    if not location.startswith("postgresql://"):
        with closing(sqlite3.connect(location, isolation_level=None)) as connection:
            connection.execute(statement)
        return
    server = await asyncpg.connect(location, server_settings={"search_path": "tidelog, public"})
    try:
        await server.execute(statement)
    finally:
        await server.close()


@pytest.mark.parametrize("statement", HEADS.values(), ids=HEADS.keys())
async def test_a_head_that_is_not_the_end_is_refused(store_location: str, statement: str) -> None:
    """The head row and the last entry were written together: a start refuses two that differ."""
    async with running_node(store_location) as node:
        await node.put_many([put_item("s", f"k{number}") for number in range(3)])
    await execute(store_location, statement)
    for _ in range(2):  # the first refusal must not have repaired anything
        with pytest.raises(StoreDamaged, match=r"head row.*tidelog restore BACKUP"):
            await opened(store_location)


FOREIGN = {
    "tables": "CREATE TABLE head (whose TEXT)",
    "version": "PRAGMA user_version = 1",
    "application": "PRAGMA application_id = 252006673",
    "all": "PRAGMA user_version = 1; PRAGMA application_id = 1; CREATE TABLE log (line TEXT)",
}


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("script", FOREIGN.values(), ids=FOREIGN.keys())
async def test_another_applications_file_is_left_alone(
    tmp_path: Path, script: str, read_only: bool
) -> None:
    """An SQLite file that is neither ours nor empty is refused and not changed by a byte."""
    path = tmp_path / "theirs.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)
    before = content(path)
    with pytest.raises(StoreUnavailable, match="another application"):
        await opened(path, read_only=read_only)
    assert content(path) == before
    assert not path.with_name("theirs.db-wal").exists()


async def test_our_files_say_so(store_file: Path) -> None:
    """The header names the application, so that tools such as file(1) can tell."""
    assert content(store_file)[68:72] == APPLICATION_ID.to_bytes(4, "big") == b"tdlg"


async def test_a_locked_file_is_not_called_damaged(
    store_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is told to restore a backup because another program has the file open."""
    monkeypatch.setattr("tidelog.base.sql.sqlitefile.BUSY_TIMEOUT_MS", 50)
    with closing(sqlite3.connect(store_file, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreUnavailable, match="locked") as refusal:
            await opened(store_file)
    assert "restore" not in str(refusal.value)
    await opened(store_file)


async def test_a_second_server_is_refused(store_file: Path) -> None:
    """A file that a server has open is refused to others, who learn its process, until it ends."""
    first = await open_store(SCHEMA, str(store_file), log_id="L", node="n")
    with pytest.raises(StoreInUse, match=rf"process {os.getpid()}\b.*--data-dir"):
        await opened(store_file)
    await opened(store_file, read_only=True)
    await first.close()
    await opened(store_file)


def serve(data_dir: Path) -> "subprocess.CompletedProcess[str]":
    """`tidelog serve` that is expected to end by itself."""
    place = ("--port", "0", "--data-dir", str(data_dir))
    return run_command("serve", *place, env={**os.environ, **CREDENTIALS})


async def test_a_killed_server_leaves_no_lock(tmp_path: Path) -> None:
    """The lock names its process while that runs, and ends with it however it ends."""
    with ServerProcess(data_dir=tmp_path) as server:
        server.start()
        with pytest.raises(StoreInUse, match=rf"process {server.pid}\b"):
            await opened(tmp_path / "tidelog.db")
        refused = serve(tmp_path)
        assert refused.returncode == 1
        assert f"process {server.pid}" in refused.stderr
        assert "Traceback" not in refused.stderr
        server.kill()
        await opened(tmp_path / "tidelog.db")


async def test_a_symbolic_link_does_not_hide_the_lock(tmp_path: Path) -> None:
    """The same file under another name is still in use."""
    real, alias = tmp_path / "tidelog.db", tmp_path / "elsewhere" / "alias.db"
    alias.parent.mkdir()
    store = await open_store(SCHEMA, str(real), log_id="A", node="a")
    alias.symlink_to(real)
    try:
        with pytest.raises(StoreInUse):
            await open_store(SCHEMA, str(alias), log_id="B", node="b")
    finally:
        await store.close()
