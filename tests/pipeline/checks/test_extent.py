"""What checks examine: what is new since they were sound, something old, and all if need be."""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from deltalake import write_deltalake

from support.log.log_writer import draft, write_log
from support.pipeline import mixed_log
from support.pipeline.killed_job import run_killed
from support.pipeline.lake_rows import frame_of
from support.pipeline.whole_pipeline import WholeLake
from tidelog.base.errors import StoreUnavailable
from tidelog.base.faultpoint import FaultPoint
from tidelog.pipeline.checks import extent, run
from tidelog.pipeline.checks.evidence import FOLDER
from tidelog.pipeline.checks.extent import (
    Extent,
    Range,
    checks_are_current,
    merged,
    noted,
    old_range,
)
from tidelog.pipeline.checks.run import run_checks
from tidelog.pipeline.checks.view import INTERVALS, intervals_of
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.source import store_address
from tidelog.pipeline.source.store_address import StoreAddress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelog.pipeline.checks.finding import Verdict

ENTRIES = 300
OLD = 50
"""Entries of an old range here."""


class Log:
    """A log that continuity and digest look at, which takes no job of Spark if they are sound."""

    def __init__(self, spark: "SparkSession", folder: Path) -> None:
        self.location = folder / "tidelog.db"
        self.lake = Lake(folder / "lake")
        self.spark = spark
        self.grow(ENTRIES)

    def grow(self, entries: int) -> None:
        """Append entries."""
        write_log(str(self.location), [draft(number) for number in range(entries)])

    def change(self, statement: str) -> None:
        """Damage it, or mend it."""
        with closing(sqlite3.connect(self.location)) as store, store:
            assert store.execute(statement).rowcount == 1

    def check(self, seed: int = 1, *, full: bool = False) -> list["Verdict"]:
        """Run two checks."""
        address, names = StoreAddress(str(self.location)), ("continuity", "digest")
        with self.lake.writing():
            return run_checks(names, self.spark, address, self.lake, seed=seed, full=full)

    @property
    def noted(self) -> list[int]:
        """Through which positions the checks were sound."""
        return [each.sound.committed_id for each in noted(self.lake).values()]

    def rewrite_verdicts(self, **columns: Any) -> None:
        """Write other notes of the check of digests, as the pipeline would."""
        rows = self.lake.arrow("verdict").to_pylist()
        changed = [row | (columns if row["check"] == "digest" else {}) for row in rows]
        for row in changed:
            row["ran_at"] = row["ran_at"].replace(tzinfo=None)
        frame = frame_of(self.spark, "verdict", changed).coalesce(1)
        self.lake.overwrite("verdict", frame, self.lake.through("verdict"))


@pytest.fixture
def log(spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Log:
    """A log whose old ranges are short."""
    monkeypatch.setattr(extent, "OLD_LEAST", OLD)
    return Log(spark, tmp_path)


def seed_of(position: int, through: int, *, is_inside: bool) -> int:
    """A seed whose old range has a position, or has not."""
    for seed in range(1000):
        chosen = old_range(through, seed)
        assert chosen is not None
        if (chosen.after < position <= chosen.through) == is_inside:
            return seed
    raise AssertionError("no such seed")


def test_a_run_examines_what_is_new_and_something_old(log: Log) -> None:
    """All of it first; then a part of the old; and what was appended."""
    first = log.check()
    assert [each.ranges for each in first] == [(Range(0, ENTRIES),)] * 2
    assert log.noted == [ENTRIES] * 2
    for verdict in log.check(seed=7):
        assert verdict.is_sound
        assert verdict.ranges == (old_range(ENTRIES, 7),)
        assert verdict.examined == OLD
    log.grow(20)
    for verdict in log.check(seed=8):
        assert verdict.is_sound
        assert verdict.ranges == (old_range(ENTRIES, 8), Range(ENTRIES, ENTRIES + 20))
        assert verdict.examined == OLD + 20
        old = old_range(ENTRIES, 8)
        assert str(verdict).endswith(f"of entries {old}, {ENTRIES + 1} to {ENTRIES + 20}")
    assert log.noted == [ENTRIES + 20] * 2
    assert [each.ranges for each in log.check(full=True)] == [(Range(0, ENTRIES + 20),)] * 2
    rows = log.lake.arrow("verdict").to_pylist()
    assert {(row["covered"], *row["ranges"]) for row in rows} == {(320, "1 to 320")}


def test_damage_is_found_in_what_is_new_and_by_chance_in_the_old(log: Log) -> None:
    """A finding takes the position back to where it is, so it is found until it is mended."""
    log.check()
    log.change("UPDATE log SET actor = 'mallory' WHERE committed_id = 90")
    elsewhere, there = (seed_of(90, ENTRIES, is_inside=inside) for inside in (False, True))
    assert all(verdict.is_sound for verdict in log.check(elsewhere))
    _, digest = log.check(there)
    assert [(each.rule, each.where) for each in digest.findings] == [("chain", "entry 90")]
    assert log.noted == [ENTRIES, 89]
    _, digest = log.check(elsewhere)
    assert digest.ranges[-1] == Range(89, ENTRIES)
    assert digest.total == 1
    assert log.check(full=True)[1].total == 1
    log.change("UPDATE log SET actor = 'a1' WHERE committed_id = 90")
    assert all(verdict.is_sound for verdict in log.check(elsewhere))
    assert log.noted == [ENTRIES] * 2
    log.grow(20)
    log.change("UPDATE log SET actor = 'mallory' WHERE committed_id = 310")
    log.change("UPDATE log SET stream_serial = stream_serial + 5 WHERE committed_id = 320")
    continuity, digest = log.check(elsewhere)
    assert continuity.total == 1
    assert [each.where for each in digest.findings] == ["entry 310", "entry 320"]
    assert log.noted == [ENTRIES] * 2


@pytest.mark.parametrize(
    ("forged", "text"),
    [
        ({"sound_through": 290}, "the entry there is another one"),
        ({"digest": "00" * 16}, "the entry there is another one"),
        ({"covered": 290}, "290 entries were examined"),
    ],
    ids=["another entry", "another digest", "skipped range"],
)
def test_a_position_that_was_not_reached_is_found(
    log: Log, forged: dict[str, Any], text: str
) -> None:
    """What is noted is believed only if it is what was examined; else everything is examined."""
    log.check()
    log.rewrite_verdicts(**forged)
    continuity, digest = log.check()
    assert continuity.is_sound
    assert [each.rule for each in digest.findings] == ["position"]
    assert text in digest.findings[0].text
    assert digest.ranges == (Range(0, ENTRIES),)
    assert log.noted == [ENTRIES] * 2
    assert all(verdict.is_sound for verdict in log.check())


def test_a_position_further_than_the_check_went_is_found(log: Log) -> None:
    """Also if whoever wrote it knew the entry that is there."""
    log.check()
    log.grow(20)
    log.change("UPDATE log SET actor = 'mallory' WHERE committed_id = 305")
    digest = StoreAddress(str(log.location)).entry_digest_at(310)
    assert digest is not None
    log.rewrite_verdicts(sound_through=310, digest=digest.hex())
    _, verdict = log.check(seed_of(305, 310, is_inside=False))
    assert [each.rule for each in verdict.findings] == ["position", "chain"]


def test_verdicts_of_an_earlier_version_begin_anew(log: Log) -> None:
    """A table without positions is written again."""
    import pyarrow as pa

    path = log.lake.path("verdict")
    path.mkdir(parents=True)
    write_deltalake(str(path), pa.table({"check": ["digest"], "findings": [0]}))
    assert all(verdict.is_sound for verdict in log.check())
    assert log.noted == [ENTRIES] * 2


def test_whether_checks_are_current(whole: WholeLake, tmp_path: Path) -> None:
    """After a run they are; not when the log has grown, nor if it goes on elsewhere."""
    head = StoreAddress(str(whole.store)).head()
    assert checks_are_current(whole.lake, head)
    assert not checks_are_current(whole.lake, head._replace(committed_id=head.committed_id + 1))
    assert not checks_are_current(whole.lake, head._replace(incarnation="another"))
    assert not checks_are_current(Lake(tmp_path / "empty"), head)


def test_no_read_holds_the_store(
    spark: "SparkSession", whole: WholeLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything is read in pages, none of which is in a transaction with another."""
    page = 64
    monkeypatch.setattr(store_address, "PAGE_ROWS", page)
    monkeypatch.setattr(store_address, "NAMED_ROWS", page)
    monkeypatch.setattr(extent, "OLD_LEAST", OLD)
    read = list[int]()
    at_once = list[int]()
    reading: Any = store_address._Reading
    plain_table, plain_moment = reading._table, reading.at_one_moment

    def table(self: Any, text: str, values: tuple[Any, ...], most: int) -> Any:
        rows = plain_table(self, text, values, most)
        read.append(rows.num_rows)
        if is_open:
            at_once[-1] += rows.num_rows
        return rows

    is_open = list[bool]()

    @contextmanager
    def moment(self: Any) -> Iterator[None]:
        with plain_moment(self):
            is_open.append(True)
            at_once.append(0)
            yield
            is_open.pop()

    monkeypatch.setattr(reading, "_table", table)
    monkeypatch.setattr(reading, "at_one_moment", moment)
    lake, address = Lake(tmp_path / "lake"), StoreAddress(str(whole.store))
    names = ["continuity", "orphans", "digest", "retention"]
    with lake.writing():
        for full in (True, False):
            verdicts = run_checks(names, spark, address, lake, full=full, seed=1)
            assert all(verdict.is_sound for verdict in verdicts)
    assert sum(read) > 2 * address.head().committed_id, "the whole log, and rows beside it"
    assert max(read) <= page * 8, "a page; or what belongs to as many messages"
    assert max(at_once, default=0) <= 4, "the head and the incarnations, and no rows"


class Sessions:
    """What PostgreSQL says of the sessions of the pipeline, asked after each of their reads."""

    def __init__(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.url = url
        self.settings = set[tuple[str, str]]()
        self.states = Counter[tuple[str, bool]]()
        """How often a session was in a state, and whether it had a transaction."""
        reading: Any = store_address._Reading
        plain = reading._table

        def table(this: Any, text: str, values: tuple[Any, ...], most: int) -> Any:
            rows = plain(this, text, values, most)
            with this._connection.cursor() as cursor:
                cursor.execute(
                    "SELECT current_setting('statement_timeout'), "
                    "current_setting('idle_in_transaction_session_timeout')"
                )
                self.settings.add(tuple(cursor.fetchone()))
            self.states.update(self.look())
            return rows

        monkeypatch.setattr(reading, "_table", table)

    def look(self) -> list[tuple[str, bool]]:
        """Every session of the pipeline: its state, and whether it has a transaction."""
        return asyncio.run(self._look())

    async def _look(self) -> list[tuple[str, bool]]:
        connection = await asyncpg.connect(self.url)
        try:
            rows = await connection.fetch(
                "SELECT state, xact_start IS NOT NULL FROM pg_stat_activity "
                "WHERE datname = current_database() AND application_name = 'tidelog pipeline'"
            )
            return [tuple(row) for row in rows]
        finally:
            await connection.close()


def test_postgresql_ends_what_would_hold_it(
    spark: "SparkSession",
    postgresql_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A check has no transaction between two reads, and PostgreSQL ends one of ten seconds.

    It says so itself: of each session, and by cancelling a read that waits for a lock.
    """
    monkeypatch.setattr(run, "CHECKS_AT_ONCE", 1)
    mixed_log.write(postgresql_url, 100, 3)
    lake, address = Lake(tmp_path / "lake"), StoreAddress(postgresql_url)
    names = ["continuity", "orphans", "digest", "retention"]
    with monkeypatch.context() as watched, lake.writing():
        sessions = Sessions(postgresql_url, watched)
        assert all(each.is_sound for each in run_checks(names, spark, address, lake, full=True))
    assert sessions.settings == {("10s", "10s")}
    assert sessions.states["idle", False] > sessions.states["idle in transaction", True]
    assert set(sessions.states) <= {("idle", False), ("idle in transaction", True)}
    assert set(sessions.look()) <= {("idle", False)}, "what is kept for the next read"

    monkeypatch.setattr(store_address, "PAGE_MS", 200)
    with lake.writing(), pytest.raises(StoreUnavailable, match="statement timeout"):
        asyncio.run(locked(postgresql_url, lambda: run_checks(names, spark, address, lake)))
    assert set(sessions.look()) <= {("idle", False)}, "what is kept for the next read"


async def locked(url: str, act: Callable[[], object]) -> None:
    """Do something while nobody can read the log."""
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            await connection.execute("LOCK TABLE tidelog.log IN ACCESS EXCLUSIVE MODE")
            await asyncio.to_thread(act)
    finally:
        await connection.close()


KILLED = """
import os, signal, sys
from pathlib import Path
from support.pipeline.killed_job import attached_session
from tidelog.pipeline.checks.run import run_checks
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.source.store_address import StoreAddress

def told(verdict):
    if sys.argv[3] == "middle":
        os.kill(os.getpid(), signal.SIGKILL)

lake, names = Lake(Path(sys.argv[2])), ("continuity", "digest")
with lake.writing():
    run_checks(names, attached_session(), StoreAddress(sys.argv[1]), lake, told=told)
"""


@pytest.mark.parametrize("when", ["middle", "end"])
def test_a_killed_check_notes_nothing(log: Log, spark: "SparkSession", when: str) -> None:
    """Neither with a verdict told and another one to come, nor just before they are kept.

    The next check examines all that was to be examined, and finds what there is.
    """
    log.check()
    log.grow(20)
    log.change("UPDATE log SET actor = 'mallory' WHERE committed_id = 310")
    left = log.lake.root / FOLDER / "left"
    left.mkdir(parents=True)
    fault = f"{FaultPoint.LAKE_WRITTEN}=kill"
    run_killed(spark, KILLED, str(log.location), str(log.lake.root), when, fault=fault)
    assert log.noted == [ENTRIES] * 2
    continuity, digest = log.check()
    assert continuity.ranges[-1] == digest.ranges[-1] == Range(ENTRIES, ENTRIES + 20)
    assert continuity.is_sound
    assert [(each.rule, each.where) for each in digest.findings] == [("chain", "entry 310")]
    assert log.noted == [ENTRIES + 20, ENTRIES]
    assert not left.exists()


def test_ranges() -> None:
    """They are merged where they touch, and positions far apart are read apart."""
    assert merged([Range(5, 9), Range(0, 3), Range(2, 5), Range(7, 7)]) == (Range(0, 9),)
    assert merged([Range(5, 9), Range(0, 3)]) == (Range(0, 3), Range(5, 9))
    assert merged([]) == ()
    assert old_range(0, 1) is None
    assert old_range(40, 1) == Range(0, 40)
    large = old_range(100_000_000, 3)
    assert large is not None
    assert large.entries == extent.OLD_MOST
    assert Extent(Range(9, 9), Range(0, 5)).ranges == (Range(0, 5),)
    assert intervals_of([]) == ()
    assert intervals_of([5]) == (Range(4, 5),)
    spread = [number * 1000 + part for number in range(100) for part in range(3)]
    found = intervals_of(spread)
    assert len(found) == INTERVALS
    assert all(any(each.after < at <= each.through for each in found) for at in spread)
