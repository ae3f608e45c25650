"""What is little and plainly sound is told without Spark; what is damaged never is."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from support.pipeline import mixed_log
from support.pipeline.check_evidence import looked_at
from tidelog.pipeline.checks import plain_tables
from tidelog.pipeline.checks.extent import Extent, Range
from tidelog.pipeline.checks.plain_bronze import is_plainly_the_same
from tidelog.pipeline.checks.plain_channels import is_plainly_sound
from tidelog.pipeline.checks.run import run_checks
from tidelog.pipeline.checks.view import View
from tidelog.pipeline.fill.derived_tables import build, buildable
from tidelog.pipeline.fill.ingest import catch_up, ingest
from tidelog.pipeline.fill.sync_model import model_in_use
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.lake.notes import AGED
from tidelog.pipeline.lake.replacing import Gone
from tidelog.pipeline.lazy_spark import LazySpark
from tidelog.pipeline.search.index_build import update_index
from tidelog.pipeline.source.store_address import StoreAddress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENTRIES = 300

_VERSION = "(SELECT max(committed_id) FROM channels_version)"
_MESSAGE = "(SELECT max(message) FROM channels_message)"
_KEY = "(SELECT max(committed_id) FROM dedupe WHERE scope LIKE 'channels/%/append')"
_ENTRY = "(SELECT max(committed_id) FROM log WHERE body IS NOT NULL)"

DAMAGES = (
    f"INSERT INTO channels_version VALUES ({_MESSAGE}, 900000)",
    f"DELETE FROM channels_version WHERE committed_id = {_VERSION}",
    f"UPDATE channels_version SET message = 1 WHERE committed_id = {_VERSION}",
    f"DELETE FROM channels_message WHERE message = {_MESSAGE}",
    f"UPDATE channels_message SET stream = 'channels/tide/x' WHERE message = {_MESSAGE}",
    f"UPDATE channels_message SET message = 900000 WHERE message = {_MESSAGE}",
    f"DELETE FROM dedupe WHERE committed_id = {_KEY}",
    f"UPDATE dedupe SET scope = 'channels/tide/x' WHERE committed_id = {_KEY}",
    f"UPDATE dedupe SET committed_id = 900000 WHERE committed_id = {_KEY}",
    f"UPDATE dedupe SET first_seen_at = 1 WHERE committed_id = {_KEY}",
    f"UPDATE log SET body = NULL WHERE committed_id = {_ENTRY}",
    f"UPDATE log SET entity = 'x' WHERE committed_id = {_ENTRY}",
)
"""Each breaks a rule of `orphans` that is of channels."""


def started() -> "SparkSession":
    """Nobody may need Spark here."""
    raise AssertionError("Spark was needed")


class _Enough(Exception):  # noqa: N818 - no failure
    """Half of the log is in the lake."""


def _enough(_progress: object) -> None:
    raise _Enough


NO_SPARK = LazySpark(started, is_local=True)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of channels alone, with keys."""
    path = tmp_path_factory.mktemp("channels") / "tidelog.db"
    mixed_log.write(str(path), ENTRIES, 5, surfaces=("channels",), with_retention=False)
    return path


def test_channels_are_built_and_checked_without_spark(store: Path, tmp_path: Path) -> None:
    """All tables, the index and all checks, of half of the log and then of what is new."""
    path, lake = tmp_path / "tidelog.db", Lake(tmp_path / "lake")
    shutil.copyfile(store, path)
    address = StoreAddress(str(path))
    head = address.head().committed_id
    now_ms, model = address.head().committed_at, model_in_use(address, None)
    with pytest.raises(_Enough):
        ingest(NO_SPARK, address, lake, batch_rows=head // 2, progress=_enough)
    for through in (head // 2, head):
        built = build(NO_SPARK, lake, address)
        assert {each.through for each in built} == {through}
        update_index(NO_SPARK, lake)
        for full in (False, True):
            verdicts = run_checks(
                (), NO_SPARK, address, lake, model=model, now_ms=now_ms, seed=1, full=full
            )
            assert [str(each) for each in verdicts if not each.is_sound] == []
            examined = {each.check: each.examined for each in verdicts}
            assert examined["agreement"] >= (through if full else head // 2)
            rows = sum(lake.rows(name) for name in buildable())
            assert examined["tables"] == rows if full else examined["tables"] > 0
        assert catch_up(address, lake)


def test_no_damage_is_plainly_sound(store: Path, tmp_path: Path) -> None:
    """In all of the log and in a part of it; the store without damage is."""
    for ranges in ((), (Range(1, StoreAddress(str(store)).head().committed_id),)):
        assert is_plainly_sound(looked_at(NO_SPARK, str(store), tmp_path, *ranges))
        for damage in DAMAGES:
            copy = tmp_path / "damaged.db"
            shutil.copyfile(store, copy)
            with closing(sqlite3.connect(copy)) as connection, connection:
                assert connection.execute(damage).rowcount == 1, damage
            taken = looked_at(NO_SPARK, str(copy), tmp_path, *ranges)
            assert not is_plainly_sound(taken), damage


def test_all_of_a_table_is_looked_at(store: Path, tmp_path: Path) -> None:
    """Also what another table does not have yet, and a row without a position."""
    address, lake = StoreAddress(str(store)), Lake(tmp_path / "lake")
    ingest(NO_SPARK, address, lake)
    build(NO_SPARK, lake, address)
    update_index(NO_SPARK, lake)
    shutil.copytree(lake.root, tmp_path / "other")

    def examined(lake: Lake) -> int:
        [verdict] = run_checks(["tables"], NO_SPARK, address, lake, seed=1, full=True)
        assert verdict.is_sound, str(verdict)
        return verdict.examined

    def changed(column: str, value: pa.Array) -> pa.Table:
        return row.set_column(row.column_names.index(column), column, value)

    assert examined(lake) == sum(lake.rows(name) for name in buildable())
    head = lake.through("audit")
    row = lake.arrow("audit", where=[("committed_id", "=", head)])
    lake.replace("audit", head, [], changed("committed_id", pa.nulls(1, pa.int64())))
    with pytest.raises(AssertionError, match="Spark was needed"):
        examined(lake)
    other = Lake(tmp_path / "other")
    gone = Gone(row.select(["committed_id"]))
    other.replace("audit", head, [gone], changed("actor", pa.array(["somebody"])))
    other.cut("changes", head // 2)
    with pytest.raises(AssertionError, match="Spark was needed"):
        examined(other)


def test_content_that_is_too_old_is_not_plainly_the_same(store: Path, tmp_path: Path) -> None:
    """The store has it, and the lake says that it has none."""
    address, lake = StoreAddress(str(store)), Lake(tmp_path / "lake")
    head = ingest(NO_SPARK, address, lake)
    everything, evidence = [Range(0, head)], looked_at(NO_SPARK, str(store), tmp_path)
    assert is_plainly_the_same(evidence, lake, everything, head)
    lake.replace("log", head, [], notes={AGED: head // 2})
    assert not is_plainly_the_same(evidence, lake, everything, head)


def test_few_messages_are_held_at_once(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are wanted, and of more than the limit none."""
    address, lake = StoreAddress(str(store)), Lake(tmp_path / "lake")
    head = ingest(NO_SPARK, address, lake)
    build(NO_SPARK, lake, address)
    part = Range(head // 2, head)
    evidence = looked_at(NO_SPARK, str(store), tmp_path, part)
    view = View(NO_SPARK, lake, evidence, Extent(part), None, address.head().committed_at)
    held = plain_tables._held_messages(view)
    assert held is not None
    assert 0 < held.num_rows == len(view.messages) < lake.rows("message")
    monkeypatch.setattr(plain_tables, "MOST_BYTES", 1)
    assert plain_tables._held_messages(view) is None
