"""Tables that stay open: they show what was committed last, and are not opened for it again."""

import os
import shutil
import time
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import TableNotFoundError

from support.log.log_writer import draft, write_log
from tidelog.pipeline.fill.ingest import catch_up
from tidelog.pipeline.lake import open_tables
from tidelog.pipeline.lake.compaction import AT_ONCE
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.lake.open_tables import (
    FOLLOWED_RETENTION,
    LOG_FOLDER,
    RETENTION,
    OpenTables,
)
from tidelog.pipeline.source.store_address import StoreAddress

HOUR_SECONDS = 3600.0


def add(path: Path, *numbers: int) -> None:
    """A commit by somebody else."""
    write_deltalake(path, pa.table({"number": numbers}), mode="append")


def numbers(table: DeltaTable) -> list[int]:
    """What a table shows."""
    return sorted(table.to_pyarrow_table()["number"].to_pylist())


def test_a_table_is_opened_once_and_shows_what_others_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits are added to it; only a table that was made anew is opened anew."""
    opened: list[Path] = []

    def open_table(path: Path) -> DeltaTable:
        opened.append(path)
        return DeltaTable(path)

    monkeypatch.setattr(open_tables, "DeltaTable", open_table)
    tables, path = OpenTables(), tmp_path / "table"
    with pytest.raises(TableNotFoundError):
        tables.at(path)
    opened.clear()
    for number in range(5):
        add(path, number)
        assert numbers(tables.at(path)) == list(range(number + 1))
        assert tables.at(path) is tables.at(path)
    assert opened == [path]
    shutil.rmtree(path)
    with pytest.raises(TableNotFoundError):
        tables.at(path)
    for number in range(7, 15):  # more commits than it had
        add(path, number)
    assert numbers(tables.at(path)) == list(range(7, 15))


@pytest.mark.parametrize(
    ("name", "retention", "age_seconds"),
    [("log", FOLLOWED_RETENTION, 2 * HOUR_SECONDS), ("event", RETENTION, 25 * HOUR_SECONDS)],
)
def test_a_table_in_which_much_is_committed_keeps_few_commits(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    retention: dict[str, str],
    age_seconds: float,
) -> None:
    """A checkpoint is written by itself, and takes the commits before an old one away."""
    monkeypatch.setitem(retention, "delta.checkpointInterval", "4")
    lake = Lake(tmp_path / "lake")
    log = lake.path(name) / LOG_FOLDER

    def commit(*positions: int) -> None:
        for position in positions:
            lake.append_files(name, [], position, {}, lambda: None, 0)

    commit(*range(1, 12))
    old = time.time() - age_seconds
    for file in log.iterdir():
        os.utime(file, (old, old))
    commit(*range(12, 18))
    left = sorted(int(file.stem) for file in log.glob("*.json"))
    assert left[0] > 4, "the oldest are gone"
    assert left == list(range(left[0], left[-1] + 1))
    assert Lake(lake.root).through(name) == lake.through(name) == 17


def test_a_table_of_an_earlier_version_gets_the_same_retention(tmp_path: Path) -> None:
    """The next write notes it with the table."""
    lake = Lake(tmp_path / "lake")
    lake.append_files("log", [], 1, dict.fromkeys(RETENTION, "interval 30 days"), lambda: None, 0)
    lake.append_files("log", [], 2, {}, lambda: None, 0)
    kept = {key: lake.property_of("log", key) for key in RETENTION}
    assert kept == FOLLOWED_RETENTION


def test_folders_of_which_nothing_is_left_are_removed(tmp_path: Path) -> None:
    """Also what a killed write of Spark left in its own folder; not one that is young."""
    location, lake = str(tmp_path / "tidelog.db"), Lake(tmp_path / "lake")
    for number in range(AT_ONCE + 2):
        write_log(location, [draft(number)])
        assert catch_up(StoreAddress(location), lake)
    unfinished = lake.new_folder("log") / "_temporary" / "0"
    unfinished.mkdir(parents=True)
    (unfinished / "content.parquet").write_bytes(b"something")
    before = len(list(lake.path("log").glob("part-*")))
    lake.vacuum("log")
    assert len(list(lake.path("log").glob("part-*"))) == before > AT_ONCE
    lake.vacuum("log", timedelta(0))
    assert {str(folder) for folder in lake.path("log").glob("part-*")} == {
        str(Path(file).parent) for file in lake.files("log")
    }
    assert lake.arrow("log").num_rows == AT_ONCE + 2
