"""Retention by age: old content is in no table any more, and nothing else is lost or called so."""

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.pipeline import mixed_log
from support.pipeline.killed_job import run_killed
from support.pipeline.table_rows import table_rows
from support.pipeline.typed_command import Command
from support.pipeline.whole_pipeline import PARTITION, WholeLake, whole_model, write_config
from tidelog.base import faultpoint
from tidelog.base.faultpoint import FaultPoint
from tidelog.pipeline.as_of import AsOf, as_of, as_of_here
from tidelog.pipeline.checks.run import run_checks
from tidelog.pipeline.fill import aging
from tidelog.pipeline.fill.aging import age, too_old
from tidelog.pipeline.fill.derived_tables import build, buildable
from tidelog.pipeline.fill.ingest import ingest, roll_back
from tidelog.pipeline.fill.rebuild import rebuild
from tidelog.pipeline.fill.sync_model import model_in_use
from tidelog.pipeline.forget import forget
from tidelog.pipeline.lake.errors import LakeError
from tidelog.pipeline.lake.horizon import AGING, BASE, begun_horizon, horizon
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.lake.notes import AGED
from tidelog.pipeline.lake.replacing import Gone
from tidelog.pipeline.search.index import search
from tidelog.pipeline.search.index_build import update_index
from tidelog.pipeline.source.store_address import StoreAddress
from tidelog.pipeline.tables import BY_NAME, TABLES_WITH_CONTENT
from tidelog.pipeline.transforms.messages import fold, message_versions
from tidelog.sync.protocol.profiles import TREE_ACTIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelog.pipeline.transforms.snapshots import ModelSource

LAST = 300
"""The horizon: about the middle of the log of these tests."""

LAKE_CHECKS = ("agreement", "tables")
"""The checks that look at the lake; the store, which others look at, keeps its content."""


@pytest.fixture(scope="module")
def aged(
    spark: "SparkSession", whole: WholeLake, tmp_path_factory: pytest.TempPathFactory
) -> WholeLake:
    """A lake whose older half has no content; to be left as it is."""
    copy = whole.copy(tmp_path_factory.mktemp("aged") / "data")
    lake = copy.lake
    with lake.writing():
        done = age(spark, lake, LAST, source_of(copy))
        update_index(spark, lake)
    assert done == (LAST, AGING)
    return copy


def source_of(whole: WholeLake) -> "ModelSource":
    """The model of the partitions."""
    return model_in_use(StoreAddress(str(whole.store)), whole_model())


def content(lake: Lake, name: str) -> list[dict[str, Any]]:
    """All rows of a table, in order."""
    rows = lake.arrow(name).to_pylist()
    return sorted(rows, key=lambda row: tuple(str(row[column]) for column in BY_NAME[name].key))


def contents(lake: Lake) -> dict[str, list[dict[str, Any]]]:
    """All rows of the tables that have content, and of the states."""
    return {name: content(lake, name) for name in (*AGING, "snapshot")}


def unsound(
    spark: "SparkSession", whole: WholeLake, *names: str, full: bool = True
) -> dict[str, str]:
    """What checks find, in words."""
    address, lake = StoreAddress(str(whole.store)), whole.lake
    with lake.writing():
        verdicts = run_checks(
            names, spark, address, lake, model=source_of(whole), full=full, seed=3
        )
    told = {each.check: str(each) for each in verdicts}
    assert {name for name in ("agreement", "tables") if "removed by age" in told.get(name, "")} == {
        name for name in ("agreement", "tables") if name in told
    }, told
    return {each.check: str(each) for each in verdicts if not each.is_sound}


def test_only_the_content_before_the_horizon_is_gone(whole: WholeLake, aged: WholeLake) -> None:
    """Positions, times, actors and digests are what they were, and so is all that came later."""
    for name in TABLES_WITH_CONTENT:
        table = BY_NAME[name]
        place = "last_committed_id" if name == "message" else "committed_id"
        had = 0
        for was, now in zip(content(whole.lake, name), content(aged.lake, name), strict=True):
            if was[place] > LAST and name != "message":
                assert now == was
                continue
            if was[place] > LAST and now["is_complete"]:
                assert now == was, "a message that says all by itself"
                continue
            changed = {column for column in was if was[column] != now[column]}
            if name == "message" and was[place] > LAST:
                assert changed <= {"data", "is_complete", "history_serial"}
                continue
            had += bool(changed)
            assert changed <= {*table.content, table.content_flag, "history_serial"}
            assert {now[column] for column in table.content} == {None}
        assert had, name
    assert content(aged.lake, "snapshot") == content(whole.lake, "snapshot")
    assert content(aged.lake, "audit") == content(whole.lake, "audit")
    assert {aged.lake.noted(name, AGED) for name in AGING} == {LAST}
    bases = content(aged.lake, BASE)
    assert bases
    assert all(0 < row["committed_id"] <= LAST for row in bases)


def test_checks_are_sound_and_say_what_was_removed(
    spark: "SparkSession", whole: WholeLake, aged: WholeLake, tmp_path: Path
) -> None:
    """All of it and parts of it; content that is there all the same is a finding."""
    copy = aged.copy(tmp_path / "data")
    assert unsound(spark, copy, *LAKE_CHECKS) == {}
    assert unsound(spark, copy, *LAKE_CHECKS, full=False) == {}
    was = next(row for row in whole.lake.arrow("log").to_pylist() if row["body"])
    at = was["committed_id"]
    assert at <= LAST
    lake = copy.lake
    rows = [row for row in content(lake, "log") if row["committed_id"] != at]
    planted = pa.Table.from_pylist([*rows, was], lake.arrow("log").schema)
    frame = spark.createDataFrame(planted).to(lake.frame(spark, "log").schema)
    lake.overwrite("log", frame, lake.through("log"))
    told = unsound(spark, copy, "agreement")["agreement"]
    assert f"entry {at}: is too old and has content" in told


def test_nothing_brings_it_back(
    spark: "SparkSession", whole: WholeLake, aged: WholeLake, tmp_path: Path
) -> None:
    """The store has all of it still; tables that are built anew are what they were without it."""
    copy = aged.copy(tmp_path / "data")
    lake, address = copy.lake, StoreAddress(str(copy.store))
    before = contents(lake)
    build(spark, lake, address, full=True, model=whole_model())
    rebuild(spark, lake, address, "changes")
    assert contents(lake) == before
    assert content(lake, "snapshot") == content(whole.lake, "snapshot")
    assert unsound(spark, copy, "tables") == {}


def test_a_message_that_is_too_old_is_not_found(whole: WholeLake, aged: WholeLake) -> None:
    """The search index follows."""
    names = {
        row["message_serial"]: row["name"]
        for row in content(whole.lake, "message")
        if row["last_committed_id"] <= LAST and (row["name"] or "").startswith("n-")
    }
    serial, name = next(
        (serial, name)
        for serial, name in names.items()
        if any(hit.message_serial == serial for hit in hits(whole.lake, name))
    )
    assert serial not in [hit.message_serial for hit in hits(aged.lake, name)]


def hits(lake: Lake, name: str) -> list[Any]:
    """Messages of a name."""
    return list(search(lake.root, f'name:"{name}"', limit=100).hits)


def test_the_past_after_the_horizon_can_be_told(
    spark: "SparkSession", whole: WholeLake, aged: WholeLake
) -> None:
    """The state of a partition goes on from what its events had made; before that, it is said."""
    source, at = source_of(whole), LAST + 100

    def states(lake: Lake) -> list[AsOf]:
        here = as_of_here(lake, at, "partition", PARTITION, source)
        assert here is not None
        return [here, as_of(spark, lake, at, "partition", PARTITION, source)]

    before, now = states(whole.lake), states(aged.lake)
    assert [each.rows.to_pylist() for each in now] == [each.rows.to_pylist() for each in before]
    assert now[0].rows.num_rows == 1
    for kind, name in (("partition", PARTITION), ("channel", "a/b"), ("mesh", "m")):
        with pytest.raises(LakeError, match=r"was removed by age, .* after 300"):
            as_of_here(aged.lake, LAST, kind, name, source)  # type: ignore[arg-type]


KILLED = """
import sys
from pathlib import Path
from support.pipeline.killed_job import attached_session
from support.pipeline.whole_pipeline import whole_model
from tidelog.pipeline.fill.aging import age
from tidelog.pipeline.fill.sync_model import model_in_use
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.source.store_address import StoreAddress

root, store = sys.argv[1:]
age(attached_session(), Lake(Path(root)), 300, model_in_use(StoreAddress(store), whole_model()))
"""


def test_a_kill_at_any_commit_leaves_a_sound_lake(
    spark: "SparkSession",
    whole: WholeLake,
    aged: WholeLake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It dies by `kill -9`, and fails after every other commit; a build finishes it."""
    copy = whole.copy(tmp_path / "data")
    lake, source = copy.lake, source_of(copy)
    run_killed(
        spark, KILLED, str(lake.root), str(copy.store), fault=f"{FaultPoint.LAKE_COMMITTED}=kill"
    )
    assert begun_horizon(lake) == LAST
    with pytest.raises(LakeError, match=r"is being removed by age, .* after 300"):
        as_of_here(lake, 100, "partition", PARTITION, source)
    failures = 0
    while begun_horizon(lake) is not None:
        armed = faultpoint._parse(f"{FaultPoint.LAKE_COMMITTED}=enospc")
        monkeypatch.setattr(faultpoint, "_armed", armed)
        with lake.writing(), pytest.raises(OSError, match="injected"):
            age(spark, lake, LAST, source)
        monkeypatch.undo()
        failures += 1
        assert failures < 20, "each time it goes on from where it was"
        if failures == 3:
            address = StoreAddress(str(copy.store))
            [verdict] = run_checks(["tables"], spark, address, lake, model=source)
            assert verdict.total == 0, str(verdict)
            assert "removing content by age was not finished" in str(verdict)
    assert failures >= len(TABLES_WITH_CONTENT)
    with lake.writing():
        build(spark, lake, StoreAddress(str(copy.store)), model=whole_model())
    assert contents(lake) == contents(aged.lake)


def test_a_state_that_cannot_be_told_is_not_continued(
    spark: "SparkSession", aged: WholeLake, tmp_path: Path
) -> None:
    """Content that was lost, and a state of another model: later events alone make no state."""
    copy = aged.copy(tmp_path / "data")
    lake, source, at = copy.lake, source_of(copy), LAST + 100
    bases = {row["partition"]: row for row in content(lake, BASE)}
    new = [row for row in content(lake, "event") if LAST < row["committed_id"] <= at]
    touched = sorted({row["partition"] for row in new} & bases.keys())
    trees = (row for row in new if row["type"] in TREE_ACTIONS and row["event"])
    pruned = next(row for row in trees if row["partition"] in touched)
    other, *rest = (name for name in touched if name != pruned["partition"])
    for name, was, value in (
        (BASE, bases[other], {"model_version": source.model_version + 1}),
        ("event", pruned, {"event": None}),
    ):
        rows = pa.Table.from_pylist([was | value], lake.arrow(name).schema)
        gone = Gone(rows.select(BY_NAME[name].key))
        lake.replace(name, lake.through(name), [gone], rows)
    for through in (at, at + 100):
        age(spark, lake, through, source)
        told = {row["partition"]: row for row in content(lake, BASE)}
        assert not told.keys() & {pruned["partition"], other}
        went_on = told.keys() & set(rest)
        assert went_on
        assert all(told[name]["committed_id"] > LAST for name in went_on)


def test_what_is_forgotten_takes_the_states_with_it(
    spark: "SparkSession", aged: WholeLake, tmp_path: Path
) -> None:
    """An event whose content is too old was in states all the same."""
    copy = aged.copy(tmp_path / "data")
    for name in set(buildable()) - {"event", "snapshot"}:  # each costs a second to be rewritten
        shutil.rmtree(copy.lake.path(name))
    base = content(copy.lake, BASE)[0]["partition"]
    of_base = [("partition", "=", base), ("committed_id", "<=", LAST)]
    event = copy.lake.arrow("event", ["event_id"], of_base)["event_id"][0].as_py()
    done = forget(spark, copy.lake, messages=[event])
    assert base in done.partitions
    for name in (BASE, "snapshot"):
        assert base not in [row["partition"] for row in content(copy.lake, name)]
    assert unsound(spark, copy, "tables") == {}


def test_the_horizon_is_rolled_back_with_the_log(
    spark: "SparkSession", aged: WholeLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that went back before it is read again with its content, and the tables follow."""
    copy, shared = aged.copy(tmp_path / "data"), LAST - 100
    lake, address = copy.lake, StoreAddress(str(copy.store))
    monkeypatch.setattr("tidelog.pipeline.fill.ingest._shared_position", lambda *_: shared)
    assert roll_back(address, lake) == shared
    assert horizon(lake) == shared
    assert begun_horizon(lake) is None
    assert all(row["committed_id"] <= shared for row in content(lake, BASE))
    assert lake.through("log") == shared
    monkeypatch.undo()
    with lake.writing():
        ingest(spark, address, lake)
        build(spark, lake, address, model=whole_model())
        update_index(spark, lake)
    bodies = {row["committed_id"]: row["body"] for row in content(lake, "log")}
    assert not any(bodies[at] for at in range(1, shared + 1))
    assert any(bodies[at] for at in range(shared + 1, LAST + 1))
    assert unsound(spark, copy, "tables") == {}


# Where the horizon belongs, and what moving it costs.

DAY_MS = 86_400_000
BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
APP: dict[str, Any] = {"stream": "channels/app/room", "surface": "channels", "actor": "ana"}


def entry(at: int, entity: str, kind: str = "create", text: str = "") -> dict[str, Any]:
    """A version of a message; one comes every six hours."""
    body = (
        f'{{"message_id":"i","history_serial":{entity[1:]},"data":"{text or at}","data_bytes":9}}'
    )
    return {
        **APP,
        "committed_id": at,
        "stream_serial": at,
        "kind": f"message.{kind}",
        "entity": entity,
        "committed_at": int(BEGIN.timestamp() * 1000) + (at - 1) * DAY_MS // 4,
        "body": body.encode(),
        "body_digest": bytes(16),
        "digest": at.to_bytes(16, "big"),
    }


LOG = (
    entry(1, "m1"),
    entry(2, "m2"),
    entry(3, "m3"),
    entry(4, "m3", "append", "new"),
    entry(5, "m2", "update"),
    entry(6, "m3", "append", "newer"),
    entry(7, "m4"),
    entry(8, "m2", "append"),
    entry(9, "m5"),
    entry(10, "m6"),
)


@pytest.fixture(scope="module")
def small_once(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A lake of three files of each table, with ten entries of two and a half days."""
    lake = Lake(tmp_path_factory.mktemp("small") / "lake")
    log = table_rows(spark, "log", *LOG)
    for after, through in ((0, 3), (3, 6), (6, 10)):
        part = log.where(f"committed_id > {after} AND committed_id <= {through}").coalesce(1)
        lake.append("log", part, through)
        lake.append("message_version", message_versions(part), through)
    lake.append("message", fold(lake.frame(spark, "message_version")).coalesce(1), 10)
    for name in ("changes", "event", "send", "snapshot"):
        lake.append(name, table_rows(spark, name), 10)
    return lake


@pytest.fixture
def small(small_once: Lake, tmp_path: Path) -> Lake:
    """A copy of it, to be changed."""
    shutil.copytree(small_once.root, tmp_path / "small")
    return Lake(tmp_path / "small")


def test_the_horizon_moves_by_full_days(small: Lake) -> None:
    """To the last entry before a midnight, never back, and not before all tables have it."""

    def belongs(kept: int, **later: float) -> int:
        return too_old(small, kept, BEGIN + timedelta(**later))

    assert belongs(0, days=90) == 0
    assert belongs(2, days=2, hours=23) == 0
    assert belongs(2, days=3) == belongs(2, days=3, hours=23) == 4
    assert belongs(1, days=3) == 8
    assert belongs(30, days=90) == 10
    small.outdate("send")
    assert belongs(30, days=90) == 0


def test_files_behind_and_after_the_horizon_are_left(
    spark: "SparkSession", small: Lake, whole: WholeLake
) -> None:
    """The file in which it lies is written again, and those that it passes."""
    source = source_of(whole)

    def replaced(through: int) -> list[int]:
        before = {file: first_in(file) for file in small.files("log")}
        age(spark, small, through, source)
        return sorted(before[file] for file in before.keys() - set(small.files("log")))

    assert replaced(2) == [1]
    assert replaced(5) == [1, 4]
    assert replaced(5) == []
    assert replaced(6) == [4]
    assert replaced(10) == [7]


def first_in(file: str) -> int:
    """The first position in a file."""
    return int(min(pq.read_table(file, columns=["committed_id"])["committed_id"].to_pylist()))


def test_a_message_keeps_what_its_newer_versions_say(
    spark: "SparkSession", small: Lake, whole: WholeLake
) -> None:
    """An update says all of it; what was only appended to is not complete any more."""
    age(spark, small, 4, source_of(whole))
    rows = {row["message_serial"]: row for row in small.arrow("message").to_pylist()}
    assert {name: (row["data"], row["is_complete"]) for name, row in rows.items()} == {
        "m1": (None, False),
        "m2": ('"58"', True),
        "m3": (None, False),
        "m4": ('"7"', True),
        "m5": ('"9"', True),
        "m6": ('"10"', True),
    }
    assert (rows["m3"]["history_serial"], rows["m3"]["versions"], rows["m3"]["appends"]) == (
        3,
        3,
        2,
    )
    anew = fold(small.frame(spark, "message_version")).toArrow().to_pylist()
    assert sorted(anew, key=lambda row: str(row["message_serial"])) == sorted(
        rows.values(), key=lambda row: str(row["message_serial"])
    )


def test_messages_that_are_rebuilt_are_left_to_that(
    spark: "SparkSession", small: Lake, whole: WholeLake
) -> None:
    """And one without versions is no reason to fail, nor taken for another."""
    source = source_of(whole)
    gone = Gone(pa.table({"message_serial": ["m2"]}))
    small.replace("message_version", 10, [gone])
    before = {row["message_serial"]: row for row in small.arrow("message").to_pylist()}
    age(spark, small, 4, source)
    rows = {row["message_serial"]: row for row in small.arrow("message").to_pylist()}
    assert rows["m2"] == before["m2"]
    assert (rows["m3"]["data"], rows["m3"]["is_complete"]) == (None, False)
    small.outdate("message")
    age(spark, small, 5, source)
    assert (small.through("message"), small.noted("message", AGED)) == (0, 5)
    assert begun_horizon(small) is None


def test_a_log_that_goes_back_twice_takes_all_horizons_along(small: Lake) -> None:
    """Also of tables that were not built in between; those that are not there do not begin."""
    for shared in (5, 3):
        for name in ("send", "mention"):
            small.outdate(name, {AGED: shared})
        assert small.noted("send", AGED) == shared
    assert small.delta("mention") is None


def test_a_setting_removes_old_content(
    spark: "SparkSession", command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run does it once; then nothing is to be done until the next day.

    Of a small log of channels; that every table is emptied is tested above.
    """
    del spark
    location = str(tmp_path / "tidelog.db")
    mixed_log.write(location, 40, 7, surfaces=("channels",), with_retention=False)
    write_config(tmp_path)
    config = tmp_path / "tidelog.toml"
    config.write_text(config.read_text() + "\n[pipeline]\nretention_days = 2\n")
    young = command("run", "--json", "--config", str(config))
    assert (young.code, young.json()["retention"]) == (0, None), young.err
    assert young.json()["index"]["documents"] > 0
    through = young.json()["ingest"]["through"]
    later = datetime.now(UTC) + timedelta(days=4)
    monkeypatch.setattr(aging, "utc_now", lambda: later)
    ran = command("run", "--json", "--config", str(config))
    assert ran.code == 0, ran.err
    moved = [name for name in AGING if name != BASE]  # no event has made a state
    assert ran.json()["retention"] == {"through": through, "tables": moved}
    assert ran.json()["index"]["documents"] == 0
    assert {row["body"] for row in content(Lake(tmp_path / "lake"), "log")} == {None}

    def started(*_arguments: object, **_options: object) -> None:
        raise AssertionError("a session was asked for")

    monkeypatch.setattr("tidelog.cli.pipeline.commands.spark_if_needed", started)
    again = command("run", "--json", "--config", str(config))
    assert (again.code, again.json()["retention"]) == (0, None)
    told = command("as-of", str(through), "channel", "a/b", "--config", str(config))
    assert told.code == 1
    assert "was removed by age" in told.err
