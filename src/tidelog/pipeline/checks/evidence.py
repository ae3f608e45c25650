"""What the checks look at: the store at one moment, and the log up to the head it had then.

Entries never change but for their content, so the log may be read later than the relations, by
many tasks, up to the same head. Content may go meanwhile, by retention: a finding on a store that
is being written to counts only if a second look still shows it (`confirmed`).
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from tidelog.pipeline.checks.finding import Verdict
from tidelog.pipeline.frames import frame_of_rows
from tidelog.pipeline.source.spark_source import log_frame
from tidelog.pipeline.source.store_address import StoreAddress, StoreHead

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ARROW = {"bigint": pa.int64(), "string": pa.string(), "binary": pa.binary()}

RELATIONS: dict[str, str] = {
    "entries": "entries bigint",
    "outside": "committed_id bigint",
    "channels": "stream string, history_floor bigint",
    "channel_messages": "message bigint, stream string, history_serial bigint, through bigint",
    "channel_versions": "message bigint, committed_id bigint",
    "event_partitions": "partition string, committed_id bigint",
    "archived_events": "committed_id bigint",
    "emptied_events": "committed_id bigint",
    "snapshots": (
        "partition string, state binary, committed_id bigint, model_version bigint, digest binary"
    ),
    "keys": (
        "scope string, key string, committed_id bigint, available bigint, first_seen_at bigint, "
        "outcome binary"
    ),
    "deliveries": (
        "broker_message_id string, recipient_pubkey string, channel string, endpoint_id string, "
        "mesh_id string, status string, created_at bigint"
    ),
    "mentions": "broker_message_id string, mentioned_pubkey string, mesh_id string",
    "tombstones": "broker_message_id string, mesh_id string",
    "meshes": "id string, dedupe_retention_mode string, dedupe_retention_days bigint",
}
"""Relations of the store that checks read, with their columns; the query of `name` is
`check_{name}`."""


class Evidence(NamedTuple):
    """The store as it was at one moment."""

    spark: "SparkSession"
    address: StoreAddress
    head: StoreHead
    tables: dict[str, pa.Table]
    """The relations that were asked for."""

    def relation(self, name: str) -> "DataFrame":
        """A relation as a frame."""
        return frame_of_rows(self.spark, self.tables[name], RELATIONS[name])

    @property
    def entries(self) -> int:
        """How many entries the store had, if that was asked for."""
        [count] = self.tables["entries"]["entries"].to_pylist()
        return int(count)

    def log(self, *columns: str) -> "DataFrame":
        """The entries of the log up to the head, with these columns."""
        return log_frame(self.spark, self.address, columns, self.head.committed_id)


def take(spark: "SparkSession", address: StoreAddress, names: Sequence[str]) -> Evidence:
    """Look at the store once: these relations and the head, all as of one moment."""
    head, tables = address.relations({name: f"check_{name}" for name in names})
    typed = {}
    for name, table in tables.items():
        columns = [column.split(" ") for column in RELATIONS[name].split(", ")]
        schema = pa.schema([(column, _ARROW[kind]) for column, kind in columns])
        typed[name] = table.select(schema.names).cast(schema)
    return Evidence(spark, address, head, typed)


def confirmed(look: Callable[[], Verdict]) -> Verdict:
    """The verdict of a look at a store, whose findings a second look has confirmed.

    Retention may remove something between two reads of the same look; a second look then finds
    nothing there. What is really damaged stays so.
    """
    verdict = look()
    if verdict.is_sound:
        return verdict
    again = look()
    if verdict.total > len(verdict.findings):  # more than could be compared: it is no coincidence
        return again
    both = tuple(finding for finding in again.findings if finding in set(verdict.findings))
    return again._replace(findings=both, total=len(both))
