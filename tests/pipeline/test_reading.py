"""Reading tables without Spark: three forms, filters, clear errors, and other engines beside."""

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import tidelog
from support.pipeline.table_rows import table_rows
from tidelog.base.errors import TidelogError
from tidelog.pipeline.lake.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LARGE = 2**62 + 1
"""A whole number that a float cannot hold."""


@pytest.fixture(scope="module")
def lake(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A lake with six messages in several files, of which some were replaced."""
    lake = Lake(tmp_path_factory.mktemp("reading") / "lake")

    def messages(*numbers: int, size: int | None) -> None:
        rows = [
            {
                "app_id": "app",
                "channel": "even" if number % 2 == 0 else "odd",
                "message_serial": f"m{number}",
                "data": f'"text {number}"',
                "data_bytes": size,
                "last_committed_id": number,
                "is_complete": number != 3,
            }
            for number in numbers
        ]
        lake.upsert("message", table_rows(spark, "message", *rows), max(numbers))

    messages(1, 2, 3, 4, size=LARGE)
    messages(4, 5, 6, size=10)
    messages(5, size=None)
    return lake


def test_a_table_comes_in_three_forms(lake: Lake) -> None:
    """All hold the same rows, and whole numbers stay whole in pandas where one is missing."""
    read = tidelog.read
    columns = ["message_serial", "data_bytes", "is_complete", "updated_at"]
    arrow = read("message", lake=lake.root, columns=columns)
    assert isinstance(arrow, pa.Table)
    assert arrow.column_names == columns
    rows = {row["message_serial"]: row["data_bytes"] for row in arrow.to_pylist()}
    assert rows == {"m1": LARGE, "m2": LARGE, "m3": LARGE, "m4": 10, "m5": None, "m6": 10}
    frame = read("message", lake=str(lake.root), as_="pandas", columns=columns)
    assert isinstance(frame, pd.DataFrame)
    assert list(frame.columns) == columns
    by_serial = frame.set_index("message_serial")
    assert by_serial["data_bytes"]["m1"] == LARGE
    assert by_serial["data_bytes"].isna().sum() == 1
    polars = read("message", lake=lake.root, as_="polars", columns=columns)
    assert isinstance(polars, pl.DataFrame)
    assert dict(polars.select("message_serial", "data_bytes").iter_rows()) == rows
    assert frame["updated_at"].dt.tz is not None
    assert polars["updated_at"].to_list() == arrow["updated_at"].to_pylist()


def test_rows_are_chosen_by_conditions(lake: Lake) -> None:
    """All of the conditions hold; their columns need not be among those that are asked for."""
    found = tidelog.read(
        "message",
        lake=lake.root,
        columns=["message_serial"],
        where=[("channel", "=", "odd"), ("last_committed_id", ">", 1)],
    )
    assert {row["message_serial"] for row in found.to_pylist()} == {"m3", "m5"}
    some = tidelog.read("message", lake=lake.root, where=[("message_serial", "in", ["m1", "m9"])])
    assert some.num_rows == 1


def test_other_engines_agree(spark: "SparkSession", lake: Lake) -> None:
    """Spark, DuckDB and Polars read the same files and count and sum the same."""
    small = "last_committed_id"
    files = lake.files("message")
    [counted] = (
        duckdb.connect()
        .execute(
            f"SELECT count(*), sum({small}), count(DISTINCT channel), sum(data_bytes) "
            f"FROM read_parquet({files!r})"
        )
        .fetchall()
    )
    frame = pl.read_delta(str(lake.path("message")))
    with_spark = (
        lake.frame(spark, "message")
        .selectExpr(
            "count(*)",
            f"sum({small})",
            "count(DISTINCT channel)",
            "sum(cast(data_bytes AS decimal(38,0)))",
        )
        .collect()
    )
    assert counted == (6, 21, 2, 3 * LARGE + 20)
    assert tuple(map(int, with_spark[0])) == counted
    assert (frame.height, frame[small].sum(), frame["channel"].n_unique()) == counted[:3]
    assert frame["data_bytes"].cast(pl.Int128).sum() == counted[3]


def test_what_cannot_be_read_is_explained(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unknown tables, columns and forms, an empty lake, and libraries that are not there."""
    read = tidelog.read
    with pytest.raises(TidelogError, match="no table 'mesage'; there are: log, "):
        read("mesage", lake=lake.root)
    with pytest.raises(TidelogError, match="no column 'text'; it has: app_id, "):
        read("message", lake=lake.root, columns=["text"])
    with pytest.raises(TidelogError, match="no column 'when'"):
        read("message", lake=lake.root, where=[("when", "=", 1)])
    with pytest.raises(TidelogError, match="none of arrow, pandas and polars"):
        read("message", lake=lake.root, as_="excel")  # type: ignore[call-overload]
    with pytest.raises(TidelogError, match=r"no table message in .*tidelog pipeline run"):
        read("message", lake=tmp_path)
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(TidelogError, match=r"needs polars\. Install it: pip install polars"):
        read("message", lake=lake.root, as_="polars")
    monkeypatch.setitem(sys.modules, "tidelog.pipeline.lake.lake", None)
    with pytest.raises(TidelogError, match=r"pip install 'tidelog\[pipeline\]'"):
        read("message", lake=lake.root)


def test_the_lake_of_the_settings_is_the_default(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for every command: the variable, the file, or `lake` in the data directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIDELOG_PIPELINE_LAKE", str(lake.root))
    assert tidelog.read("message").num_rows == 6
    monkeypatch.delenv("TIDELOG_PIPELINE_LAKE")
    with pytest.raises(TidelogError, match="tidelog-data/lake"):
        tidelog.read("message")


def test_importing_tidelog_loads_nothing_of_this() -> None:
    """`tidelog.read` is found when it is used; nothing heavy comes with `import tidelog`."""
    code = (
        "import sys, tidelog; "
        "heavy = {'pyarrow', 'pandas', 'polars', 'deltalake', 'pyspark', 'tidelog.pipeline'}; "
        "print(heavy & sys.modules.keys(), callable(tidelog.read), hasattr(tidelog, 'nothing'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "set() True False\n"
