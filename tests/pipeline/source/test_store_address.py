"""Reading the store from outside: briefly, read-only, on either engine."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

import support.log.log_writer
from support.log.log_writer import draft, read_log, write_log
from tidelog.base.errors import ConfigError, StoreUnavailable
from tidelog.pipeline.source import store_address
from tidelog.pipeline.source.store_address import StoreAddress, StoreHead

WAIT_SECONDS = 60.0
TESTS = str(Path(support.log.log_writer.__file__).parents[2])

READER = """
import sys
from tidelog.pipeline.source.store_address import StoreAddress
pages = StoreAddress(sys.argv[1]).entries(0, int(sys.argv[2]))
rows = next(pages).num_rows
print("reading", flush=True)
sys.stdin.readline()
print(rows + sum(page.num_rows for page in pages), flush=True)
"""
"""Reads the first page, waits to be told, reads the rest."""

WRITER = "import sys; from support.log.log_writer import *; write_log(sys.argv[1], [draft(9)])"
"""Appends one entry; a process of its own, as the server is one."""


def run_writer(location: str) -> None:
    """Append one entry from another process."""
    subprocess.run(
        [sys.executable, "-c", WRITER, location],
        env={**os.environ, "PYTHONPATH": TESTS},
        check=True,
        timeout=WAIT_SECONDS,
    )


def test_the_head_is_the_last_committed_entry(store_location: str) -> None:
    """The head names the log and its last entry; an empty log ends at zero."""
    write_log(store_location, [], log_id="L")
    assert StoreAddress(store_location).head()[:4] == ("L", 0, bytes(16), 0)
    write_log(store_location, [draft(1), draft(2)])
    *_, last = read_log(store_location)
    address = StoreAddress(store_location)
    assert address.head()[:4] == ("L", 2, last.digest, last.committed_at)
    assert address.entry_digest_at(2) == last.digest
    assert address.entry_digest_at(3) is None


def test_relations_and_the_head_are_of_one_moment(
    store_location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is committed between the reads of a snapshot is in none of them."""
    write_log(store_location, [draft(n) for n in range(3)])
    address = StoreAddress(store_location)
    table = "log" if address.engine == "sqlite" else "tidelog.log"
    monkeypatch.setitem(
        store_address._queries(address.engine), "ids", f"SELECT committed_id FROM {table}"
    )
    read_head = store_address._head

    def head_and_then_a_commit(reading: store_address.Reading) -> StoreHead:
        head = read_head(reading)
        run_writer(store_location)
        return head

    monkeypatch.setattr(store_address, "_head", head_and_then_a_commit)
    head, found = address.relations({"log": "ids", "again": "ids"})
    assert head.committed_id == 3
    assert found["log"]["committed_id"].to_pylist() == [1, 2, 3]
    assert found["again"] == found["log"]
    assert len(read_log(store_location)) == 4


def test_a_column_without_a_value_can_become_any_type(store_location: str) -> None:
    """Where no row has a value the type is null, as SQLite cannot tell another one."""
    write_log(store_location, [draft(1), draft(2)])
    [page] = StoreAddress(store_location).entries(0, 2)
    assert page["data"].type == pa.null()
    assert page["body"].type == pa.binary()


def test_a_page_is_bounded_by_its_bytes(
    store_location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large entries come in pages of few, one that is too large alone, none twice."""
    monkeypatch.setattr(store_address, "PAGE_BYTES", 1000)
    monkeypatch.setattr(store_address, "PAGE_ROWS", 8)
    sizes = [10] * 9 + [400] * 6 + [5000] + [10] * 3
    write_log(
        store_location, [draft(n, stream="s", body=b"x" * size) for n, size in enumerate(sizes)]
    )
    address = StoreAddress(store_location)
    for stream in ("", "s"):
        pages = list(address.entries(0, len(sizes), stream=stream))
        found = [id_ for page in pages for id_ in page["committed_id"].to_pylist()]
        assert found == list(range(1, len(sizes) + 1))
        for page in pages:
            lengths = [len(body) for body in page["body"].to_pylist()]
            assert sum(lengths[:-1]) <= 1000
            assert len(lengths) <= 8


def test_a_reader_does_not_hold_back_a_checkpoint(tmp_path: Path) -> None:
    """While a read is between two pages, the WAL of a SQLite store is cut to nothing."""
    location = tmp_path / "tidelog.db"
    count = 2 * store_address.PAGE_ROWS
    write_log(str(location), [draft(n) for n in range(count)])
    with (
        closing(sqlite3.connect(location, isolation_level=None)) as writer,
        subprocess.Popen(
            [sys.executable, "-c", READER, str(location), str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as reader,
    ):
        assert reader.stdin is not None
        assert reader.stdout is not None
        try:
            assert reader.stdout.readline() == "reading\n"
            writer.execute("UPDATE log SET actor = 'someone else'")
            wal = location.with_name(location.name + "-wal")
            assert wal.stat().st_size > 0
            [(is_busy, _, _)] = writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            assert not is_busy
            assert wal.stat().st_size == 0
            reader.stdin.write("go on\n")
            reader.stdin.flush()
            assert reader.stdout.readline() == f"{count}\n"
            assert reader.wait(WAIT_SECONDS) == 0
        finally:
            reader.kill()


def test_a_missing_file_is_an_error_and_stays_missing(tmp_path: Path) -> None:
    """Nothing is created where there is no store."""
    with pytest.raises(StoreUnavailable, match="there is no store at"):
        StoreAddress(str(tmp_path / "tidelog.db")).head()
    assert list(tmp_path.iterdir()) == []


def test_the_store_cannot_be_written(tmp_path: Path) -> None:
    """The connection refuses a change."""
    from adbc_driver_manager import Error

    location = str(tmp_path / "tidelog.db")
    write_log(location, [draft(1)])
    with (
        StoreAddress(location)._connection() as connection,
        connection.cursor() as cursor,
        pytest.raises(Error, match="readonly"),
    ):
        cursor.execute("DELETE FROM log")


@pytest.mark.parametrize(
    "content", [b"not a database, but long enough to be taken for one" * 9, b""]
)
def test_another_file_is_a_clear_error(tmp_path: Path, content: bytes) -> None:
    """A file that is no store of ours is named, with what to do."""
    location = tmp_path / "tidelog.db"
    location.write_bytes(content)
    with pytest.raises(StoreUnavailable, match="is not a tidelog store of this version"):
        StoreAddress(str(location)).head()


def test_a_database_without_our_schema_is_a_clear_error(postgresql_server: str) -> None:
    """A PostgreSQL that no server of ours was started on is named, with what to do."""
    with pytest.raises(StoreUnavailable, match="is not a tidelog store of this version"):
        StoreAddress(postgresql_server).head()


def test_an_unreachable_server_is_an_error_without_the_password() -> None:
    """A PostgreSQL that nobody runs, or a URL that is none, is told without its password."""
    with pytest.raises(StoreUnavailable, match="cannot be read") as caught:
        StoreAddress("postgresql://me:hunter2@127.0.0.1:1/x").head()
    assert "hunter2" not in str(caught.value)
    with pytest.raises(ConfigError, match="not a valid") as refused:
        StoreAddress("postgresql://me:hun:ter2@[::1/x").head()
    assert "ter2" not in str(refused.value)
    assert "hunter2" not in repr(StoreAddress("postgresql://me:hunter2@127.0.0.1:1/x"))


PEAK = """
import sys
from pathlib import Path
from tidelog.pipeline.source.relations import RELATIONS, read_relations
from tidelog.pipeline.source.store_address import StoreAddress
moment = read_relations(StoreAddress(sys.argv[1]), RELATIONS)
status = Path("/proc/self/status").read_text()
print(next(line.split()[1] for line in status.splitlines() if line.startswith("VmPeak")))
"""
"""Reads all relations; prints how much memory it had at most, reserved or used, in KiB."""


def test_a_small_store_reserves_little_memory(tmp_path: Path) -> None:
    """A process that has reserved more than there is cannot start another, such as Spark's JVM."""
    location = str(tmp_path / "tidelog.db")
    write_log(location, [draft(1)])
    command = [sys.executable, "-c", PEAK, location]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) < 8 * 2**20


def test_a_column_that_begins_with_nothing_has_its_type(tmp_path: Path) -> None:
    """Also when the first value comes after as many rows as a page of entries has."""
    location, rows = str(tmp_path / "tidelog.db"), store_address.PAGE_ROWS + 1
    write_log(location, [])
    with closing(sqlite3.connect(location)) as writing, writing:
        writing.executemany(
            "INSERT INTO dedupe VALUES ('s', ?, ?, x'00', '', x'', 1, 0, NULL, NULL)",
            [(f"{n:06}", n if n == rows else None) for n in range(1, rows + 1)],
        )
    _, found = StoreAddress(location).relations({"dedupe": "dedupe"})
    positions = found["dedupe"]["committed_id"].to_pylist()
    assert (len(positions), positions[-1], set(positions[:-1])) == (rows, rows, {None})
