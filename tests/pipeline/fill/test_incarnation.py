"""A log that was taken back and goes on is another history: the lake refuses it or goes back."""

import asyncio
import json
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.log.log_writer import draft, read_log, write_log
from support.pipeline.lake_rows import BEGIN_MS
from support.store.backups import silent
from support.store.catalogue import Database
from tidelog.config.schema import SCHEMA
from tidelog.log.draft import Draft
from tidelog.pipeline.checks.run import run_checks
from tidelog.pipeline.fill import entry_files
from tidelog.pipeline.fill import ingest as ingest_module
from tidelog.pipeline.fill.derived_tables import build, buildable
from tidelog.pipeline.fill.ingest import (
    INCARNATION,
    IngestError,
    Progress,
    catch_up,
    ingest,
    roll_back,
)
from tidelog.pipeline.fill.sync_model import model_in_use
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.search.index import search
from tidelog.pipeline.search.index_build import update_index
from tidelog.pipeline.source.spark_source import offset_of, position_of
from tidelog.pipeline.source.store_address import LogReplaced, Position, StoreAddress
from tidelog.store.backup import back_up, restore
from tidelog.store.rows import Entry
from tidelog.testing.postgresql import create_database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Restored:
    """A log of eight entries, of which a backup has three, and what was restored from that."""

    def __init__(self, location: str, restored: str) -> None:
        self.before = StoreAddress(location)
        self.after = StoreAddress(restored)


@pytest.fixture
def restored(
    store_location: str, engine: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Restored:
    """From each engine to the same; the restored log has three entries."""
    write_log(store_location, messages("a", 3), log_id="L")
    backup = tmp_path / "backup.db"
    asyncio.run(back_up(SCHEMA, store_location, backup, silent))
    write_log(store_location, messages("lost", 5))
    if engine == "postgresql":
        place = asyncio.run(create_database(request.getfixturevalue("postgresql_server")))
    else:
        place = str(tmp_path / secrets.token_hex(4) / "tidelog.db")
    asyncio.run(restore(SCHEMA, backup, place, silent))
    return Restored(store_location, place)


def messages(word: str, count: int) -> list[Draft]:
    """Messages of a channel with a word in each."""
    return [
        draft(
            n,
            stream="channels/app/room",
            entity=f"{word}-{n}",
            body=json.dumps(
                {"history_serial": n + 1, "name": word, "data": f"{word} {n}"}
            ).encode(),
        )
        for n in range(count)
    ]


def show(location: str) -> None:
    """Let the server have all messages of a log, so that none of them is purged."""
    statement = (
        "INSERT INTO channels_message "
        "(message, stream, history_serial, published_at, is_open, size_bytes, through) "
        "SELECT committed_id, stream, committed_id, committed_at, 0, 0, committed_id FROM log"
    )
    asyncio.run(Database(location).run(statement))


def entries(lake: Lake) -> list[Entry]:
    """The table `log`."""
    return [Entry(**row) for row in lake.arrow("log").sort_by("committed_id").to_pylist()]


def test_another_incarnation_is_refused(
    spark: "SparkSession", restored: Restored, tmp_path: Path
) -> None:
    """Before it has as many entries again and after; in one go, in batches, following and built."""
    lake = Lake(tmp_path / "lake")
    assert catch_up(restored.before, lake)
    kept = entries(lake)
    for count in (0, 7):
        write_log(restored.after.location, messages("new", count))
        for refused in (
            lambda: catch_up(restored.after, lake),
            lambda: ingest(spark, restored.after, lake),
            lambda: ingest(spark, restored.after, lake, follow=True),
            lambda: build(spark, lake, restored.after),
        ):
            with pytest.raises(LogReplaced, match="goes on after 3 in another incarnation") as told:
                refused()
            assert "--lake DIR" in str(told.value)
            assert "tidelog pipeline ingest --roll-back" in str(told.value)
    assert entries(lake) == kept == read_log(restored.before.location)
    first, second = run_checks(["agreement", "tables"], spark, restored.after, lake)
    assert "another incarnation" in first.uncompared[0]
    assert "another incarnation" in second.uncompared[0]
    assert catch_up(restored.before, lake), "the log it was made from is still welcome"


def test_equal_entries_of_another_incarnation_are_refused(tmp_path: Path) -> None:
    """Also when the new history happens to be the same, which its digests cannot tell."""
    old, new, backup = (tmp_path / name for name in ("old.db", "new/new.db", "backup.db"))
    write_log(str(old), messages("a", 3), log_id="L")
    asyncio.run(back_up(SCHEMA, str(old), backup, silent))
    asyncio.run(restore(SCHEMA, backup, str(new), silent))
    for store in (old, new):
        write_log(str(store), messages("b", 2), at_ms=BEGIN_MS)
    assert StoreAddress(str(old)).head().digest == StoreAddress(str(new)).head().digest
    lake = Lake(tmp_path / "lake")
    assert catch_up(StoreAddress(str(old)), lake)
    with pytest.raises(LogReplaced, match="another incarnation"):
        catch_up(StoreAddress(str(new)), lake)
    assert roll_back(StoreAddress(str(new)), lake) == 5, "nothing has to be given up"
    assert catch_up(StoreAddress(str(new)), lake)


def test_a_lake_that_has_nothing_of_the_lost_goes_on(restored: Restored, tmp_path: Path) -> None:
    """It ended where the backup does, or before; from then on it is of the new incarnation."""
    lake = Lake(tmp_path / "lake")
    earlier = tmp_path / "earlier.db"
    shutil.copy(tmp_path / "backup.db", earlier)  # to a reader, the log it was made of
    assert catch_up(StoreAddress(str(earlier)), lake)
    assert lake.through("log") == 3
    first = lake.property_of("log", INCARNATION)
    assert first == restored.before.head().incarnation
    assert catch_up(restored.after, lake), "nothing is new but the incarnation"
    assert lake.property_of("log", INCARNATION) == restored.after.head().incarnation != first
    write_log(restored.after.location, messages("new", 7))
    assert catch_up(restored.after, lake)
    assert entries(lake) == read_log(restored.after.location)
    with pytest.raises(LogReplaced):
        catch_up(restored.before, lake)


def test_a_lake_from_before_incarnations(restored: Restored, tmp_path: Path) -> None:
    """It takes the incarnation in which it finds its last entry, and no other log."""
    lake = Lake(tmp_path / "lake")
    assert catch_up(restored.before, lake)
    commits = lake.path("log") / "_delta_log"
    for commit in commits.glob("*.json"):
        text = commit.read_text(encoding="utf-8")
        commit.write_text(text.replace(f'"{INCARNATION}"', '"tidelog.other"'), encoding="utf-8")
    assert lake.property_of("log", INCARNATION) is None
    write_log(restored.after.location, messages("new", 7))
    with pytest.raises(LogReplaced, match="entry 8 is another one than was read"):
        catch_up(restored.after, lake)
    assert lake.property_of("log", INCARNATION) is None
    assert catch_up(restored.before, lake)
    assert lake.property_of("log", INCARNATION) == restored.before.head().incarnation


def test_an_offset_of_an_earlier_version_names_no_incarnation() -> None:
    """A checkpoint that was written before can be read."""
    place = Position("L", 3, bytes(16), "i")
    assert position_of(offset_of(place)) == place
    without = {key: value for key, value in offset_of(place).items() if key != "incarnation"}
    assert position_of(without) == place._replace(incarnation="")


def test_a_lake_is_rolled_back_to_what_both_have(restored: Restored, tmp_path: Path) -> None:
    """What was lost leaves the table `log`, which then goes on as the log does."""
    lake = Lake(tmp_path / "lake")
    assert catch_up(restored.before, lake)
    write_log(restored.after.location, messages("new", 7))
    assert roll_back(restored.after, lake) == 3
    assert entries(lake) == read_log(restored.after.location)[:3]
    assert catch_up(restored.after, lake)
    assert entries(lake) == read_log(restored.after.location)
    assert lake.written_elsewhere("log") == []
    with pytest.raises(LogReplaced, match="it is log M, not L"):
        roll_back(_other_log(tmp_path), lake)


def _other_log(folder: Path) -> StoreAddress:
    write_log(str(folder / "other.db"), messages("a", 3), log_id="M")
    return StoreAddress(str(folder / "other.db"))


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
def test_a_lake_that_is_rolled_back_is_as_if_made_anew(
    spark: "SparkSession", restored: Restored, tmp_path: Path
) -> None:
    """Log, tables and index have nothing of what was lost, and all of what came after."""
    lake, fresh = Lake(tmp_path / "lake"), Lake(tmp_path / "fresh")
    show(restored.before.location)
    assert catch_up(restored.before, lake)
    build(spark, lake, restored.before)
    update_index(spark, lake)
    assert search(lake.root, "lost").total == 5
    write_log(restored.after.location, messages("new", 7))
    show(restored.after.location)
    assert roll_back(restored.after, lake) == 3
    assert lake.through("message") == 0
    assert search(lake.root, "lost").total == 5, "until the next build it is as it was"
    for each in (lake, fresh):
        assert catch_up(restored.after, each)
        build(spark, each, restored.after)
        update_index(spark, each)
    for name in ("log", *buildable()):
        one, other = (sorted(map(repr, x.arrow(name).to_pylist())) for x in (lake, fresh))
        assert one == other, name
    assert (search(lake.root, "lost").total, search(lake.root, "new").total) == (0, 7)
    model = model_in_use(restored.after, None)
    verdicts = run_checks(["agreement", "tables"], spark, restored.after, lake, model=model)
    assert [str(verdict) for verdict in verdicts if not verdict.is_sound] == []


def take_back(location: str, to: int) -> None:
    """What a failover to a replica that lags does to a log, and the node that notices it."""
    run = Database(location).run
    statements = (
        f"INSERT INTO incarnation (number, id, began, at) VALUES (2, 'another', {to}, 0)",
        (
            "UPDATE head SET (committed_id, digest, committed_at) = "
            f"(SELECT committed_id, digest, committed_at FROM log WHERE committed_id = {to})"
        ),
        f"DELETE FROM log WHERE committed_id > {to}",
    )
    for statement in statements:
        asyncio.run(run(statement))


def test_an_incarnation_that_comes_while_following(
    spark: "SparkSession", store_location: str, tmp_path: Path
) -> None:
    """A log that loses what was ingested ends the ingest; nothing is added to the lake."""
    write_log(store_location, messages("a", 8), log_id="L")
    lake = Lake(tmp_path / "lake")

    def replace(_now: Progress) -> None:
        take_back(store_location, 3)
        write_log(store_location, messages("new", 9))

    with pytest.raises(LogReplaced, match="goes on after 3 in another incarnation"):
        ingest(spark, StoreAddress(store_location), lake, follow=True, progress=replace)
    assert lake.through("log") == 8


def test_an_incarnation_that_comes_while_entries_are_read(
    store_location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that may be of two histories is not written; the next run has the new one."""
    write_log(store_location, messages("a", 8), log_id="L")
    lake, store = Lake(tmp_path / "lake"), StoreAddress(store_location)
    written = entry_files.write_entries

    def cut_short(*arguments: Any) -> list[Path]:
        files = written(*arguments)
        take_back(store_location, 3)
        write_log(store_location, messages("new", 9))
        return files

    monkeypatch.setattr(ingest_module, "write_entries", cut_short)
    with pytest.raises(IngestError, match="while it was read"):
        catch_up(store, lake)
    monkeypatch.undo()
    assert lake.through("log") == 0
    assert catch_up(store, lake)
    assert entries(lake) == read_log(store_location)
