"""Tables: every row of every built table is what the log and the store make, and none is missing.

Each table is made once more, up to the position through which it says it is complete, and compared
with what it holds, row by row. Both sides of all tables go through one shuffle as rows of the same
few columns: a table is two frames here, and a range of positions would be two smaller ones.

Relations of the store change without an entry, so a table that was made of them yesterday cannot
be made again today. Of those, what never changes must be equal, what has changed since must have
been able to, and for the rest stands the seal that every table has (`tidelog.pipeline.lake.seal`).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from tidelog.pipeline.checks.finding import FIRST_FINDINGS, Finding, Verdict
from tidelog.pipeline.checks.orphans import SWEPT_MS
from tidelog.pipeline.forget import is_unfinished
from tidelog.pipeline.frames import empty_frame, frame_of_rows
from tidelog.pipeline.search.index import Manifest, NoIndex, index_root, read_manifest
from tidelog.pipeline.search.index_build import is_searchable, text_of
from tidelog.pipeline.source.relations import RELATIONS, Moment
from tidelog.pipeline.tables import BY_NAME, TABLES, Table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from tidelog.pipeline.lake.lake import Lake
    from tidelog.pipeline.source.store_address import StoreAddress
    from tidelog.pipeline.transforms.snapshots import ModelSource

NAME = "tables"
NEEDS = ("channel_message", "channel_version", "tombstone", "delivery", "mention", "dedupe")
"""Relations that are read; the partitions of events too, if the log does not tell them."""

WRITTEN = "written"
SEARCH = "search"
"""The rules that are not called as a table: its files are as written, and that of the index."""

EXPIRY_SLACK_MS = 60_000
"""A key that expires so soon may be gone: the clock that judged it is another one."""

_OPEN = ("pending", "claimed")
"""States of a delivery that others follow."""

_DOCUMENT = (
    "app_id string, channel string, message_serial string, name string, text string, "
    "committed_id bigint, updated_at bigint"
)


class Pair(NamedTuple):
    """A table twice: as it should be, and as it is. Both have the columns of the table.

    Rows may have more columns, which say what is no finding: `_is_free`, that the row may be
    missing on the other side; `_is_open`, that columns outside `fixed` may have changed since.
    """

    made: "DataFrame"
    held: "DataFrame"
    key: tuple[str, ...]
    columns: tuple[str, ...]
    fixed: tuple[str, ...] = ()
    """Columns that never change, if others may."""


class View(NamedTuple):
    """What the tables are made of."""

    spark: "SparkSession"
    lake: "Lake"
    store: "StoreAddress"
    moment: Moment
    """The store now."""
    model: "ModelSource | None"
    now_ms: int

    def frame(self, name: str) -> "DataFrame":
        """A table as it is."""
        return self.lake.frame(self.spark, name)

    def relation(self, name: str) -> "DataFrame":
        """A relation of the store as it is now."""
        return self.moment.frame(self.spark, name)

    def through(self, name: str, inputs: str) -> "DataFrame":
        """The rows of a table that another one was made of."""
        from pyspark.sql import functions as sql

        return self.frame(inputs).where(sql.col("committed_id") <= self.lake.through(name))

    @property
    def forgets(self) -> bool:
        """Whether anything was ever forgotten."""
        return bool(self.lake.files("forgotten"))


def check(view: View) -> Verdict:
    """Compare all tables that are built, and the search index."""
    lake, through = view.lake, view.lake.through("log")
    there = [table.name for table in TABLES if lake.delta(table.name) is not None]
    written = [
        Finding(WRITTEN, f"table {name}", text)
        for name in there
        for text in lake.written_elsewhere(name)
    ]
    if is_unfinished(lake):
        text = "a forget was not finished. Finish it: `tidelog pipeline forget`."
        return _verdict(through, 0, written, uncompared=(text,))
    built = [name for name in _PAIRS if name in there]
    if not built:
        text = "no table is built. Build them: `tidelog pipeline build`."
        return _verdict(through, 0, written, uncompared=(text,) if through else ())
    pairs, notes = _pairs(view, built)
    found, total = _differences(view, pairs)
    examined = sum(lake.rows(name) for name in built if name in pairs)
    return _verdict(through, examined, [*written, *found], len(written) + total, notes)


def _verdict(
    through: int,
    examined: int,
    findings: Sequence[Finding],
    total: int | None = None,
    notes: Sequence[str] = (),
    uncompared: tuple[str, ...] = (),
) -> Verdict:
    if findings:
        notes = [*notes, "to rebuild a table: `tidelog pipeline build TABLE --full`"]
    total = len(findings) if total is None else total
    return Verdict(
        NAME, through, examined, tuple(findings[:FIRST_FINDINGS]), total, tuple(notes), uncompared
    )


def _pairs(view: View, built: Sequence[str]) -> tuple[dict[str, Pair], list[str]]:
    """What is to be compared, and what is not."""
    pairs: dict[str, Pair] = {}
    notes = []
    missing = [name for name in _PAIRS if name not in built]
    if missing:
        notes.append(f"not built: {', '.join(missing)}")
    for name in built:
        if view.lake.through("log") and not view.lake.through(name):
            notes.append(f"{name} is not compared: the next build will rebuild it")
            continue
        found = _PAIRS[name](view)
        if isinstance(found, Pair):
            pairs[name] = found
        else:
            notes.append(f"{name} is not compared: {found}")
    found = _search(view)
    if isinstance(found, Pair):
        pairs[SEARCH] = found
    else:
        notes.append(f"the search index is not compared: {found}")
    return pairs, notes


# Comparing.


def _differences(view: View, pairs: dict[str, Pair]) -> tuple[list[Finding], int]:
    """Rows that are on one side only, or are not the same, as findings; and their number."""
    from pyspark.sql import functions as sql

    sides = [_side(name, pair, is_made=made) for name, pair in pairs.items() for made in (0, 1)]
    grouped = (
        reduce(lambda one, other: one.unionByName(other), sides)
        .groupBy("table", "key", "key_hash")
        .agg(
            *(
                sql.expr(f"{how} FILTER (WHERE is_made = {made})").alias(f"{side}_{column}")
                for side, made in (("made", 1), ("held", 0))
                for column, how in (
                    ("rows", "count(*)"),
                    ("whole", "max(whole)"),
                    ("least", "min(whole)"),
                    ("fixed", "max(fixed)"),
                    ("is_free", "bool_or(is_free)"),
                    ("is_open", "bool_or(is_open)"),
                )
            ),
            sql.min("at").alias("at"),
        )
    )
    is_same = (
        "made_whole = held_whole OR held_is_free OR (held_is_open AND made_fixed = held_fixed)"
    )
    problem = sql.expr(
        "CASE WHEN held_rows = 0 THEN CASE WHEN NOT made_is_free THEN 'missing' END "
        "WHEN made_rows = 0 THEN CASE WHEN NOT held_is_free THEN 'foreign' END "
        "WHEN held_rows > made_rows THEN 'double' "
        f"WHEN NOT ({is_same}) OR held_least != held_whole THEN 'other' END"
    )
    found = grouped.withColumn("problem", problem).where("problem IS NOT NULL")
    first = found.orderBy("at", "table", "key").limit(FIRST_FINDINGS).collect()
    total = len(first) if len(first) < FIRST_FINDINGS else found.count()
    others = {
        name: _different_columns(
            pairs[name],
            [row["key"] for row in first if row["table"] == name and row["problem"] == "other"],
        )
        for name in {row["table"] for row in first}
    }
    texts = {
        "missing": "is not there",
        "foreign": "is there, and nothing makes it",
        "double": "is there more than once",
    }
    findings = []
    for row in first:
        differ = others[row["table"]].get(row["key"]) or "it"
        text = texts.get(row["problem"]) or f"is not what it is made of: {differ}"
        findings.append(Finding(row["table"], f"row {row['key']}", text))
    return findings, total


def _side(name: str, pair: Pair, *, is_made: int) -> "DataFrame":
    """One side of a table in the columns that all tables share."""
    from pyspark.sql import functions as sql

    frame = pair.made if is_made else pair.held
    flags = {
        flag: sql.col(f"_{flag}") if f"_{flag}" in frame.columns else sql.lit(False)
        for flag in ("is_free", "is_open")
    }
    position = next((c for c in ("committed_id", "last_committed_id") if c in pair.columns), None)
    at = sql.col(position).cast("bigint") if position else sql.lit(None).cast("bigint")
    return frame.select(
        sql.lit(name).alias("table"),
        _key_text(pair).alias("key"),
        sql.xxhash64(*pair.key).alias("key_hash"),
        sql.lit(is_made).alias("is_made"),
        _hash(frame, pair.columns).alias("whole"),
        _hash(frame, pair.fixed or pair.columns).alias("fixed"),
        *(sql.coalesce(flag, sql.lit(False)).alias(name) for name, flag in flags.items()),
        at.alias("at"),
    )


def _key_text(pair: Pair) -> "Column":
    from pyspark.sql import functions as sql

    return sql.concat_ws("/", *(sql.col(name).cast("string") for name in pair.key))


def _hash(frame: "DataFrame", columns: Iterable[str]) -> "Column":
    """One number for the values; Spark's hash passes over what is null, so that is told too."""
    from pyspark.sql import functions as sql

    values: list[Column] = []
    for name in columns:
        values += [sql.col(name), sql.col(name).isNull()]
        if frame.schema[name].dataType.typeName() == "array":
            values.append(sql.size(name))
    return sql.xxhash64(*values)


def _different_columns(pair: Pair, keys: list[str]) -> dict[str, str]:
    """By key: the names of the columns in which the two sides differ."""
    if not keys:
        return {}
    sides: list[dict[str, Any]] = []
    for frame in (pair.made, pair.held):
        rows = frame.withColumn("_key", _key_text(pair)).where(_key_text(pair).isin(keys))
        sides.append({row["_key"]: row for row in rows.collect()})
    made, held = sides
    return {
        key: ", ".join(c for c in pair.columns if made[key][c] != held[key][c])
        for key in made.keys() & held.keys()
    }


# What each table should hold.


def _plain(
    name: str,
    made: "DataFrame",
    held: "DataFrame",
    *,
    changing: Sequence[str] = (),
) -> Pair:
    """A pair with the columns of a table, of which some may change after it was made."""
    table = BY_NAME[name]
    columns = tuple(column.name for column in table.columns)
    fixed = tuple(column for column in columns if column not in changing) if changing else ()
    return Pair(made, held, table.key, columns, fixed)


def _message_versions(view: View) -> Pair:
    from tidelog.pipeline.transforms.messages import message_versions

    made = message_versions(view.through("message_version", "log"))
    return _plain("message_version", made, view.frame("message_version"))


def _messages(view: View) -> Pair:
    """What was purged stays so; what is not may be purged since."""
    from pyspark.sql import functions as sql

    from tidelog.pipeline.transforms.messages import DELETED, PURGED, VISIBLE, fold

    made = fold(view.through("message", "message_version"))
    there = view.relation("channel_message").select(
        sql.col("message").alias("first_committed_id"), sql.lit(True).alias("_is_there")
    )
    is_gone = (sql.col("state") == PURGED) & sql.col("_is_there").isNull()
    before = sql.when(sql.col("action") == "delete", DELETED).otherwise(VISIBLE)
    held = (
        view.frame("message")
        .join(there, "first_committed_id", "left")
        .withColumn("state", sql.when(is_gone, before).otherwise(sql.col("state")))
    )
    return _plain("message", made, held)


def _events(view: View) -> Pair:
    from tidelog.pipeline.fill.derived_tables import partition_index
    from tidelog.pipeline.transforms.events import events

    log = view.through("event", "log")
    made = events(log, partition_index(view.spark, view.lake, view.store, log))
    return _plain("event", made, view.frame("event"))


def _sends(view: View) -> Pair:
    """A tombstone that a send has is in the store; one in the store may be newer than the table."""
    from pyspark.sql import functions as sql

    from tidelog.pipeline.transforms.sends import sends
    from tidelog.pipeline.transforms.shape import moment

    none = ", ".join(f"{column} {kind}" for column, kind in RELATIONS["tombstone"].items())
    made = sends(view.through("send", "log"), empty_frame(view.spark, none))
    ends = view.relation("tombstone").select(
        "broker_message_id",
        moment("deleted_at").alias("_deleted_at"),
        sql.col("reason").alias("_reason"),
    )
    is_told = (sql.col("deleted_at") == sql.col("_deleted_at")) & (
        sql.col("deleted_reason") == sql.col("_reason")
    )
    held = view.frame("send").join(ends, "broker_message_id", "left").withColumn("_told", is_told)
    for column in ("deleted_at", "deleted_reason"):
        kept = sql.when(sql.coalesce("_told", sql.lit(False)), None).otherwise(sql.col(column))
        held = held.withColumn(column, kept)
    return _plain("send", made, held)


def _mesh_ends(view: View, name: str) -> "DataFrame":
    """How far the history of each mesh was at least when a table was made."""
    from pyspark.sql import functions as sql

    sent = view.through(name, "log").where(sql.col("surface") == "mesh")
    return sent.groupBy(sql.substring_index("stream", "/", -1).alias("mesh_id")).agg(
        sql.max("stream_serial").alias("_end")
    )


def _of_messages(view: View, name: str, made: "DataFrame") -> "DataFrame":
    """Rows of a relation of meshes; those of messages that came later may be missing."""
    from pyspark.sql import functions as sql

    is_later = sql.col("_end").isNull() | (sql.col("history_id") > sql.col("_end"))
    ends = sql.broadcast(_mesh_ends(view, name))
    return made.join(ends, "mesh_id", "left").withColumn("_is_free", is_later)


def _deliveries(view: View) -> Pair:
    """Open deliveries go on; finished ones stay as they are, and are swept after a month."""
    from pyspark.sql import functions as sql

    from tidelog.pipeline.transforms.sends import deliveries

    made = _of_messages(view, "delivery", deliveries(view.relation("delivery")))
    held = view.frame("delivery").withColumns(
        {
            "_is_open": sql.col("status").isin(*_OPEN),
            "_is_free": sql.unix_millis("created_at") < view.now_ms - SWEPT_MS,
        }
    )
    changing = ("status", "attempts", "last_error", "delivered_at")
    return _plain("delivery", made, held, changing=changing)


def _mentions(view: View) -> Pair:
    from tidelog.pipeline.transforms.sends import mentions

    made = _of_messages(view, "mention", mentions(view.relation("mention")))
    return _plain("mention", made, view.frame("mention"))


def _keys(view: View) -> Pair:
    """Keys come with entries; they go when they expire, those of channels with their version."""
    from pyspark.sql import functions as sql

    from tidelog.pipeline.transforms.sends import remembered_keys

    lake = view.lake
    through = min(lake.through("dedupe"), lake.through("log"))
    at_ms = 0
    if through:
        last = lake.arrow("log", ["committed_at"], [("committed_id", "=", through)])
        at_ms = max(last["committed_at"].to_pylist(), default=0)
    is_later = sql.when(
        sql.col("committed_id").isNull(), sql.unix_millis("first_seen_at") >= at_ms
    ).otherwise(sql.col("committed_id") > through)
    made = remembered_keys(view.relation("dedupe")).withColumn("_is_free", is_later)
    there = view.relation("channel_version").select("committed_id", sql.lit(1).alias("_version"))
    has_ended = sql.coalesce(
        sql.unix_millis("expires_at") < view.now_ms + EXPIRY_SLACK_MS, sql.lit(False)
    ) | (sql.col("scope").startswith("channels/") & sql.col("_version").isNull())
    held = (
        view.frame("dedupe")
        .join(there, "committed_id", "left")
        .withColumns({"_is_open": sql.col("is_available"), "_is_free": has_ended})
    )
    return _plain("dedupe", made, held, changing=("is_available",))


def _activity(view: View) -> Pair:
    """What was forgotten is still counted in the minutes that were over by then."""
    from pyspark.sql import functions as sql

    from tidelog.pipeline.transforms.activity import activity
    from tidelog.pipeline.transforms.shape import minute_of, moment

    log = view.through("activity", "log")
    made, held = activity(log), view.frame("activity")
    if not view.forgets:
        return _plain("activity", made, held)
    minutes = (
        _forgotten_entries(view, log)
        .select("stream", minute_of(moment("committed_at")).alias("minute"))
        .distinct()
        .withColumn("_is_open", sql.lit(True))
    )
    held = held.join(minutes, ["stream", "minute"], "left")
    return _plain("activity", made, held, changing=("bytes",))


def _forgotten_entries(view: View, log: "DataFrame") -> "DataFrame":
    """The entries whose content was forgotten."""
    from pyspark.sql import functions as sql

    listed = view.frame("forgotten").select("stream", "entity", "first_committed_id")
    return log.join(sql.broadcast(listed), ["stream", "entity"]).where(
        "committed_id >= first_committed_id"
    )


def _audit(view: View) -> Pair:
    """Nothing is ever changed there, so it may say more than an entry that was forgotten."""
    from pyspark.sql import functions as sql

    from tidelog.pipeline.transforms.audit import audit

    log = view.through("audit", "log")
    made, held = audit(log), view.frame("audit")
    if not view.forgets:
        return _plain("audit", made, held)
    gone = _forgotten_entries(view, log).select("committed_id", sql.lit(True).alias("_is_open"))
    held = held.join(gone, "committed_id", "left")
    return _plain("audit", made, held, changing=("supersedes",))


def _whole(table: Table) -> "Callable[[View], Pair | str]":
    """A table that is made anew of its one input."""
    name, [made_of] = table.name, table.inputs

    def compared(view: View) -> "Pair | str":
        noted = view.lake.made_of(name)
        if noted is not None and noted != view.lake.seal(made_of):
            return f"it is older than {made_of}. Build it: `tidelog pipeline build {name}`"
        return _plain(name, table.make(view.frame(made_of)), view.frame(name))

    return compared


def _snapshots(view: View) -> "Pair | str":
    """Of a partition that lost content nobody can tell the state, but it may have had one."""
    from pyspark.sql import functions as sql

    from tidelog.pipeline.fill.derived_tables import tellable_events
    from tidelog.pipeline.transforms.snapshots import snapshots
    from tidelog.sync.protocol.profiles import TREE_ACTIONS

    if view.model is None:
        return "no model was given"
    made_with = view.lake.arrow("snapshot", ["model_version"])["model_version"].unique()
    if len(made_with) and view.model.model_version not in made_with.to_pylist():
        return "the model has another version now. Build it: `tidelog pipeline build snapshot`"
    events = tellable_events(view.spark, view.lake, view.through("snapshot", "event"))
    none = view.frame("snapshot").limit(0)
    made = snapshots(events, none, view.through("snapshot", "log"), view.model)
    untold = (
        events.where(sql.col("event").isNull() & sql.col("type").isin(*TREE_ACTIONS))
        .select("partition", sql.lit(True).alias("_is_free"))
        .distinct()
    )
    held = view.frame("snapshot").join(untold, "partition", "left")
    return _plain("snapshot", made, held)


_PAIRS: dict[str, "Callable[[View], Pair | str]"] = {
    "message_version": _message_versions,
    "message": _messages,
    "event": _events,
    "send": _sends,
    "delivery": _deliveries,
    "mention": _mentions,
    "dedupe": _keys,
    "activity": _activity,
    "audit": _audit,
    "snapshot": _snapshots,
    **{table.name: _whole(table) for table in TABLES if table.made_by},
}
"""By table: what is to be compared, or why it cannot be."""

RULES = {
    WRITTEN: "a table holds what the pipeline has written, and nothing else did",
    SEARCH: "the index has the visible messages, as the table has them",
    **{name: f"{name} is what it is made of" for name in _PAIRS},
}


# The search index.


def _search(view: View) -> "Pair | str":
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
    made = (
        view.frame("message")
        .where(is_searchable())
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
    return Pair(made, _documents(view.spark, str(root), manifest), key, columns)


def _texts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows with the text of their data in its place."""
    for batch in batches:
        names = [name.replace("data", "text") for name in batch.schema.names]
        texts = pa.array([text_of(data) for data in batch.column("data").to_pylist()], pa.string())
        columns = [texts if c == "data" else batch.column(c) for c in batch.schema.names]
        yield pa.RecordBatch.from_arrays(columns, names)


def _documents(spark: "SparkSession", root: str, manifest: Manifest) -> "DataFrame":
    """All documents of the index; a shard that cannot be read is one that nothing makes."""
    fields = [column.split(" ") for column in _DOCUMENT.split(", ")]
    kinds = {"string": pa.string(), "bigint": pa.int64()}
    schema = pa.schema([(name, kinds[kind]) for name, kind in fields])

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for folder in batch.column("folder").to_pylist():
                for rows in _documents_of(f"{root}/{folder}", folder):
                    yield pa.RecordBatch.from_pylist(rows, schema)

    folders = [(shard.folder,) for shard in manifest.shards.values()]
    frame = frame_of_rows(spark, folders, "folder string")
    return frame.repartition(max(1, len(folders))).mapInArrow(read, _DOCUMENT)


def _documents_of(path: str, folder: str) -> Iterator[list[dict[str, Any]]]:
    """The documents of a shard, some at a time."""
    import tantivy

    page = 1000
    try:
        index = tantivy.Index.open(path)
        searcher = index.searcher()
        hits = searcher.search(tantivy.Query.all_query(), max(1, searcher.num_docs)).hits
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
