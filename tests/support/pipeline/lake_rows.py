"""Rows of the table `log` for tests, and rows of any table as plain dictionaries."""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from tidelog.pipeline.frames import frame_of_rows
from tidelog.pipeline.tables import BY_NAME

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BEGIN = datetime(2025, 1, 1, tzinfo=UTC)
BEGIN_MS = int(BEGIN.timestamp() * 1000)


def at(committed_id: int) -> datetime:
    """When an entry of these logs is committed: one second after the one before it."""
    return (BEGIN + timedelta(seconds=committed_id)).replace(tzinfo=None)


def serial(committed_id: int) -> str:
    """The serial of a message created there."""
    return f"{BEGIN_MS + committed_id * 1000:020d}:ab:{committed_id:020d}"


def entry(committed_id: int, **columns: Any) -> dict[str, Any]:
    """A row of `log`; what is not given is made up."""
    row = {
        "committed_id": committed_id,
        "stream": "channels/app/room",
        "stream_serial": committed_id,
        "surface": "channels",
        "kind": "message.create",
        "entity": serial(committed_id),
        "ref": "",
        "actor": "ana",
        "committed_at": BEGIN_MS + committed_id * 1000,
        "body": b"{}",
        "data": None,
        "body_digest": bytes(16),
        "digest": committed_id.to_bytes(16, "big"),
    }
    assert row.keys() >= columns.keys()
    return {**row, **columns}


def message_entry(
    committed_id: int, action: str, message: int | None = None, fields: str = "", **columns: Any
) -> dict[str, Any]:
    """A version of the message created at `message`; `fields` is JSON text after the usual."""
    message = committed_id if message is None else message
    body = f'{{"message_id":"m{committed_id}","history_serial":{message}{fields}}}'
    return entry(
        committed_id,
        kind="event" if action == "event" else f"message.{action}",
        entity=serial(message),
        **{"body": body.encode(), **columns},
    )


def event_entry(committed_id: int, partitions: Sequence[str], event: Any) -> dict[str, Any]:
    """A sync event; `event` is its JSON, as text or to be written."""
    text = event if isinstance(event, str) else json.dumps(event, separators=(",", ":"))
    named = json.dumps(partitions, separators=(",", ":"), ensure_ascii=False)
    body = f'{{"id":"e{committed_id}","client_id":"ana","partitions":{named},"event":{text}}}'
    return entry(
        committed_id,
        stream="sync",
        surface="sync",
        kind=json.loads(text)["type"],
        entity=f"e{committed_id}",
        body=body.encode(),
    )


def frame_of(spark: "SparkSession", name: str, rows: Iterable[dict[str, Any]]) -> "DataFrame":
    """Rows of a table; the columns that a row does not give are null."""
    table = BY_NAME[name]
    columns = [column.name for column in table.columns]
    ddl = ", ".join(f"{column.name} {column.kind}" for column in table.columns)
    return frame_of_rows(spark, [tuple(row.get(c) for c in columns) for row in rows], ddl)


def rows_of(frame: "DataFrame", *columns: str) -> list[dict[str, Any]]:
    """The rows of a frame, or some of their columns; binary values as bytes."""
    chosen = frame.select(*columns) if columns else frame
    return [
        {k: bytes(v) if isinstance(v, bytearray) else v for k, v in row.asDict().items()}
        for row in chosen.collect()
    ]
