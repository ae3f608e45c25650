"""Building tables: what is stale, in steps, and after a crash."""

import json
import os
import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.log.log_writer import write_log
from support.pipeline.killed_job import run_killed
from support.pipeline.lake_rows import BEGIN_MS, rows_of
from tidelog.base.faultpoint import FaultPoint
from tidelog.log.draft import Draft
from tidelog.pipeline.fill.derived_tables import Built, build, buildable, unchanged
from tidelog.pipeline.fill.ingest import catch_up
from tidelog.pipeline.lake.errors import LakeError, LakeLocked
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.source.store_address import LogReplaced, StoreAddress
from tidelog.sync.protocol.profiles import Model

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUNDS = int(os.environ.get("TIDELOG_TEST_SOAK_PIPELINE_JOBS", "1"))
"""Random logs that are built in steps and at once; some twenty seconds each."""

MODEL = Model.parse(
    {
        "doc": {"kind": "value", "actions": ["set", "unset"]},
        "outline": {"kind": "tree", "actions": ["treePush", "treeDelete"]},
    },
    {},
    1,
)
STREAMS = ("channels/app/one", "channels/app/two", "channels/other/one")

CHANGES = (
    (
        "UPDATE mesh_delivery_queue SET status = 'claimed', attempts = attempts + 1 "
        "WHERE status = 'pending' AND one_in(2)"
    ),
    (
        "UPDATE mesh_delivery_queue SET status = 'delivered', delivered_at = created_at + attempts "
        "WHERE status = 'claimed' AND one_in(2)"
    ),
    (
        "UPDATE mesh_delivery_queue SET status = 'pending', last_error = 'lease_expired' "
        "WHERE status = 'claimed'"
    ),
    "DELETE FROM mesh_delivery_queue WHERE status = 'delivered' AND one_in(3)",
    "UPDATE dedupe SET available = 0 WHERE one_in(5)",
    "DELETE FROM dedupe WHERE one_in(5)",
    "DELETE FROM mesh_mention_index WHERE one_in(5)",
    (
        "INSERT OR IGNORE INTO mesh_message_tombstone (broker_message_id, mesh_id, deleted_at, "
        "reason) SELECT entity, 'm1', NOW, 'retention' FROM log "
        "WHERE surface = 'mesh' AND one_in(5)"
    ),
)
"""What happens to rows beside the log without an entry. The first two are how deliveries end."""


class Writer:
    """Writes a random log of all surfaces and the relations beside it, step by step."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self.rng = random.Random(seed)
        self.size = 0
        self.messages: dict[int, tuple[str, str]] = {}
        """By where it was created: stream and serial of each message that is not purged."""
        self.sends: list[str] = []
        self.related = 0
        """Entries whose relations are written."""

    def step(self, entries: int) -> None:
        """More entries, some of them in the next minutes, and changes of relations."""
        drafts = [self._draft() for _ in range(entries)]
        write_log(str(self.path), drafts, at_ms=BEGIN_MS + self.size * 4000)
        with closing(sqlite3.connect(self.path)) as store, store:
            self._relate(store)

    def _draft(self) -> Draft:
        self.size += 1
        return self.rng.choice(
            (self._create, self._mutate, self._mutate, self._event, self._send)
        )()

    def _create(self) -> Draft:
        stream = self.rng.choice(STREAMS)
        serial = f"{self.size:020d}:ab:{self.size:020d}"
        kind = self.rng.choice(("message.create", "message.create", "event"))
        if kind != "event":
            self.messages[self.size] = (stream, serial)
        body = {"message_id": f"m{self.size}", "history_serial": self.size, "data": self._text()}
        return self._message(kind, stream, serial, {**body, "name": "n", "creator": "ana"})

    def _mutate(self) -> Draft:
        if not self.messages:
            return self._create()
        number = self.rng.choice(list(self.messages))
        stream, serial = self.messages[number]
        kind = self.rng.choice(("append", "append", "update", "delete"))
        body: dict[str, Any] = {"message_id": f"m{self.size}", "history_serial": number}
        if kind == "append" or self.rng.random() < 0.7:
            body["data"] = self._text()
        return self._message(f"message.{kind}", stream, serial, body)

    def _message(self, kind: str, stream: str, serial: str, body: dict[str, Any]) -> Draft:
        actor = self.rng.choice(("ana", "bo"))
        return Draft(stream, "channels", kind, serial, "", actor, json.dumps(body).encode())

    def _text(self) -> str:
        return self.rng.choice(("a", "", "\0\U0001f30a", '"\\', "1"))

    def _event(self) -> Draft:
        names = self.rng.sample(("p", "q", "r"), self.rng.randint(1, 2))
        event: dict[str, Any] = {
            "type": "set",
            "payload": {"target": f"doc.k{self.rng.randrange(3)}", "value": self.size},
        }
        if self.rng.random() < 0.5:
            value = {"id": f"i{self.size}"}
            event = {"type": "treePush", "payload": {"target": "outline", "value": value}}
        text = '{"id":"e%d","client_id":"ana","partitions":%s,"event":%s}' % (  # noqa: UP031
            self.size,
            json.dumps(sorted(names), separators=(",", ":")),
            json.dumps(event),
        )
        return Draft("sync", "sync", event["type"], f"e{self.size}", "", "ana", text.encode())

    def _send(self) -> Draft:
        body: dict[str, Any] = {"client_message_id": f"c{self.size}", "sender_name": "A"}
        if self.sends and self.rng.random() < 0.3:
            body["supersedes"] = f"c{self.rng.choice(self.sends)[1:]}"
        self.sends.append(f"b{self.size}")
        text = json.dumps(body)[:-1] + ',"meta":{"n":1.0}}'
        return Draft(
            "mesh/m1", "mesh", "send.topic", f"b{self.size}", "news", "k1", text.encode(), b"hi"
        )

    def _relate(self, store: sqlite3.Connection) -> None:
        """What the server would have written beside the log, and what retention does later."""
        begun = store.execute(
            "SELECT committed_id, stream, committed_at FROM log WHERE committed_id > ? AND "
            "kind IN ('message.create', 'event') AND surface = 'channels'",
            (self.related,),
        ).fetchall()
        after, self.related = self.related, self.size
        store.executemany(
            "INSERT INTO channels_message (message, stream, history_serial, published_at, is_open, "
            "size_bytes, through) VALUES (?1, ?2, ?1, ?3, 0, 0, ?1)",
            begun,
        )
        if self.messages:
            gone = self.messages.keys() & {self.rng.choice(list(self.messages))}
            for number in gone:
                store.execute("DELETE FROM channels_message WHERE message = ?", (number,))
                del self.messages[number]
        self._send_rows(store, after)
        self._keys(store, after)
        store.create_function("one_in", 1, lambda number: self.rng.randrange(number) == 0)
        for change in (*CHANGES[:2], *self.rng.sample(CHANGES, 4)):
            store.execute(change.replace("NOW", str(BEGIN_MS + self.size)))

    def _send_rows(self, store: sqlite3.Connection, after: int) -> None:
        """What comes with a message of a mesh."""
        sent = store.execute(
            "SELECT entity, stream_serial, committed_at FROM log WHERE committed_id > ? AND "
            "surface = 'mesh'",
            (after,),
        ).fetchall()
        for message, serial, at in sent:
            recipients = self.rng.sample(("k2", "k3", "queue:q"), self.rng.randint(0, 3))
            store.executemany(
                "INSERT INTO mesh_delivery_queue (broker_message_id, recipient_pubkey, channel, "
                "endpoint_id, mesh_id, history_id, created_at, status, attempts, next_attempt_at) "
                "VALUES (?, ?, 'push', '', 'm1', ?, ?, 'pending', 0, 0)",
                [(message, recipient, serial, at) for recipient in recipients],
            )
            store.executemany(
                "INSERT INTO mesh_mention_index (broker_message_id, mentioned_pubkey, mesh_id, "
                "history_id, created_at) VALUES (?, ?, 'm1', ?, ?)",
                [(message, recipient, serial, at) for recipient in recipients[:1]],
            )

    def _keys(self, store: sqlite3.Connection, after: int) -> None:
        """A key for most entries, and one that stands for none."""
        store.execute(
            "INSERT INTO dedupe (scope, key, committed_id, fingerprint, owner, outcome, available, "
            "first_seen_at) SELECT stream, 'k' || committed_id, committed_id, x'00', 'k1', x'', 1, "
            "committed_at FROM log WHERE committed_id > ? AND committed_id % 5 > 0",
            (after,),
        )
        store.execute(
            "INSERT OR IGNORE INTO dedupe (scope, key, fingerprint, owner, outcome, available, "
            "first_seen_at) VALUES ('channels/app', ?, x'00', 'k1', x'', 1, ?)",
            (f"several-{self.size}", BEGIN_MS),
        )


def contents(lake: Lake) -> dict[str, list[str]]:
    """All rows of all tables that are built, in an order of their own."""
    return {
        name: sorted(json.dumps(row, default=repr) for row in lake.arrow(name).to_pylist())
        for name in buildable()
    }


def copy_of_log(lake: Lake, root: Path) -> Lake:
    """Another lake with the same table `log` and nothing else."""
    shutil.copytree(lake.path("log"), root / "bronze" / "log")
    return Lake(root)


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_building_in_steps_gives_what_building_at_once_gives(
    spark: "SparkSession", tmp_path: Path, seed: int
) -> None:
    """Whatever happened between the steps: new entries, purges, deliveries, ends of sends."""
    writer = Writer(tmp_path / "store.db", seed)
    store, lake = StoreAddress(str(writer.path)), Lake(tmp_path / "steps")
    for entries in (30, 25, 0, 9):
        writer.step(entries)
        assert catch_up(store, lake)
        build(spark, lake, store, model=MODEL)
    at_once = copy_of_log(lake, tmp_path / "at_once")
    done = build(spark, at_once, store, model=MODEL)
    assert {built.mode for built in done} == {"full"}
    found = contents(at_once)
    assert contents(lake) == found
    assert all(found.values()), "every table has rows, or the comparison shows nothing"


@pytest.fixture
def small(tmp_path: Path) -> tuple[Lake, StoreAddress, Writer]:
    """A lake with a log of a few entries and its store; nothing is built."""
    writer = Writer(tmp_path / "store.db", seed=99)
    writer.step(12)
    store, lake = StoreAddress(str(writer.path)), Lake(tmp_path / "lake")
    assert catch_up(store, lake)
    return lake, store, writer


def test_only_what_is_stale_is_built(
    spark: "SparkSession", small: tuple[Lake, StoreAddress, Writer]
) -> None:
    """A table comes with what it is made of; what the log has told already is left alone."""
    lake, store, writer = small
    told: list[Built] = []
    names = ["message", "audit"]
    done = build(spark, lake, store, names, progress=told.append)
    assert sorted(told) == sorted(done)
    assert [(b.name, b.mode, b.through) for b in done] == [
        ("message_version", "full", 12),
        ("message", "full", 12),
        ("audit", "full", 12),
    ]
    assert [b.rows for b in done if b.name == "audit"] == [12]
    assert {b.mode for b in build(spark, lake, store, names)} == {"current"}
    with closing(sqlite3.connect(writer.path)) as database, database:
        database.execute("DELETE FROM channels_message")
    modes = {b.name: b.mode for b in build(spark, lake, store, names)}
    assert modes == {"message_version": "current", "message": "new", "audit": "current"}
    assert {row["state"] for row in rows_of(lake.frame(spark, "message"))} == {"purged"}
    again = build(spark, lake, store, ["audit"], full=True)
    assert [(b.name, b.mode, b.rows) for b in again] == [("audit", "full", 12)]


def test_that_nothing_is_new_is_told_without_spark(
    spark: "SparkSession", small: tuple[Lake, StoreAddress, Writer]
) -> None:
    """After a build nothing is; after a change that the log does not tell, what it concerns."""
    lake, store, writer = small
    assert unchanged(lake, store, model=MODEL) is None
    build(spark, lake, store, model=MODEL)
    nothing = unchanged(lake, store, model=MODEL)
    assert nothing is not None
    assert [(b.name, b.rows, b.through, b.mode) for b in nothing] == [
        (name, 0, 12, "current") for name in buildable()
    ]
    files = {name: lake.files(name) for name in buildable()}
    build(spark, lake, store, model=MODEL)
    assert {name: lake.files(name) for name in buildable()} == files
    for change, name in (
        ("UPDATE dedupe SET available = 1 - available", "dedupe"),
        ("DELETE FROM channels_message", "message"),
        ("UPDATE mesh_delivery_queue SET status = 'dead'", "delivery"),
    ):
        with closing(sqlite3.connect(writer.path)) as database, database:
            assert database.execute(change).rowcount, name
        assert unchanged(lake, store, [name]) is None
    assert unchanged(lake, store, ["audit", "mention", "send"]) is not None
    build(spark, lake, store, model=MODEL)
    assert unchanged(lake, store, model=MODEL) is not None
    assert unchanged(lake, store, model=Model.parse({}, {}, 2)) is None
    writer.step(1)
    assert unchanged(lake, store, ["mention"]) is None


def test_a_lake_that_missed_changes_reads_everything_again(
    spark: "SparkSession", small: tuple[Lake, StoreAddress, Writer], tmp_path: Path
) -> None:
    """The store keeps a number of changes; whoever knows fewer mirrors its relations as a whole."""
    lake, store, writer = small
    names = ["delivery", "mention", "dedupe", "message", "send", "latency"]
    build(spark, lake, store, names, model=MODEL)
    writer.step(5)
    assert catch_up(store, lake)
    with closing(sqlite3.connect(writer.path)) as database, database:
        database.execute(
            "DELETE FROM alteration WHERE number < (SELECT max(number) FROM alteration)"
        )
    done = build(spark, lake, store, names, model=MODEL)
    assert {b.name: b.mode for b in done} == dict.fromkeys(names, "full") | {
        "message_version": "new"
    }
    fresh = copy_of_log(lake, tmp_path / "fresh")
    build(spark, fresh, store, names, model=MODEL)
    rows = [[sorted(map(repr, each.arrow(n).to_pylist())) for n in names] for each in (lake, fresh)]
    assert rows[0] == rows[1]


def test_a_partition_without_a_snapshot_is_told(spark: "SparkSession", tmp_path: Path) -> None:
    """Content of its event is gone, so nobody knows its state; the build says so."""
    writer = Writer(tmp_path / "store.db", seed=99)
    writer.step(12)
    with closing(sqlite3.connect(writer.path)) as database, database:
        is_first = "committed_id = (SELECT min(committed_id) FROM log WHERE surface = 'sync')"
        database.execute(
            "INSERT INTO sync_event_partitions (partition, committed_id) "
            f"SELECT 'lost', committed_id FROM log WHERE {is_first}"
        )
        database.execute(f"UPDATE log SET body = NULL WHERE {is_first}")
    store, lake = StoreAddress(str(writer.path)), Lake(tmp_path / "lake")
    assert catch_up(store, lake)
    *_, built = build(spark, lake, store, ["snapshot"], model=MODEL)
    [note] = built.notes
    assert note.startswith("no snapshot of lost: content of their events is gone")


@pytest.mark.usefixtures("impatient")
def test_a_build_refuses_what_it_cannot_do(
    spark: "SparkSession", small: tuple[Lake, StoreAddress, Writer], tmp_path: Path
) -> None:
    """A table it does not know, a store with another log, a lake that somebody else writes."""
    lake, store, _ = small
    with pytest.raises(LakeError, match="verdict: not a table that can be built"):
        build(spark, lake, store, ["verdict"])
    write_log(str(tmp_path / "other.db"), [])
    with pytest.raises(LogReplaced):
        build(spark, lake, StoreAddress(str(tmp_path / "other.db")))
    with Lake(lake.root).writing(), pytest.raises(LakeLocked):
        build(spark, lake, store)


KILLED = """
import sys
from pathlib import Path
from support.pipeline.killed_job import attached_session
from pipeline.fill.test_derived_tables import MODEL
from tidelog.pipeline.fill.derived_tables import build
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.source.store_address import StoreAddress

build(attached_session(), Lake(Path(sys.argv[1])), StoreAddress(sys.argv[2]), model=MODEL)
"""


def test_a_build_that_was_killed_is_finished_by_the_next(
    spark: "SparkSession", small: tuple[Lake, StoreAddress, Writer], tmp_path: Path
) -> None:
    """Killed before one table's commit, later after another's: the tables are as ever.

    In the first builds all of a table is made, in the last ones what changed.
    """
    lake, store, writer = small
    written, committed = FaultPoint.LAKE_WRITTEN, FaultPoint.LAKE_COMMITTED
    for fault in ("", f"{written}=kill@2", f"{committed}=kill@5", f"{written}=kill@7"):
        if fault:
            run_killed(spark, KILLED, str(lake.root), store.location, fault=fault)
        else:
            build(spark, lake, store, ["delivery", "dedupe", "message", "send"], model=MODEL)
        writer.step(8)
        assert catch_up(store, lake)
    build(spark, lake, store, model=MODEL)
    fresh = copy_of_log(lake, tmp_path / "fresh")
    build(spark, fresh, store, model=MODEL)
    assert contents(lake) == contents(fresh)
