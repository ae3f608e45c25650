"""`tidelog pipeline sql`: what can be asked, how it is shown, and what cannot be reached."""

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.pipeline.table_rows import message_row, table_rows
from support.pipeline.typed_command import Command, refused, without_jvm
from support.pipeline.whole_pipeline import WholeLake
from tidelog.base.errors import ConfigError
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.sql_query import QueryFailed, plain, query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def lake(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A lake with a table of three messages, of which one was replaced."""
    lake = Lake(tmp_path_factory.mktemp("sql") / "lake")
    rows = [message_row(f"m{n}", f'"text {n}"', n) for n in range(1, 4)]
    lake.append("message", table_rows(spark, "message", *rows), 3)
    changed = message_row("m2", '{"level":6.3}', 4, state="deleted")
    lake.upsert("message", table_rows(spark, "message", changed), 4)
    return lake


def asked(lake: Lake, text: str) -> list[dict[str, Any]]:
    """All rows of a query."""
    rows = query(lake, text)
    return [
        dict(zip(rows.columns, values.values(), strict=True))
        for batch in rows.batches
        for values in batch.to_pylist()
    ]


def test_tables_are_views_of_their_newest_version(lake: Lake) -> None:
    """Filters, sums, JSON and times; a row that was replaced is there once."""
    by_state = "SELECT state, count(*) AS n FROM message GROUP BY state ORDER BY state"
    assert asked(lake, by_state) == [{"state": "deleted", "n": 1}, {"state": "visible", "n": 2}]
    level = "SELECT (data->>'$.level')::DOUBLE AS level FROM message WHERE last_committed_id = 4"
    assert asked(lake, level) == [{"level": 6.3}]
    day = "SELECT DISTINCT date_trunc('day', updated_at)::VARCHAR AS day FROM message"
    assert asked(lake, day) == [{"day": "2026-01-01 00:00:00+00"}]
    assert [row["name"] for row in asked(lake, "SHOW TABLES")] == ["message"]
    assert asked(lake, "EXPLAIN SELECT * FROM message")
    both = query(lake, "SELECT 1 AS a, 2 AS a")
    assert both.columns == ("a", "a_1")
    assert next(iter(both.batches)).num_columns == 2


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM glob('/*')",
        "SELECT * FROM read_parquet('https://other.example/a.parquet')",
        "SELECT * FROM lake",  # a variable of this process
        "SELECT * FROM mesage",
        "SELEC 1",
    ],
)
def test_nothing_else_can_be_read(lake: Lake, text: str) -> None:
    """No file, no address, no variable of the process; each says why."""
    with pytest.raises(QueryFailed, match=r"Permission Error|does not exist|syntax error"):
        asked(lake, text)


@pytest.mark.parametrize(
    "text",
    [
        "DELETE FROM message",
        "CREATE TABLE t AS SELECT 1",
        "COPY message TO '/tmp/message.csv'",
        "ATTACH '/tmp/other.db'",
        "INSTALL httpfs",
        "SET enable_external_access = true",
        "PRAGMA enable_external_access = true",
        "SELECT 1; DROP VIEW message",
        "",
    ],
)
def test_nothing_can_be_changed(lake: Lake, text: str) -> None:
    """Only one statement that reads is taken."""
    with pytest.raises(ConfigError, match="one statement that reads"):
        asked(lake, text)


def test_settings_are_locked(lake: Lake) -> None:
    """Also from inside of a query that reads."""
    locked = "SELECT current_setting('lock_configuration') AS l, current_setting('temp_directory')"
    assert list(asked(lake, locked)[0].values()) == [True, ""]


def test_memory_has_a_bound(lake: Lake) -> None:
    """A query beyond it ends with what to do."""
    text = "SELECT list(n || 'x') FROM range(20_000_000) t(n)"
    with pytest.raises(QueryFailed, match=r"Out of Memory.*\n.*--memory"):
        list(query(lake, text, memory="64MB").batches)


def test_values_as_json() -> None:
    """Whatever a query returns can be written, and digits are kept."""
    from datetime import UTC, date, datetime
    from decimal import Decimal

    value = {
        "a": [b"\x01", Decimal(2**90), Decimal("1.50"), float("nan")],
        "b": (date(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC), None, True),
    }
    assert plain(value) == {
        "a": ["01", 2**90, "1.50", "nan"],
        "b": ["2026-01-01", "2026-01-01T00:00:00+00:00", None, True],
    }


def test_the_command_prints_tables_json_and_csv(lake: Lake, command: Command) -> None:
    """Rows are bounded, and it says so; CSV has all of them."""
    own = ("--lake", str(lake.root))
    text = "SELECT message_serial, data FROM message ORDER BY 1"
    shown = command("sql", text, "--limit", "2", *own)
    assert shown.code == 0, shown.err
    assert "m1" in shown.out
    assert "m3" not in shown.out
    assert "2 rows; there are more" in shown.out
    told = command("sql", text, "--json", "--limit", "2", *own).json()
    assert told["has_more"] is True
    assert told["columns"] == ["message_serial", "data"]
    assert told["rows"][1] == {"message_serial": "m2", "data": '{"level":6.3}'}
    written = command("sql", text, "--csv", *own)
    rows = list(csv.reader(io.StringIO(written.out)))
    assert rows[0] == ["message_serial", "data"]
    assert [row[0] for row in rows[1:]] == ["m1", "m2", "m3"]
    refused(command("sql", text, "--csv", "--json", *own), 2, "choose one")
    refused(command("sql", text, "--limit", "1000000", *own), 2, "--csv")
    refused(command("sql", "DROP VIEW message", *own), 2, "cannot be changed")
    missing = command("sql", "SELECT * FROM audit", *own)
    assert missing.code == 1
    assert "was not built yet: `tidelog pipeline run`" in missing.err


def test_a_question_starts_no_jvm(whole: WholeLake) -> None:
    """The tables that one run made, joined, in a process that may not load Spark."""
    text = (
        "SELECT count(*) AS n FROM log JOIN audit USING (committed_id) "
        "WHERE lower(hex(log.digest)) = audit.digest"
    )
    ended = without_jvm("sql", text, "--json", *whole.arguments())
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["rows"] == [{"n": whole.result["ingest"]["through"]}]


def test_without_duckdb_it_says_what_to_install(
    lake: Lake, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not part of the extra `pipeline`."""
    import sys

    monkeypatch.setitem(sys.modules, "duckdb", None)
    ended = command("sql", "SELECT 1", "--lake", str(lake.root))
    refused(ended, 1, "needs duckdb", "pip install 'tidelog[pipeline,sql]'")
    assert Path(lake.root).exists()
