"""The search index twice: the documents it should have, and those it has."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from tidelog.pipeline.checks.evidence import within
from tidelog.pipeline.checks.extent import Range
from tidelog.pipeline.checks.plain_tables import begins_of, is_little, within_any
from tidelog.pipeline.checks.view import Pair, View, intervals_of
from tidelog.pipeline.frames import frame_of_rows
from tidelog.pipeline.search.index import Manifest, NoIndex, index_root, read_manifest
from tidelog.pipeline.search.index_build import is_searchable
from tidelog.pipeline.search.shard import text_of
from tidelog.pipeline.tables import BY_NAME

if TYPE_CHECKING:
    import tantivy
    from pyspark.sql import DataFrame, SparkSession

_DOCUMENT = (
    "app_id string, channel string, message_serial string, name string, text string, "
    "committed_id bigint, updated_at bigint"
)


def search_pair(view: View) -> "Pair | str":
    """What is to be compared of the index, or why nothing is; nothing if it is plainly right.

    Of ranges, the documents of the messages that have a version in them, and those that say so.
    """
    from pyspark.sql import functions as sql

    lake, root = view.lake, index_root(view.lake.root)
    try:
        manifest = read_manifest(root)
    except NoIndex as error:
        return str(error)
    if manifest is None:
        return "there is none"
    table, key = lake.delta("message"), BY_NAME["message"].key
    build = "Build it: `tidelog pipeline build search`"
    if table is None or str(table.metadata().id) != manifest.table:
        return f"it is of another table message. {build}"
    if lake.relative_files("message") != list(manifest.files):
        return f"it is older than message. {build}"
    wanted = None
    if not view.is_whole:
        wanted = _Wanted(["/".join(each) for each in view.messages], view.ranges)
    with suppress(pa.ArrowException):  # files of another program, in types of its own
        if is_little(view) and _is_plainly_right(view, str(root), manifest, wanted):
            return ""
    messages = view.frame("message")
    if not view.is_whole:
        begun = begins_of(view)
        is_said = within(view.ranges, "last_committed_id")
        names = view.named("message", view.messages).withColumn("_is_named", sql.lit(True))
        messages = (
            messages.where(within(intervals_of(begun), "first_committed_id") | is_said)
            .join(sql.broadcast(names), list(key), "left")
            .where(sql.col("_is_named") | is_said)
        )
    made = (
        messages.where(is_searchable())
        .select(
            *key,
            "name",
            "data",
            sql.col("last_committed_id").alias("committed_id"),
            sql.unix_millis("updated_at").alias("updated_at"),
        )
        .mapInArrow(_texts, _DOCUMENT)
    )
    columns = tuple(column.split(" ")[0] for column in _DOCUMENT.split(", "))
    return Pair(made, _documents(view.spark, str(root), manifest, wanted), key, columns)


def _is_plainly_right(view: View, root: str, manifest: Manifest, wanted: "_Wanted | None") -> bool:
    """Whether the documents are those of the wanted messages, told without Spark."""
    names = None if view.is_whole else set(view.messages)
    made = {}
    for row in _searchable(view):
        key = (row["app_id"], row["channel"], row["message_serial"])
        is_said = any(each.after < row["committed_id"] <= each.through for each in view.ranges)
        if names is None or is_said or key in names:
            made[key] = (row["name"], text_of(row["data"]), row["committed_id"], row["updated_at"])
    held = [
        (
            (row.get("app_id"), row.get("channel"), row.get("message_serial")),
            (row.get("name"), row.get("text"), row.get("committed_id"), row.get("updated_at")),
        )
        for shard in manifest.shards.values()
        for rows in _documents_of(f"{root}/{shard.folder}", shard.folder, wanted)
        for row in rows
    ]
    return len(held) == len(made) and dict(held) == made


def _searchable(view: View) -> Iterator[dict[str, Any]]:
    """Messages that belong into the index, about those that are wanted."""
    from pyarrow.dataset import field

    rows = view.lake.dataset("message")
    has_content = field("name").is_valid() | field("data").is_valid()
    is_wanted = (field("state") == "visible") & has_content
    if not view.is_whole:
        near = within_any("last_committed_id", view.ranges)
        is_wanted &= near | within_any("first_committed_id", intervals_of(begins_of(view)))
    columns = {name: field(name) for name in (*BY_NAME["message"].key, "name", "data")}
    columns["committed_id"] = field("last_committed_id")
    columns["updated_at"] = field("updated_at")
    if rows is not None:
        for batch in rows.to_batches(columns=columns, filter=is_wanted, batch_size=4096):
            times = batch["updated_at"].cast(pa.timestamp("ms", "UTC"), safe=False)
            number = batch.schema.get_field_index("updated_at")
            yield from batch.set_column(number, "updated_at", times.cast(pa.int64())).to_pylist()


class _Wanted(NamedTuple):
    """The documents that are wanted: of some messages, or as of some positions."""

    keys: list[str]
    ranges: tuple[Range, ...]

    def query(self, schema: "tantivy.Schema") -> "tantivy.Query":
        """Finds them in a shard."""
        import tantivy

        def of(each: Range) -> tantivy.Query:
            kind = tantivy.FieldType.Integer
            first = each.after + 1
            return tantivy.Query.range_query(schema, "committed_id", kind, first, each.through)

        named = tantivy.Query.term_set_query(schema, "key", self.keys)
        queries = [named, *map(of, self.ranges)]
        return tantivy.Query.boolean_query([(tantivy.Occur.Should, query) for query in queries])


def _texts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows with the text of their data in its place."""
    for batch in batches:
        names = [name.replace("data", "text") for name in batch.schema.names]
        texts = pa.array([text_of(data) for data in batch.column("data").to_pylist()], pa.string())
        columns = [texts if c == "data" else batch.column(c) for c in batch.schema.names]
        yield pa.RecordBatch.from_arrays(columns, names)


def _documents(
    spark: "SparkSession", root: str, manifest: Manifest, wanted: _Wanted | None
) -> "DataFrame":
    """Documents of the index; a shard that cannot be read is one that nothing makes."""
    fields = [column.split(" ") for column in _DOCUMENT.split(", ")]
    kinds = {"string": pa.string(), "bigint": pa.int64()}
    schema = pa.schema([(name, kinds[kind]) for name, kind in fields])

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for folder in batch.column("folder").to_pylist():
                for rows in _documents_of(f"{root}/{folder}", folder, wanted):
                    yield pa.RecordBatch.from_pylist(rows, schema)

    folders = [(shard.folder,) for shard in manifest.shards.values()]
    frame = frame_of_rows(spark, folders, "folder string")
    return frame.repartition(max(1, len(folders))).mapInArrow(read, _DOCUMENT)


def _documents_of(path: str, folder: str, wanted: _Wanted | None) -> Iterator[list[dict[str, Any]]]:
    """The documents of a shard, some at a time."""
    import tantivy

    page = 1000
    try:
        index = tantivy.Index.open(path)
        searcher = index.searcher()
        query = wanted.query(index.schema) if wanted else tantivy.Query.all_query()
        hits = searcher.search(query, max(1, searcher.num_docs)).hits
    except (ValueError, OSError):
        yield [{"app_id": "shard", "channel": folder, "message_serial": "cannot be read"}]
        return
    for begin in range(0, len(hits), page):
        documents = [searcher.doc(address) for _, address in hits[begin : begin + page]]
        yield [
            {
                name: document.get_first(name)
                for name in (
                    *("app_id", "channel", "message_serial", "name"),
                    *("committed_id", "updated_at"),
                )
            }
            | {"text": document.get_first("text") or ""}
            for document in documents
        ]
