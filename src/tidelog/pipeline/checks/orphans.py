"""Orphans: what one transaction wrote together is there together (L3, L6, mesh 6.5).

Reads the store. Everything that concerns one entry, or one message of a mesh, is brought to one
place by a single shuffle, as facts under a key; there the rules are looked at one by one. The
server's own orphan check reads the same relations with SQL; this one shares nothing with it.

Of ranges of the log, the facts about their entries are looked up, and those about the entries that
some other rows name: see `Evidence`. Each finding says how it is found again, for a second look.
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tidelog.pipeline.checks import continuity
from tidelog.pipeline.checks.beside import Ref
from tidelog.pipeline.checks.evidence import Evidence
from tidelog.pipeline.checks.extent import Range
from tidelog.pipeline.checks.finding import Finding, Verdict, first_of
from tidelog.pipeline.checks.plain_channels import is_plainly_sound
from tidelog.pipeline.checks.spool import BESIDE
from tidelog.pipeline.frames import frame_of_rows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

NAME = "orphans"

FAN_OUT_MS = 600_000
"""An unfinished delivery that is younger is no matter of rule 5 yet (mesh 6.5)."""

DAY_MS = 86_400_000

SWEPT_MS = 29 * DAY_MS
"""Finished deliveries of a message that is older may have been swept (mesh 6.5)."""

RULES = {
    "mesh 1": "an id has its message, or says that it is gone and has a tombstone",
    "mesh 2": "an id has its place in the history",
    "mesh 3": "a message has its id, unless that has expired",
    "mesh 4": "a place in the history has a message or a tombstone",
    "mesh 5": "an unfinished delivery has its id",
    "mesh 6": "a mention has a message or a tombstone",
    "mesh 7": "the history of a mesh has no gap and nothing twice",
    "mesh 8": "a message has the deliveries it was accepted with, unless they were swept",
    "mesh 9": "a message has a mention for everybody it mentions",
    "channels version": "a version has its entry, with content",
    "channels entry": "an entry with content is a version of its message",
    "channels message": "a message is there exactly as long as a version of it is",
    "channels receipt": "an operation with a key has its receipt as long as its version",
    "sync partition": "a partition's index names an event that names the partition",
    "sync event": "an event is in the index of each of its partitions",
    "sync archive": "an archived body has its event",
    "sync id": "an event has its id",
    "dedupe": "a key that names an entry was written with it",
}
"""What must hold, by the names under which findings are told."""

FACT_DDL = (
    "key string, fact string, surface string, stream string, name string, other string, "
    "number bigint, at bigint, flag boolean, names array<string>"
)
"""Something about an entry (`key` = `c:{committed_id}`) or a message of a mesh (`m:{id}`)."""


def check(evidence: Evidence, ranges: Sequence[Range], now_ms: int | None = None) -> Verdict:
    """Look at entries and what is beside them. `now_ms` decides what has expired."""
    head = evidence.head.committed_id
    now_ms = int(time.time() * 1000) if now_ms is None else now_ms
    named: tuple[Finding, ...] = ()
    total = 0
    if not is_plainly_sound(evidence):
        facts = _without_later(evidence, _facts(evidence, now_ms))
        findings = broken(facts, is_whole=evidence.is_whole)
        for each in ranges:
            if _has_sends(evidence, each):
                findings = findings.unionByName(mesh_breaks(evidence, each))
        named, total = first_of(findings)
    beside = sum(evidence.spooled(name).rows for name in BESIDE)
    examined = sum(evidence.entries(each) for each in ranges) + beside
    return Verdict(NAME, head, examined, named, total, ranges=tuple(ranges))


def _without_later(evidence: Evidence, facts: "DataFrame") -> "DataFrame":
    """Without those about entries that came after the head, while relations were read.

    Their rows are there, and the entries were not read: the next check examines both. A row after
    the end that the log has now is of no such entry.
    """
    from pyspark.sql import functions as sql

    head, now = evidence.head.committed_id, evidence.address.head().committed_id
    if now <= head:
        return facts
    is_later = sql.expr("key LIKE 'c:%'") & sql.expr(
        "try_cast(substring(key, 3) AS BIGINT)"
    ).between(head + 1, now)
    pages = evidence.address.entries(head, now, surface="mesh", with_content=False)
    sent = [(f"m:{each}",) for page in pages for each in page["entity"].to_pylist()]
    later = frame_of_rows(evidence.spark, sent, "key string")
    return facts.where(~is_later).join(later, "key", "left_anti")


def confirmed(evidence: Evidence, verdict: Verdict, now_ms: int) -> Verdict:
    """The verdict without findings that a second look at what they concern does not show.

    Relations are read page by page, and retention may take something in between. What is really
    damaged stays so. If there are more findings than are named, they are no coincidence.
    """
    if not (refs := refs_of(verdict.findings)):
        return verdict
    again = evidence.again(refs)
    found = broken(_facts(again, now_ms), is_whole=False).select("rule", "where").collect()
    there = {(row["rule"], row["where"]) for row in found}
    return verdict.without(
        [f for f in verdict.findings if f.ref and (f.rule, f.where) not in there]
    )


def refs_of(findings: Sequence[Finding]) -> list[Ref]:
    """What is to be looked at again."""
    return [
        Ref(
            kind, tuple(int(part) if _is_position(kind, n) else part for n, part in enumerate(name))
        )
        for kind, *name in (finding.ref for finding in findings if finding.ref)
    ]


def _is_position(kind: str, number: int) -> bool:
    """Whether a part of the name of what was found is a position."""
    return kind in ("entry", "version") or (kind == "partition" and number == 1)


def _facts(evidence: Evidence, now_ms: int) -> "DataFrame":
    log = evidence.entries_beside(
        *("committed_id", "stream", "stream_serial", "surface", "kind", "entity", "ref"),
        *("committed_at", "body"),
    )
    return facts_of(_Relations.of(evidence), log, now_ms)


def _has_sends(evidence: Evidence, wanted: Range) -> bool:
    sends = evidence.log("committed_id", "surface", ranges=[wanted]).where("surface = 'mesh'")
    return not sends.isEmpty()


def mesh_breaks(evidence: Evidence, wanted: Range) -> "DataFrame":
    """Rule 7: gaps and duplicates of the histories of meshes."""
    from pyspark.sql import functions as sql

    columns = ("committed_id", "stream", "stream_serial", "surface")
    sends = evidence.log(*columns, ranges=[wanted]).where("surface = 'mesh'").drop("surface")
    before = continuity.streams_before(evidence, wanted, sends)
    found = continuity.breaks(sends, wanted, before).where("rule = 'stream_serial'")
    return found.withColumns(
        {"rule": sql.lit("mesh 7"), "ref": sql.lit(None).cast("array<string>")}
    )


class _Relations(NamedTuple):
    channel_messages: "DataFrame"
    channel_versions: "DataFrame"
    event_partitions: "DataFrame"
    archived_events: "DataFrame"
    keys: "DataFrame"
    deliveries: "DataFrame"
    mentions: "DataFrame"
    tombstones: "DataFrame"
    meshes: "DataFrame"

    @classmethod
    def of(cls, evidence: Evidence) -> "_Relations":
        return cls(*(evidence.relation(name) for name in cls._fields))


def facts_of(relations: _Relations, log: "DataFrame", now_ms: int) -> "DataFrame":
    """Everything the relations and the log say, as facts."""
    facts = [
        _log_facts(log, relations.meshes, now_ms),
        _channel_facts(relations),
        _sync_facts(relations),
        _key_facts(relations.keys),
        _mesh_facts(relations, now_ms),
    ]
    whole = facts[0]
    for more in facts[1:]:
        whole = whole.unionByName(more)
    return whole


def _fact(key: "Column", fact: str, **columns: "Column") -> "Column":
    """A fact as a struct with the columns of `FACT_DDL`; null if its key is."""
    from pyspark.sql import functions as sql

    fields = [key.alias("key"), sql.lit(fact).alias("fact")]
    for column in FACT_DDL.split(", ")[2:]:
        name, kind = column.split(" ")
        if name in columns:
            fields.append(columns[name].cast(kind).alias(name))
        else:
            fields.append(sql.expr(f"CAST(NULL AS {kind}) AS {name}"))
    return sql.when(key.isNotNull(), sql.struct(*fields))


def _spread(frame: "DataFrame", *facts: "Column") -> "DataFrame":
    """One row for each fact of each row; those that are null are none."""
    from pyspark.sql import functions as sql

    one = frame.select(sql.explode(sql.array(*facts)).alias("fact"))
    return one.where("fact IS NOT NULL").select("fact.*")


def _at(committed_id: str) -> "Column":
    from pyspark.sql import functions as sql

    return sql.concat(sql.lit("c:"), sql.col(committed_id).cast("string"))


def _of(message: str) -> "Column":
    from pyspark.sql import functions as sql

    return sql.concat(sql.lit("m:"), sql.col(message))


def _log_facts(log: "DataFrame", meshes: "DataFrame", now_ms: int) -> "DataFrame":
    from pyspark.sql import functions as sql

    said = (
        "partitions array<string>, op_id string, client_message_id string, "
        "mentions array<string>, recipients bigint, webhooks bigint"
    )
    entries = log.withColumn("said", sql.from_json(sql.col("body").cast("string"), said)).join(
        sql.broadcast(
            meshes.select(
                sql.concat(sql.lit("mesh/"), "id").alias("stream"),
                sql.when(
                    sql.col("dedupe_retention_mode") != "permanent",
                    sql.col("dedupe_retention_days") * DAY_MS,
                ).alias("kept_ms"),
            )
        ),
        "stream",
        "left",
    )
    is_channels = sql.col("surface") == "channels"
    has_body = sql.col("body").isNotNull()
    message = sql.substring("entity", -20, 20).cast("bigint")
    action = sql.regexp_replace("kind", "^message[.]", "")
    scope = sql.concat_ws("/", "stream", "entity", action)
    has_expired = sql.coalesce(
        sql.col("committed_at") + sql.col("kept_ms") < now_ms, sql.lit(False)
    )
    is_mesh = sql.col("surface") == "mesh"
    recipient = sql.when(sql.col("kind") == "send.dm", sql.col("ref")).when(
        sql.col("kind") == "send.queue", sql.concat(sql.lit("queue:"), "ref")
    )
    return _spread(
        entries,
        _fact(
            _at("committed_id"),
            "entry",
            surface=sql.col("surface"),
            stream=sql.col("stream"),
            name=sql.col("entity"),
            number=sql.when(is_channels, message),
            at=sql.col("committed_at"),
            flag=has_body,
            names=sql.col("said.partitions"),
        ),
        _fact(
            sql.when(is_channels & sql.col("said.op_id").isNotNull(), _at("committed_id")),
            "operation",
            stream=scope,
            name=sql.col("said.op_id"),
        ),
        _fact(
            sql.when(is_channels & has_body, sql.concat(sql.lit("c:"), message.cast("string"))),
            "content",
            number=sql.col("committed_id"),
        ),
        _fact(
            sql.when(is_mesh, _of("entity")),
            "place",
            stream=sql.col("stream"),
            name=sql.col("said.client_message_id"),
            other=sql.col("committed_id"),
            number=sql.col("stream_serial"),
            at=sql.when(has_expired, 1).otherwise(0),
            flag=has_body,
        ),
        _fact(
            sql.when(is_mesh, _of("entity")),
            "accepted",
            name=recipient,
            number=sql.when(recipient.isNotNull(), 1).otherwise(sql.col("said.recipients")),
            at=sql.col("said.webhooks"),
            flag=sql.col("committed_at") >= now_ms - SWEPT_MS,
            names=sql.col("said.mentions"),
        ),
    )


def _channel_facts(relations: _Relations) -> "DataFrame":
    from pyspark.sql import functions as sql

    versions = _spread(
        relations.channel_versions,
        _fact(_at("committed_id"), "version", number=sql.col("message")),
        _fact(_at("message"), "chain", number=sql.col("committed_id")),
    )
    messages = _spread(
        relations.channel_messages,
        _fact(
            _at("message"),
            "message",
            stream=sql.col("stream"),
            number=sql.col("history_serial"),
        ),
    )
    return versions.unionByName(messages)


def _sync_facts(relations: _Relations) -> "DataFrame":
    from pyspark.sql import functions as sql

    partitions = _spread(
        relations.event_partitions,
        _fact(_at("committed_id"), "partition", name=sql.col("partition")),
    )
    return partitions.unionByName(
        _spread(relations.archived_events, _fact(_at("committed_id"), "archive"))
    )


def _key_facts(keys: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as sql

    outcome = sql.from_json(
        sql.col("outcome").cast("string"), "broker_message_id string, history_id bigint"
    )
    is_mesh = sql.col("scope").startswith("mesh/")
    return _spread(
        keys.withColumn("told", outcome),
        _fact(
            _at("committed_id"),
            "receipt",
            stream=sql.col("scope"),
            name=sql.col("key"),
            at=sql.col("first_seen_at"),
        ),
        _fact(
            sql.when(is_mesh, sql.coalesce(_of("told.broker_message_id"), sql.lit("m:"))),
            "id",
            stream=sql.col("scope"),
            name=sql.col("key"),
            number=sql.col("told.history_id"),
            flag=sql.col("available") != 0,
        ),
    )


def _mesh_facts(relations: _Relations, now_ms: int) -> "DataFrame":
    from pyspark.sql import functions as sql

    is_open = sql.col("status").isin("pending", "claimed")
    deliveries = _spread(
        relations.deliveries,
        _fact(
            _of("broker_message_id"),
            "delivery",
            name=sql.concat_ws("/", "recipient_pubkey", "channel", "endpoint_id"),
            other=sql.col("channel"),
            flag=is_open & (sql.col("created_at") < now_ms - FAN_OUT_MS),
        ),
    )
    mentions = _spread(
        relations.mentions,
        _fact(_of("broker_message_id"), "mention", name=sql.col("mentioned_pubkey")),
    )
    tombstones = _spread(relations.tombstones, _fact(_of("broker_message_id"), "tombstone"))
    return deliveries.unionByName(mentions).unionByName(tombstones)


def broken(facts: "DataFrame", *, is_whole: bool = True) -> "DataFrame":
    """The rules that facts break, as findings.

    Args:
        facts: Rows with the columns of `FACT_DDL`.
        is_whole: Whether they are all there are; else the id of a message whose content is gone
            cannot be looked up.
    """
    from pyspark.sql import functions as sql

    kinds = {
        "entry": "surface, stream, name, number, at, flag, names",
        "operation": "stream, name",
        "content": "number",
        "place": "stream, name, other, number, at, flag",
        "accepted": "name, number, at, flag, names",
        "version": "number",
        "chain": "number",
        "message": "stream, number",
        "partition": "name",
        "archive": "key",
        "receipt": "stream, name, at",
        "id": "stream, name, number, flag",
        "delivery": "name, other, flag",
        "mention": "name",
        "tombstone": "key",
    }
    # Facts of one key come from different relations, so to group them before they are together
    # would only make each of them as wide as all kinds of facts.
    grouped = (
        facts.repartition("key")
        .groupBy("key")
        .agg(
            *(
                sql.expr(
                    f"collect_list(CASE WHEN fact = '{fact}' THEN struct({columns}) END)"
                ).alias(f"{fact}_")
                for fact, columns in kinds.items()
            )
        )
    )
    alone = grouped.selectExpr(
        "*",
        "CAST(substring(key, 3) AS STRING) AS id",
        "get(entry_, 0) AS entry",
        "exists(place_, p -> p.flag) AS has_message",
        "size(tombstone_) > 0 AS has_tombstone",
        "size(filter(delivery_, d -> d.other = 'push')) AS to_members",
        "size(filter(delivery_, d -> d.other = 'webhook')) AS to_webhooks",
    )
    found = alone.select(
        "key",
        sql.expr("CASE WHEN key LIKE 'c:%' THEN id ELSE get(place_, 0).other END").alias(
            "position"
        ),
        sql.explode(
            sql.filter(sql.flatten(sql.array(*_rules(is_whole=is_whole))), lambda f: f.isNotNull())
        ),
    )
    return found.selectExpr(
        "CAST(position AS BIGINT) AS at",
        "col.rule AS rule",
        "col.where AS where",
        "col.text AS text",
        "coalesce(col.ref, CASE WHEN position IS NOT NULL THEN array('entry', position) "
        "ELSE array('message', substring(key, 3)) END) AS ref",
    )


def _rules(*, is_whole: bool) -> "list[Column]":
    """Each an array of findings about one group of facts."""
    from pyspark.sql import functions as sql

    def each(
        facts: str, rule: str, condition: str, where: str, text: str, ref: str = ""
    ) -> "Column":
        """A finding for each of some facts `f` for which a condition holds."""
        named = f"array({ref})" if ref else "CAST(NULL AS ARRAY<STRING>)"
        finding = (
            f"named_struct('rule', '{rule}', 'where', concat({where}), 'text', concat({text}), "
            f"'ref', {named})"
        )
        return sql.expr(f"transform(filter({facts}, f -> {condition}), f -> {finding})")

    def once(rule: str, condition: str, where: str, text: str) -> "Column":
        return each("array(id)", rule, condition, where, text)

    is_content = "coalesce(entry.flag, false)"
    is_of = "coalesce(entry.surface, '')"
    return [
        each(
            "version_",
            "channels version",
            f"{is_of} != 'channels' OR NOT {is_content} OR entry.number != f.number",
            "'version ', id, ' of message ', f.number",
            f"CASE WHEN {is_of} = 'channels' AND {is_content} THEN 'is one of another message' "
            "ELSE 'there is no such entry, or it has no content' END",
            "'version', CAST(f.number AS STRING), id",
        ),
        once(
            "channels entry",
            f"{is_of} = 'channels' AND {is_content} AND size(version_) = 0",
            "'entry ', id",
            "'has content and is not among the versions of its message'",
        ),
        once(
            "channels message",
            "size(message_) = 0 AND (size(content_) > 0 OR size(chain_) > 0)",
            "'message ', id",
            "'is not there, but ', size(content_), ' entries of it are, and ', size(chain_), "
            "' versions'",
        ),
        each(
            "message_",
            "channels message",
            f"size(chain_) = 0 OR {is_of} != 'channels' OR entry.stream != f.stream "
            "OR entry.number != CAST(id AS BIGINT)",
            "'message ', id",
            "'is there, but no version of it, or it has another place in the log'",
        ),
        each(
            "operation_",
            "channels receipt",
            "NOT exists(receipt_, r -> r.stream = f.stream AND r.name = f.name)",
            "'entry ', id",
            "'its key ', f.name, ' is not known'",
        ),
        each(
            "partition_",
            "sync partition",
            f"{is_of} != 'sync' OR NOT coalesce(array_contains(entry.names, f.name), true)",
            "'event ', id, ' in ', f.name",
            "'there is no such event, or it names other partitions'",
            "'partition', f.name, id",
        ),
        once(
            "sync event",
            f"{is_of} = 'sync' AND size(coalesce(array_except(entry.names, "
            "transform(partition_, p -> p.name)), array())) > 0",
            "'event ', id",
            "'is not in the index of ', "
            "array_join(array_except(entry.names, transform(partition_, p -> p.name)), ', ')",
        ),
        once(
            "sync archive",
            f"size(archive_) > 0 AND {is_of} != 'sync'",
            "'archived event ', id",
            "'there is no such event'",
        ),
        once(
            "sync id",
            f"{is_of} = 'sync' AND NOT exists(receipt_, r -> r.stream = 'sync' "
            "AND r.name = entry.name)",
            "'event ', id",
            "'its id ', entry.name, ' is not known'",
        ),
        each(
            "receipt_",
            "dedupe",
            f"NOT ({_WRITTEN_WITH_ENTRY})",
            "'key ', f.name, ' in ', f.stream",
            "CASE WHEN entry IS NULL THEN concat('there is no entry ', id) "
            "ELSE concat('entry ', id, ' is not the one it was written with, or has ended') END",
            _KEY,
        ),
        each(
            "id_",
            "mesh 1",
            "id = '' OR f.flag != has_message OR (NOT has_message AND NOT has_tombstone)",
            "'id ', f.name, ' in ', f.stream",
            "CASE WHEN id = '' THEN 'its stored answer names no message' "
            "WHEN f.flag AND NOT has_message THEN concat('message ', id, ' is not there') "
            "WHEN has_message THEN concat('message ', id, ' is there, the id says it is gone') "
            "ELSE concat('message ', id, ' is gone without a tombstone') END",
            _KEY,
        ),
        each(
            "id_",
            "mesh 2",
            "id != '' AND NOT exists(place_, p -> p.stream = f.stream AND p.number = f.number)",
            "'id ', f.name, ' in ', f.stream",
            "'message ', id, ' has no place ', coalesce(CAST(f.number AS STRING), '?'), "
            "' in the history'",
            _KEY,
        ),
        each(
            "place_",
            "mesh 3",
            "f.flag AND f.at = 0 AND NOT exists(id_, i -> i.stream = f.stream AND i.name = f.name)",
            "'message ', id",
            "'its id ', coalesce(f.name, '?'), ' is not known'",
        ),
        each(
            "place_",
            "mesh 4",
            "NOT f.flag AND NOT has_tombstone",
            "'message ', id",
            "'at ', f.number, ' in ', f.stream, ' has neither content nor a tombstone'",
        ),
        each(
            "delivery_",
            "mesh 5",
            "f.flag AND size(id_) = 0" + ("" if is_whole else _IS_LOOKED_UP),
            "'delivery of ', id, ' to ', f.name",
            "'its message has no id'",
        ),
        each(
            "mention_",
            "mesh 6",
            "NOT has_message AND NOT has_tombstone",
            "'mention of ', f.name, ' in ', id",
            "'there is no such message'",
        ),
        each(
            "accepted_",
            "mesh 8",
            f"f.flag AND f.name IS NOT NULL AND NOT {_HAS_RECIPIENT}",
            "'delivery of ', id, ' to ', f.name, '/push/'",
            "'is not there'",
        ),
        each(
            "accepted_",
            "mesh 8",
            f"f.flag AND to_members != f.number AND (f.name IS NULL OR {_HAS_RECIPIENT})",
            "'message ', id",
            "'has ', to_members, ' deliveries to members, was accepted with ', f.number",
        ),
        each(
            "accepted_",
            "mesh 8",
            "f.flag AND to_webhooks != f.at",
            "'message ', id",
            "'has ', to_webhooks, ' deliveries to webhooks, was accepted with ', f.at",
        ),
        sql.expr(
            "flatten(transform(accepted_, f -> transform(array_except(coalesce(f.names, array()), "
            "transform(mention_, m -> m.name)), name -> named_struct('rule', 'mesh 9', 'where', "
            "concat('mention of ', name, ' in ', id), 'text', 'is not there', "
            "'ref', CAST(NULL AS ARRAY<STRING>)))))"
        ),
    ]


_KEY = "'key', f.stream, f.name"
"""How a key `f` is found again."""

_IS_LOOKED_UP = " AND (has_message OR size(place_) = 0)"
"""Of a message: its id would be known if it were there."""

_HAS_RECIPIENT = "exists(delivery_, d -> d.name = concat(f.name, '/push/'))"
"""Of a send `f` to one recipient: its delivery is there."""


_WRITTEN_WITH_ENTRY = (
    "entry IS NOT NULL AND entry.at = f.at AND CASE entry.surface "
    "WHEN 'channels' THEN entry.flag AND (f.stream = entry.stream "
    "OR f.stream = concat(entry.stream, '//runs') "
    "OR f.stream LIKE concat(entry.stream, '/', entry.name, '/%')) "
    "WHEN 'sync' THEN f.stream = 'sync' AND f.name = entry.name "
    "ELSE f.stream = entry.stream END"
)
"""Of a receipt `f`: its entry was committed at the same time, and is of its scope. Receipts of
channels end with the content of their version."""
