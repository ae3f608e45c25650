"""Files of the table `message`, made of the files of `message_version` by whoever reads them.

A task reads a range of the log, in which is everything that a message got between two positions,
and folds it; few rows go on to the task that has the rest of a message. They go packed: one by one
through Spark's own rows it would take several times as long. What is read at once is bounded,
however long the log.

Few versions are folded by the driver, which takes less time than to ask for a task.

A file has the messages that were created in a part of the log: serials begin with the time. So
what is new changes few files of the table.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from tidelog.pipeline.fill.position_ranges import Group, Range, groups_of, planned
from tidelog.pipeline.lake.parquet_file import write_parquet
from tidelog.pipeline.lazy_spark import is_local, session_of
from tidelog.pipeline.transforms.message_fold import (
    READ,
    combined,
    messages_of,
    steps_of_versions,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.pipeline.lazy_spark import Spark

RANGE_ROWS = 500_000
RANGE_BYTES = 256 * 1024 * 1024
"""Versions that a task reads and folds at once, and what they take at most; a single row group of
a file may be more."""

HERE_ROWS = 250_000
"""Versions that this process folds by itself: half a second of work, where the first task of a new
session takes two."""

PACK_BYTES = 4 * 1024 * 1024
"""Steps that go from task to task as one row of Spark's."""

FILE_ROWS = 4096
FILES = 512
"""Messages of a file at least, and how many files there are at most if each message has but one
version: what changes a few messages writes a file of them again."""

_PACKED = "part int, steps binary"
_WRITTEN = "file string"

_REPEATED = ["app_id", "channel", "state", "action", "name", "creator", "client_id"]
"""Columns with few different values: of the others a dictionary would be as large as themselves."""


def fold_files(
    spark: "Spark",
    versions: Sequence[str],
    folder: Path,
    change: "Callable[[pa.Table], pa.Table]" = lambda messages: messages,
) -> list[Path]:
    """Fold files of `message_version` into files of `message` in a folder; returns those.

    What else is in the folder afterwards was left by a task that failed, and is no part of them.

    Args:
        spark: Runs the tasks.
        versions: The files of versions.
        folder: Where the files are put.
        change: What becomes of messages before they are written.
    """
    groups = list(groups_of(versions, "message_serial"))
    ranges = planned(groups, RANGE_ROWS, RANGE_BYTES)
    ends = parting(ranges, groups)
    rows = sum(group.rows for group in groups)
    most = max(FILE_ROWS, rows // FILES)

    def write(steps: "pa.Table") -> "pa.RecordBatch":
        return _written(change(messages_of(_in_order(steps))), folder, most)

    if not ranges:
        return []
    if len(ranges) == 1 and rows <= HERE_ROWS and is_local(spark):
        return [Path(file) for file in write(_steps(ranges[0]))["file"].to_pylist()]
    numbers = session_of(spark).range(0, len(ranges), 1, len(ranges))
    if len(ranges) == 1:  # one task has everything

        def whole(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
            for number in _numbers(batches):
                yield write(_steps(ranges[number]))

        written = numbers.mapInArrow(whole, _WRITTEN)
    else:

        def fold_range(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
            for number in _numbers(batches):
                yield from _packed(_in_order(_steps(ranges[number])), ends)

        def fold_part(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
            import pyarrow as pa

            if held := list(_unpacked(batches)):
                yield write(combined(pa.concat_tables(held)))

        written = (
            numbers.mapInArrow(fold_range, _PACKED)
            .repartitionById(len(ends) + 1, "part")
            .mapInArrow(fold_part, _WRITTEN)
        )
    return [Path(row["file"]) for row in written.collect()]


def parting(ranges: Sequence[Range], groups: Sequence[Group]) -> list[str]:
    """Serials that part the messages into as many files as there are ranges, or fewer.

    A part ends with the newest message that has a version up to where a range does.
    """
    waiting = sorted(groups, key=lambda group: group.last, reverse=True)
    ends, newest = set[str](), ""
    for each in ranges[:-1]:
        while waiting and waiting[-1].last <= each.through:
            newest = max(newest, waiting.pop().last_serial)
        ends.add(newest)
    return sorted(ends)


def _numbers(batches: "Iterable[pa.RecordBatch]") -> Iterator[int]:
    for batch in batches:
        yield from batch.column("id").to_pylist()


def _steps(ids: Range) -> "pa.Table":
    """What a range of the log makes of each message."""
    from pyarrow.dataset import dataset, field

    position = field("committed_id")
    read = dataset(list(ids.files), format="parquet").to_table(
        columns=list(READ), filter=(position > ids.after) & (position <= ids.through)
    )
    return combined(steps_of_versions(read))


def _in_order(steps: "pa.Table") -> "pa.Table":
    """By serial, which is the order in which messages were created."""
    import pyarrow.compute as pc

    return steps.take(pc.sort_indices(steps["message_serial"]))


def _packed(steps: "pa.Table", ends: Sequence[str]) -> "Iterator[pa.RecordBatch]":
    """Steps in order, cut at serials: rows of the number of a part and some of its steps."""
    import numpy as np
    import pyarrow as pa

    options = pa.ipc.IpcWriteOptions(compression="lz4")  # faster than Java's, and copied less
    serials = steps["message_serial"].to_numpy()
    cuts = [0, *np.searchsorted(serials, ends, side="right"), len(steps)]
    for part, (first, end) in enumerate(pairwise(cuts)):
        whole = steps.slice(first, end - first)
        rows = max(1, len(whole) * PACK_BYTES // max(1, whole.nbytes))
        for batch in whole.combine_chunks().to_batches(max_chunksize=rows):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema, options=options) as stream:
                stream.write_batch(batch)
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array([part], pa.int32()),
                    pa.array([sink.getvalue().to_pybytes()], pa.binary()),
                ],
                ["part", "steps"],
            )


def _unpacked(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.Table]":
    import pyarrow as pa

    for batch in batches:
        for packed in batch.column("steps"):
            yield pa.ipc.open_stream(packed.as_buffer()).read_all()


def _written(messages: "pa.Table", folder: Path, most: int) -> "pa.RecordBatch":
    """Write messages as they follow each other; files of their own for each try."""
    import pyarrow as pa

    files = []
    for first in range(0, len(messages), most):
        part = messages.slice(first, most)
        files.append(str(folder / f"{uuid4().hex}.parquet"))
        write_parquet(Path(files[-1]), part.schema, part.to_batches(), use_dictionary=_REPEATED)
    return pa.RecordBatch.from_pydict({"file": pa.array(files, pa.string())})
