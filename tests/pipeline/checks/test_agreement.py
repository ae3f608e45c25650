"""What Spark folds from a long mixed log is what the server answers, message by message.

`TIDELOG_TEST_SOAK_ENTRIES` sets the length of the log, `TIDELOG_TEST_SOAK_SEED` what is in it.
"""

import asyncio
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import UnsetType

from support.channels.peer import APP
from support.pipeline import mixed_log
from support.pipeline.check_evidence import looked_at
from support.pipeline.lake_rows import frame_of
from support.store.store_copy import copy_to_postgresql
from support.sync.peer import ADMIN_TOKEN, MODEL
from tidelog.channels.protocol.version import Version, fold, stored_version
from tidelog.pipeline.as_of import as_of, position_at
from tidelog.pipeline.checks import agreement, served
from tidelog.pipeline.checks.extent import Range
from tidelog.pipeline.checks.served import AppKey, Server
from tidelog.pipeline.checks.spool import RELATIONS
from tidelog.pipeline.fill.ingest import IngestError, ingest
from tidelog.pipeline.forget import forget
from tidelog.pipeline.lake.errors import LakeError
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.source.store_address import StoreAddress
from tidelog.pipeline.spark.session import SMALL_SETTINGS
from tidelog.pipeline.transforms.snapshots import ModelSource
from tidelog.sync.protocol.profiles import TREE_ACTIONS
from tidelog.sync.protocol.tree import TreeState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelog.pipeline.checks.finding import Verdict
    from tidelog.testing.process import ServerProcess

ENTRIES = int(os.environ.get("TIDELOG_TEST_SOAK_ENTRIES", "2000"))
"""`scripts/soak` has 200,000, of which the server takes most of a minute to write alone."""
SEED = int(os.environ.get("TIDELOG_TEST_SOAK_SEED", "7"))
SMALL = 1200
SECONDS = 60.0
"""What the whole comparison may take on two calm cores at 200,000 entries."""

SOURCE = ModelSource(
    {name: target["kind"] for name, target in MODEL["tree_targets"].items()},
    MODEL["model_version"],
)


def server_of(process: "ServerProcess") -> Server:
    """What opens a server of a mixed log."""
    return Server(process.url, (AppKey(APP.id, APP.key, APP.secret),), ADMIN_TOKEN)


def compared(spark: "SparkSession", location: str, lake: Lake, server: Server) -> "Verdict":
    """The verdict of agreement on everything."""
    taken = looked_at(spark, location, lake.root)
    ranges = [Range(0, min(lake.through("log"), taken.head.committed_id))]
    return agreement.check(taken, lake, ranges, server=server, model=SOURCE)


def ingested(spark: "SparkSession", location: str, folder: Path) -> Lake:
    """A lake with all of a store's log.

    Spark gives a new worker ten seconds to connect; on a machine that is busy beyond that, the
    ingest is run again, as its error says.
    """
    lake, address = Lake(folder), StoreAddress(location)
    with lake.writing():
        for attempt in range(3):
            try:
                ingest(spark, address, lake)
                break
            except IngestError as error:
                if attempt == 2 or "failed to connect back" not in str(error):
                    raise
    assert lake.through("log") == address.head().committed_id
    return lake


@pytest.fixture
def for_a_long_log(spark: "SparkSession") -> Iterator[None]:
    """The settings that a session for a long log has."""
    before = {name: spark.conf.get(name) or "" for name in SMALL_SETTINGS}
    for name in before:
        spark.conf.unset(name)
    spark.conf.set("spark.sql.shuffle.partitions", "4")
    yield
    for name, value in before.items():
        spark.conf.set(name, value)


@pytest.mark.usefixtures("for_a_long_log")
def test_the_fold_of_a_long_log_is_what_the_server_answers(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """Every message of every channel and the state of every partition, after purges and all.

    The store is written by a process of its own, and so is the server that answers: it purges what
    the lake has already, and shows what is left of it all the same.
    """
    location = str(tmp_path / "mixed.db")
    started = time.perf_counter()
    program = [
        sys.executable,
        "-m",
        "support.pipeline.mixed_log",
        location,
        str(ENTRIES),
        str(SEED),
    ]
    written: dict[str, Any] = json.loads(
        subprocess.run(
            [*program, "--keep-all"],
            cwd=Path(mixed_log.__file__).parents[2],
            check=True,
            capture_output=True,
            timeout=20 * SECONDS * max(1, ENTRIES // 200_000),
        ).stdout
    )
    assert sum(written["kinds"].values()) >= ENTRIES
    for kind in ("event", "message.create", "message.append", "message.update", "message.delete"):
        assert written["kinds"][f"channels {kind}"] > ENTRIES // 500, written
    versions = sum(count for kind, count in written["kinds"].items() if "channels" in kind)
    lake = ingested(spark, location, tmp_path / "lake")
    oldest = lake.arrow("log", ["committed_at"])["committed_at"].to_pylist()
    window_ms = int(time.time() * 1000) - oldest[len(oldest) // 3]
    with mixed_log.serving(location, tmp_path / "server", window_ms=window_ms) as process:
        process.start()
        purged = _await_purge(location, versions)
        verdict = compared(spark, location, lake, server_of(process))
    took = time.perf_counter() - started
    print(f"{ENTRIES} entries, {purged} versions purged, {took:.1f} s\n{verdict}")  # noqa: T201
    assert verdict.is_sound, str(verdict)
    assert purged > 0
    partitions, messages = len(written["partitions"]), written["kinds"]["channels message.create"]
    assert verdict.examined >= ENTRIES + partitions + messages
    assert any("were purged by the server" in note for note in verdict.notes), verdict
    assert not any("lost content" in note for note in verdict.notes), verdict


def _await_purge(location: str, versions: int) -> int:
    """Wait until the server has purged a part of so many versions; returns how many."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        relation = RELATIONS["channel_versions"]
        pages = StoreAddress(location).pages(
            "check_channel_versions", relation.key, relation.lowest
        )
        left: int = sum(page.num_rows for page in pages)
        if left < versions:
            return versions - left
        time.sleep(0.2)
    raise AssertionError("the server purges nothing")


# A small log.


@pytest.fixture(scope="module")
def small(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Lake]:
    """A store with a snapshot of every other partition, and the lake made from it."""
    folder = tmp_path_factory.mktemp("small")
    mixed_log.write(str(folder / "tidelog.db"), SMALL, 5)
    return folder / "tidelog.db", ingested(spark, str(folder / "tidelog.db"), folder / "lake")


DISAGREEMENTS = {
    "bronze": (
        "SELECT committed_id FROM log WHERE surface = 'mesh' ORDER BY committed_id LIMIT 1",
        "UPDATE log SET digest = zeroblob(16) WHERE committed_id = {0}",
        "entry {0}",
    ),
    "snapshot": (  # its digest no longer fits, so the server does not use it
        "SELECT partition FROM sync_snapshots WHERE partition LIKE 'team/%' ORDER BY 1 LIMIT 1",
        "UPDATE sync_snapshots SET state = CAST('{{}}' AS BLOB) WHERE partition = '{0}'",
        "partition {0}",
    ),
    "message": (
        (
            "SELECT v.message, max(v.committed_id), m.history_serial, substr(m.stream, 15) "
            "FROM channels_version v JOIN channels_message m USING (message) "
            "JOIN channels_channel c USING (stream) WHERE m.state IS NULL "
            "AND m.history_serial > c.history_floor GROUP BY v.message HAVING count(*) > 1 LIMIT 1"
        ),
        "DELETE FROM channels_version WHERE message = {0} AND committed_id = {1}",
        f"message {{2}} of {APP.id} {{3}}",
    ),
    "state": (  # the last change of a partition without a snapshot
        (
            "SELECT last.partition, last.committed_id FROM (SELECT p.partition, "
            "max(p.committed_id) AS committed_id FROM sync_event_partitions p "
            "JOIN log l USING (committed_id) WHERE l.kind != 'event' AND p.partition NOT IN "
            "(SELECT partition FROM sync_snapshots) GROUP BY p.partition) AS last "
            "JOIN log l USING (committed_id) WHERE l.kind IN ('set', 'treePush') LIMIT 1"
        ),
        "DELETE FROM sync_event_partitions WHERE partition = '{0}' AND committed_id = {1}",
        "partition {0}",
    ),
}
"""By rule: a query for a place, what is done there, and what the finding names."""


def test_each_disagreement_is_found(
    spark: "SparkSession", small: tuple[Path, Lake], tmp_path: Path
) -> None:
    """A store that differs from the lake in four places is told to differ in these four."""
    store, lake = small
    copy = tmp_path / "damaged.db"
    shutil.copy(store, copy)
    expected = []
    connection = sqlite3.connect(copy)
    for rule, (pick, statement, where) in DISAGREEMENTS.items():
        values = connection.execute(pick).fetchone()
        assert connection.execute(statement.format(*values)).rowcount == 1, rule
        expected.append((rule, where.format(*values)))
    connection.commit()
    connection.close()
    with mixed_log.serving(str(copy), tmp_path / "server") as process:
        process.start()
        verdict = compared(spark, str(copy), lake, server_of(process))
    found = sorted((finding.rule, finding.where) for finding in verdict.findings)
    assert found == sorted(expected), str(verdict)
    assert set(DISAGREEMENTS) == set(agreement.RULES)


def test_the_lake_agrees_with_its_store_alone(
    spark: "SparkSession", small: tuple[Path, Lake], tmp_path: Path
) -> None:
    """Without a server, entries and stored snapshots are compared, and it is said what is not."""
    store, lake = small
    taken = looked_at(spark, str(store), tmp_path)
    verdict = agreement.check(taken, lake, taken.ranges)
    assert verdict.is_sound, str(verdict)
    assert verdict.examined == taken.head.committed_id
    assert verdict.notes == (
        "states of sync are not compared: no model was given",
        "no server was asked",
    )
    # Of ranges: their entries, and the snapshots that are as of there, made of all their events.
    head = taken.head.committed_id
    ranges = (Range(10, head // 2), Range(head - 100, head))
    some = looked_at(spark, str(store), tmp_path, *ranges)
    part = agreement.check(some, lake, ranges, model=SOURCE)
    assert part.is_sound, str(part)
    assert sum(each.entries for each in ranges) < part.examined < head
    assert part.ranges == ranges


FORGED_ENTRIES: dict[str, tuple[str, dict[str, Any] | None]] = {
    "says something else": ("surface = 'mesh'", {"actor": "mallory"}),
    "has other content": ("surface = 'sync' AND body IS NOT NULL", {"body": b"{}"}),
    "has content that was never committed": ("body IS NULL", {"body": b"{}"}),
    "has lost its content": ("surface = 'mesh' AND body IS NOT NULL", {"body": None}),
    "is not in the lake": ("surface = 'channels'", None),
}
"""By what is told: which entry of the store is meant, and what is done to its row in the lake."""


def test_a_forged_entry_of_the_lake_is_found(
    spark: "SparkSession", small: tuple[Path, Lake], tmp_path: Path
) -> None:
    """Each column counts, content that the store has no more too; and nothing is there twice."""
    store, whole = small
    lake = Lake(tmp_path / "lake")
    shutil.copytree(whole.root, lake.root)
    rows = {row["committed_id"]: row for row in entries_of(lake)}
    expected = set()
    with closing(sqlite3.connect(store)) as connection:
        for offset, (text, (where, change)) in enumerate(FORGED_ENTRIES.items(), 3):
            [at] = connection.execute(
                f"SELECT committed_id FROM log WHERE {where} ORDER BY 1 LIMIT 1 OFFSET {offset}"
            ).fetchone()
            expected.add((f"entry {at}", text))
            row = rows.pop(at)
            if change is not None:
                rows[at] = {**row, **change}
    last = max(rows)
    expected.add((f"entry {last}", "is in the lake more than once"))
    expected.add((f"entry {last + 9}", "is in the lake and not in the store"))
    forged = [*rows.values(), rows[last], {**rows[last], "committed_id": last + 9}]
    lake.overwrite("log", frame_of(spark, "log", forged).coalesce(1), lake.through("log"))
    taken = looked_at(spark, str(store), tmp_path)
    verdict = agreement.check(taken, lake, taken.ranges)
    assert {(each.where, each.text) for each in verdict.findings} == expected, str(verdict)
    assert verdict.total == len(expected)
    ranges = (Range(1, last // 2), Range(last - 100, last))
    some = looked_at(spark, str(store), tmp_path, *ranges)
    found = agreement.check(some, lake, ranges).findings
    inside = {
        each
        for each in verdict.findings
        if any(part.after < (each.at or 0) <= part.through for part in ranges)
    }
    assert {each for each in found if (each.at or 0) <= last} == inside
    assert {(each.where, each.text) for each in found} >= {
        (f"entry {last}", "is in the lake more than once"),
        (f"entry {last + 9}", "is in the lake and not in the store"),
    }


def test_what_could_not_be_compared_is_no_agreement(
    spark: "SparkSession", small: tuple[Path, Lake], tmp_path: Path
) -> None:
    """A server without its keys, and a lake without entries: said, and not sound."""
    store, lake = small
    with mixed_log.serving(str(store), tmp_path / "server") as process:
        process.start()
        verdict = compared(spark, str(store), lake, Server(process.url))
    assert not verdict.is_sound
    assert verdict.total == 0
    messages, states = verdict.uncompared
    assert messages.startswith("none of ")
    assert states.startswith("no state of sync")
    assert all("--config" in text for text in verdict.uncompared)
    assert str(verdict).startswith("agreement: not compared; ")
    taken = looked_at(spark, str(store), tmp_path)
    empty = agreement.check(taken, Lake(tmp_path / "empty"), ())
    assert not empty.is_sound
    assert "tidelog pipeline ingest" in str(empty)


def test_a_server_on_postgresql_agrees(
    spark: "SparkSession", small: tuple[Path, Lake], postgresql_url: str, tmp_path: Path
) -> None:
    """The same log in the other engine: what its server answers is what the lake has."""
    store, lake = small
    asyncio.run(copy_to_postgresql(str(store), postgresql_url))
    with mixed_log.serving(postgresql_url, tmp_path / "server") as process:
        process.start()
        verdict = compared(spark, postgresql_url, lake, server_of(process))
    assert verdict.is_sound, str(verdict)
    assert "no server was asked" not in verdict.notes
    assert verdict.examined > lake.through("log"), "messages and partitions too"


def room_with_texts(entries: list[dict[str, Any]]) -> tuple[str, dict[str, str]]:
    """A channel in which several messages have data, with that data by serial.

    Which one that is differs: what is asked at once is committed in an order of its own.
    """
    entries = [row for row in entries if row["kind"].startswith("message.")]
    for stream in sorted({row["stream"] for row in entries}):
        messages = folded_by_server([row for row in entries if row["stream"] == stream])
        texts = {serial: made[2] for serial, made in messages.items() if made[2] is not None}
        if len(texts) > 1:
            return stream.removeprefix("channels/"), texts
    raise AssertionError("no channel has two messages with data")


def test_what_is_forgotten_is_no_disagreement(
    spark: "SparkSession", small: tuple[Path, Lake], tmp_path: Path
) -> None:
    """Of what the lake forgot nothing is compared, and nothing shown at any moment of the past."""
    store, whole = small
    lake = Lake(tmp_path / "lake")
    shutil.copytree(whole.root, lake.root)
    entries = [row for row in entries_of(lake) if row["body"] is not None]
    room, texts = room_with_texts(entries_of(lake))
    message = next(iter(texts))
    event = next(row for row in entries if row["kind"] == "treePush")
    [partition, *_] = json.loads(event["body"])["partitions"]
    names = [f"{room}/{message}", event["entity"]]
    forget(spark, lake, messages=names)
    with mixed_log.serving(str(store), tmp_path / "server") as process:
        process.start()
        verdict = compared(spark, str(store), lake, server_of(process))
    assert verdict.is_sound, str(verdict)
    assert any("partitions have a forgotten event" in note for note in verdict.notes)
    assert any("or are forgotten" in note for note in verdict.notes)
    # As if the forgetting had ended right after its note: the content is still in the table.
    shutil.rmtree(lake.path("log"))
    shutil.copytree(whole.path("log"), lake.path("log"))
    then = as_of(spark, lake, lake.through("log"), "channel", room)
    shown = {row["message_serial"]: row["data"] for row in then.rows.to_pylist()}
    assert {serial: shown[serial] for serial in texts} == {**texts, message: None}
    with pytest.raises(LakeError, match="was forgotten"):
        as_of(spark, lake, lake.through("log"), "partition", partition, SOURCE)


def test_a_server_that_is_not_there() -> None:
    """Nobody answers: the error says who, and is none of the findings."""
    asking = served.Asking(Server("http://127.0.0.1:9", admin_token="x"))
    with pytest.raises(served.ServerUnreachable, match="does not answer"):
        asking.state("p")


# Time travel.


def entries_of(lake: Lake) -> list[dict[str, Any]]:
    """All rows of `log` in order."""
    rows: list[dict[str, Any]] = lake.arrow("log").to_pylist()
    return sorted(rows, key=lambda row: row["committed_id"])


def folded_by_server(entries: list[dict[str, Any]]) -> dict[str, tuple[Any, ...]]:
    """Messages as the server's own fold makes them; those that lost content are left out."""
    gone = {row["entity"] for row in entries if row["body"] is None}
    chains: dict[str, list[Version]] = {}
    for row in entries:
        if row["entity"] not in gone:
            place = ("kind", "committed_id", "committed_at", "stream_serial", "entity", "body")
            version = stored_version(*(row[name] for name in place))
            chains.setdefault(row["entity"], []).append(version)
    messages = {}
    for serial, chain in chains.items():
        made = fold(None, chain)
        assert made is not None
        data = None if isinstance(made.data, UnsetType) else bytes(made.data).decode()
        messages[serial] = (made.verb, made.name, data, made.versions, made.committed_id)
    return messages


def test_a_channel_as_of_a_position(spark: "SparkSession", small: tuple[Path, Lake]) -> None:
    """What it shows is what the server's own fold makes of the entries up to then."""
    _, lake = small
    kept = [row for row in entries_of(lake) if row["stream"] == f"channels/{APP.id}/room-9"]
    columns = ("action", "name", "data", "versions", "last_committed_id")
    for position in (0, kept[len(kept) // 2]["committed_id"], kept[-1]["committed_id"]):
        until = [row for row in kept if row["committed_id"] <= position]
        expected = folded_by_server(until)
        then = as_of(spark, lake, position, "channel", f"{APP.id}/room-9")
        rows = then.rows.to_pylist()
        assert {row["message_serial"] for row in rows} == {row["entity"] for row in until}
        found = {row["message_serial"]: tuple(row[name] for name in columns) for row in rows}
        assert {serial: found[serial] for serial in expected} == expected
        assert sum(then.counts.values()) == len(rows)
        assert bool(rows) == bool(position)


def test_a_partition_as_of_a_time(spark: "SparkSession", small: tuple[Path, Lake]) -> None:
    """The state at a time is that after the last event committed by then."""
    _, lake = small
    rows = entries_of(lake)
    middle = rows[len(rows) // 2]
    at = datetime.fromtimestamp(middle["committed_at"] / 1000, UTC)
    position = max(r["committed_id"] for r in rows if r["committed_at"] <= middle["committed_at"])
    assert position_at(lake, at) == position
    tree = TreeState(SOURCE.model())
    events = 0
    for row in rows:
        if row["stream"] == "sync" and row["committed_id"] <= position:
            body = json.loads(row["body"])
            if "team/3" in body["partitions"]:
                events += 1
                if row["kind"] in TREE_ACTIONS:
                    tree.apply(body["event"])
    then = as_of(spark, lake, position, "partition", "team/3", SOURCE)
    [found] = then.rows.to_pylist()
    assert json.loads(found["state"]) == tree.export()
    assert then.counts == {"events": events}
    assert events > 0


def test_a_mesh_as_of_a_position(spark: "SparkSession", small: tuple[Path, Lake]) -> None:
    """Its sends up to then, and how many of each kind."""
    _, lake = small
    rows = [row for row in entries_of(lake) if row["surface"] == "mesh"]
    cut = rows[len(rows) // 2]["committed_id"]
    mesh_id = rows[0]["stream"].removeprefix("mesh/")
    then = as_of(spark, lake, cut, "mesh", mesh_id)
    expected = [row["entity"] for row in rows if row["committed_id"] <= cut]
    assert [row["broker_message_id"] for row in then.rows.to_pylist()] == expected
    assert sum(then.counts.values()) == len(expected)


def test_positions_that_are_not_there(spark: "SparkSession", small: tuple[Path, Lake]) -> None:
    """A position beyond the lake, a time without a zone and a partition without a model."""
    _, lake = small
    through = lake.through("log")
    with pytest.raises(LakeError, match=f"complete through {through}"):
        position_at(lake, through + 1)
    with pytest.raises(LakeError, match="has no zone"):
        position_at(lake, datetime(2020, 1, 1))  # noqa: DTZ001 - which is the point
    assert position_at(lake, datetime(2020, 1, 1, tzinfo=UTC)) == 0
    with pytest.raises(LakeError, match="needs the model"):
        as_of(spark, lake, 1, "partition", "team/1")
