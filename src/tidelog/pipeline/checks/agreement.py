"""Agreement: the state that Spark folds from the log is the state that the server has and serves.

Three comparisons. Entry by entry, the table `log` of the lake with the store. Each stored snapshot
of a sync partition with what the reducer makes of the partition's events. And, against a running
server, every message in the histories of its channels and the state of every partition, asked for
over HTTP, with what is folded from the lake.

Of ranges of the log, the entries in them are compared, and the snapshots that are as of there. What
such a snapshot is made of may be all of the log, so its events are looked up in the store, and of
many snapshots only as many are made again as a bounded number of events allows.

The lake keeps what the server prunes, so what was purged can still be compared. The server may be
ahead of the lake: what it shows in a newer version than the lake has is not compared, and counted.
A comparison that was asked for and could compare nothing at all is no agreement.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidelog.base.data.digest import body_digest
from tidelog.pipeline.checks import served
from tidelog.pipeline.checks.evidence import Evidence, within
from tidelog.pipeline.checks.extent import Range
from tidelog.pipeline.checks.finding import FINDING_DDL, FIRST_FINDINGS, Verdict, first_of
from tidelog.pipeline.checks.plain_bronze import is_plainly_the_same
from tidelog.pipeline.checks.retention import chosen_snapshots
from tidelog.pipeline.checks.served import Server
from tidelog.pipeline.checks.spool import Relation, Spool
from tidelog.pipeline.frames import frame_of_rows
from tidelog.pipeline.lake.forgetting import is_unfinished
from tidelog.pipeline.lake.horizon import BASE, horizon, horizon_in_words
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.lake.reading import forgotten_partitions
from tidelog.pipeline.tables import LOG

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

    from tidelog.pipeline.transforms.snapshots import ModelSource

NAME = "agreement"

ASKERS = 2
"""Requests under way at the server at once: a check must not crowd out its clients."""

RULES = {
    "bronze": "an entry in the lake is the entry in the store",
    "snapshot": "a stored snapshot is what the reducer makes of the events",
    "message": "the server shows a message as it is folded",
    "state": "the server has the state that the reducer makes",
}


def check(
    evidence: Evidence,
    lake: Lake,
    ranges: Sequence[Range],
    *,
    server: Server | None = None,
    model: "ModelSource | None" = None,
) -> Verdict:
    """Compare the lake with the store, and with a server if one is named.

    Args:
        evidence: The store.
        lake: Its table `log` is what is folded.
        ranges: Of the entries that lake and store have.
        server: To be asked, for everything it has; None asks nobody.
        model: Of the sync surface; without it states are not compared.
    """
    through = min(lake.through("log"), evidence.head.committed_id)
    if not through and evidence.head.committed_id:
        empty = "the lake has no entries. Ingest them: `tidelog pipeline ingest`."
        return Verdict(NAME, through, 0, uncompared=(empty,))
    parts = [_bronze(evidence, lake, ranges, through)]
    notes = [words] if (words := horizon_in_words(lake)) else []
    if model is None:
        notes.append("states of sync are not compared: no model was given")
    else:
        parts.append(_stored_states(evidence, lake, ranges, model, through))
    if server is None:
        notes.append("no server was asked")
    else:
        parts.append(_confirmed(partial(_messages, evidence, lake, server, through)))
        if not server.admin_token:
            parts.append(_unasked_states(lake, through))
        elif model is not None:
            ask = partial(_answered_states, evidence, lake, server, model, through)
            parts.append(_confirmed(ask))
    whole = Verdict(NAME, through, 0, notes=tuple(notes), ranges=tuple(ranges))
    for part in parts:
        whole = whole._replace(
            examined=whole.examined + part.examined,
            findings=(*whole.findings, *part.findings)[:FIRST_FINDINGS],
            total=whole.total + part.total,
            notes=(*whole.notes, *part.notes),
            uncompared=(*whole.uncompared, *part.uncompared),
        )
    return whole


_Names = list[tuple[str, ...]]


def _confirmed(look: Callable[[_Names | None], Verdict]) -> Verdict:
    """The verdict on a server without findings that a second look there does not show.

    The server goes on meanwhile; what it really shows otherwise it still shows so.

    Args:
        look: Asks for channels or partitions; None: for all.
    """
    verdict = look(None)
    if not verdict.findings:
        return verdict
    again = look(sorted({finding.ref for finding in verdict.findings}))
    there = {(finding.rule, finding.where) for finding in again.findings}
    gone = [each for each in verdict.findings if (each.rule, each.where) not in there]
    return verdict.without(gone) if again.total == len(again.findings) else verdict


_WITHOUT_CONTENT = tuple(
    column.name
    for column in LOG.columns
    if column.name not in ("body", "data", "body_digest", "digest")
)


def _bronze(evidence: Evidence, lake: Lake, ranges: Sequence[Range], through: int) -> Verdict:
    from pyspark.sql import functions as sql

    def with_hashes(frame: "DataFrame", *more: str) -> "DataFrame":
        content = sql.when(sql.col("body").isNotNull(), sql.xxhash64("body", "data"))
        return frame.select(
            "committed_id",
            sql.struct(
                "digest",
                "body_digest",
                sql.xxhash64(*_WITHOUT_CONTENT).alias("header"),
                content.alias("content"),
                *more,
            ).alias("found"),
        )

    if not ranges:
        return Verdict(NAME, through, 0)
    entries = sum(each.entries for each in ranges)
    if is_plainly_the_same(evidence, lake, ranges, through):
        return Verdict(NAME, through, entries)
    is_judged = within(ranges)
    if ranges[-1].through == through:  # nothing is to be after what the lake says it has
        is_judged = is_judged | (sql.col("committed_id") > lake.through("log"))
    rows = lake.frame(evidence.spark, "log").where(is_judged)
    kept = with_hashes(_with_forgotten(lake, rows), "is_forgotten")
    stored = with_hashes(evidence.log(*(column.name for column in LOG.columns), ranges=ranges))
    both = (
        stored.withColumnRenamed("found", "stored")
        .join(
            kept.groupBy("committed_id").agg(
                sql.first("found").alias("kept"), sql.count(sql.lit(1)).alias("times")
            ),
            "committed_id",
            "full",
        )
        .persist()
    )
    finished = sql.lit(not is_unfinished(lake))
    is_too_old = sql.col("committed_id") <= horizon(lake)
    problem = (
        sql.when(sql.col("kept").isNull(), "is not in the lake")
        .when(sql.col("stored").isNull(), "is in the lake and not in the store")
        .when(sql.col("times") > 1, "is in the lake more than once")
        .when(sql.col("stored.digest") != sql.col("kept.digest"), "has another digest")
        .when(
            sql.col("stored.body_digest") != sql.col("kept.body_digest"),
            "has another digest of its content",
        )
        .when(sql.col("stored.header") != sql.col("kept.header"), "says something else")
        .when(sql.col("stored.content") != sql.col("kept.content"), "has other content")
        .when(
            sql.col("kept.is_forgotten") & sql.col("kept.content").isNotNull() & finished,
            "is forgotten and has content",
        )
        .when(is_too_old & sql.col("kept.content").isNotNull(), "is too old and has content")
        .when(
            ~sql.col("kept.is_forgotten")
            & ~is_too_old
            & sql.col("kept.content").isNull()
            & sql.col("stored.content").isNotNull(),
            "has lost its content",
        )
    )
    # What the store has no more, only its digest vouches for.
    alone = both.where("stored.content IS NULL AND kept.content IS NOT NULL")
    unproven = (
        rows.join(alone.select("committed_id"), "committed_id", "left_semi")
        .select("committed_id", "body", "data", "body_digest")
        .mapInArrow(_with_other_content, "committed_id bigint")
        .withColumn("text", sql.lit("has content that was never committed"))
    )
    found = both.withColumn("text", problem).where(sql.col("text").isNotNull())
    try:
        named, total = first_of(
            found.select("committed_id", "text")
            .unionByName(unproven)
            .select(
                sql.col("committed_id").alias("at"),
                sql.lit("bronze").alias("rule"),
                sql.concat(sql.lit("entry "), sql.col("committed_id").cast("string")).alias(
                    "where"
                ),
                "text",
            )
        )
    finally:
        both.unpersist()
    return Verdict(NAME, through, entries, named, total)


def _with_forgotten(lake: Lake, rows: "DataFrame") -> "DataFrame":
    """Rows of `log` with `is_forgotten`: whether their content is to be nowhere."""
    from pyspark.sql import functions as sql

    if not lake.files("forgotten"):
        return rows.withColumn("is_forgotten", sql.lit(False))
    listed = lake.frame(rows.sparkSession, "forgotten").select(
        "stream", "entity", "first_committed_id"
    )
    is_listed = sql.col("committed_id") >= sql.col("first_committed_id")
    return rows.join(sql.broadcast(listed), ["stream", "entity"], "left").withColumn(
        "is_forgotten", sql.coalesce(is_listed, sql.lit(False))
    )


def _with_other_content(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: the entries whose content does not have the digest that they say."""
    for batch in batches:
        names = ("committed_id", "body", "data", "body_digest")
        rows = zip(*(batch.column(name).to_pylist() for name in names), strict=True)
        wrong = [at for at, body, data, digest in rows if body_digest(body, data) != digest]
        yield pa.RecordBatch.from_arrays([pa.array(wrong, pa.int64())], ["committed_id"])


# Channels.


def folded(lake: Lake, evidence: Evidence, through: int) -> "DataFrame":
    """Messages as the lake has them: the columns of `message`."""
    from pyspark.sql import functions as sql

    from tidelog.pipeline.transforms.messages import fold, message_versions

    log = lake.frame(evidence.spark, "log").where(sql.col("committed_id") <= through)
    return fold(message_versions(log))


def _messages(
    evidence: Evidence, lake: Lake, server: Server, through: int, only: _Names | None
) -> Verdict:
    """Ask for everything, then look which messages are still there: what is gone may be."""
    from pyspark.sql import functions as sql

    key = ["app_id", "channel", "history_serial"]
    ours = (
        folded(lake, evidence, through)
        .withColumn("published_at_ms", sql.unix_millis("published_at"))
        .withColumn("at_ms", sql.unix_millis("updated_at"))
        .mapInArrow(_shown_messages, _OURS_DDL)
        .transform(_only(only, "app_id", "channel"))
        .persist()
    )
    channels = ours.select("app_id", "channel").distinct().coalesce(1).repartition(ASKERS)
    told = channels.mapInArrow(served.histories(server), served.MESSAGE_DDL).persist()
    told.count()
    before = evidence.now()
    hidden = (
        ours.join(_floors(before), ["app_id", "channel"])
        .where("history_serial <= history_floor AND action != 'event'")
        .join(_there(before), "first_committed_id")
        .select(*key, "message_serial", "published_at_ms")
        .repartition(ASKERS)
    )
    singly = hidden.mapInArrow(served.messages(server), served.MESSAGE_DDL).persist()
    singly.count()
    after = evidence.now()
    both = (
        ours.join(_there(after), "first_committed_id", "left")
        # Of a message of which all is forgotten, only the store knows the position.
        .withColumn("history_serial", sql.coalesce("history_serial", "stored_serial"))
        .join(_floors(before), ["app_id", "channel"], "left")
        .join(told.unionByName(singly).withColumnRenamed("shown", "told"), key, "full")
        .persist()
    )
    try:
        return _compared_messages(both, through, [app.id for app in server.apps])
    finally:
        for frame in (both, singly, told, ours):
            frame.unpersist()


def _only(names: _Names | None, *columns: str) -> "Callable[[DataFrame], DataFrame]":
    """For `DataFrame.transform`: the rows of some channels or partitions; of all if None."""

    def select(frame: "DataFrame") -> "DataFrame":
        if names is None:
            return frame
        ddl = ", ".join(f"{column} string" for column in columns)
        wanted = frame_of_rows(frame.sparkSession, names, ddl)
        return frame.join(wanted, list(columns), "left_semi")

    return select


def _there(evidence: Evidence) -> "DataFrame":
    """The messages that the server has."""
    from pyspark.sql import functions as sql

    return evidence.relation("channel_messages").select(
        sql.col("message").alias("first_committed_id"),
        sql.col("history_serial").alias("stored_serial"),
        sql.lit(True).alias("is_there"),
    )


def _floors(evidence: Evidence) -> "DataFrame":
    """Up to where the history of each channel is hidden."""
    from pyspark.sql import functions as sql

    return evidence.relation("channels").select(
        sql.split_part("stream", sql.lit("/"), sql.lit(2)).alias("app_id"),
        sql.split_part("stream", sql.lit("/"), sql.lit(3)).alias("channel"),
        "history_floor",
    )


_OURS_DDL = (
    "app_id string, channel string, history_serial bigint, message_serial string, action string, "
    "first_committed_id bigint, last_committed_id bigint, published_at_ms bigint, "
    "is_complete boolean, shown string"
)
_OURS_SCHEMA = pa.schema(
    [
        ("app_id", pa.string()),
        ("channel", pa.string()),
        ("history_serial", pa.int64()),
        ("message_serial", pa.string()),
        ("action", pa.string()),
        ("first_committed_id", pa.int64()),
        ("last_committed_id", pa.int64()),
        ("published_at_ms", pa.int64()),
        ("is_complete", pa.bool_()),
        ("shown", pa.string()),
    ]
)


def _shown_messages(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows of `message` as a server would show them."""
    for batch in batches:
        rows = []
        for row in batch.to_pylist():
            fields: dict[str, Any] = {
                "history_serial": row["history_serial"],
                "published_at_ms": row["published_at_ms"],
                "action": row["action"],
                "delivery_serial": row["delivery_serial"],
                "name": row["name"],
                "data": served.json_value(row["data"]),
                "extras": served.json_value(row["extras"]),
                "client_id": row["client_id"],
            }
            if row["action"] == "event":
                fields["tags"] = served.json_value(row["tags"])
            else:
                fields |= {
                    "message_serial": row["message_serial"],
                    "description": row["description"],
                    "metadata": served.json_value(row["metadata"]),
                    "at_ms": row["at_ms"],
                }
            place = {name: row[name] for name in _OURS_SCHEMA.names if name != "shown"}
            rows.append({**place, "shown": served.shown(**fields)})
        yield pa.RecordBatch.from_pylist(rows, schema=_OURS_SCHEMA)


def _compared_messages(both: "DataFrame", through: int, apps: list[str]) -> Verdict:
    from pyspark.sql import functions as sql

    is_newer = sql.coalesce(sql.col("version_id"), sql.lit(0)) > through
    kind = (
        sql.when(~sql.col("app_id").isin(*apps), "unasked")
        .when(is_newer, "newer")
        .when(sql.col("shown").isNull(), "unknown")
        .when(sql.col("told").isNull() & sql.col("is_there").isNull(), "purged")
        .when(
            sql.col("told").isNull()
            & (sql.col("action") == "event")
            & (sql.col("history_serial") <= sql.coalesce("history_floor", sql.lit(0))),
            "hidden",
        )
        .when(~sql.col("is_complete"), "incomplete")
        .when(sql.col("told").isNull(), "missing")
        .when(sql.col("version_id") < sql.col("last_committed_id"), "older")
        .when(sql.col("told") != sql.col("shown"), "different")
        .otherwise("equal")
    )
    judged = both.withColumn("kind", kind)
    counts = {row["kind"]: row["count"] for row in judged.groupBy("kind").count().collect()}
    texts = {
        "unknown": sql.lit("the server shows it, the lake has no such message"),
        "missing": sql.lit("the server has it and does not show it"),
        "older": sql.lit("the server shows an older version than the lake has"),
        "different": sql.lit("the server shows other content"),
    }
    wrong = sum(counts.get(name, 0) for name in texts)
    everything = sum(counts.values())
    if counts.get("unasked") == everything > 0:
        without = (
            f"none of {everything} messages of the server: no key of their apps is known. Name the "
            "server's configuration with --config."
        )
        return Verdict(NAME, through, 0, uncompared=(without,))
    notes = [
        f"{counts[name]} messages {why}"
        for name, why in (
            ("unasked", "are of apps whose keys were not given"),
            ("newer", "are newer than the lake"),
            ("purged", "were purged by the server"),
            ("hidden", "are hidden by a history floor and cannot be asked for"),
            ("incomplete", "lost content before it was ingested or by age, or are forgotten"),
        )
        if counts.get(name)
    ]
    if not wrong:
        return Verdict(NAME, through, everything, notes=tuple(notes))
    text = sql.lit("")
    for name, said in texts.items():
        text = sql.when(sql.col("kind") == name, said).otherwise(text)
    found = judged.where(sql.col("kind").isin(*texts)).select(
        sql.coalesce("first_committed_id", "version_id", sql.lit(0)).alias("at"),
        sql.lit("message").alias("rule"),
        sql.concat_ws(
            " ", sql.lit("message"), "history_serial", sql.lit("of"), "app_id", "channel"
        ).alias("where"),
        sql.array("app_id", "channel").alias("ref"),
        sql.when(
            sql.col("kind") == "different",
            sql.concat(text, sql.lit(": "), "told", sql.lit(" instead of "), "shown"),
        )
        .otherwise(text)
        .alias("text"),
    )
    named, total = first_of(found)
    return Verdict(NAME, through, everything, named, total, tuple(notes))


# Sync.


def reduced(
    lake: Lake, log: "DataFrame", through: "DataFrame", model: "ModelSource"
) -> "DataFrame":
    """States of partitions as the reducer makes them: the columns of `snapshot`.

    Args:
        lake: Tells what events made that are too old to be told.
        log: Rows of `log` with the events: all of the lake, or what the store has.
        through: `partition` and `position`: up to where the events of each count.
        model: Of the sync surface.
    """
    from pyspark.sql import functions as sql

    from tidelog.pipeline.lake.reading import frame_of
    from tidelog.pipeline.tables import BY_NAME
    from tidelog.pipeline.transforms.events import events
    from tidelog.pipeline.transforms.snapshots import continued, snapshots

    def until(rows: "DataFrame") -> "DataFrame":
        rows = rows.join(sql.broadcast(through), "partition")
        return rows.where(sql.col("committed_id") <= sql.col("position")).drop("position")

    spark = through.sparkSession
    log = log.where(sql.col("surface") == "sync")
    found = events(log)
    if not (last := horizon(lake)):
        return snapshots(until(found), frame_of(spark, BY_NAME["snapshot"], ()), log, model)
    # Of events without a body only the table of events tells the partitions.
    is_old = sql.col("committed_id") <= last
    found = found.where(~is_old).unionByName(lake.frame(spark, "event").where(is_old))
    return continued(until(found), until(lake.frame(spark, BASE)), log, model)


def _stored_states(
    evidence: Evidence, lake: Lake, ranges: Sequence[Range], model: "ModelSource", through: int
) -> Verdict:
    """Snapshots in the store."""
    chosen, notes = chosen_snapshots(evidence, ranges), []
    if not chosen:
        return Verdict(NAME, through, 0)
    log = lake.frame(evidence.spark, "log")
    if not evidence.is_whole:
        within_reach, _, entries = evidence.events_of(chosen, through)
        if len(within_reach) < len(chosen):
            left = len(chosen) - len(within_reach)
            notes.append(f"{left} snapshots are not made again: --full does it")
        chosen = within_reach
        log = entries.frame(evidence.spark)
    told = Spool(evidence.folder, _TOLD)
    for page in evidence.snapshot_states(chosen):
        told.add(
            pa.Table.from_pylist(
                [
                    {
                        "partition": row["partition"],
                        "position": row["committed_id"],
                        "shown": served.canonical(served.json_value(row["state"].decode())),
                    }
                    for row in page.to_pylist()
                    if row["model_version"] == model.model_version
                    and row["committed_id"] <= through
                ],
                schema=served.STATE_SCHEMA,
            )
        )
    if not told.rows:
        return Verdict(NAME, through, 0, notes=tuple(notes))
    compared = _compared_states(lake, log, told.frame(evidence.spark), model, through, "snapshot")
    return compared._replace(notes=(*notes, *compared.notes))


_TOLD = Relation(served.STATE_DDL, ("partition",))


def _unasked_states(lake: Lake, through: int) -> Verdict:
    """Without a token the server cannot be asked for states, if there are any."""
    is_sync = [("surface", "=", "sync"), ("committed_id", "<=", through)]
    if not lake.arrow("log", ["committed_id"], is_sync).num_rows:
        return Verdict(NAME, through, 0)
    without = (
        "no state of sync of the server: the admin token is not known. Name the server's "
        "configuration with --config."
    )
    return Verdict(NAME, through, 0, uncompared=(without,))


def _answered_states(
    evidence: Evidence,
    lake: Lake,
    server: Server,
    model: "ModelSource",
    through: int,
    only: _Names | None,
) -> Verdict:
    """States that a server returns now: everything up to the end of the lake is in them.

    So a state that ends before that must be the same there.
    """
    from pyspark.sql import functions as sql

    from tidelog.pipeline.transforms.events import events

    log = lake.frame(evidence.spark, "log").where(sql.col("surface") == "sync")
    named = events(log).select("partition")
    named = named.unionByName(lake.frame(evidence.spark, BASE).select("partition"))
    known = named.distinct().transform(_only(only, "partition"))
    partitions = known.coalesce(1).repartition(ASKERS)
    told = partitions.mapInArrow(served.states(server), served.STATE_DDL).persist()
    at_least = sql.greatest(sql.col("position"), sql.lit(through).cast("bigint"))
    try:
        return _compared_states(
            lake, log, told.withColumn("position", at_least), model, through, "state"
        )
    finally:
        told.unpersist()


def _compared_states(
    lake: Lake,
    log: "DataFrame",
    told: "DataFrame",
    model: "ModelSource",
    through: int,
    rule: str,
) -> Verdict:
    from pyspark.sql import functions as sql

    is_told = (sql.col("position") <= through) & sql.col("shown").isNotNull()
    forgotten = sorted(forgotten_partitions(lake, through))
    comparable = told.where(is_told & ~sql.col("partition").isin(forgotten))
    made = reduced(lake, log, comparable.select("partition", "position"), model)
    rows = (
        comparable.join(made.select("partition", "state"), "partition", "left")
        .mapInArrow(_compare_states, "partition string, position bigint, text string")
        .collect()
    )
    wrong = [row for row in rows if row["text"] and row["text"] != _UNTOLD]
    untold = sum(row["text"] == _UNTOLD for row in rows)
    notes = []
    if untold:
        notes.append(f"{untold} partitions lost content before it was ingested, or by age")
    if forgotten:
        notes.append(f"{len(forgotten)} partitions have a forgotten event and are not compared")
    findings = frame_of_rows(
        told.sparkSession,
        [_state_finding(row, rule) for row in wrong],
        f"{FINDING_DDL}, ref array<string>",
    )
    named, total = first_of(findings) if wrong else ((), 0)
    return Verdict(NAME, through, len(rows), named, total, tuple(notes))


_UNTOLD = "untold"


def _state_finding(row: "Row", rule: str) -> tuple[int, str, str, str, list[str]]:
    name = row["partition"]
    return row["position"], rule, f"partition {name}", row["text"], [name]


def _compare_states(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """States told and made; a partition without events has the empty state."""
    for batch in batches:
        texts: list[str | None] = []
        for told, state in zip(
            batch.column("shown").to_pylist(), batch.column("state").to_pylist(), strict=True
        ):
            if state is None:
                texts.append(_UNTOLD)
            elif served.canonical(served.json_value(state)) == told:
                texts.append(None)
            else:
                texts.append("is not what the reducer makes of its events")
        yield pa.RecordBatch.from_arrays(
            [
                batch.column("partition"),
                batch.column("position"),
                pa.array(texts, pa.string()),
            ],
            names=["partition", "position", "text"],
        )
