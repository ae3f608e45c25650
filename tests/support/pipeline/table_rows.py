"""Rows of lake tables by hand: a test names the columns it is about, the others get a value."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tidelog.pipeline.frames import frame_of_rows
from tidelog.pipeline.tables import BY_NAME

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)

_PLAIN: dict[str, Any] = {
    "bigint": 1,
    "string": "",
    "binary": b"",
    "boolean": True,
    "timestamp": MOMENT,
    "double": 0.0,
    "array<string>": [],
}


def table_rows(spark: "SparkSession", table: str, *given: dict[str, Any]) -> "DataFrame":
    """Rows of a table; a column that is not given is null, or plain if it cannot be."""
    columns = BY_NAME[table].columns
    for row in given:
        assert row.keys() <= {column.name for column in columns}, f"{table} has no such column"
    whole = [
        tuple(
            row.get(column.name, None if column.is_nullable else _PLAIN[column.kind])
            for column in columns
        )
        for row in given
    ]
    return frame_of_rows(spark, whole, BY_NAME[table].ddl)


def message_row(serial: str, data: str | None, at: int, **columns: Any) -> dict[str, Any]:
    """A row of `message`: JSON text `data`, its newest version at position `at`."""
    return {
        "app_id": "app",
        "channel": "room",
        "message_serial": serial,
        "state": "visible",
        "data": data,
        "first_committed_id": at,
        "last_committed_id": at,
        **columns,
    }
