"""What each table should hold: made once more, of the log and of the store as it is now.

Relations of the store change without an entry, so a table that was made of them yesterday cannot
be made again today. Of those, what never changes must be equal, what has changed since must have
been able to, and must be among the alterations that the store has numbered since the table noted
one: a table that notes a later one than it has says something that is not so any more.

Of ranges of the log, the rows that their entries make are made: of a message, of all its versions,
wherever they are; of an aggregate, the minutes of the range. A relation has rows that no entry
names; some of them are compared by chance, in both directions.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from tidelog.pipeline.checks.evidence import within
from tidelog.pipeline.checks.orphans import SWEPT_MS
from tidelog.pipeline.checks.spool import RELATIONS, Spool
from tidelog.pipeline.checks.view import Key, Pair, View, in_minutes, intervals_of
from tidelog.pipeline.frames import empty_frame, frame_of_rows
from tidelog.pipeline.lake.horizon import horizon
from tidelog.pipeline.tables import BY_NAME, TABLES, Table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

EXPIRY_SLACK_MS = 60_000
"""A key that expires so soon may be gone: the clock that judged it is another one."""

SAMPLE_ROWS = 500
"""Rows of a mirrored table that are compared with the store, wherever they are in the log."""

_OPEN = ("pending", "claimed")
"""States of a delivery that others follow."""


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

    made = message_versions(view.made_of("message_version"))
    return _plain("message_version", made, view.held("message_version"))


# Messages of channels.


def _messages(view: View) -> Pair:
    """What was purged stays so; what is not may be purged since."""
    from pyspark.sql import functions as sql

    from tidelog.pipeline.transforms.message_fold import DELETED, PURGED, VISIBLE
    from tidelog.pipeline.transforms.messages import fold

    versions, stored = view.through("message", "message_version"), view.frame("message")
    rows: int | None = view.lake.rows("message_version")
    if not view.is_whole:
        versions, stored, rows = _of_messages(view, versions, stored)
    made = fold(versions, rows=rows)
    there = view.relation("channel_messages").select(
        sql.col("message").alias("first_committed_id"), sql.lit(True).alias("_is_there")
    )
    is_gone = (sql.col("state") == PURGED) & sql.col("_is_there").isNull()
    before = sql.when(sql.col("action") == "delete", DELETED).otherwise(VISIBLE)
    held = stored.join(there, "first_committed_id", "left").withColumn(
        "state", sql.when(is_gone, before).otherwise(sql.col("state"))
    )
    return _plain("message", made, held)


def _of_messages(
    view: View, versions: "DataFrame", stored: "DataFrame"
) -> "tuple[DataFrame, DataFrame, int | None]":
    """All versions of the wanted messages, and the rows that are theirs or say they are."""
    from pyspark.sql import functions as sql

    key = list(BY_NAME["message"].key)
    through = view.lake.through("message")
    begun = [int(serial[-20:]) for _, _, serial in view.messages if serial[-20:].isdecimal()]
    names = sql.broadcast(view.named("message", view.messages))
    serials = [serial for _, _, serial in view.messages]
    found = view.lake.arrow(
        "message_version",
        ["committed_id"],
        [
            ("committed_id", ">=", min(begun, default=0)),
            ("committed_id", "<=", through),
            ("message_serial", "in", serials),
        ],
    )["committed_id"].to_pylist()
    theirs = versions.where(within(intervals_of(found))).join(names, key, "left_semi")
    is_near = within(intervals_of(begun), "first_committed_id")
    if view.only is not None:
        held = stored.where(is_near).join(names, key, "left_semi")
        return theirs, held, len(found)
    is_said = within(view.ranges, "first_committed_id") | within(view.ranges, "last_committed_id")
    is_after = view.is_after("message", "last_committed_id")
    marked = names.withColumn("_is_named", sql.lit(True))
    held = (
        stored.where(is_near | is_said | is_after)
        .join(marked, key, "left")
        # One whose first version is in a range has its other versions anywhere; all were found.
        .where(sql.col("_is_named") | is_said | is_after)
        .drop("_is_named")
    )
    return theirs, held, len(found)


# Events of sync.


def _events(view: View) -> Pair:
    from pyspark.sql import functions as sql

    from tidelog.pipeline.transforms.events import events, forgotten_index, without_body

    log, held = view.made_of("event"), view.held("event")
    gone = without_body(log)
    if gone.isEmpty():
        return _plain("event", events(log), held)
    index = view.relation("event_partitions")
    if view.forgets:
        index = index.unionByName(forgotten_index(log, view.frame("forgotten"))).distinct()
    if not view.is_whole:  # of an event that says nothing, the index cannot be asked by name
        nameless = gone.select("committed_id", sql.lit(True).alias("_is_free"))
        held = held.join(nameless, "committed_id", "left")
    return _plain("event", events(log, index), held)


def _snapshots(view: View) -> "Pair | str":
    """Of a partition that lost content nobody can tell the state, but it may have had one."""
    from pyspark.sql import functions as sql

    from tidelog.pipeline.fill.sync_states import states_of, tellable_events, untold_partitions
    from tidelog.pipeline.transforms.events import events as events_of
    from tidelog.pipeline.transforms.snapshots import snapshots

    if view.model is None:
        return "no model was given"
    made_with = view.lake.arrow("snapshot", ["model_version"])["model_version"].unique()
    if len(made_with) and view.model.model_version not in made_with.to_pylist():
        return "the model has another version now. Build it: `tidelog pipeline build snapshot`"
    if not view.lake.rows("snapshot") and not view.lake.rows("event"):
        return ""
    through, stored = view.lake.through("snapshot"), view.frame("snapshot")
    if view.is_whole:
        events, log = view.through("snapshot", "event"), view.through("snapshot", "log")
    else:
        touched = _touched_partitions(view)
        chosen, index, entries = view.evidence.events_of(sorted(touched), through)
        log = entries.frame(view.spark)
        events = events_of(log, index.frame(view.spark))
        names = [(each,) for each in chosen]
        wanted = frame_of_rows(view.spark, names, "partition string")
        events = events.join(sql.broadcast(wanted), "partition", "left_semi")
        others = frame_of_rows(
            view.spark, [(each,) for each in sorted(touched.difference(chosen))], "partition string"
        )
        stored = stored.join(sql.broadcast(others), "partition", "left_anti")
        is_chosen = sql.broadcast(wanted.withColumn("_is_chosen", sql.lit(True)))
        is_wanted = sql.col("_is_chosen") | within(view.ranges)
        stored = stored.join(is_chosen, "partition", "left").where(is_wanted).drop("_is_chosen")
    events = tellable_events(view.spark, view.lake, events)
    if view.is_whole:
        made = states_of(view.spark, view.lake, events, log, view.model)
    else:  # the store has what the lake is too old for
        made = snapshots(events, view.frame("snapshot").limit(0), log, view.model)
    untold = untold_partitions(view.spark, view.lake, events, view.model)
    untold = untold.withColumn("_is_free", sql.lit(True))
    return _plain("snapshot", made, stored.join(untold, "partition", "left"))


def _touched_partitions(view: View) -> set[str]:
    found: set[str] = set()
    if view.lake.delta("event") is not None:
        for each in view.ranges:
            inside = [("committed_id", ">", each.after), ("committed_id", "<=", each.through)]
            names = view.lake.arrow("event", ["partition"], inside)["partition"]
            found.update(names.unique().to_pylist())
    return found


# Messages of meshes.


def _sends(view: View) -> Pair:
    """A tombstone that a send has is in the store; one in the store may be newer than the table."""
    from pyspark.sql import functions as sql

    from tidelog.pipeline.transforms.sends import sends
    from tidelog.pipeline.transforms.shape import moment

    tombstones = RELATIONS["tombstones"]
    log, held = view.through("send", "log"), view.frame("send")
    if view.only is not None:
        log = log.where(sql.col("entity").isin(view.sends))
        held = held.where(sql.col("broker_message_id").isin(view.sends))
    else:
        log, held = view.made_of("send"), view.held("send")
    made = sends(log, empty_frame(view.spark, tombstones.ddl))
    ends = view.relation("tombstones").select(
        "broker_message_id",
        moment("deleted_at").alias("_deleted_at"),
        sql.col("reason").alias("_reason"),
    )
    is_told = (sql.col("deleted_at") == sql.col("_deleted_at")) & (
        sql.col("deleted_reason") == sql.col("_reason")
    )
    held = held.join(ends, "broker_message_id", "left").withColumn("_told", is_told)
    for column in ("deleted_at", "deleted_reason"):
        kept = sql.when(sql.coalesce("_told", sql.lit(False)), None).otherwise(sql.col(column))
        held = held.withColumn(column, kept)
    return _plain("send", made, held)


def _mesh_ends(view: View, name: str) -> "DataFrame":
    """How far the history of each mesh was at least when a table was made."""
    from pyspark.sql import functions as sql

    sent = view.made_of(name).where(sql.col("surface") == "mesh")
    return sent.groupBy(sql.substring_index("stream", "/", -1).alias("mesh_id")).agg(
        sql.max("stream_serial").alias("_end")
    )


def _rows_of_sends(
    view: View, name: str, relation: str, make: "Callable[[DataFrame], DataFrame]"
) -> "tuple[DataFrame, DataFrame]":
    """Rows of a relation of meshes twice; those of messages that came later may be missing."""
    from pyspark.sql import functions as sql

    stored, held = view.relation(relation), view.frame(name)
    is_later = sql.col("_end").isNull() | (sql.col("history_id") > sql.col("_end"))
    if not view.is_whole:
        more = _more_rows(view, name, relation)
        stored = stored.unionByName(more.frame(view.spark)).dropDuplicates(
            list(RELATIONS[relation].key)
        )
        names = [(each,) for each in view.sends]
        ids = stored.select("broker_message_id").unionByName(
            frame_of_rows(view.spark, names, "broker_message_id string")
        )
        held = held.join(sql.broadcast(ids.distinct()), "broker_message_id", "left_semi")
        # A mesh without an entry in the ranges: times never decrease along the log.
        is_late = sql.unix_millis("created_at") >= view.committed_at(view.lake.through(name))
        is_later = sql.when(sql.col("_end").isNull(), is_late).otherwise(
            is_late & (sql.col("history_id") > sql.col("_end"))
        )
    ends = sql.broadcast(_mesh_ends(view, name))
    made = make(stored).join(ends, "mesh_id", "left").withColumn("_is_free", is_later)
    return made, held


def _more_rows(view: View, name: str, relation: str) -> Spool:
    """The rows that the store has for some messages of a table, by chance."""
    spool = Spool(view.evidence.folder, RELATIONS[relation])
    if view.only is None:
        keys = sample_of(view, name, ("broker_message_id",))
        for page in view.store.named(f"check_{relation}_named", [key for (key,) in keys]):
            spool.add(page)
    return spool


def sample_of(view: View, name: str, columns: Sequence[str]) -> list[Key]:
    """Some keys of a table that stand together, by chance."""
    import pyarrow.parquet as pq

    if not (files := view.lake.files(name)):
        return []
    chance = view.chance
    with pq.ParquetFile(chance.choice(files)) as file:
        group = chance.randrange(max(1, file.num_row_groups))
        rows = file.read_row_group(group, list(columns))
    begin = chance.randrange(max(1, rows.num_rows - SAMPLE_ROWS + 1))
    some = rows.slice(begin, SAMPLE_ROWS)
    return sorted(set(zip(*(some[column].to_pylist() for column in columns), strict=True)))


def _deliveries(view: View) -> Pair:
    """Open deliveries go on; finished ones stay as they are, and are swept after a month."""
    from pyspark.sql import functions as sql

    from tidelog.pipeline.transforms.sends import deliveries

    made, held = _rows_of_sends(view, "delivery", "deliveries", deliveries)
    is_open = sql.col("status").isin(*_OPEN)
    since = view.altered_since("delivery")  # read after the rows: so what they show is in it
    if since is not None:
        names = sql.broadcast(_named_rows(view, since, name="broker_message_id"))
        held = held.join(names, "broker_message_id", "left")
        is_open = is_open & sql.col("_is_altered").isNotNull()
    held = held.withColumns(
        {
            "_is_open": is_open,
            "_is_free": sql.unix_millis("created_at") < view.now_ms - SWEPT_MS,
        }
    )
    changing = ("status", "attempts", "last_error", "delivered_at")
    return _plain("delivery", made, held, changing=changing)


def _mentions(view: View) -> Pair:
    from tidelog.pipeline.transforms.sends import mentions

    return _plain("mention", *_rows_of_sends(view, "mention", "mentions", mentions))


# Keys.


def _keys(view: View) -> Pair:
    """Keys come with entries; they go when they expire, those of channels with their version."""
    from pyspark.sql import functions as sql

    from tidelog.pipeline.transforms.sends import remembered_keys

    lake = view.lake
    through = min(lake.through("dedupe"), lake.through("log"))
    at_ms = view.committed_at(through)
    is_later = sql.when(
        sql.col("committed_id").isNull(), sql.unix_millis("first_seen_at") >= at_ms
    ).otherwise(sql.col("committed_id") > through)
    stored, held = _stored_keys(view)
    made = remembered_keys(stored).withColumn("_is_free", is_later)
    # Read after the keys: a version and its key go together.
    there = view.relation("channel_versions").select("committed_id", sql.lit(1).alias("_version"))
    has_ended = sql.coalesce(
        sql.unix_millis("expires_at") < view.now_ms + EXPIRY_SLACK_MS, sql.lit(False)
    ) | (sql.col("scope").startswith("channels/") & sql.col("_version").isNull())
    held = held.join(there.distinct(), "committed_id", "left").withColumn("_is_free", has_ended)
    is_open = sql.col("is_available")
    since = view.altered_since("dedupe")
    if since is not None:
        entries = since.filter(pc.field("position") > 0)
        held = held.join(
            sql.broadcast(_named_rows(view, entries, position="committed_id")),
            "committed_id",
            "left",
        )
        keys = since.filter(pc.field("position") == 0)
        named = _named_rows(view, keys, scope="scope", name="key")
        named = named.withColumnRenamed("_is_altered", "_is_altered_key")
        held = held.join(sql.broadcast(named), ["scope", "key"], "left")
        altered = sql.coalesce("_is_altered", "_is_altered_key")
        is_open = is_open & altered.isNotNull()
    held = held.withColumn("_is_open", is_open)
    return _plain("dedupe", made, held, changing=("is_available",))


def _named_rows(view: View, since: "pa.Table", **called: str) -> "DataFrame":
    """What alterations name, in columns of other names, with `_is_altered`."""
    from pyspark.sql import functions as sql

    names = since.select(list(called)).rename_columns(list(called.values()))
    names = names.group_by(names.column_names).aggregate([])
    kinds = {"committed_id": "bigint"}
    ddl = ", ".join(f"{name} {kinds.get(name, 'string')}" for name in called.values())
    return frame_of_rows(view.spark, names, ddl).withColumn("_is_altered", sql.lit(True))


def _stored_keys(view: View) -> "tuple[DataFrame, DataFrame]":
    """Keys as the store has them, and as the table has them."""
    from pyspark.sql import functions as sql

    stored, held = view.relation("keys"), view.frame("dedupe")
    if view.is_whole:
        return stored, held
    columns = ["scope", "key"]
    if view.only is not None:
        names = view.named("dedupe", view.only.get("dedupe", []))
        return stored, held.join(sql.broadcast(names), columns, "left_semi")
    asked = set(sample_of(view, "dedupe", columns))
    for each in view.ranges:
        inside = [("committed_id", ">", each.after), ("committed_id", "<=", each.through)]
        known = view.lake.arrow("dedupe", columns, inside)
        asked.update(zip(known["scope"].to_pylist(), known["key"].to_pylist(), strict=True))
    more = Spool(view.evidence.folder, RELATIONS["keys"])
    for page in view.store.named("check_keys_named", sorted(asked)):
        more.add(page)
    stored = stored.unionByName(more.frame(view.spark)).dropDuplicates(columns)
    names = stored.select(*columns).unionByName(view.named("dedupe", sorted(asked)))
    return stored, held.join(sql.broadcast(names.distinct()), columns, "left_semi")


# Aggregates and the audit.


def _activity(view: View) -> Pair:
    """What was emptied is still counted in the minutes that were over by then."""
    from pyspark.sql import functions as sql

    from tidelog.pipeline.transforms.activity import activity
    from tidelog.pipeline.transforms.shape import minute_of, moment

    log, held = view.through("activity", "log"), view.frame("activity")
    if not view.is_whole:
        log = log.where(in_minutes(sql.col("committed_at"), view.minutes))
        held = held.where(_is_of_minutes(view, "minute"))
    made = activity(log)
    if not view.forgets and not horizon(view.lake):
        return _plain("activity", made, held)
    minutes = (
        _emptied_entries(view, log)
        .select("stream", minute_of(moment("committed_at")).alias("minute"))
        .distinct()
        .withColumn("_is_open", sql.lit(True))
    )
    held = held.join(minutes, ["stream", "minute"], "left")
    return _plain("activity", made, held, changing=("bytes",))


def _is_of_minutes(view: View, column: str) -> "Column":
    """Whether a timestamp is in the wanted minutes."""
    from pyspark.sql import functions as sql

    inside = sql.lit(False)
    for begin, end in view.minutes:
        first, after = (sql.timestamp_millis(sql.lit(each)) for each in (begin, end))
        inside = inside | ((sql.col(column) >= first) & (sql.col(column) < after))
    return inside


def _emptied_entries(view: View, log: "DataFrame") -> "DataFrame":
    """The entries whose content was forgotten or is too old."""
    from pyspark.sql import functions as sql

    columns = log.columns
    too_old = log.where(sql.col("committed_id") <= horizon(view.lake))
    if not view.forgets:
        return too_old
    listed = view.frame("forgotten").select("stream", "entity", "first_committed_id")
    forgotten = log.join(sql.broadcast(listed), ["stream", "entity"]).where(
        "committed_id >= first_committed_id"
    )
    return too_old.unionByName(forgotten.select(*columns))


def _audit(view: View) -> Pair:
    """Nothing is ever changed there, so it may say more than an entry that was emptied."""
    from pyspark.sql import functions as sql

    from tidelog.pipeline.transforms.audit import audit

    log, held = view.made_of("audit"), view.held("audit")
    made = audit(log)
    if not view.forgets and not horizon(view.lake):
        return _plain("audit", made, held)
    gone = _emptied_entries(view, log).select("committed_id").distinct()
    gone = gone.withColumn("_is_open", sql.lit(True))
    held = held.join(gone, "committed_id", "left")
    return _plain("audit", made, held, changing=("supersedes",))


def _changes(view: View) -> Pair:
    from tidelog.pipeline.transforms.changes import changes

    return _plain("changes", changes(view.made_of("changes")), view.held("changes"))


def _whole(table: Table) -> "Callable[[View], Pair | str]":
    """A table that is made anew of its one input."""
    name, [made_of] = table.name, table.inputs
    times = {column.name for column in BY_NAME[made_of].columns}
    by_minute = "minute" in table.key and "created_at" in times

    def compared(view: View) -> "Pair | str":
        noted = view.lake.made_of(name)
        if noted is not None and noted != view.lake.seal(made_of):
            return f"it is older than {made_of}. Build it: `tidelog pipeline build {name}`"
        if not view.lake.rows(made_of) and not view.lake.rows(name):
            return ""
        inputs, held = view.frame(made_of), view.frame(name)
        if by_minute and not view.is_whole:
            inputs = inputs.where(_is_of_minutes(view, "created_at"))
            held = held.where(_is_of_minutes(view, "minute"))
        return _plain(name, table.make(inputs), held)

    return compared


PAIRS: dict[str, "Callable[[View], Pair | str]"] = {
    "message_version": _message_versions,
    "message": _messages,
    "event": _events,
    "send": _sends,
    "delivery": _deliveries,
    "mention": _mentions,
    "dedupe": _keys,
    "activity": _activity,
    "audit": _audit,
    "changes": _changes,
    "snapshot": _snapshots,
    **{table.name: _whole(table) for table in TABLES if table.made_by},
}
"""By table: what is to be compared, or why it cannot be; nothing if there is nothing."""

CHANGING = ("message", "send", "delivery", "mention", "dedupe")
"""Tables that are compared with relations which change meanwhile: what is found there is looked at
a second time."""
