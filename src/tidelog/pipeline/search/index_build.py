"""Building the search index: visible messages, in shards that are written side by side.

The index follows the table `message`. Only files of the table that the index does not know are
looked at, and of them only messages that changed or are not to be found any more. A shard that
changes gets a directory of its own: the files of the old one are linked, the changes are written
beside them, and one rename of the manifest publishes all shards together. What is left behind by a
process that died is taken away by the next update.

Few changes are written by this process, many by Spark's partitions.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import msgspec

from tidelog.base.faultpoint import FaultPoint, reach
from tidelog.pipeline.lake.errors import LakeError
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.lake.reading import frame_of
from tidelog.pipeline.lazy_spark import session_of
from tidelog.pipeline.search.index import (
    FORMAT,
    Manifest,
    NoIndex,
    Shard,
    index_root,
    load_tantivy,
    read_manifest,
    write_manifest,
)
from tidelog.pipeline.search.shard import KEY, ShardWriter, key_of, remove_folder
from tidelog.pipeline.tables import MESSAGE

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

    from tidelog.pipeline.lazy_spark import Spark

SHARDS = 8
"""Parts of a new index. So many tasks write a new one, and every search has a look at each: more
make the first build faster on a large machine, fewer make a search cheaper."""

SMALL_ROWS = 20_000
SMALL_BYTES = 64 * 1024 * 1024
"""Up to so many changed messages are written by this process: to hand them to Spark's would take
longer than to write them."""

SHARDS_AT_ONCE = 2
"""That this process writes; much of it is waiting for the disk."""

_ROW = (*KEY, "name", "data", "committed_id", "updated_at", "is_searchable", "is_erased")
"""What a shard has to know of a message."""

_REPORT = "shard int, folder string, documents bigint"


class Updated(msgspec.Struct, frozen=True):
    """What an update of the index did."""

    through: int
    documents: int
    """In the index now."""
    shards_written: int
    is_rebuilt: bool


def update_index(
    spark: "Spark", lake: Lake, *, rebuild: bool = False, shard_count: int = SHARDS
) -> Updated:
    """Bring the index up to the table `message`.

    Args:
        spark: Runs the work.
        lake: Where the table and the index are.
        rebuild: Start over, whatever there is.
        shard_count: Parts of a new index.

    Raises:
        LakeLocked: another process writes to the lake.
        LakeError: there is no table to index.
        NoTantivy: the library is missing.
    """
    load_tantivy()
    with lake.writing():
        return _update(spark, lake, rebuild=rebuild, shard_count=shard_count)


def _update(spark: "Spark", lake: Lake, *, rebuild: bool, shard_count: int) -> Updated:
    table = lake.delta("message")
    if table is None:
        raise LakeError(
            f"there is no table message in {lake.name} to index. Build it: `tidelog pipeline run`."
        )
    root = index_root(lake.root)
    root.mkdir(parents=True, exist_ok=True)
    table_id, through = str(table.metadata().id), lake.through("message")
    files = {os.path.relpath(path, lake.path("message")): path for path in lake.files("message")}
    known = None if rebuild else _known(root, table_id)
    sweep_index(root, known)
    if known is None:
        known = Manifest(FORMAT, 0, table_id, (), shard_count, {})
        is_rebuilt = True
    else:
        is_rebuilt = False
    fresh = [path for name, path in sorted(files.items()) if name not in known.files]
    shards = dict(known.shards)
    written = _written(spark, root, fresh, known) if fresh else []
    for each in written:
        if each.shard.documents:
            shards[str(each.number)] = each.shard
        else:
            shards.pop(str(each.number), None)
    manifest = Manifest(FORMAT, through, table_id, tuple(sorted(files)), known.shard_count, shards)
    reach(FaultPoint.INDEX_WRITTEN)
    if manifest != known or is_rebuilt:
        write_manifest(root, manifest)
    reach(FaultPoint.INDEX_PUBLISHED)
    sweep_index(root, manifest)
    return Updated(through, manifest.documents, len(written), is_rebuilt)


def _known(root: Path, table_id: str) -> Manifest | None:
    """The index to go on from; None if it must be rebuilt."""
    try:
        known = read_manifest(root)
    except NoIndex:
        return None
    if known is None or known.table != table_id:
        return None
    if any(not (root / shard.folder / "meta.json").exists() for shard in known.shards.values()):
        return None
    return known


def sweep_index(root: Path, manifest: Manifest | None) -> None:
    """Take away what no manifest names: replaced shards, and those of an update that died."""
    named = {shard.folder for shard in manifest.shards.values()} if manifest else set()
    for entry in root.iterdir():
        if entry.is_dir() and entry.name not in named:
            remove_folder(entry)


class Written(NamedTuple):
    """A shard that changed, not yet published."""

    number: int
    shard: Shard


def shard_of(row: dict[str, Any], shard_count: int) -> int:
    """The number of the shard that a message is in; Spark computes the same."""
    return crc32(key_of(row).encode()) % shard_count


def _written(spark: "Spark", root: Path, fresh: Sequence[str], known: Manifest) -> list[Written]:
    """Bring shards up to what some files of the table say."""
    few = _few(fresh, known)
    if few is not None:
        return _write_here(root, few, known)
    changed = _changed(frame_of(session_of(spark), MESSAGE, fresh), known)
    return [
        Written(row["shard"], Shard(row["folder"], row["documents"]))
        for row in changed.mapInArrow(_writer_of(root, known.shards), _REPORT).collect()
    ]


# In this process.


def _few(fresh: Sequence[str], known: Manifest) -> list[dict[str, Any]] | None:
    """What shards have to know, if that is not much."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.dataset as ds
    from pyarrow.dataset import field

    is_erased = field("name").is_null() & field("data").is_null()
    is_searchable = (field("state") == "visible") & ~is_erased
    is_wanted = is_searchable
    if known.shards:
        # One that is not complete may have lost what the index has of it, without a new version.
        is_wanted = (field("last_committed_id") > known.through) | ~is_searchable
        is_wanted = is_wanted | ~field("is_complete")
    columns = {name: field(name) for name in (*KEY, "updated_at")}
    columns |= {
        name: pc.if_else(is_searchable, field(name), pa.scalar(None, pa.string()))
        for name in ("name", "data")
    }
    columns |= {
        "committed_id": field("last_committed_id"),
        "is_searchable": is_searchable,
        "is_erased": is_erased,
    }
    files = ds.dataset(list(fresh))
    # Of these nobody has to read the content to know that they are wanted: the content of a whole
    # table, once it is unpacked, takes more memory than anything else that the driver does.
    is_sure = (field("state") == "visible") & field("name").is_valid()
    if known.shards:
        is_sure = field("last_committed_id") > known.through
    if files.count_rows(is_sure) > SMALL_ROWS:
        return None
    rows: list[dict[str, Any]] = []
    size = 0
    scanner = files.scanner(
        columns, filter=is_wanted, batch_size=4096, batch_readahead=2, fragment_readahead=1
    )
    for batch in scanner.to_batches():
        rows += _milliseconds(batch).to_pylist()
        size += batch.nbytes
        if len(rows) > SMALL_ROWS or size > SMALL_BYTES:
            return None
    return rows


def _milliseconds(batch: "pa.RecordBatch") -> "pa.RecordBatch":
    import pyarrow as pa

    times = batch["updated_at"].cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
    return batch.set_column(batch.schema.get_field_index("updated_at"), "updated_at", times)


def _write_here(root: Path, rows: list[dict[str, Any]], known: Manifest) -> list[Written]:
    def number(row: dict[str, Any]) -> int:
        return shard_of(row, known.shard_count)

    def write(shard: int, own: list[dict[str, Any]]) -> Written | None:
        writer = ShardWriter(root, shard, known.shards.get(str(shard)))
        for row in own:
            writer.put(row)
        made = writer.finish()
        return None if made is None else Written(shard, made)

    parts = [(shard, list(own)) for shard, own in groupby(sorted(rows, key=number), number)]
    with ThreadPoolExecutor(SHARDS_AT_ONCE) as pool:
        made = list(pool.map(lambda part: write(*part), parts))
    return [each for each in made if each is not None]


# In Spark.


def is_searchable() -> "Column":
    """Whether a row of `message` belongs into the index: it is visible and has content."""
    from pyspark.sql import functions as sql

    return (sql.col("state") == "visible") & ~is_erased()


def is_erased() -> "Column":
    """Whether a row of `message` has no content, so that the index must not have any of it."""
    from pyspark.sql import functions as sql

    return sql.col("name").isNull() & sql.col("data").isNull()


def _changed(messages: "DataFrame", known: Manifest) -> "DataFrame":
    """What a shard has to know, all rows of a shard in one partition and together."""
    from pyspark.sql import functions as sql

    if known.shards:
        wanted = (sql.col("last_committed_id") > known.through) | ~sql.col("is_searchable")
        wanted = wanted | ~sql.col("is_complete")
    else:
        wanted = sql.col("is_searchable")
    shard = sql.crc32(sql.concat_ws("/", *KEY)) % known.shard_count
    return (
        messages.withColumns({"is_searchable": is_searchable(), "is_erased": is_erased()})
        .where(wanted)
        .withColumns(
            {
                "shard": shard.cast("int"),
                "name": sql.when(sql.col("is_searchable"), sql.col("name")),
                "data": sql.when(sql.col("is_searchable"), sql.col("data")),
                "committed_id": sql.col("last_committed_id"),
                "updated_at": sql.unix_millis("updated_at"),
            }
        )
        .select("shard", *_ROW)
        .repartition(known.shard_count, "shard")
        .sortWithinPartitions("shard", *KEY)
    )


def _writer_of(
    root: Path, shards: dict[str, Shard]
) -> "Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]":
    """What each partition does: write the shards whose rows it has, and report them."""

    def write(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        writer: ShardWriter | None = None
        for batch in batches:
            for row in batch.to_pylist():
                if writer is None or writer.number != row["shard"]:
                    if writer is not None:
                        yield from _report(pa, writer)
                    writer = ShardWriter(root, row["shard"], shards.get(str(row["shard"])))
                writer.put(row)
        if writer is not None:
            yield from _report(pa, writer)

    return write


def _report(pa: Any, writer: "ShardWriter") -> "Iterator[pa.RecordBatch]":
    written = writer.finish()
    if written is not None:
        columns = {
            "shard": pa.array([writer.number], pa.int32()),
            "folder": pa.array([written.folder]),
            "documents": pa.array([written.documents], pa.int64()),
        }
        yield pa.RecordBatch.from_pydict(columns)
