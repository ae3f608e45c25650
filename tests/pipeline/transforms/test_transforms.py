"""The transforms but for messages, on frames of at most ten rows."""

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from support.pipeline.lake_rows import BEGIN_MS, at, entry, event_entry, frame_of, rows_of
from tidelog.pipeline.frames import arrow_schema, frame_of_rows
from tidelog.pipeline.tables import ACTION_COUNTS, BY_NAME, LOG
from tidelog.pipeline.transforms.activity import activity
from tidelog.pipeline.transforms.activity_rows import activity_of, actors_of, counted
from tidelog.pipeline.transforms.audit import audit
from tidelog.pipeline.transforms.audit_rows import audit_of
from tidelog.pipeline.transforms.change_rows import changes_of
from tidelog.pipeline.transforms.changes import changes
from tidelog.pipeline.transforms.events import events
from tidelog.pipeline.transforms.latency import latencies
from tidelog.pipeline.transforms.sends import (
    deliveries,
    mentions,
    newly_ended,
    remembered_keys,
    sends,
)
from tidelog.pipeline.transforms.snapshots import ModelSource, SnapshotFailed, snapshots

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOMBSTONE = "broker_message_id string, mesh_id string, deleted_at bigint, reason string"
MODEL = ModelSource({"doc": "value", "outline": "tree"}, 3)


def send_entry(committed_id: int, fields: dict[str, Any] | None, **columns: Any) -> dict[str, Any]:
    """A send of mesh m1 to a topic; `meta` goes last, as JSON text."""
    body = None
    if fields is not None:
        meta = fields.pop("meta", None)
        text = json.dumps({"client_message_id": f"c{committed_id}", **fields}, ensure_ascii=False)
        body = (text if meta is None else f'{text[:-1]},"meta":{meta}}}').encode()
    given = {
        "stream": "mesh/m1",
        "surface": "mesh",
        "kind": "send.topic",
        "entity": f"b{committed_id}",
        "ref": "news",
        "actor": "member-1",
        "body": body,
        "data": None if fields is None else b"hi",
    }
    return entry(committed_id, **{**given, **columns})


def test_an_event_is_one_row_for_each_partition(spark: "SparkSession") -> None:
    """The event is cut out as it was sent: spaces, digits, and the marks it may hold itself."""
    tricky = '{"type":"set", "payload":{"value":["],\\"event\\":",1.10,"\\u0000"],"target":"doc"}}'
    log = [
        event_entry(1, ["a", 'b "q"\U0001f30a'], tricky),
        event_entry(2, ["a"], {"type": "event", "payload": {"event": {"partitions": []}}}),
        entry(3),
        {**event_entry(4, ["a"], {"type": "set"}), "body": None},
    ]
    index = frame_of_rows(spark, [("a", 1), ("z", 4)], "partition string, committed_id bigint")
    made = events(frame_of(spark, "log", log), index)
    found = rows_of(made.orderBy("committed_id", "partition"))
    first = {
        "committed_id": 1,
        "partition": "a",
        "event_id": "e1",
        "client_id": "ana",
        "type": "set",
        "event": tricky,
        "committed_at": at(1),
    }
    assert found == [
        first,
        {**first, "partition": 'b "q"\U0001f30a'},
        {
            **first,
            "committed_id": 2,
            "event_id": "e2",
            "type": "event",
            "event": '{"type":"event","payload":{"event":{"partitions":[]}}}',
            "committed_at": at(2),
        },
        # Its body is gone: the index tells where it belongs.
        {**first, "committed_id": 4, "event_id": "e4", "partition": "z", "event": None}
        | {"committed_at": at(4)},
    ]


def test_a_send_has_its_content_mentions_and_end(spark: "SparkSession") -> None:
    """All that body, bytes and tombstone say; a pruned one keeps its place only."""
    full = {
        "sender_pubkey": "k1",
        "sender_name": 'A "q"\u0000',
        "priority": "now",
        "reply_to_id": "b0",
        "supersedes": "c0",
        "mentions": ["k2", "k3"],
        "meta": '{"x": 1.10,"meta":{},"mentions":["no"]}',
    }
    log = [
        send_entry(1, full),
        send_entry(2, {"sender_name": "A", "priority": "low"}, data=b"", kind="send.dm", ref="k2"),
        send_entry(3, None),
        entry(4),
    ]
    ends = frame_of_rows(spark, [("b3", "m1", BEGIN_MS + 9000, "retention")], TOMBSTONE)
    found = rows_of(sends(frame_of(spark, "log", log), ends).orderBy("committed_id"))
    assert found[0] == {
        "committed_id": 1,
        "mesh_id": "m1",
        "history_id": 1,
        "broker_message_id": "b1",
        "client_message_id": "c1",
        "destination_kind": "topic",
        "destination_ref": "news",
        "sender_member_id": "member-1",
        "sender_name": 'A "q"\0',
        "priority": "now",
        "reply_to_id": "b0",
        "supersedes": "c0",
        "mentions": ["k2", "k3"],
        "meta": '{"x": 1.10,"meta":{},"mentions":["no"]}',
        "content": b"hi",
        "content_bytes": 2,
        "committed_at": at(1),
        "deleted_at": None,
        "deleted_reason": None,
    }
    second, third = found[1:]
    assert (second["destination_kind"], second["destination_ref"]) == ("dm", "k2")
    assert (second["mentions"], second["meta"], second["content"]) == ([], None, b"")
    assert (second["content_bytes"], second["supersedes"]) == (0, None)
    assert (third["client_message_id"], third["mentions"], third["content"]) == (None, None, None)
    assert third["content_bytes"] is None
    assert (third["deleted_at"], third["deleted_reason"]) == (at(9), "retention")


def test_a_send_that_retention_took_later_has_ended(spark: "SparkSession") -> None:
    """It has its own end, whatever their order, and all that it said before."""
    none = frame_of_rows(spark, [], TOMBSTONE)
    entries = [send_entry(n, {"sender_name": "A"}) for n in (1, 3)]
    ends = frame_of_rows(
        spark,
        [("b3", "m1", BEGIN_MS + 5000, "retention"), ("b1", "m1", BEGIN_MS, "size")],
        TOMBSTONE,
    )
    known = sends(frame_of(spark, "log", entries), none)
    found = newly_ended(known.toArrow(), ends.toArrow()).sort_by("broker_message_id").to_pylist()
    times = [row["deleted_at"].replace(tzinfo=None) for row in found]
    assert [row["broker_message_id"] for row in found] == ["b1", "b3"]
    assert times == [at(0), at(5)]
    assert [row["deleted_reason"] for row in found] == ["size", "retention"]
    assert {(row["sender_name"], row["content"]) for row in found} == {("A", b"hi")}


def test_relations_become_tables_with_times(spark: "SparkSession") -> None:
    """Deliveries, mentions and keys are the store's rows; milliseconds become timestamps."""
    delivery = frame_of_rows(
        spark,
        [("b1", "k2", "push", "", "m1", 1, "delivered", 2, None, BEGIN_MS, BEGIN_MS + 250)],
        "broker_message_id string, recipient_pubkey string, channel string, endpoint_id string, "
        "mesh_id string, history_id bigint, status string, attempts bigint, last_error string, "
        "created_at bigint, delivered_at bigint",
    )
    [row] = rows_of(deliveries(delivery))
    assert row["delivered_at"] - row["created_at"] == timedelta(milliseconds=250)
    mention = frame_of_rows(
        spark,
        [("b1", "k2", "m1", 1, BEGIN_MS)],
        "broker_message_id string, mentioned_pubkey string, mesh_id string, history_id bigint, "
        "created_at bigint",
    )
    assert rows_of(mentions(mention), "created_at") == [{"created_at": at(0)}]
    dedupe = frame_of_rows(
        spark,
        [("sync", "e1\0", 1, b"f", "ana", 1, BEGIN_MS, None), ("s", "k", None, b"", "", 0, 0, 0)],
        "scope string, key string, committed_id bigint, fingerprint binary, owner string, "
        "available bigint, first_seen_at bigint, expires_at bigint",
    )
    found = rows_of(remembered_keys(dedupe), "key", "is_available", "expires_at", "first_seen_at")
    assert found[0] == {
        "key": "e1\0",
        "is_available": True,
        "expires_at": None,
        "first_seen_at": at(0),
    }
    assert found[1]["is_available"] is False


def test_activity_counts_each_actor_of_a_minute_once(spark: "SparkSession") -> None:
    """Writes, bytes and actors by stream and minute; a pruned body counts as a write."""
    log = [
        entry(1, actor="ana", body=b"12345"),
        entry(2, actor="bo", body=b"123", data=b"12", kind="message.append"),
        entry(3, actor="ana", body=None, kind="message.append"),
        entry(59, actor="cy", body=b"1"),
        entry(60, actor="cy", body=b"1"),
        entry(61, stream="sync", surface="sync", kind="set", body=b"1"),
    ]
    found = rows_of(activity(frame_of(spark, "log", log)).orderBy("minute", "stream"))
    first = {
        "stream": "channels/app/room",
        "surface": "channels",
        "minute": at(0),
        "writes": 4,
        "bytes": 11,
        "actors": 3,
        **dict.fromkeys(ACTION_COUNTS, 0),
        "creates": 2,
        "appends": 2,
    }
    one = {"minute": at(60), "writes": 1, "bytes": 1, "actors": 1, "creates": 1, "appends": 0}
    assert found == [
        first,
        {**first, **one},
        {**first, **one, "stream": "sync", "surface": "sync", "creates": 0},
    ]


def test_changes_say_what_is_new_in_the_order_of_the_log(spark: "SparkSession") -> None:
    """One row for each entry, whatever its surface; content that is gone leaves its place."""
    log = [
        entry(1, body=b'{"data":"1.10"}', kind="message.create"),
        event_entry(2, ["p", "q"], {"type": "set"}),
        entry(3, stream="mesh/m", surface="mesh", kind="send.topic", ref="t", data=b"\xff"),
        entry(4, body=None),
    ]
    found = rows_of(changes(frame_of(spark, "log", log)).orderBy("committed_id"))
    assert [row["committed_id"] for row in found] == [1, 2, 3, 4]
    assert [row["surface"] for row in found] == ["channels", "sync", "mesh", "channels"]
    assert found[0]["change"] == '{"data":"1.10"}'
    assert json.loads(found[1]["change"])["partitions"] == ["p", "q"]
    assert (found[2]["ref"], found[2]["content"]) == ("t", b"\xff")
    assert (found[3]["change"], found[3]["at"]) == (None, at(4))


def test_arrow_makes_what_spark_makes(spark: "SparkSession") -> None:
    """Rows of `audit`, `changes` and `activity`; the last also if they come in two parts."""
    log = [
        entry(1, kind="message.delete", actor="ana"),
        event_entry(2, ["p"], {"type": "set"}),
        send_entry(3, {"supersedes": "c2", "meta": '{"supersedes":"lie"}'}),
        send_entry(4, None),
        entry(5, actor="ana", body=b"\xff\x00", kind="message.append"),
        entry(58, actor="bo", body=None),
        entry(59, actor="ana", body=b"{}"),
        entry(61, actor="cy", body=b"1"),
    ]
    entries = pa.Table.from_pylist(log, arrow_schema(LOG))
    frame = frame_of(spark, "log", log)
    for name, ours, theirs in (("audit", audit_of, audit), ("changes", changes_of, changes)):
        made = ours(entries.slice(0, 3)), ours(entries.slice(3))
        expected = theirs(frame).toArrow().cast(made[0].schema)
        assert pa.concat_tables(made).equals(expected.sort_by("committed_id")), name
    order = [("minute", "ascending"), ("stream", "ascending")]
    counts = activity(frame).toArrow().sort_by(order)
    before, since = entries.slice(0, 6), entries.slice(6)
    assert (
        activity_of([counted(before), counted(since)])
        .sort_by(order)
        .equals(counts.cast(arrow_schema(BY_NAME["activity"])))
    )
    known = activity_of([counted(before)])
    own = pc.and_(
        pc.equal(known["stream"], "channels/app/room"), pc.equal(known["surface"], "channels")
    )
    made = activity_of([counted(since)], known.filter(own), actors_of(before))
    streams = pc.equal(counts["stream"], "channels/app/room")
    assert made.sort_by(order).equals(counts.filter(streams).cast(made.schema))


def test_latency_percentiles_are_exact(spark: "SparkSession") -> None:
    """Linear between the two nearest; what is not delivered does not count."""
    took = [100, 200, 300, 400, None]
    rows = [
        {
            "broker_message_id": f"b{n}",
            "recipient_pubkey": "k",
            "channel": "push",
            "endpoint_id": "",
            "mesh_id": "m1",
            "created_at": at(n),
            "delivered_at": None if ms is None else at(n) + timedelta(milliseconds=ms),
        }
        for n, ms in enumerate(took)
    ]
    [found] = rows_of(latencies(frame_of(spark, "delivery", rows)))
    p95, p99 = found.pop("p95_ms"), found.pop("p99_ms")
    assert found == {
        "mesh_id": "m1",
        "channel": "push",
        "minute": at(0),
        "deliveries": 4,
        "p50_ms": 250.0,
        "max_ms": 400.0,
    }
    assert (p95, p99) == (pytest.approx(385.0), pytest.approx(397.0))


def test_audit_follows_a_requeued_send_back(spark: "SparkSession") -> None:
    """A chain of requeues: each row names the one it replaced; every row has its digest."""
    log = [
        entry(1, kind="message.delete", actor="ana"),
        send_entry(2, {}),
        send_entry(3, {"supersedes": "c2", "meta": '{"supersedes":"lie"}'}),
        send_entry(4, {"supersedes": "c3"}),
        send_entry(5, {"meta": '{"supersedes":"lie"}'}),
        send_entry(6, None),
    ]
    found = rows_of(audit(frame_of(spark, "log", log)).orderBy("committed_id"))
    assert found[0] == {
        "committed_id": 1,
        "at": at(1),
        "surface": "channels",
        "stream": "channels/app/room",
        "actor": "ana",
        "action": "message.delete",
        "entity": log[0]["entity"],
        "ref": "",
        "supersedes": None,
        "digest": f"{1:032x}",
    }
    assert [row["supersedes"] for row in found] == [None, None, "c2", "c3", None, None]


# Snapshots.


def change(target: str, value: Any) -> dict[str, Any]:
    """A `set` that replaces what is there."""
    return {
        "type": "set",
        "payload": {"target": target, "value": value, "options": {"replace": True}},
    }


def push(item: str) -> dict[str, Any]:
    """A `treePush` at the end of the top."""
    payload = {"target": "outline", "value": {"id": item}, "options": {"position": "last"}}
    return {"type": "treePush", "payload": payload}


def made(
    spark: "SparkSession",
    log: list[dict[str, Any]],
    before: "DataFrame | None" = None,
    model: ModelSource = MODEL,
) -> dict[str, dict[str, Any]]:
    """Snapshots of a log by partition, the states read."""
    entries = frame_of(spark, "log", log)
    none = frame_of(spark, "snapshot", [])
    found = rows_of(snapshots(events(entries), none if before is None else before, entries, model))
    return {row["partition"]: {**row, "state": json.loads(row["state"])} for row in found}


def test_a_snapshot_is_what_the_reducer_makes(spark: "SparkSession") -> None:
    """State, position, digest of the entry there, and number of events, by partition."""
    found = made(
        spark,
        [
            event_entry(1, ["a", "b"], change("doc", {"n": 1})),
            event_entry(2, ["a"], push("x")),
            event_entry(3, ["a"], push("y")),
            event_entry(4, ["a"], change("doc.n", 2)),
            event_entry(5, ["b"], {"type": "event", "payload": {"schema": "s", "data": 1}}),
        ],
    )
    assert found == {
        "a": {
            "partition": "a",
            "committed_id": 4,
            "digest": f"{4:032x}",
            "model_version": 3,
            "events": 4,
            "state": {
                "doc": {"n": 2},
                "outline": {
                    "items": {"x": {"id": "x"}, "y": {"id": "y"}},
                    "tree": [{"id": "x", "children": []}, {"id": "y", "children": []}],
                },
            },
        },
        "b": {
            "partition": "b",
            "committed_id": 5,
            "digest": f"{5:032x}",
            "model_version": 3,
            "events": 2,
            "state": {"doc": {"n": 1}, "outline": {"items": {}, "tree": []}},
        },
    }


def test_a_snapshot_continues_the_one_before_it(spark: "SparkSession") -> None:
    """Cut anywhere, it is the same; a partition without new events is not made again."""
    log = [
        event_entry(1, ["a", "b"], change("doc", {"n": 1})),
        event_entry(2, ["a"], push("x")),
        event_entry(3, ["a"], change("doc.m", 2)),
    ]
    first = snapshots(
        events(frame_of(spark, "log", log[:2])),
        frame_of(spark, "snapshot", []),
        frame_of(spark, "log", log[:2]),
        MODEL,
    )
    assert made(spark, log[2:], first) == {"a": made(spark, log)["a"]}


def test_a_partition_whose_content_is_gone_has_no_snapshot(spark: "SparkSession") -> None:
    """Nobody can tell its state; the others have theirs."""
    log = frame_of(
        spark,
        "log",
        [
            event_entry(1, ["a", "b"], change("doc", 1)),
            event_entry(2, ["a"], change("doc", 2)),
        ],
    )
    forgotten = events(log).selectExpr(
        "committed_id",
        "partition",
        "event_id",
        "client_id",
        "type",
        "if(committed_id = 2, null, event) AS event",
        "committed_at",
    )
    found = rows_of(snapshots(forgotten, frame_of(spark, "snapshot", []), log, MODEL))
    assert [row["partition"] for row in found] == ["b"]


def test_an_event_that_does_not_fit_the_model_is_named(spark: "SparkSession") -> None:
    """The error tells partition and position."""
    log = [event_entry(1, ["a"], push("x")), event_entry(2, ["a"], push("x") | {"payload": {}})]
    with pytest.raises(Exception, match=r"partition 'a': the event at 2") as failed:
        made(spark, log)
    assert SnapshotFailed.__name__ in str(failed.value)
