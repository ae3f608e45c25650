"""Building the search index: visible messages, in shards that Spark's partitions write.

The index follows the table `message`. Only files of the table that the index does not know are
looked at, and of them only messages that changed or are not to be found any more. A shard that
changes is rebuilt in a directory of its own: the files of the old one are linked, the changes are
written beside them, and one rename of the manifest publishes all shards together. What is left
behind by a process that died is taken away by the next update.

A message that is not visible any more, or whose content was forgotten, must not stay in a file
either. tantivy only marks a document as deleted, so its shard is then written document by document.
The old text of a message that was changed is marked, and goes when a quarter of a shard is such
text.
"""

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec

from tidelog.base.faultpoint import FaultPoint, reach
from tidelog.pipeline.lake.lake import Lake, LakeError, frame_of
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
from tidelog.pipeline.tables import MESSAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa
    import tantivy
    from pyspark.sql import Column, DataFrame, SparkSession

SHARDS = 16
"""Parts of a new index. A change rewrites one part, so more parts make an update cheaper; each
costs a search a look, so fewer make a search cheaper. Two million messages are 125,000 in each."""

WRITER_BYTES = 32_000_000
"""Memory of a shard while it is written; tantivy needs 15 MB."""

DEAD_SHARE = 0.25
"""Share of marked documents beyond which a shard is rewritten."""

_LOCKS = (".tantivy-writer.lock", ".tantivy-meta.lock")
_REPLACED = ("meta.json", ".managed.json")
"""Files of a shard that tantivy writes again; all others never change and can be linked."""

_REPORT = "shard int, folder string, documents bigint"


class Updated(msgspec.Struct, frozen=True):
    """What an update of the index did."""

    through: int
    documents: int
    """In the index now."""
    shards_written: int
    is_rebuilt: bool


def update_index(
    spark: "SparkSession", lake: Lake, *, rebuild: bool = False, shard_count: int = SHARDS
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


def _update(spark: "SparkSession", lake: Lake, *, rebuild: bool, shard_count: int) -> Updated:
    table = lake.delta("message")
    if table is None:
        raise LakeError(
            f"there is no table message in {lake.root} to index. Build it: `tidelog pipeline run`."
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
    written = 0
    if fresh:
        changed = _changed(frame_of(spark, MESSAGE, fresh), known)
        for row in changed.mapInArrow(_writer_of(root, shards), _REPORT).collect():
            written += 1
            if row["documents"]:
                shards[str(row["shard"])] = Shard(row["folder"], row["documents"])
            else:
                shards.pop(str(row["shard"]), None)
    manifest = Manifest(FORMAT, through, table_id, tuple(sorted(files)), known.shard_count, shards)
    reach(FaultPoint.INDEX_WRITTEN)
    if manifest != known or is_rebuilt:
        write_manifest(root, manifest)
    reach(FaultPoint.INDEX_PUBLISHED)
    sweep_index(root, manifest)
    return Updated(through, manifest.documents, written, is_rebuilt)


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
            shutil.rmtree(entry)


# In Spark.


def is_searchable() -> "Column":
    """Whether a row of `message` belongs into the index: it is visible and has content."""
    from pyspark.sql import functions as sql

    has_content = sql.col("name").isNotNull() | sql.col("data").isNotNull()
    return (sql.col("state") == "visible") & has_content


def _changed(messages: "DataFrame", known: Manifest) -> "DataFrame":
    """What a shard has to know, all rows of a shard in one partition and together."""
    from pyspark.sql import functions as sql

    key = ("app_id", "channel", "message_serial")
    if known.shards:
        wanted = (sql.col("last_committed_id") > known.through) | ~sql.col("is_searchable")
    else:
        wanted = sql.col("is_searchable")
    return (
        messages.withColumn("is_searchable", is_searchable())
        .where(wanted)
        .select(
            sql.pmod(sql.xxhash64(*key), sql.lit(known.shard_count)).cast("int").alias("shard"),
            *key,
            "name",
            "data",
            sql.col("last_committed_id").alias("committed_id"),
            sql.unix_millis("updated_at").alias("updated_at"),
            "is_searchable",
        )
        .repartition(known.shard_count, "shard")
        .sortWithinPartitions("shard", *key)
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


# In a partition.


def text_of(data: str | None) -> str:
    """The words of a message: a string as it is, of anything else all strings in it."""
    if data is None:
        return ""
    found: list[str] = []
    try:
        waiting = [msgspec.json.decode(data)]
    except (msgspec.MsgspecError, RecursionError):  # nested deeper than Python can follow
        return data
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, dict):
            waiting.extend(reversed(value.values()))
        elif isinstance(value, list):
            waiting.extend(reversed(value))
    return "\n".join(found)


class ShardWriter:
    """One shard on its way to its next directory."""

    def __init__(self, root: Path, number: int, before: Shard | None) -> None:
        """Begin with what is there; `before` is the shard as it is published."""
        import tantivy

        self.number = number
        self._root = root
        self._folder = self._new_folder()
        self._searcher: tantivy.Searcher | None = None
        if before is not None:
            _link(root / before.folder, root / self._folder)
            index = tantivy.Index.open(str(root / self._folder))
            index.config_reader("manual")
            self._searcher = index.searcher()
            self._schema = index.schema
        else:
            self._schema = _schema()
            index = tantivy.Index(self._schema, path=str(root / self._folder), reuse=False)
        self._index = index
        self._writer = index.writer(WRITER_BYTES, num_threads=1)
        self._is_changed = False
        self._is_gone = False
        """Whether a message was taken out and did not come again."""

    def _new_folder(self) -> str:
        folder = f"{self.number:04d}-{uuid4().hex}"
        (self._root / folder).mkdir()
        return folder

    def put(self, row: dict[str, Any]) -> None:
        """Put a message as it is now in the place of what is there of it."""
        import tantivy

        key = f"{row['app_id']}/{row['channel']}/{row['message_serial']}"
        if self._has(key):
            self._writer.delete_documents_by_term("key", key)
            self._is_changed = True
            self._is_gone |= not row["is_searchable"]
        if row["is_searchable"]:
            fields = {
                name: row[name]
                for name in ("app_id", "channel", "message_serial", "name")
                if row[name] is not None
            }
            self._writer.add_document(
                tantivy.Document(
                    key=key,
                    text=text_of(row["data"]),
                    committed_id=row["committed_id"],
                    updated_at=row["updated_at"],
                    **fields,
                )
            )
            self._is_changed = True

    def _has(self, key: str) -> bool:
        from tantivy import Query

        if self._searcher is None or not self._searcher.doc_freq("key", key):
            return False
        return bool(self._searcher.search(Query.term_query(self._schema, "key", key), 1).hits)

    def finish(self) -> Shard | None:
        """The shard as it is now, not yet published; None if it is as it was."""
        if not self._is_changed:
            self._writer.rollback()
            shutil.rmtree(self._root / self._folder)
            return None
        self._finish_writing(self._writer)
        self._index.reload()
        searcher = self._index.searcher()
        live = searcher.num_docs
        dead = _documents(self._root / self._folder) - live
        if self._is_gone or dead > DEAD_SHARE * (live + dead):
            self._write_anew(searcher)
        return Shard(self._folder, live)

    def _write_anew(self, searcher: "tantivy.Searcher") -> None:
        """Copy the documents that live, and only them, into files of their own."""
        import tantivy

        before, self._folder = self._folder, self._new_folder()
        index = tantivy.Index(self._schema, path=str(self._root / self._folder), reuse=False)
        writer = index.writer(WRITER_BYTES, num_threads=1)
        if searcher.num_docs:
            for _, address in searcher.search(tantivy.Query.all_query(), searcher.num_docs).hits:
                writer.add_document(searcher.doc(address))
        self._finish_writing(writer)
        shutil.rmtree(self._root / before)

    @staticmethod
    def _finish_writing(writer: "tantivy.IndexWriter") -> None:
        writer.commit()
        writer.garbage_collect_files()
        writer.wait_merging_threads()


def _schema() -> "tantivy.Schema":
    """Every field is stored, so that a shard can be rewritten from itself."""
    import tantivy

    builder = tantivy.SchemaBuilder()
    for name in ("key", "app_id", "channel", "message_serial"):
        builder.add_text_field(name, stored=True, tokenizer_name="raw", index_option="basic")
    builder.add_text_field("name", stored=True)
    builder.add_text_field("text", stored=True)
    builder.add_integer_field("committed_id", stored=True, fast=True)
    builder.add_integer_field("updated_at", stored=True)
    return builder.build()


def _link(before: Path, folder: Path) -> None:
    """The same files in another directory, without copying what never changes."""
    for file in before.iterdir():
        if file.name in _LOCKS:
            continue
        target = folder / file.name
        if file.name in _REPLACED:
            shutil.copyfile(file, target)
        else:
            try:
                os.link(file, target)
            except OSError:  # a file system without links
                shutil.copyfile(file, target)


def _documents(folder: Path) -> int:
    """Documents in the files of a shard, also those that are only marked as deleted."""
    meta = msgspec.json.decode((folder / "meta.json").read_bytes())
    return sum(segment["max_doc"] for segment in meta["segments"])
