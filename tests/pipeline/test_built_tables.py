"""The check of the built tables: a forged or deleted row of any of them is a finding.

Rows are forged in two ways: as another program would, which breaks the seal, and as the pipeline
writes, so that only what the row says can be wrong.
"""

import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from support.log.log_writer import draft, write_log
from support.pipeline import mixed_log
from support.pipeline.check_evidence import looked_at
from support.pipeline.whole_pipeline import ENTRIES, WholeLake
from support.sync.peer import MODEL
from tidelog.pipeline.checks import tables
from tidelog.pipeline.checks.extent import Extent, Range
from tidelog.pipeline.checks.finding import Verdict
from tidelog.pipeline.checks.view import View
from tidelog.pipeline.fill.aging import age
from tidelog.pipeline.fill.derived_tables import build, buildable
from tidelog.pipeline.forget import forget
from tidelog.pipeline.frames import arrow_schema
from tidelog.pipeline.lake.forgetting import begin_forgetting
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.lake.notes import ALTERATIONS
from tidelog.pipeline.lake.replacing import written
from tidelog.pipeline.search.index import index_root, read_manifest
from tidelog.pipeline.search.index_build import update_index
from tidelog.pipeline.source.store_address import StoreAddress
from tidelog.pipeline.tables import BY_NAME, TABLES, Table
from tidelog.pipeline.transforms.snapshots import ModelSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOURCE = ModelSource(
    {name: target["kind"] for name, target in MODEL["tree_targets"].items()},
    MODEL["model_version"],
)


class Made(NamedTuple):
    """A store and a lake of it."""

    store: Path
    lake: Lake


def copied(whole: WholeLake, folder: Path) -> Made:
    """Another lake of the same store."""
    shutil.copytree(whole.lake.root, folder / "lake")
    return Made(whole.store, Lake(folder / "lake"))


def only(lake: Lake, *names: str) -> None:
    """Leave no other built table: each that is there costs the check a second."""
    for name in set(buildable()) - {*names}:
        shutil.rmtree(lake.path(name))


def checked(
    spark: "SparkSession", made: Made, now_ms: int | None = None, extent: Extent | None = None
) -> Verdict:
    """The verdict on the tables, or on a part of them."""
    extent = extent or Extent(Range(0, made.lake.through("log")))
    taken = looked_at(spark, str(made.store), made.lake.root, *extent.ranges)
    now_ms = int(time.time() * 1000) if now_ms is None else now_ms
    return tables.confirmed(View(spark, made.lake, taken, extent, SOURCE, now_ms))


def in_parts(lake: Lake) -> Extent:
    """All of a lake in two ranges, so that it is not looked at as a whole."""
    return Extent(Range(100, lake.through("log")), Range(0, 100))


def test_what_was_built_is_sound(whole: WholeLake) -> None:
    """Every row of every table, and the index, were made a second time and are the same."""
    [verdict] = [each for each in whole.result["checks"] if each["check"] == "tables"]
    assert verdict["is_sound"]
    rows = sum(whole.lake.rows(name) for name in buildable())
    assert verdict["examined"] == rows > ENTRIES


FORGED = {"bigint": 900_000, "double": 0.125, "string": "forged"}


def forgery(table: Table) -> tuple[str, Any]:
    """The last column of a table that no row is named by and that `FORGED` has a value for."""
    for column in reversed(table.columns):
        if column.name not in table.key and column.kind in FORGED:
            return column.name, FORGED[column.kind]
    raise AssertionError(f"no column of {table.name} can be forged: add a kind of it to FORGED")


FORGERIES: dict[str, tuple[str, Any]] = {
    "message_version": ("actor", "mallory"),
    "event": ("client_id", "mallory"),
    "send": ("priority", "whenever"),
    "delivery": ("history_id", 900_000),
    "mention": ("history_id", 900_000),
    "dedupe": ("owner", "mallory"),
    "activity": ("writes", 900_000),
    "audit": ("actor", "mallory"),
    "changes": ("actor", "mallory"),
    "message": ("data", '"forged"'),
    "snapshot": ("state", "{}"),
    # What is made anew of its input may change nowhere: one column stands for the others.
    **{table.name: forgery(table) for table in TABLES if table.made_by},
}
"""By table: a column of one row that is changed, and to what."""

FOLLOWS = {name for name in FORGERIES if {*BY_NAME[name].inputs} - {"log"}}
"""Tables that are made of others: with those they are wrong too."""

APART = (sorted(FORGERIES.keys() - FOLLOWS), sorted(FOLLOWS))
"""Tables of which none is made of another one in the same line."""


def write(lake: Lake, name: str, rows: list[dict[str, Any]]) -> None:
    """Let a table have these rows, as if the pipeline had made them."""
    table = BY_NAME[name]
    made_of = table.inputs[0] if table.made_by else None
    whole = pa.Table.from_pylist(rows, arrow_schema(table))
    files = written(whole, table.order, lake.new_folder(name))
    lake.overwrite_files(name, files, lake.through(name), made_of=made_of)


def forge(lake: Lake, name: str) -> set[tuple[str, str, str]]:
    """Write a table as the pipeline does, one row changed and one deleted; returns the findings."""
    column, value = FORGERIES[name]
    rows = lake.arrow(name).to_pylist()
    rows.sort(key=lambda row: _key(name, row))
    assert len(rows) >= 2, f"the log of these tests makes too few rows of {name}: see mixed_log.py"
    changed, deleted, kept = rows[0], rows[1], rows[2:]
    assert changed[column] != value
    write(lake, name, [{**changed, column: value}, *kept])
    return {
        (name, f"row {_key(name, changed)}", f"is not what it is made of: {column}"),
        (name, f"row {_key(name, deleted)}", "is not there"),
    }


def _key(name: str, row: dict[str, Any]) -> str:
    """A row as findings name it."""
    parts = [row[column] for column in BY_NAME[name].key]
    return "/".join(f"{p:%Y-%m-%d %H:%M:%S}" if hasattr(p, "hour") else str(p) for p in parts)


@pytest.mark.parametrize("names", APART)
def test_a_forged_or_deleted_row_of_any_table_is_found(
    spark: "SparkSession",
    whole: WholeLake,
    tmp_path: Path,
    names: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of each table one row says something else and one is gone; these are told, by their keys."""
    monkeypatch.setattr(tables, "FIRST_FINDINGS", 1000)
    copy = copied(whole, tmp_path)
    expected = set[tuple[str, str, str]]()
    for name in names:
        expected |= forge(copy.lake, name)
    only(copy.lake, *names, *(each for name in names for each in BY_NAME[name].inputs))
    for extent in (None, in_parts(copy.lake)):
        verdict = checked(spark, copy, extent=extent)
        found = {(each.rule, each.where, each.text) for each in verdict.findings}
        assert expected <= found, str(verdict)
        assert {rule for rule, _, _ in found - expected} <= FOLLOWS | {tables.SEARCH}, str(verdict)
        assert not verdict.is_sound


def test_only_what_is_examined_is_found(
    spark: "SparkSession", whole: WholeLake, tmp_path: Path
) -> None:
    """Rows that a build skipped, and a position that it has not reached, each in its range."""
    copy = copied(whole, tmp_path)
    lake, through = copy.lake, copy.lake.through("log")
    only(lake, "audit")
    rows = lake.arrow("audit").to_pylist()
    kept = [row for row in rows if not 40 < row["committed_id"] <= 45]
    kept = [row for row in kept if row["committed_id"] != through]
    write(lake, "audit", kept)
    nothing_new = Range(through, through)
    for extent, expected in (
        (Extent(nothing_new, Range(0, 40)), set[int]()),
        (Extent(nothing_new, Range(30, 43)), {41, 42, 43}),
        (Extent(Range(through - 5, through), Range(44, 60)), {45, through}),
    ):
        verdict = checked(spark, copy, extent=extent)
        assert {each.at for each in verdict.findings} == expected, str(verdict)
        assert verdict.ranges == extent.ranges


def test_every_table_has_its_forgery() -> None:
    """No table is left out above, and every rule has a meaning."""
    assert FORGERIES.keys() == set(buildable()) == {name for names in APART for name in names}
    assert set(tables.RULES) == {*buildable(), tables.WRITTEN, tables.SEARCH}


def test_what_another_program_writes_is_found_in_every_table(
    spark: "SparkSession", whole: WholeLake, tmp_path: Path
) -> None:
    """Also in those that nothing can make again: the log, what is forgotten, the verdicts."""
    copy = copied(whole, tmp_path)
    lake = copy.lake
    with lake.writing():
        age(spark, lake, 100, SOURCE)
    named = {"stream": "mesh/m", "entity": "m", "first_committed_id": 1}
    forgotten = pa.Table.from_pylist([named], arrow_schema(BY_NAME["forgotten"]))
    lake.replace("forgotten", lake.through("log"), [], forgotten)
    for table in TABLES:
        key = table.key[0]
        column = next(c for c in table.columns if c.name == key)
        one = lake.arrow(table.name, [key])[key][0].as_py()
        literal = f"'{one}'" if column.kind == "string" else str(one)
        # A tool that deletes by a condition: at least one row goes.
        done = DeltaTable(lake.path(table.name)).delete(f"{key} = {literal}")
        assert done["num_deleted_rows"] or done["num_removed_files"], table.name
    wrong = {table.name for table in TABLES if lake.written_elsewhere(table.name)}
    assert wrong == {table.name for table in TABLES}
    begin_forgetting(lake)  # then rows are not compared, which here would take long
    verdict = checked(spark, copy)
    told = {each.where for each in verdict.findings if each.rule == tables.WRITTEN}
    assert told == {f"table {table.name}" for table in TABLES}


def test_a_stale_looking_forgery_is_found(whole: WholeLake, tmp_path: Path) -> None:
    """A delivery that is open again looks as if it had been so when the table was built.

    Only the seal tells; that the check tells of the seal is tested above.
    """
    lake = copied(whole, tmp_path).lake
    assert lake.written_elsewhere("delivery") == []
    DeltaTable(lake.path("delivery")).update(
        predicate="status = 'delivered'", updates={"status": "'pending'"}
    )
    assert lake.written_elsewhere("delivery") != []


def test_a_stale_alteration_number_is_found(
    spark: "SparkSession", whole: WholeLake, tmp_path: Path
) -> None:
    """A table that lacks a change is sound (below), unless it says that it has it."""
    lake, location = copied(whole, tmp_path).lake, tmp_path / "tidelog.db"
    shutil.copy(whole.store, location)
    only(lake, "delivery", "dedupe")
    with closing(sqlite3.connect(location)) as store, store:
        for statement in (
            (
                "UPDATE mesh_delivery_queue SET status = 'dead' WHERE broker_message_id = "
                "(SELECT min(broker_message_id) FROM mesh_delivery_queue WHERE status = 'pending')"
            ),
            (
                "UPDATE dedupe SET available = 0 WHERE key = "
                "(SELECT min(key) FROM dedupe WHERE scope LIKE 'mesh/%')"
            ),
        ):
            assert store.execute(statement).rowcount > 0, statement
    last = StoreAddress(str(location)).now()[1].last
    for name in ("delivery", "dedupe"):
        lake.replace(name, lake.through(name), [], notes={ALTERATIONS: last})
    verdict = checked(spark, Made(location, lake))
    assert {each.rule for each in verdict.findings} == {"delivery", "dedupe"}, str(verdict)
    texts = {each.text for each in verdict.findings}
    assert texts == {
        "is not what it is made of: status",
        "is not what it is made of: is_available",
    }


def test_the_search_index_is_compared(
    spark: "SparkSession", whole: WholeLake, tmp_path: Path
) -> None:
    """A document that says something else, one that is gone, one of nothing, and a lost shard."""
    import tantivy

    copy = copied(whole, tmp_path)
    root = index_root(copy.lake.root)
    manifest = read_manifest(root)
    assert manifest is not None
    shards = sorted(manifest.shards.values(), key=lambda shard: -shard.documents)
    index = tantivy.Index.open(str(root / shards[0].folder))
    searcher = index.searcher()
    documents = [searcher.doc(a) for _, a in searcher.search(tantivy.Query.all_query(), 9).hits]
    deleted, changed = (document.to_dict() for document in documents[:2])
    writer = index.writer(15_000_000, num_threads=1)
    for document in (deleted, changed):
        writer.delete_documents_by_term("key", document["key"][0])
    for serial, text in ((changed["message_serial"][0], "forged"), ("of-nothing", "more")):
        fields = {
            name: values[0] for name, values in changed.items() if name not in ("text", "key")
        }
        key = "/".join((fields["app_id"], fields["channel"], serial))
        fields |= {"message_serial": serial, "text": text, "key": key}
        writer.add_document(tantivy.Document(**fields))
    writer.commit()
    writer.wait_merging_threads()
    (root / shards[-1].folder / "meta.json").write_bytes(b"{")
    only(copy.lake, "message_version", "message")
    verdict = checked(spark, copy)
    found = {each.where.removeprefix("row "): each.text for each in verdict.findings}
    assert {each.rule for each in verdict.findings} == {tables.SEARCH}, str(verdict)
    nothing = "/".join((changed["app_id"][0], changed["channel"][0], "of-nothing"))
    assert found[deleted["key"][0]] == "is not there"
    assert found[changed["key"][0]].endswith(": text")
    assert found[nothing] == "is there, and nothing makes it"
    assert f"shard/{shards[-1].folder}/cannot be read" in found


def test_a_store_that_goes_on_is_no_finding(
    spark: "SparkSession", whole: WholeLake, tmp_path: Path
) -> None:
    """Entries, acknowledgements, purges and expiries after the build are not taken for damage."""
    location = tmp_path / "tidelog.db"
    shutil.copy(whole.store, location)
    later = Made(location, whole.lake)
    write_log(str(location), [draft(n, stream="channels/tide/later") for n in range(5)])
    with closing(sqlite3.connect(location)) as store, store:
        for statement in (
            (
                "UPDATE mesh_delivery_queue SET status = 'delivered', attempts = attempts + 1, "
                "delivered_at = created_at + 7 WHERE status = 'pending'"
            ),
            (
                "INSERT INTO mesh_message_tombstone (broker_message_id, mesh_id, deleted_at, "
                "reason) SELECT entity, substr(stream, 6), committed_at, 'retention' FROM log "
                "WHERE surface = 'mesh' LIMIT 3"
            ),
            "UPDATE dedupe SET available = 0 WHERE scope LIKE 'mesh/%'",
        ):
            assert store.execute(statement).rowcount > 0, statement
    with mixed_log.serving(str(location), tmp_path / "server", window_ms=1000) as server:
        server.start()
        _until(lambda: _messages(location) < _messages(whole.store))
    for extent in (None, in_parts(later.lake)):
        verdict = checked(spark, later, extent=extent)
        assert verdict.is_sound, str(verdict)


def _messages(store: Path) -> int:
    with closing(sqlite3.connect(store)) as connection:
        [(count,)] = connection.execute("SELECT count(*) FROM channels_message")
    return int(count)


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline, "not within the time"
        time.sleep(0.1)


def test_what_is_forgotten_is_no_finding(
    spark: "SparkSession", whole: WholeLake, tmp_path: Path
) -> None:
    """Tables without forgotten content agree with the log without it, also when built anew."""
    copy = copied(whole, tmp_path)
    with copy.lake.writing():
        actors = copy.lake.arrow("audit", ["actor", "surface"]).to_pylist()
        chosen = {row["surface"]: row["actor"] for row in actors}
        forget(spark, copy.lake, actors=sorted(chosen.values()))
        update_index(spark, copy.lake)
        verdict = checked(spark, copy)
        assert verdict.is_sound, str(verdict)
        build(spark, copy.lake, StoreAddress(str(copy.store)), ["activity", "audit"], full=True)
    only(copy.lake, "activity", "audit")
    assert checked(spark, copy).is_sound


def test_nothing_to_compare_is_said(
    spark: "SparkSession", whole: WholeLake, tmp_path: Path
) -> None:
    """Without tables the check is not sound, and says what to do; the same of an open forget."""
    copy = copied(whole, tmp_path)
    (copy.lake.root / "_forgetting").touch()
    unfinished = checked(spark, copy)
    assert not unfinished.is_sound
    assert "tidelog pipeline forget" in str(unfinished)
    (copy.lake.root / "_forgetting").unlink()
    only(copy.lake)
    verdict = checked(spark, copy)
    assert not verdict.is_sound
    assert str(verdict).startswith("tables: not compared; 0 rows")
    assert "tidelog pipeline build" in str(verdict)
