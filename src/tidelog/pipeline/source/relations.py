"""The relations of the store that change after the commit, so that the log does not tell them.

They are read together and at one moment, see `StoreAddress.relations`. Each query is called as its
relation is.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from tidelog.pipeline.frames import frame_of_rows
from tidelog.pipeline.tables import Kind

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from tidelog.pipeline.source.store_address import StoreAddress, StoreHead

RELATIONS: dict[str, dict[str, Kind]] = {
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
        ddl = ", ".join(f"{column} {kind}" for column, kind in RELATIONS[name].items())
        return frame_of_rows(spark, self.tables[name], ddl)


def read_relations(store: "StoreAddress", names: Iterable[str]) -> Moment:
    """Relations of a store as they are now, all at the same moment."""
    head, tables = store.relations({name: name for name in names})
    return Moment(head, {name: _typed(name, table) for name, table in tables.items()})


def _typed(name: str, table: "pa.Table") -> "pa.Table":
    """A column in which no row has a value has no type of its own."""
    import pyarrow as pa

    kinds = {"bigint": pa.int64(), "string": pa.string(), "binary": pa.binary()}
    wanted = pa.schema([(column, kinds[kind]) for column, kind in RELATIONS[name].items()])
    return table.select(wanted.names).cast(wanted)
