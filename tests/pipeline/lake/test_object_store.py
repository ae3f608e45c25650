"""A lake on an object store: the same tables, each entry once, and clear errors."""

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable

import tidelog
from support.log.log_writer import draft, write_log
from support.pipeline.s3_server import S3Server, s3_server
from support.pipeline.typed_command import Command, refused
from support.pipeline.whole_pipeline import WholeLake, contents, documents
from tidelog.config.lake_location import lake_location
from tidelog.pipeline.fill.entry_files import write_entries
from tidelog.pipeline.fill.ingest import catch_up
from tidelog.pipeline.frames import arrow_schema
from tidelog.pipeline.lake import lease
from tidelog.pipeline.lake.compaction import AT_ONCE
from tidelog.pipeline.lake.errors import LakeLocked
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.lake.object_files import ObjectFiles
from tidelog.pipeline.lake.object_store import LakeUnavailable, ObjectStore
from tidelog.pipeline.lake.replacing import written
from tidelog.pipeline.source.store_address import StoreAddress
from tidelog.pipeline.tables import BY_NAME

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENTRIES = 5


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One for all tests of the file; each has a bucket of its own."""
    with s3_server(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture
def url(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where a lake may be that is not there yet."""
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    return f"s3://{server.bucket()}/some/lake"


@pytest.fixture
def address(tmp_path: Path) -> StoreAddress:
    """A small log."""
    location = str(tmp_path / "tidelog.db")
    write_log(location, [draft(number) for number in range(ENTRIES)])
    return StoreAddress(location)


def machine(url: str, folder: Path) -> Lake:
    """The lake as a machine sees it that has its copies in a folder."""
    return Lake(*lake_location(url, "lake", folder))


def positions(lake: Lake) -> list[int]:
    """Of the entries in the lake."""
    found: list[int] = sorted(lake.arrow("log", ["committed_id"])["committed_id"].to_pylist())
    return found


def take_over(url: str) -> None:
    """End the lease of whoever has it, as if it had slept for too long."""
    store, tag = ObjectStore(url), None
    while tag is None:  # it may be renewed in between
        known = store.get(lease.KEY)
        assert known is not None
        tag = store.put(lease.KEY, msgspec.json.encode({"holder": "other", "until": 0}), known.tag)


def test_the_whole_pipeline_on_an_object_store(
    spark: "SparkSession",
    whole: WholeLake,
    url: str,
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every row is as in a directory; whoever reads Delta reads it; a second run has nothing to do.

    Another machine goes on where the first one ended.
    """
    del spark
    monkeypatch.setenv("TIDELOG_PIPELINE_CACHE", str(tmp_path / "one"))
    options = (*whole.arguments(), "--lake", url)
    first = command("run", "--json", *options)
    assert first.code == 0, first.err
    made = machine(url, tmp_path / "one")
    expected = contents(whole.lake)
    assert contents(made) == expected
    assert documents(made) == documents(whole.lake)
    assert not [*made.root.rglob("_delta_log")], "the logs of the tables are on the store alone"
    again = command("run", *options)
    assert "nothing is new" in again.out
    for name, rows in expected.items():
        layer = made.path(name).parent.name
        table = DeltaTable(f"{url}/{layer}/{name}", storage_options=ObjectStore(url).options)
        assert table.to_pyarrow_dataset().count_rows() == len(rows)

    monkeypatch.setenv("TIDELOG_PIPELINE_CACHE", str(tmp_path / "two"))
    assert command("ingest", "--json", *options).json()["rows"] == 0
    fetched = [*(tmp_path / "two").rglob("*.parquet")]
    assert {file.parents[1].name for file in fetched} == {"log"}, "only what was asked for"
    asked = ("sql", "SELECT count(*) AS n FROM message", "--json", *whole.arguments())
    assert command(*asked, "--lake", url).out == command(*asked).out
    fetched = [*(tmp_path / "two").rglob("*.parquet")]
    assert {file.parents[1].name for file in fetched} == {"log", "message"}
    assert tidelog.read("send", lake=url).num_rows == len(expected["send"])
    assert command("rebuild", "audit", *options).code == 0

    [row, *_] = made.arrow("message", ["app_id", "channel", "message_serial"]).to_pylist()
    forgotten = command("forget", "--message", "/".join(row.values()), "--yes", *options)
    assert "1 forgotten" in forgotten.out
    named = {
        f"{made.path(name).parent.name}/{name}/{file}"
        for name in BY_NAME
        for file in made.relative_files(name)
    }
    assert {key for key in ObjectStore(url).keys("") if key.endswith(".parquet")} == named
    copies = machine(url, tmp_path / "two").root
    here = {file.relative_to(copies).as_posix() for file in copies.rglob("*.parquet")}
    assert here <= named, "copies of what is forgotten are gone too"
    assert command("check", "agreement", "tables", *options).code == 0


@pytest.mark.parametrize("is_asleep", [False, True], ids=["sees it", "does not see it"])
@pytest.mark.parametrize("has_table", [False, True], ids=["new table", "table"])
def test_of_two_writers_one_commits(
    url: str,
    address: StoreAddress,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_asleep: bool,
    has_table: bool,
) -> None:
    """Whoever slept for longer than its lease loses nothing of the other's and adds nothing twice.

    Also if it does not see that its lease has ended: the commit itself is the last to decide.
    """
    one, other = machine(url, tmp_path / "one"), machine(url, tmp_path / "other")
    if has_table:
        assert catch_up(address, one)
        write_log(address.location, [draft(number) for number in range(ENTRIES)])
    has, head = one.through("log"), address.head().committed_id
    if is_asleep:
        monkeypatch.setattr(ObjectFiles, "is_mine", lambda _files: True)
        monkeypatch.setattr(ObjectFiles, "is_known_to_be_mine", lambda _files: True)

    def meanwhile() -> None:
        take_over(url)
        assert catch_up(address, other)

    with one.writing():
        assert one.through("log") == has
        files = write_entries(None, address, has, head, one.new_folder("log"))
        with pytest.raises(LakeLocked, match="another process"):
            one.append_files("log", files, head, {}, meanwhile, head - has)
    assert positions(one) == positions(other) == list(range(1, head + 1))
    assert catch_up(address, one)
    assert positions(other) == list(range(1, head + 1))


def test_a_write_that_died_is_seen_by_nobody(
    url: str, address: StoreAddress, tmp_path: Path
) -> None:
    """What it has sent is no part of the table, and is deleted when it is old."""
    lake, store = machine(url, tmp_path / "one"), ObjectStore(url)

    def die() -> None:
        raise KeyboardInterrupt

    with lake.writing():
        files = write_entries(None, address, 0, ENTRIES, lake.new_folder("log"))
        with pytest.raises(KeyboardInterrupt):
            lake.append_files("log", files, ENTRIES, {}, die, ENTRIES)
    [sent] = store.keys("bronze/log")
    assert lake.through("log") == 0
    assert catch_up(address, lake)
    assert positions(lake) == list(range(1, ENTRIES + 1))
    with lake.writing():
        assert lake.vacuum("log") == 0, "it may be of a write that is under way"
        assert lake.vacuum("log", timedelta(0)) == 1
    left = [key for key in store.keys("bronze/log") if key.endswith(".parquet")]
    assert left == [f"bronze/log/{file}" for file in lake.relative_files("log")]
    assert sent not in left


def test_who_lost_the_lake_deletes_nothing(
    url: str, address: StoreAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What no commit could refuse asks the store first, whatever this process believes."""
    for name in ("RENEWED_SECONDS", "LASTS_SECONDS"):  # it does not notice meanwhile
        monkeypatch.setattr(lease, name, 3600.0)
    one, other = machine(url, tmp_path / "one"), machine(url, tmp_path / "other")
    assert catch_up(address, one)
    write_log(address.location, [draft(number) for number in range(ENTRIES)])
    with one.writing():
        assert one.through("log") == ENTRIES
        take_over(url)
        assert catch_up(address, other)
        assert one.place.is_mine(), "it has not looked since"
        with pytest.raises(LakeLocked, match="has taken over"):
            one.vacuum("log", timedelta(0))
        with pytest.raises(LakeLocked, match="has taken over"):
            one.remove("log")
    third = machine(url, tmp_path / "third")
    assert positions(third) == list(range(1, 2 * ENTRIES + 1))


def test_a_machine_without_copies_joins_files(url: str, tmp_path: Path) -> None:
    """It fetches the files that it joins; those of a table whose rows change are read as they are.

    Whoever has appended to such a table has looked at none of its files.
    """
    one, other = machine(url, tmp_path / "one"), machine(url, tmp_path / "other")
    table = BY_NAME["mention"]
    for number in range(AT_ONCE + 1):
        row = {
            "broker_message_id": f"m{number}",
            "mentioned_pubkey": "key",
            "mesh_id": "mesh",
            "history_id": number,
            "created_at": 0,
        }
        rows = pa.Table.from_pylist([row], arrow_schema(table))
        with one.writing():
            files = written(rows, table.order, one.new_folder(table.name), 1)
            one.append_files(table.name, files, number + 1, {}, lambda: None)
    with other.writing():
        assert other.compact(table.name)
    assert other.rows(table.name) == AT_ONCE + 1
    assert len(other.relative_files(table.name)) < AT_ONCE + 1


def test_a_lease_outlives_a_lost_answer(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A renewal that was done, and is refused when it is tried again, is still this process's."""
    held = lease.Lease(store := ObjectStore(url))
    assert held.take()
    put = store.put

    def done_and_refused(key: str, content: bytes, instead: str | None = None) -> None:
        assert put(key, content, instead) is not None

    monkeypatch.setattr(store, "put", done_and_refused)
    assert held._put(held._tag)
    assert held.is_known_to_be_mine()
    take_over(url)
    assert not held.is_known_to_be_mine()
    monkeypatch.undo()
    held.give_back()


def test_one_machine_writes_at_a_time(
    url: str, address: StoreAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one waits until it is told, or until the lease of a process that died has ended."""
    monkeypatch.setattr(ObjectFiles, "look_seconds", 0.01)
    one, other = machine(url, tmp_path / "one"), machine(url, tmp_path / "other")
    with (
        one.writing(),
        pytest.raises(LakeLocked, match=r"writes to the lake s3://"),
        other.writing(wait_seconds=0.0),
    ):
        pass
    with other.writing(wait_seconds=0.0):
        assert other.place.is_mine()
    waits = threading.Event()
    other.waiting = waits.set
    monkeypatch.setattr("tidelog.pipeline.lake.lake._TOLD_AFTER_SECONDS", 0.0)
    dead = lease.Lease(ObjectStore(url))
    assert dead.take()

    def end() -> None:
        waits.wait()
        take_over(url)

    ended = threading.Thread(target=end)
    ended.start()
    assert catch_up(address, other)
    ended.join()
    assert positions(one) == list(range(1, ENTRIES + 1))
    dead.give_back()


def test_a_lease_is_renewed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as its process works; it says so when somebody else has it."""
    renewed = threading.Event()
    monkeypatch.setattr(lease, "RENEWED_SECONDS", 0.01)
    held = lease.Lease(store := ObjectStore(url))
    put = store.put

    def noticed(key: str, content: bytes, instead: str | None = None) -> str | None:
        tag = put(key, content, instead)
        if instead is not None:
            renewed.set()
        return tag

    monkeypatch.setattr(store, "put", noticed)
    assert held.take()
    assert renewed.wait(60)
    assert held.is_mine()
    take_over(url)
    assert held._renewing is not None
    held._renewing.join(60)
    assert not held.is_mine()
    held.give_back()
    known = ObjectStore(url).get(lease.KEY)
    assert known is not None
    assert b"other" in known.content


def test_what_is_wrong_with_an_object_is_found(
    url: str, address: StoreAddress, tmp_path: Path
) -> None:
    """The copy is not asked for it, which is as it was."""
    lake = machine(url, tmp_path / "one")
    assert catch_up(address, lake)
    assert lake.written_elsewhere("log") == []
    [file] = lake.relative_files("log")
    damaged = tmp_path / "damaged"
    damaged.write_bytes((lake.path("log") / file).read_bytes() + b"x")
    ObjectStore(url).send(damaged, f"bronze/log/{file}")
    assert lake.written_elsewhere("log") == [f"file {file} is not what was written"]


def test_a_store_that_cannot_be_used_is_told_in_one_line(
    server: S3Server, url: str, whole: WholeLake, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No bucket, no right, nobody there: what to do, and no secret."""
    options = (*whole.arguments(), "--lake")
    for name in ("run", "report"):
        gone = command(name, *options, "s3://no-such-bucket/lake")
        refused(gone, 1, "there is no bucket no-such-bucket")
    server.require_keys(is_required=True)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret := "another-secret")
    try:
        for name in ("run", "report"):
            denied = command(name, *options, url)
            refused(denied, 1, "credentials", "AWS_ACCESS_KEY_ID")
            assert secret not in denied.err
    finally:
        server.require_keys(is_required=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(LakeUnavailable, match="cannot be reached"):
        tidelog.read("log", lake=url)


def test_a_store_that_is_not_set_up_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is asked for it."""
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(LakeUnavailable, match=r"az://container/lake cannot be .* [Aa]ccount"):
        ObjectStore("az://container/lake")


def test_what_needs_a_directory_is_refused(url: str, whole: WholeLake, command: Command) -> None:
    """Before anything is written."""
    options = (*whole.arguments(), "--lake", url)
    refused(command("iceberg", *options), 1, "needs a lake in a directory")
    assert ObjectStore(url).keys("_iceberg") == []
