"""Rows that were read from the store, and the relations that they are of."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import pyarrow as pa
from pyarrow import dataset

from tidelog.pipeline.frames import frame_of_rows, spark_path
from tidelog.pipeline.lake.parquet_file import write_parquet
from tidelog.pipeline.tables import LOG

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MEMORY_BYTES = 64 * 1024 * 1024
"""What is read stays in memory up to this, each relation for itself."""

LOWEST, HIGHEST = -(2**63), 2**63 - 1
"""Of positions."""

_ARROW = {"bigint": pa.int64(), "string": pa.string(), "binary": pa.binary()}


class Relation(NamedTuple):
    """A relation of the store that checks read; the query of `name` is `check_{name}`."""

    ddl: str
    key: tuple[str, ...]
    """Its primary key, in whose order it is read."""

    @property
    def schema(self) -> pa.Schema:
        """Its columns as Arrow has them."""
        columns = [column.split(" ") for column in self.ddl.split(", ")]
        return pa.schema([(column, _ARROW[kind]) for column, kind in columns])

    @property
    def lowest(self) -> tuple[Any, ...]:
        """What comes before every key."""
        return tuple(
            LOWEST if pa.types.is_integer(self.schema.field(column).type) else ""
            for column in self.key
        )


RELATIONS = {
    "channels": Relation("stream string, history_floor bigint", ("stream",)),
    "channel_messages": Relation(
        "message bigint, stream string, history_serial bigint", ("message",)
    ),
    "channel_versions": Relation(
        "message bigint, committed_id bigint", ("message", "committed_id")
    ),
    "event_partitions": Relation(
        "partition string, committed_id bigint", ("partition", "committed_id")
    ),
    "archived_events": Relation("committed_id bigint", ("committed_id",)),
    "snapshots": Relation(
        "partition string, committed_id bigint, model_version bigint, digest binary",
        ("partition",),
    ),
    "keys": Relation(
        "scope string, key string, committed_id bigint, fingerprint binary, owner string, "
        "available bigint, first_seen_at bigint, expires_at bigint, outcome binary",
        ("scope", "key"),
    ),
    "deliveries": Relation(
        "broker_message_id string, recipient_pubkey string, channel string, endpoint_id string, "
        "mesh_id string, history_id bigint, status string, attempts bigint, last_error string, "
        "created_at bigint, delivered_at bigint",
        ("broker_message_id", "recipient_pubkey", "channel", "endpoint_id"),
    ),
    "mentions": Relation(
        "broker_message_id string, mentioned_pubkey string, mesh_id string, history_id bigint, "
        "created_at bigint",
        ("broker_message_id", "mentioned_pubkey"),
    ),
    "tombstones": Relation(
        "broker_message_id string, mesh_id string, deleted_at bigint, reason string",
        ("broker_message_id",),
    ),
    "meshes": Relation(
        "id string, dedupe_retention_mode string, dedupe_retention_days bigint", ("id",)
    ),
}

BESIDE = (
    *("channel_messages", "channel_versions", "event_partitions", "archived_events", "keys"),
    *("deliveries", "mentions", "tombstones"),
)
"""Relations whose rows belong to entries."""

ENTRIES = Relation(
    f"{LOG.ddl.replace(' NOT NULL', '')}, is_emptied bigint, is_archived bigint", ("committed_id",)
)
"""An entry, and whether the log has no content of it, and whether the archive of sync has some."""


class Spool:
    """Rows that were read: in memory while they are little, else in files of a folder."""

    def __init__(self, folder: Path, relation: Relation) -> None:
        self.schema = relation.schema
        self.rows = 0
        self._ddl = relation.ddl
        self._folder = folder
        self._held: list[pa.Table] = []
        self._size = 0
        self._files: list[str] = []

    def add(self, table: pa.Table) -> None:
        """Keep rows; a column in which no row has a value may have no type."""
        if not table.num_rows:
            return
        table = table.select(self.schema.names).cast(self.schema)
        self._held.append(table)
        self._size += table.nbytes
        self.rows += table.num_rows
        if self._size > MEMORY_BYTES:
            self._write()

    def settle(self) -> None:
        """All rows are there: those in memory follow the others, if some are in files."""
        if self._files and self._held:
            self._write()

    def _write(self) -> None:
        file = self._folder / f"{uuid4().hex}.parquet"
        write_parquet(file, self.schema, (b for t in self._held for b in t.to_batches()))
        self._files.append(str(file))
        self._held, self._size = [], 0

    def add_files(self, files: Iterable[tuple[str, int]]) -> None:
        """Keep files that somebody else has written, with their rows."""
        for file, rows in files:
            self._files.append(file)
            self.rows += rows

    @property
    def files(self) -> list[str]:
        """Files with all rows; none if they are in memory."""
        return list(self._files)

    def scan(self) -> dataset.Dataset:
        """All of it for Arrow."""
        held = dataset.dataset(pa.concat_tables(self._held) if self._held else self._none())
        if not self._files:
            return held
        written = dataset.dataset(self._files, schema=self.schema, format="parquet")
        return dataset.dataset([written, held]) if self._held else written

    def _none(self) -> pa.Table:
        return self.schema.empty_table()

    def frame(self, spark: "SparkSession") -> "DataFrame":
        """All of it for Spark."""
        frames = []
        if self._files:
            frames.append(spark.read.schema(self._ddl).parquet(*map(spark_path, self._files)))
        if self._held or not frames:
            held = pa.concat_tables(self._held) if self._held else self._none()
            frames.append(frame_of_rows(spark, held, self._ddl))
        return frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])
