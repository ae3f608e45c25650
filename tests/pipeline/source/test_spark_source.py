"""The source `tidelog`: batch and stream, on both engines.

A reader is plain Python that Spark calls, so most properties are shown by calling it. That Spark
calls it as it should is shown for a batch here and for a stream by `test_ingest`.
"""

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    CaseInsensitiveDict,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from support.log.log_writer import draft, read_log, write_log
from tidelog.base.errors import ConfigError, StoreUnavailable
from tidelog.pipeline.source.spark_source import (
    BatchReader,
    StreamReader,
    TidelogSource,
    id_ranges,
    offset_of,
    position_of,
)
from tidelog.pipeline.source.store_address import PAGE_ROWS, LogReplaced, StoreAddress
from tidelog.store.rows import Entry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ODD = "a\0b\ue000c\ue0000"
"""Text that PostgreSQL stores in another form."""

WAIT_SECONDS = 120.0


def source(location: str, **options: object) -> TidelogSource:
    """The source with these options, as Spark makes it."""
    given = {name: str(value) for name, value in options.items()}
    return TidelogSource(CaseInsensitiveDict({"store": location, **given}))


def schema_of(made: TidelogSource) -> StructType:
    """The schema the source answers, read without a JVM."""
    fields = (part.split() for part in made.schema().split(", "))
    schema = StructType()
    for name, kind, *_not_null in fields:
        schema = schema.add(name, kind.replace("bigint", "long"))
    return schema


def batch_reader(location: str, **options: object) -> BatchReader:
    """A reader with these options."""
    made = source(location, **options)
    return made.reader(schema_of(made))


def stream_reader(location: str, **options: object) -> StreamReader:
    """A reader of a stream."""
    made = source(location, **options)
    return made.streamReader(schema_of(made))


def rows(reader: BatchReader) -> list[dict[str, Any]]:
    """What all partitions of a reader give."""
    return [
        row
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]


def ids(reader: BatchReader) -> list[int]:
    """The positions that a reader gives, in its order."""
    return [row["committed_id"] for row in rows(reader)]


def until(holds: Callable[[], bool]) -> None:
    """Wait for something, not for ever."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < deadline, "not within the time"
        time.sleep(0.05)


def test_spark_reads_every_entry_as_it_was_committed(
    spark: "SparkSession", store_location: str
) -> None:
    """A frame equals the log column by column, whatever bytes texts and data hold."""
    write_log(
        store_location,
        [
            draft(1),
            draft(2, stream=f"channels/app/{ODD}", entity=ODD, ref=ODD, actor=ODD),
            draft(3, surface="mesh", data=b"\xff\xfe\x00\x80"),
            draft(4, body=b""),
        ],
    )
    frame = spark.read.format("tidelog").options(store=store_location, rowsPerPartition=3).load()
    found = [
        Entry._make(bytes(value) if isinstance(value, bytearray) else value for value in row)
        for row in frame.orderBy("committed_id").collect()
    ]
    assert found == read_log(store_location)


def test_queries_on_one_frame_do_not_disturb_each_other(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """A condition of one query stays its own; what the options say holds for all."""
    location = str(tmp_path / "tidelog.db")
    write_log(location, [draft(n) for n in range(9)])
    frame = (
        spark.read.format("tidelog")
        .options(store=location, columns="committed_id,stream", after=2, through=8)
        .load()
    )
    assert frame.count() == 6
    assert frame.where("stream = 'channels/app/0' AND committed_id <= 7").count() == 2
    assert frame.count() == 6
    assert frame.where("committed_id < 4").union(frame.where("committed_id > 7")).count() == 2


def test_a_read_of_spark_does_not_hold_back_a_checkpoint(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """While Spark is at work on the first rows of a log, its WAL is cut to nothing."""
    location = tmp_path / "tidelog.db"
    count = 3 * PAGE_ROWS
    write_log(str(location), [draft(n) for n in range(count)])
    started, release = tmp_path / "started", tmp_path / "release"

    def wait_at_the_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            started.touch()
            deadline = time.monotonic() + WAIT_SECONDS
            while not release.exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            yield batch

    frame = spark.read.format("tidelog").options(store=str(location), columns="committed_id").load()
    counts: list[int] = []
    work = frame.mapInArrow(wait_at_the_first, "committed_id long")
    reading = threading.Thread(target=lambda: counts.append(work.count()))
    reading.start()
    try:
        until(started.exists)
        with closing(sqlite3.connect(location, isolation_level=None)) as writer:
            writer.execute("UPDATE log SET actor = 'someone else'")
            wal = location.with_name(location.name + "-wal")
            assert wal.stat().st_size > 0
            until(lambda: writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0)
            assert wal.stat().st_size == 0
            assert reading.is_alive()
    finally:
        release.touch()
        reading.join(WAIT_SECONDS)
    assert counts == [count]


def test_pruned_content_arrives_as_null(tmp_path: Path) -> None:
    """An entry whose body was pruned keeps its place and its digests."""
    location = str(tmp_path / "tidelog.db")
    write_log(location, [draft(1), draft(2)])
    with closing(sqlite3.connect(location)) as connection:
        connection.execute("UPDATE log SET body = NULL WHERE committed_id = 1")
        connection.commit()
    found = rows(batch_reader(location))
    assert [Entry(**row) for row in found] == read_log(location)
    assert found[0]["body"] is None


def test_options_select_what_they_name(store_location: str) -> None:
    """Ranges of ids, a surface, a stream and all of them together select what they say."""
    write_log(
        store_location,
        [draft(n, surface="mesh" if n % 3 == 0 else "channels") for n in range(1, 31)]
        + [draft(31, stream=ODD)],
    )
    entries = read_log(store_location)

    def found(**options: object) -> list[int]:
        # With the content and without it are queries of their own.
        [some, others] = (
            ids(batch_reader(store_location, **options, rowsPerPartition=16, columns=wanted))
            for wanted in ("committed_id,body", "committed_id,kind")
        )
        assert some == others
        return some

    assert found(after=20, through=25) == [21, 22, 23, 24, 25]
    assert found(after=99) == []
    assert found(through=0) == []
    mesh = [entry.committed_id for entry in entries if entry.surface == "mesh"]
    assert found(surface="mesh") == mesh
    assert found(surface="none") == []
    one = [entry.committed_id for entry in entries if entry.stream == "channels/app/1"]
    assert len(one) > 5
    assert found(stream="channels/app/1") == one
    wanted = [number for number in one if number > 9]
    assert found(stream="channels/app/1", surface="channels", after=9) == wanted
    assert found(stream="channels/app/1", surface="mesh") == []
    assert found(stream=ODD) == [31]
    for option in ("after", "through"):
        with pytest.raises(ConfigError, match=option):
            found(**{option: "-1"})


def test_only_the_wanted_columns_are_read(store_location: str) -> None:
    """`columns` gives these columns in this order; a name that is none is refused."""
    write_log(store_location, [draft(1)])
    [entry] = read_log(store_location)
    found = rows(batch_reader(store_location, columns="kind, committed_id"))
    assert [list(row.items()) for row in found] == [[("kind", entry.kind), ("committed_id", 1)]]
    assert rows(batch_reader(store_location, columns="body")) == [{"body": entry.body}]
    with pytest.raises(ConfigError, match="the log has no colour; it has committed_id, "):
        source(store_location, columns="kind,colour").schema()


@pytest.mark.parametrize("option", ["maxRowsPerTrigger", "rowsPerPartition"])
def test_a_limit_must_be_a_number_above_zero(option: str) -> None:
    """A limit that would read nothing, or is no number, is refused by name."""
    for wrong in ("0", "-1", "many"):
        with pytest.raises(ConfigError, match=option):
            stream_reader("somewhere", **{option: wrong})


def test_an_empty_log_has_no_rows_and_no_batch(store_location: str) -> None:
    """A store without an entry reads as nothing, and a stream over it stays where it begins."""
    write_log(store_location, [])
    assert rows(batch_reader(store_location)) == []
    reader = stream_reader(store_location)
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    assert list(reader.partitions(start, start)) == []


def test_offsets_follow_the_head_and_the_limit(store_location: str) -> None:
    """A batch goes to the head or to the limit, and its offset has the digest of its last entry."""
    write_log(store_location, [draft(n) for n in range(25)])
    entries = read_log(store_location)
    reader = stream_reader(store_location, maxRowsPerTrigger=10)
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(10)
    assert stream_reader(store_location).getDefaultReadLimit() == ReadAllAvailable()

    def latest(start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        offset = reader.latestOffset(start, limit)
        assert position_of(offset).digest == entries[offset["committed_id"] - 1].digest
        return offset

    first = latest(reader.initialOffset(), limit)
    assert first["committed_id"] == 10
    assert latest(first, ReadAllAvailable())["committed_id"] == 25
    assert reader.reportLatestOffset()["committed_id"] == 25


def test_available_now_ends_where_the_log_ended(store_location: str) -> None:
    """What is committed after the query began is left to the next one."""
    write_log(store_location, [draft(n) for n in range(5)])
    reader = stream_reader(store_location)
    reader.prepareForTriggerAvailableNow()
    write_log(store_location, [draft(n) for n in range(5)])
    offset = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert offset["committed_id"] == 5
    assert reader.latestOffset(offset, ReadAllAvailable()) == offset


def test_a_stream_begins_where_it_is_told(store_location: str) -> None:
    """`startingOffset` is where a query without a checkpoint begins, if that place is there."""
    write_log(store_location, [draft(n) for n in range(4)])
    start = offset_of(StoreAddress(store_location).head().position)
    write_log(store_location, [draft(n) for n in range(2)])
    assert stream_reader(store_location, startingOffset=json.dumps(start)).initialOffset() == start
    wrong = json.dumps({**start, "digest": "00" * 16})
    with pytest.raises(LogReplaced):
        stream_reader(store_location, startingOffset=wrong).initialOffset()


def test_a_stream_of_ranges_says_what_a_batch_has(store_location: str) -> None:
    """Its rows are ranges, one after another, from where the batch begins to where it ends."""
    write_log(store_location, [draft(n) for n in range(25)])
    reader = stream_reader(store_location, rows="ranges", rowsPerPartition=10)
    begin = reader.initialOffset()
    end = reader.latestOffset(begin, ReadMaxRows(22))
    found = [
        row
        for partition in reader.partitions(begin, end)
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]
    assert found == [
        {"after": 0, "through": 7},
        {"after": 7, "through": 14},
        {"after": 14, "through": 22},
    ]
    with pytest.raises(ConfigError, match="must be entries or ranges"):
        stream_reader(store_location, rows="all")


def test_a_replaced_log_is_refused(store_location: str, tmp_path: Path) -> None:
    """Another log, the same one with another history, and a shorter one are refused, each batch."""
    write_log(store_location, [draft(n) for n in range(5)], log_id="L")
    begin = stream_reader(store_location).initialOffset()
    end = stream_reader(store_location).latestOffset(begin, ReadAllAvailable())
    others = {
        "it is log M, not L": ("M", range(9)),
        "entry 5 is another one than was read": ("L", range(10, 19)),
        "it ends at 3, but 5 was read": ("L", range(3)),
    }
    for number, (why, (log_id, numbers)) in enumerate(others.items()):
        other = str(tmp_path / f"{number}.db")
        write_log(other, [draft(n) for n in numbers], log_id=log_id)
        # Of an earlier version, which noted no incarnation; then also with that.
        for noted, told in (("", why), (end["incarnation"], "is log M|another incarnation")):
            place = {**end, "incarnation": noted}
            with pytest.raises(LogReplaced, match=told):
                stream_reader(other).latestOffset(place, ReadAllAvailable())
            with pytest.raises(LogReplaced, match=told):  # a batch planned before a restart
                stream_reader(other).partitions(begin, place)


def test_no_store_is_a_clear_error() -> None:
    """A source without a store, and one whose store does not answer, say what to do."""
    with pytest.raises(ConfigError, match="store: missing"):
        TidelogSource(CaseInsensitiveDict()).reader(StructType())
    with pytest.raises(StoreUnavailable, match="cannot be read") as caught:
        rows(batch_reader("postgresql://me:hunter2@127.0.0.1:1/x"))
    assert "hunter2" not in str(caught.value)


def test_ranges_are_equal_and_cover_everything() -> None:
    """Ranges follow each other without a gap, none is longer than asked, lengths differ by one."""
    for after, through, size in ((0, 0, 5), (3, 4, 5), (0, 10, 5), (7, 30, 5), (0, 101, 100)):
        ranges = id_ranges(after, through, size)
        edges = [after, *(each.through for each in ranges)]
        assert edges[-1] == through
        assert [each.after for each in ranges] == edges[:-1]
        lengths = [each.through - each.after for each in ranges]
        assert all(0 < length <= size for length in lengths)
        assert not lengths or max(lengths) - min(lengths) <= 1
