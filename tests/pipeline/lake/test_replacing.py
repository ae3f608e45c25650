"""Rows take the place of others: which files are looked at, and which are written again."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidelog.pipeline.frames import arrow_schema
from tidelog.pipeline.lake import replacing
from tidelog.pipeline.lake.lake import PART_ROWS, Lake
from tidelog.pipeline.lake.notes import ALTERATIONS
from tidelog.pipeline.lake.replacing import Gone, files_from, files_with, span_of
from tidelog.pipeline.tables import BY_NAME

SCHEMA = arrow_schema(BY_NAME["dedupe"])
FILES, ROWS = 10, 50


def keys(numbers: range, owner: str = "a") -> pa.Table:
    """Rows of `dedupe` for some entries."""
    rows = [
        {
            "scope": "sync",
            "key": f"k{number}",
            "committed_id": number,
            "fingerprint": b"",
            "owner": owner,
            "is_available": True,
        }
        for number in numbers
    ]
    return pa.Table.from_pylist(rows, SCHEMA)


def names(*numbers: int) -> Gone:
    """The rows of entries."""
    return Gone(pa.table({"committed_id": pa.array(numbers, pa.int64())}))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A table of ten files, each with fifty entries."""
    lake = Lake(tmp_path)
    for number in range(FILES):
        lake.replace("dedupe", 1, [], keys(range(number * ROWS, (number + 1) * ROWS)))
    assert len(lake.files("dedupe")) == FILES
    return lake


def owners(lake: Lake) -> dict[int, str]:
    """Whose each entry is."""
    rows = lake.arrow("dedupe").to_pylist()
    assert len({row["committed_id"] for row in rows}) == len(rows), "a row is there twice"
    return {row["committed_id"]: row["owner"] for row in rows}


def test_only_files_that_hold_such_a_row_are_written_again(lake: Lake) -> None:
    """Two neighbours are one file; what is new goes into a file of its own."""
    before = lake.files("dedupe")
    new = pa.concat_tables([keys(range(120, 122), "b"), keys(range(500, 503), "b")])
    written = lake.replace("dedupe", 2, [names(120, 121, 500, 777)], new, notes={ALTERATIONS: 5})
    assert written == ROWS + 3
    after = lake.files("dedupe")
    assert len(set(before) & set(after)) == FILES - 1
    assert len(after) == FILES + 1
    expected = dict.fromkeys(range(FILES * ROWS), "a") | dict.fromkeys((120, 121), "b")
    assert owners(lake) == expected | dict.fromkeys((500, 501, 502), "b")
    assert (lake.through("dedupe"), lake.noted("dedupe", ALTERATIONS)) == (2, 5)


def test_rows_that_go_leave_nothing_behind(lake: Lake) -> None:
    """A file of which nothing is left goes too."""
    lake.replace("dedupe", 2, [names(*range(100, 150), 200)])
    assert owners(lake).keys() == set(range(FILES * ROWS)) - set(range(100, 150)) - {200}
    assert len(lake.files("dedupe")) == FILES - 1


def test_a_file_that_is_too_large_for_memory_is_written_in_batches(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same rows come of it."""
    monkeypatch.setattr(replacing, "SMALL_BYTES", 0)
    lake.replace("dedupe", 2, [names(120, 121)], keys(range(120, 121), "b"))
    expected = dict.fromkeys(range(FILES * ROWS), "a") | {120: "b"}
    del expected[121]
    assert owners(lake) == expected


def test_a_key_without_an_entry_goes_and_its_namesake_stays(lake: Lake) -> None:
    """It is told from one with an entry, which came to the same key later."""
    number = SCHEMA.names.index("committed_id")
    lone = keys(range(3, 5), "lone").set_column(
        number, SCHEMA.field("committed_id"), pa.nulls(2, pa.int64())
    )
    lake.replace("dedupe", 1, [], lone)
    gone = Gone(pa.table({"scope": ["sync"], "key": ["k3"]}), without="committed_id")
    lake.replace("dedupe", 2, [gone])
    rows = lake.arrow("dedupe").to_pylist()
    assert [row["key"] for row in rows if row["committed_id"] is None] == ["k4"]
    assert sum(row["key"] == "k3" for row in rows) == 1


def test_the_foot_of_a_file_tells_what_it_cannot_hold(lake: Lake) -> None:
    """Files are found by a value, by all that follow it, and by rows without one."""
    files = sorted(lake.files("dedupe"), key=lambda file: span_of(file, "committed_id") or ())
    assert files_with(files, "committed_id", [120, 499, 9999]) == [files[2], files[9]]
    assert files_from(files, "committed_id", 450) == [files[9]]
    assert files_from(files, "committed_id", 500) == []


def test_small_files_become_files_that_are_no_larger_than_the_others(lake: Lake) -> None:
    """Twenty builds later the table has few files, in order, and none is large."""
    for number in range(20):
        begin = 1000 + 300 * number
        lake.replace("dedupe", 1, [], keys(range(begin, begin + 300)))
        lake.compact("dedupe")
    spans = sorted(span_of(file, "committed_id") or () for file in lake.files("dedupe"))
    assert len(spans) < FILES + 20
    assert max(pq.read_metadata(file).num_rows for file in lake.files("dedupe")) <= PART_ROWS
    assert owners(lake).keys() == {*range(FILES * ROWS), *range(1000, 7000)}
