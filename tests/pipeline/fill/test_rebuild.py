"""Making one table anew while others ingest, build and read."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.log.log_writer import draft, write_log
from support.pipeline.table_rows import table_rows
from tidelog.pipeline.fill.derived_tables import build
from tidelog.pipeline.fill.ingest import catch_up
from tidelog.pipeline.fill.rebuild import rebuild
from tidelog.pipeline.lake.errors import LakeError
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.source.store_address import StoreAddress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rows_of(lake: Lake) -> list[dict[str, Any]]:
    """The table, in order."""
    return sorted(lake.arrow("audit").to_pylist(), key=lambda row: row["committed_id"])


def test_a_table_is_made_anew_while_the_rest_goes_on(spark: "SparkSession", tmp_path: Path) -> None:
    """Entries that come meanwhile are ingested and built, by somebody who has the lock, and stay.

    A row that was damaged before is right afterwards; nothing is there twice; readers see the old
    table until the new one is complete.
    """
    location, lake = str(tmp_path / "tidelog.db"), Lake(tmp_path / "lake")
    address = StoreAddress(location)
    write_log(location, [draft(n) for n in range(20)])
    assert catch_up(address, lake)
    build(spark, lake, address, ["audit"])
    right = rows_of(lake)
    frame = lake.frame(spark, "audit").withColumn("actor", spark_text("mallory"))
    lake.overwrite("audit", frame.select(*lake.frame(spark, "audit").columns), 20)
    seen: list[tuple[str, int]] = []

    def meanwhile(step: str) -> None:
        other = Lake(lake.root)
        seen.append((step, len({row["actor"] for row in rows_of(other)})))
        if step == "waiting":
            write_log(location, [draft(n) for n in range(20, 30)])
            with other.writing(wait_seconds=0):
                assert catch_up(address, other)
                build(spark, other, address, ["audit"])
            assert other.through("audit") == 30
            write_log(location, [draft(n) for n in range(30, 33)])
            with other.writing(wait_seconds=0):
                assert catch_up(address, other)

    built = rebuild(spark, lake, address, "audit", told=meanwhile)
    assert [step for step, _ in seen] == ["making", "waiting", "replacing"]
    assert seen[0][1] == seen[1][1] == 1, "the damaged table is read until then"
    assert (built.through, built.mode) == (33, "full")
    now = rows_of(lake)
    assert [row["committed_id"] for row in now] == list(range(1, 34))
    assert now[:20] == right
    assert lake.written_elsewhere("audit") == []
    assert not list(lake.path("audit").rglob("part-*/_delta_log"))


def spark_text(text: str) -> Any:
    """A column of one text."""
    from pyspark.sql import functions as sql

    return sql.lit(text)


def test_what_is_forgotten_meanwhile_does_not_come_back(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """The table stays as it is then, and so it does if it is of another kind or there is no log."""
    location, lake = str(tmp_path / "tidelog.db"), Lake(tmp_path / "lake")
    address = StoreAddress(location)
    write_log(location, [draft(n) for n in range(3)])
    with pytest.raises(LakeError, match="there is no log"):
        rebuild(spark, lake, address, "audit")
    assert catch_up(address, lake)
    build(spark, lake, address, ["audit"])
    files = lake.files("audit")
    with pytest.raises(LakeError, match=r"message is not .* message_version.*build message --full"):
        rebuild(spark, lake, address, "message")

    def forget(step: str) -> None:
        if step == "waiting":
            listed = {"stream": "channels/app/1", "entity": "e1", "first_committed_id": 2}
            Lake(lake.root).append("forgotten", table_rows(spark, "forgotten", listed), 0)

    with pytest.raises(LakeError, match="forgotten, rolled back"):
        rebuild(spark, lake, address, "audit", told=forget)
    assert lake.files("audit") == files
