"""What a table's log says of its files: enough to skip them, and nothing of their content."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyarrow.dataset import Expression, field

from tidelog.pipeline.frames import arrow_schema
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.tables import MESSAGE_VERSION, SEND, TABLES, Table

SECRET = "a secret"


def moment(position: int) -> datetime:
    """A time that is no whole millisecond."""
    return datetime(2026, 1, 1, 0, 0, position, position, tzinfo=UTC)


def add(lake: Lake, table: Table, positions: range, **columns: Any) -> None:
    """A file with a row for each position."""
    rows = [
        {"committed_id": each, "committed_at": moment(each), "data": SECRET, **columns}
        for each in positions
    ]
    folder = lake.new_folder(table.name)
    folder.mkdir(parents=True)
    written = pa.Table.from_pylist(rows, arrow_schema(table))
    pq.write_table(written, folder / "rows.parquet", row_group_size=2)
    lake.append_files(table.name, [folder / "rows.parquet"], positions[-1], {}, lambda: None)


def read_by(lake: Lake, name: str, condition: Expression) -> tuple[int, int]:
    """How many files a reader with a condition opens, and how many rows it gets."""
    whole = DeltaTable(lake.path(name)).to_pyarrow_dataset()
    return len(list(whole.get_fragments(condition))), whole.count_rows(condition)


def told_by(lake: Lake, name: str) -> list[dict[str, Any]]:
    """What the log of a table says of each file; nothing else of the file is in it."""
    said = []
    for commit in (lake.path(name) / "_delta_log").glob("*.json"):
        text = commit.read_text()
        assert SECRET not in text
        assert "room-1" not in text
        lines = map(json.loads, text.splitlines())
        said += [json.loads(line["add"]["stats"]) for line in lines if "add" in line]
    return said


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Three files of ten versions each."""
    lake = Lake(tmp_path / "lake")
    for first in (1, 11, 21):
        add(lake, MESSAGE_VERSION, range(first, first + 10), channel=f"room-{first}")
    return lake


def test_a_reader_opens_only_files_with_such_positions_or_times(lake: Lake) -> None:
    """Also at the edges of a file, whose times are finer than what is said of them."""
    position, time = field("committed_id"), field("committed_at")
    assert read_by(lake, "message_version", position > 20) == (1, 10)
    assert read_by(lake, "message_version", position == 10) == (1, 1)
    assert read_by(lake, "message_version", (position > 9) & (position < 12)) == (2, 2)
    assert read_by(lake, "message_version", position > 30) == (0, 0)
    assert read_by(lake, "message_version", time >= pa.scalar(moment(30))) == (1, 1)
    assert read_by(lake, "message_version", time < pa.scalar(moment(11))) == (2, 10)
    assert read_by(lake, "message_version", time < pa.scalar(moment(10))) == (1, 9)
    assert lake.arrow("message_version", ["committed_id"], [("committed_id", ">", 28)]) == pa.table(
        {"committed_id": [29, 30]}
    )


def test_of_other_columns_nothing_is_said_and_nothing_is_skipped(lake: Lake) -> None:
    """No content is in the table's log; rows are found by it all the same."""
    for said in told_by(lake, "message_version"):
        for part in ("minValues", "maxValues", "nullCount"):
            assert set(said[part]) == {"committed_id", "committed_at"}, part
    assert read_by(lake, "message_version", field("data") == SECRET) == (3, 30)
    assert read_by(lake, "message_version", field("name").is_null()) == (3, 30)
    assert read_by(lake, "message_version", field("channel") == "room-11")[1] == 10


def test_a_column_that_is_null_everywhere_has_no_smallest_value(tmp_path: Path) -> None:
    """Whoever looks for rows that have one need not open the file; others are found."""
    lake = Lake(tmp_path / "lake")
    add(lake, SEND, range(1, 4))
    add(lake, SEND, range(4, 7), deleted_at=moment(9))
    assert read_by(lake, "send", field("deleted_at").is_null())[1] == 3
    assert read_by(lake, "send", field("deleted_at").is_valid()) == (1, 3)
    assert read_by(lake, "send", field("deleted_at") >= pa.scalar(moment(9)))[1] == 3


def test_a_table_of_an_earlier_version_is_told_with_its_next_write(lake: Lake) -> None:
    """What it says of its earlier files, which is nothing, hides no row."""
    log = lake.path("message_version") / "_delta_log"
    for commit in log.glob("*.json"):
        lines = [json.loads(line) for line in commit.read_text().splitlines()]
        for line in lines:
            if "add" in line:
                line["add"]["stats"] = json.dumps({"numRecords": 10})
            if "metaData" in line:
                del line["metaData"]["configuration"]["delta.dataSkippingStatsColumns"]
        commit.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert read_by(lake, "message_version", field("committed_id") > 20) == (3, 10)
    add(lake, MESSAGE_VERSION, range(31, 41))
    assert read_by(lake, "message_version", field("committed_id") > 20) == (4, 20)
    assert read_by(lake, "message_version", field("committed_id") <= 30) == (3, 30)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_only_places_and_times_are_told(table: Table, tmp_path: Path) -> None:
    """Whatever columns a table gets: a text, a size or a number of content is never told."""
    lake = Lake(tmp_path / "lake")
    folder = lake.new_folder(table.name)
    folder.mkdir(parents=True)
    schema = arrow_schema(table)
    values = {
        pa.int64(): 7,
        pa.string(): SECRET,
        pa.binary(): SECRET.encode(),
        pa.bool_(): True,
        pa.float64(): 0.5,
        pa.timestamp("us", "UTC"): moment(7),
    }
    row = {each.name: values.get(each.type, [SECRET]) for each in schema}
    pq.write_table(pa.Table.from_pylist([row], schema), folder / "row.parquet")
    lake.append_files(table.name, [folder / "row.parquet"], 7, {}, lambda: None)
    [said] = told_by(lake, table.name)
    told = {*said["minValues"], *said["maxValues"], *said["nullCount"]}
    places = {"committed_id", "first_committed_id", "last_committed_id", "committed_at"}
    kinds = {column.name: column.kind for column in table.columns}
    assert told == {name for name in kinds if name in places or kinds[name] == "timestamp"}
