"""Time travel with and without Spark: the same rows; `test_agreement` compares with the server."""

from typing import TYPE_CHECKING, Any

import pytest

from support.pipeline.whole_pipeline import CHANNEL, PARTITION, WholeLake, whole_model
from tidelog.pipeline import as_of as module
from tidelog.pipeline.as_of import AsOf, Kind, as_of, as_of_here
from tidelog.pipeline.fill.sync_model import model_in_use
from tidelog.pipeline.lake.forgetting import begin_forgetting
from tidelog.pipeline.lake.names import UnknownName, near
from tidelog.pipeline.source.store_address import StoreAddress

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def plain(state: AsOf | None) -> tuple[Any, ...]:
    """All of it, to be compared."""
    assert state is not None
    return state[:3], state.counts, state.rows.to_pylist(), state.rows.column_names


def test_both_ways_show_the_same(spark: "SparkSession", whole: WholeLake) -> None:
    """A channel, a partition and a mesh in the middle and at the end, every row and column."""
    lake, through = whole.lake, whole.result["ingest"]["through"]
    model = model_in_use(StoreAddress(str(whole.store)), whole_model())
    [mesh] = lake.arrow("send", ["mesh_id"])["mesh_id"].unique().to_pylist()
    asked: dict[Kind, str] = {"channel": CHANNEL, "partition": PARTITION, "mesh": mesh}
    for kind, name in asked.items():
        for position in (through // 2, through):
            here = as_of_here(lake, position, kind, name, model)
            assert plain(here) == plain(as_of(spark, lake, position, kind, name, model))
            assert here is not None
            assert here.rows.num_rows > 0


def test_what_is_too_much_or_not_built_is_left_to_spark(
    spark: "SparkSession", whole: WholeLake, tmp_path: "Path", monkeypatch: pytest.MonkeyPatch
) -> None:
    """More entries than the limit, a table that lacks some, and a forgetting that is under way."""
    lake, through = whole.copy(tmp_path / "own").lake, whole.result["ingest"]["through"]
    small = as_of_here(lake, through, "channel", CHANNEL, limit=2)
    assert small is not None
    assert (small.rows.num_rows, sum(small.counts.values()) > 2) == (2, True)
    monkeypatch.setattr(module, "SMALL_ROWS", 2)
    assert as_of_here(lake, through, "channel", CHANNEL) is None
    monkeypatch.undo()
    with pytest.raises(UnknownName, match=r"no channel tide/nowhere in the lake"):
        as_of(spark, lake, through, "channel", "tide/nowhere")
    kept = [row["committed_id"] for row in lake.arrow("message_version").to_pylist()]
    streams = lake.arrow("log", ["committed_id", "stream"]).sort_by("committed_id").to_pylist()
    last = max(row["committed_id"] for row in streams if row["stream"] == f"channels/{CHANNEL}")
    rows = lake.frame(spark, "message_version").where(f"committed_id < {last}")
    lake.overwrite("message_version", rows, last - 1)
    assert last in kept
    assert as_of_here(lake, through, "channel", CHANNEL) is None, "the table lacks its last entry"
    assert as_of_here(lake, last - 1, "channel", CHANNEL) is not None
    other = next(
        row["stream"]
        for row in reversed(streams)
        if row["committed_id"] < last
        and row["stream"].startswith("channels/")
        and row["stream"] != f"channels/{CHANNEL}"
        and not any(r["stream"] == row["stream"] for r in streams[last - 1 :])
    )
    name = other.removeprefix("channels/")
    assert as_of_here(lake, through, "channel", name) is not None, "it lacks nothing of this one"
    begin_forgetting(lake)
    assert as_of_here(lake, last - 1, "channel", CHANNEL) is None


def test_names_that_somebody_may_have_meant() -> None:
    """The same last part comes first, then what is written nearly so."""
    names = ["other/room", "tide/rooms", "tide/room-1", "x/y"]
    assert near("room", names)[0] == "other/room"
    assert near("tide/room", names)[:2] == ["other/room", "tide/rooms"]
    assert near("something else", names) == []
