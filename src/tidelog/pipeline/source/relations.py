"""The relations of the store that change after the commit, so that the log does not tell them.

They are read together and at one moment, see `StoreAddress.relations`. Each query is called as its
relation is.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tidelog.pipeline.frames import empty_frame, frame_of_rows, spark_path
from tidelog.pipeline.tables import ColumnKind

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from tidelog.pipeline.source.store_address import StoreAddress, StoreHead

RELATIONS: dict[str, dict[str, ColumnKind]] = {
    "channel": {
        "stream": "string",
        "epoch": "bigint",
        "history_serial": "bigint",
        "history_floor": "bigint",
        "replay_floor": "bigint",
    },
    "channel_message": {"message": "bigint", "stream": "string", "history_serial": "bigint"},
    "channel_version": {"message": "bigint", "committed_id": "bigint"},
    "channel_erasure": {
        "stream": "string",
        "actor": "string",
        "message": "bigint",
        "through": "bigint",
    },
    "tombstone": {
        "broker_message_id": "string",
        "mesh_id": "string",
        "deleted_at": "bigint",
        "reason": "string",
    },
    "delivery": {
        "broker_message_id": "string",
        "recipient_pubkey": "string",
        "channel": "string",
        "endpoint_id": "string",
        "mesh_id": "string",
        "history_id": "bigint",
        "status": "string",
        "attempts": "bigint",
        "last_error": "string",
        "created_at": "bigint",
        "delivered_at": "bigint",
    },
    "mention": {
        "broker_message_id": "string",
        "mentioned_pubkey": "string",
        "mesh_id": "string",
        "history_id": "bigint",
        "created_at": "bigint",
    },
    "dedupe": {
        "scope": "string",
        "key": "string",
        "committed_id": "bigint",
        "fingerprint": "binary",
        "owner": "string",
        "available": "bigint",
        "first_seen_at": "bigint",
        "expires_at": "bigint",
    },
    "sync_event_partition": {"partition": "string", "committed_id": "bigint"},
    "sync_snapshot": {
        "partition": "string",
        "committed_id": "bigint",
        "created_at": "bigint",
        "model_version": "bigint",
    },
    "sync_setting": {"name": "string", "value": "bigint"},
}
"""Columns of each relation. Times are milliseconds since 1970."""


class Moment(NamedTuple):
    """Relations as they were at one moment."""

    head: "StoreHead"
    """Where the log ended then."""
    tables: "dict[str, pa.Table]"

    def frame(self, spark: "SparkSession", name: str) -> "DataFrame":
        """A relation for Spark."""
        return relation_frame(spark, name, self.tables[name])


def read_relations(store: "StoreAddress", names: Iterable[str]) -> Moment:
    """Relations of a store as they are now, all at the same moment."""
    head, tables = store.relations({name: name for name in names})
    return Moment(head, {name: typed(name, table) for name, table in tables.items()})


def relation_frame(
    spark: "SparkSession", name: str, rows: "pa.Table | Sequence[Path]"
) -> "DataFrame":
    """Rows of a relation for Spark, or files of them."""
    ddl = ", ".join(f"{column} {kind}" for column, kind in RELATIONS[name].items())
    if not isinstance(rows, Sequence):
        return frame_of_rows(spark, rows, ddl)
    if not rows:
        return empty_frame(spark, ddl)
    return spark.read.schema(ddl).parquet(*map(spark_path, rows))


def arrow_of(name: str) -> "pa.Schema":
    """The columns of a relation in the words of Arrow."""
    import pyarrow as pa

    kinds = {"bigint": pa.int64(), "string": pa.string(), "binary": pa.binary()}
    return pa.schema([(column, kinds[kind]) for column, kind in RELATIONS[name].items()])


def typed(name: str, table: "pa.Table") -> "pa.Table":
    """Rows of a relation: a column in which no row has a value has no type of its own."""
    wanted = arrow_of(name)
    return table.select(wanted.names).cast(wanted)
