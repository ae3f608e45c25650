"""Channel messages: every version, and the newest state of each message."""

from typing import TYPE_CHECKING

from pyspark.sql import functions as sql

from tidelog.pipeline.transforms.message_fold import (
    KEY,
    MESSAGE_DDL,
    READ,
    STEP_DDL,
    combined,
    messages_of,
    steps_of_messages,
    steps_of_versions,
)
from tidelog.pipeline.transforms.shape import shaped
from tidelog.pipeline.transforms.version_rows import ENTRY, VERSION_DDL, versions_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame

TASK_ROWS = 250_000
"""Versions that one task folds: some hundred megabytes of its memory."""


def message_versions(log: "DataFrame") -> "DataFrame":
    """Rows of `message_version` for the channel entries among some rows of `log`."""
    entries = log.filter(sql.col("surface") == "channels").select(*ENTRY)
    return entries.mapInArrow(_each(versions_of), VERSION_DDL).transform(shaped("message_version"))


def fold(
    versions: "DataFrame", before: "DataFrame | None" = None, rows: int | None = None
) -> "DataFrame":
    """Rows of `message` for every message that has a version in `versions`, and for `before`.

    Nothing is `purged` yet: the log does not tell, see `fill.message_growth.with_purged`.

    Args:
        versions: rows of `message_version`, in any order.
        before: rows of `message` that these versions follow: what the versions up to then made of
            them. So a fold costs as much as there is new, however long a message has been growing.
        rows: about how many there are, if they may be many: a task has its share in memory.
    """
    steps = versions.select(*READ).mapInArrow(_each(steps_of_versions), STEP_DDL)
    if before is not None:
        steps = steps.unionByName(before.mapInArrow(_each(steps_of_messages), STEP_DDL))
    if rows is None:
        together = steps.repartition(*KEY)
    else:
        together = steps.repartition(max(1, -(-rows // TASK_ROWS)), *KEY)
    return together.mapInArrow(_whole, MESSAGE_DDL).transform(shaped("message"))


def _each(
    change: "Callable[[pa.Table], pa.Table]",
) -> "Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]":
    """For `mapInArrow`: rows as other rows, batch by batch."""

    def changed(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        for batch in batches:
            yield from change(pa.Table.from_batches([batch])).to_batches()

    return changed


def _whole(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """For `mapInArrow`: all steps of some messages as messages."""
    import pyarrow as pa

    if held := list(batches):
        yield from messages_of(combined(pa.Table.from_batches(held))).to_batches()
