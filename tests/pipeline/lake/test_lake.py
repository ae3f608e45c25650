"""The lake: what a write leaves, what a reader sees, and what the position of a table says."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from tidelog.pipeline.frames import frame_of_rows
from tidelog.pipeline.lake.compaction import AT_ONCE
from tidelog.pipeline.lake.errors import LakeError, LakeLocked, SchemaDrift
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.lake.notes import SEAL
from tidelog.pipeline.tables import ACTION_COUNTS, ACTIVITY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAMES = [column.name for column in ACTIVITY.columns]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """An empty lake."""
    return Lake(tmp_path / "lake")


def minutes(spark: "SparkSession", *numbers: int, writes: int = 1) -> "DataFrame":
    """Rows of `activity`, one for each minute."""
    rows = [
        ("sync", "sync", datetime(2026, 1, 1, 0, number, tzinfo=UTC), writes, 2, 3, 0, 0, 0, 0)
        for number in numbers
    ]
    return frame_of_rows(spark, rows, ACTIVITY.ddl)


def stored(lake: Lake) -> dict[int, int]:
    """Writes by minute, read without Spark."""
    rows = lake.arrow("activity").to_pylist()
    assert len(rows) == len({row["minute"] for row in rows}), "a key is there twice"
    return {row["minute"].minute: row["writes"] for row in rows}


def test_a_table_that_was_never_written_is_empty(spark: "SparkSession", lake: Lake) -> None:
    """Spark gets no rows with the right columns; whoever asks without Spark is told what to do."""
    assert lake.through("activity") == 0
    assert lake.frame(spark, "activity").columns == NAMES
    assert lake.frame(spark, "activity").count() == 0
    with pytest.raises(LakeError, match="tidelog pipeline run"):
        lake.arrow("activity")


def test_writes_add_replace_and_merge(spark: "SparkSession", lake: Lake) -> None:
    """Append adds, upsert replaces rows of equal key, overwrite leaves nothing else."""
    assert lake.append("activity", minutes(spark, 0, 1, 2), 10, {"tidelog.log_id": "L"}) == 3
    assert (stored(lake), lake.through("activity")) == ({0: 1, 1: 1, 2: 1}, 10)
    lake.upsert("activity", minutes(spark, 2, 3, writes=9), 20)
    assert (stored(lake), lake.through("activity")) == ({0: 1, 1: 1, 2: 9, 3: 9}, 20)
    lake.upsert("activity", minutes(spark, 4, writes=5), 21)
    assert stored(lake) == {0: 1, 1: 1, 2: 9, 3: 9, 4: 5}
    assert lake.overwrite("activity", minutes(spark, 7), 30) == 1
    assert (stored(lake), lake.through("activity")) == ({7: 1}, 30)
    assert lake.frame(spark, "activity").count() == 1
    assert lake.property_of("activity", "tidelog.log_id") == "L"


def test_an_upsert_leaves_files_alone_that_it_does_not_touch(
    spark: "SparkSession", lake: Lake
) -> None:
    """A file without a row of equal key stays as it is."""
    lake.append("activity", minutes(spark, 0).coalesce(1), 1)
    [old] = lake.files("activity")
    lake.append("activity", minutes(spark, 1).coalesce(1), 2)
    lake.upsert("activity", minutes(spark, 1, writes=8), 3)
    assert old in lake.files("activity")
    assert stored(lake) == {0: 1, 1: 8}


def test_a_write_of_nothing_moves_the_position(spark: "SparkSession", lake: Lake) -> None:
    """A table that had nothing to add is complete as well."""
    lake.append("activity", minutes(spark, 0), 5)
    assert lake.append("activity", minutes(spark), 9) == 0
    assert (stored(lake), lake.through("activity")) == ({0: 1}, 9)


def test_the_lake_is_local_whatever_file_system_spark_prefers(
    spark: "SparkSession", lake: Lake
) -> None:
    """With another `fs.defaultFS`, what is written is in the lake and what is read is from it."""
    session = spark.newSession()
    session.conf.set("fs.defaultFS", "viewfs://tidelog/")
    with pytest.raises(Exception, match="viewfs"):
        minutes(session, 0).write.parquet(str(lake.root / "elsewhere"))
    assert lake.append("activity", minutes(session, 0, 1, 2), 10) == 3
    lake.upsert("activity", minutes(session, 2, 3, writes=9), 20)
    assert lake.frame(session, "activity").count() == 4
    assert stored(lake) == {0: 1, 1: 1, 2: 9, 3: 9}


def test_rows_that_went_elsewhere_are_not_committed(
    spark: "SparkSession", lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A worker that does not see the lake writes into a directory of its own: that is told."""
    lake.append("activity", minutes(spark, 0), 1)
    monkeypatch.setattr(
        "tidelog.pipeline.lake.lake.spark_path", lambda path: str(tmp_path / Path(path).name)
    )
    with pytest.raises(LakeError, match=r"of 2 rows for table activity, 0 are in .*all workers"):
        lake.append("activity", minutes(spark, 1, 2), 2)
    assert (stored(lake), lake.through("activity")) == ({0: 1}, 1)


def test_files_that_were_not_committed_are_not_seen(spark: "SparkSession", lake: Lake) -> None:
    """What a killed write left is no row of the table, and the vacuum takes it away."""
    lake.append("activity", minutes(spark, 0), 1)
    folder = lake.path("activity") / "part-left-by-a-killed-write"
    minutes(spark, 5, 6).write.parquet(str(folder))
    assert stored(lake) == {0: 1}
    assert lake.frame(spark, "activity").count() == 1
    lake.vacuum("activity", timedelta(0))
    assert not list(folder.glob("*.parquet"))
    assert stored(lake) == {0: 1}


def test_other_columns_are_refused(spark: "SparkSession", lake: Lake) -> None:
    """Neither rows nor a stored table may have other columns than the schema says."""
    wrong = minutes(spark, 0).withColumnRenamed("actors", "people")
    with pytest.raises(SchemaDrift, match="activity"):
        lake.append("activity", wrong, 1)
    assert not lake.path("activity").exists()
    DeltaTable.create(lake.path("activity"), wrong.toArrow().schema)
    with pytest.raises(SchemaDrift, match=r"actors, people.*tidelog pipeline build activity"):
        lake.through("activity")
    for name, remade in (("log", "ingest"), ("forgotten", "run"), ("verdict", "check")):
        DeltaTable.create(lake.path(name), wrong.toArrow().schema)
        with pytest.raises(SchemaDrift, match=f"and .*: `tidelog pipeline {remade}`"):
            lake.through(name)


@pytest.mark.usefixtures("impatient")
def test_one_process_writes_at_a_time(lake: Lake) -> None:
    """The second is told that there is a first; the right ends with the process that had it."""
    hold = "import sys; from pathlib import Path; from tidelog.pipeline.lake.lake import Lake\n"
    hold += "with Lake(Path(sys.argv[1])).writing(): print('mine', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(lake.root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"mine\n"
        with pytest.raises(LakeLocked, match="another process"), lake.writing():
            pass
        first.kill()
    with lake.writing():
        pass


def test_many_small_files_become_few(spark: "SparkSession", lake: Lake) -> None:
    """Compaction keeps the rows and the position, and the vacuum takes the old files."""
    count = AT_ONCE + 1
    frame = spark.range(0, count, 1, count).selectExpr(
        "'sync' AS stream",
        "'sync' AS surface",
        "timestamp_seconds(id * 60) AS minute",
        "id AS writes",
        "2L AS bytes",
        "3L AS actors",
        *(f"0L AS {name}" for name in ACTION_COUNTS),
    )
    lake.append("activity", frame, 7)
    assert len(lake.files("activity")) == count
    assert lake.compact("activity")
    assert len(lake.files("activity")) == 1
    assert not lake.compact("activity")
    assert lake.written_elsewhere("activity") == []
    assert lake.vacuum("activity") == 0, "a reader may still have them open"
    assert lake.vacuum("activity", timedelta(0)) == count
    assert (len(stored(lake)), lake.through("activity")) == (count, 7)
    assert lake.frame(spark, "activity").count() == count


def test_what_something_else_writes_is_seen_until_the_table_is_made_anew(
    spark: "SparkSession", lake: Lake
) -> None:
    """A row deleted or added by another program breaks the seal, also after further writes."""
    lake.append("activity", minutes(spark, 0, 1).coalesce(1), 1)
    lake.upsert("activity", minutes(spark, 1, 2, writes=4).coalesce(1), 2)
    assert lake.written_elsewhere("activity") == []
    DeltaTable(lake.path("activity")).delete("writes = 1")
    assert stored(lake) == {1: 4, 2: 4}
    assert lake.written_elsewhere("activity") != []
    lake.append("activity", minutes(spark, 5).coalesce(1), 3)
    lake.upsert("activity", minutes(spark, 2, writes=6).coalesce(1), 4)
    assert lake.written_elsewhere("activity") != []
    lake.overwrite("activity", minutes(spark, 5).coalesce(1), 5)
    assert lake.written_elsewhere("activity") == []
    write_deltalake(lake.path("activity"), minutes(spark, 6).toArrow(), mode="append")
    assert lake.written_elsewhere("activity") != []


def test_a_file_that_was_changed_in_its_place_is_seen(spark: "SparkSession", lake: Lake) -> None:
    """Its name says what it held, whether the file is as long as before or not."""
    lake.append("activity", minutes(spark, 0, 1).coalesce(1), 1)
    [file] = map(Path, lake.files("activity"))
    forged = minutes(spark, 0, 1, writes=7).toArrow()
    pq.write_table(forged, file)
    [wrong] = lake.written_elsewhere("activity")
    assert file.name in wrong


def test_the_seal_of_a_lake_from_before_there_were_seals(spark: "SparkSession", lake: Lake) -> None:
    """What is there counts as written by the pipeline; from its next write on, it is sealed."""
    lake.append("activity", minutes(spark, 0).coalesce(1), 1)
    log = lake.path("activity") / "_delta_log"
    for commit in log.glob("*.json"):
        lines = [line for line in commit.read_text().splitlines() if SEAL not in line]
        commit.write_text("".join(f"{line}\n" for line in lines))
    assert lake.seal("activity") is None
    assert lake.written_elsewhere("activity") == []
    lake.append("activity", minutes(spark, 1).coalesce(1), 2)
    assert lake.seal("activity") is not None
    assert lake.written_elsewhere("activity") == []


@pytest.mark.parametrize("content", [b"{not json\n", b"", b'{"commitInfo":{"timestamp":1}}\n'])
def test_what_is_no_table_is_told(lake: Lake, content: bytes) -> None:
    """Whatever lies where a table should be: the error names it and says how to begin anew."""
    first = lake.path("log") / "_delta_log" / "00000000000000000000.json"
    first.parent.mkdir(parents=True)
    first.write_bytes(content)
    with pytest.raises(LakeError, match=f"table log in {lake.root} cannot be read: .*pipeline run"):
        lake.through("log")
