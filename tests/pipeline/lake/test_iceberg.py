"""Iceberg metadata: a reader that is not ours sees what the Delta tables say, and no more."""

import os
import time
from pathlib import Path

import polars as pl
import pytest

from support.pipeline.plain_rows import VALUES, written
from tidelog.pipeline.lake.iceberg import FOLDER, HINT, Described, describe, is_described
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.lake.reading import VACUUM_AFTER
from tidelog.pipeline.tables import BY_NAME


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """An empty lake."""
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # it warns that it has no other one
    return Lake(tmp_path / "lake")


def seen(found: Described, position: str = "committed_id") -> list[int]:
    """Positions of the rows that Polars finds by the metadata."""
    frame = pl.scan_iceberg(found.metadata, reader_override="native")
    return sorted(frame.select(position).collect()[position].to_list())


def test_a_reader_of_iceberg_sees_every_row_of_every_kind(lake: Lake) -> None:
    """Rows, types and lists come out as they went in, and only what has changed is written."""
    lake.append_files("message_version", [written(lake, "message_version", 1, 2)], 2, {}, _nothing)
    assert not is_described(lake)
    [found] = describe(lake)
    assert (found.table, found.rows, found.is_new) == ("message_version", 2, True)
    assert seen(found) == [1, 2]
    frame = pl.scan_iceberg(found.metadata, reader_override="native").collect()
    names = [column.name for column in BY_NAME["message_version"].columns]
    assert frame.columns == names
    assert frame["kept"].to_list() == [["confidential"]] * 2
    assert frame["committed_at"].to_list() == [VALUES["timestamp"]] * 2
    assert is_described(lake)
    assert describe(lake) == [found._replace(is_new=False)]
    lake.overwrite_files("message_version", [], 2)
    [emptied] = describe(lake)
    assert (emptied.rows, seen(emptied)) == (0, [])
    assert describe(lake) == [emptied._replace(is_new=False)]


def test_files_that_were_replaced_are_no_part_of_it(lake: Lake) -> None:
    """An append adds, an overwrite leaves nothing else, and there is one snapshot at a time."""
    lake.append_files("event", [written(lake, "event", 1)], 1, {}, _nothing)
    [first] = describe(lake)
    lake.append_files("event", [written(lake, "event", 2, 3)], 3, {}, _nothing)
    [second] = describe(lake, ["event"])
    assert (second.version, second.files, seen(second)) == (first.version + 1, 2, [1, 2, 3])
    lake.overwrite_files("event", [written(lake, "event", 8)], 8)
    [third] = describe(lake)
    assert (third.files, seen(third)) == (1, [8])
    folder = Path(third.metadata).parent
    assert (folder / HINT).read_text() == str(third.version)
    assert Path(first.metadata).exists(), "somebody may be reading it"


def test_it_follows_the_tables_once_it_is_there(lake: Lake) -> None:
    """Whoever writes to a lake with such metadata leaves it current; to another one, none."""
    with lake.writing():
        lake.append_files("event", [written(lake, "event", 1)], 1, {}, _nothing)
    assert not is_described(lake)
    describe(lake)
    with lake.writing():
        lake.overwrite_files("event", [written(lake, "event", 5, 6)], 6)
    [found] = describe(lake)
    assert (found.is_new, seen(found)) == (False, [5, 6])


def test_metadata_says_nothing_of_content(lake: Lake) -> None:
    """What is forgotten leaves no trace there: only positions and times are told."""
    lake.append_files("send", [written(lake, "send", 4)], 4, {}, _nothing)
    describe(lake)
    metadata = [file for file in (lake.root / FOLDER).rglob("*") if file.is_file()]
    assert any(file.suffix == ".avro" for file in metadata)
    assert not any(b"confid" in file.read_bytes() for file in metadata)


def test_metadata_that_nobody_reads_any_more_is_deleted(lake: Lake) -> None:
    """However often a table changes, little is left beside it, and a table that is gone none."""
    for number in range(1, 5):
        lake.overwrite_files("event", [written(lake, "event", number)], number)
        [found] = describe(lake)
        old = time.time() - VACUUM_AFTER.total_seconds() - 60
        for file in Path(found.metadata).parent.iterdir():
            os.utime(file, (old, old))
    lake.overwrite_files("event", [written(lake, "event", 9)], 9)
    [found] = describe(lake)
    left = sorted(file.suffix for file in Path(found.metadata).parent.iterdir())
    assert left == [".avro", ".avro", ".json", ".text"], "a list of manifests, and one of files"
    assert seen(found) == [9]
    (lake.path("event")).rename(lake.root / "elsewhere")
    assert describe(Lake(lake.root)) == []
    assert not (lake.root / FOLDER / "event").exists()


def _nothing() -> None:
    """Nobody objects."""
