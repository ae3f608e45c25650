"""Search: what is found, what is not found any more, and what a reader sees meanwhile."""

import os
import random
import string
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.pipeline.lake_bytes import files_with
from support.pipeline.search_shard import DELETED, publish, put
from support.pipeline.table_rows import message_row, table_rows
from tidelog.base import faultpoint
from tidelog.base.faultpoint import FaultPoint
from tidelog.pipeline.lake.errors import LakeError
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.search import index_build
from tidelog.pipeline.search.index import (
    MAX_HITS,
    MAX_QUERY_CHARACTERS,
    BadQuery,
    NoIndex,
    SearchIndex,
    SearchTimeout,
    Shard,
    index_root,
    read_manifest,
    search,
)
from tidelog.pipeline.search.index_build import sweep_index, update_index
from tidelog.pipeline.search.shard import text_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEXTS = ("the tide comes", "the tide goes", "a boat waits")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """An empty lake."""
    return Lake(tmp_path / "lake")


def found(lake: Lake, query: str, **filters: str) -> set[str]:
    """Serials of the messages that fit."""
    return {hit.message_serial for hit in search(lake.root, query, 50, **filters).hits}


def test_an_index_follows_its_messages(spark: "SparkSession", lake: Lake) -> None:
    """New, changed, deleted and purged messages: the index finds what a rebuilt one finds.

    Only shards of messages that changed are written.
    """
    texts = [message_row(f"m{n}", f'"{text}"', n + 1) for n, text in enumerate(TEXTS)]
    lake.append("message", table_rows(spark, "message", *texts), 3)
    first = update_index(spark, lake, shard_count=4)
    assert (first.documents, first.through, first.is_rebuilt) == (3, 3, True)
    assert found(lake, "tide") == {"m0", "m1"}
    assert found(lake, "tide goes") == {"m1"}
    assert found(lake, "tide OR boat") == {"m0", "m1", "m2"}
    assert found(lake, '"tide comes"') == {"m0"}

    same = update_index(spark, lake)
    assert (same.shards_written, same.is_rebuilt) == (0, False)

    changed = [message_row("m0", '"the ebb comes"', 4), message_row("m3", '"tide and boat"', 5)]
    lake.upsert("message", table_rows(spark, "message", *changed), 5)
    assert 1 <= update_index(spark, lake).shards_written <= 2
    assert (found(lake, "tide"), found(lake, "ebb")) == ({"m1", "m3"}, {"m0"})

    gone = [
        message_row("m1", '"the tide goes"', 6, state="deleted", action="delete"),
        message_row("m2", None, 3, state="purged", is_complete=False),
    ]
    lake.upsert("message", table_rows(spark, "message", *gone), 6)
    assert update_index(spark, lake).documents == 2
    after = {query: found(lake, query) for query in ("tide", "boat", "ebb", "goes", "waits")}
    assert after == {
        "tide": {"m3"},
        "boat": {"m3"},
        "ebb": {"m0"},
        "goes": set(),
        "waits": set(),
    }
    root = index_root(lake.root)
    assert files_with(root, "ebb"), "what is searchable can be seen in the files"
    assert files_with(root, "waits") == [], "it has no content any more"

    erased = [message_row("m1", None, 6, state="deleted", action="delete", is_complete=False)]
    lake.upsert("message", table_rows(spark, "message", *erased), 6)
    update_index(spark, lake)
    assert files_with(root, "goes") == []

    assert update_index(spark, lake, rebuild=True, shard_count=2).is_rebuilt
    assert {query: found(lake, query) for query in after} == after


def test_an_update_costs_what_has_changed(
    spark: "SparkSession", lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of the table that the index knows are not opened, nor are shards that stay as they are.

    Whether this process or Spark writes an update, the index is the same.
    """
    rows = [message_row(f"m{n}", f'"tide {n}"', n + 1) for n in range(40)]
    lake.append("message", table_rows(spark, "message", *rows).coalesce(1), 40)
    monkeypatch.setattr(index_build, "SMALL_ROWS", 0)
    update_index(spark, lake, shard_count=8)
    manifest = read_manifest(index_root(lake.root))
    assert manifest is not None
    assert len(manifest.shards) == 8
    with_spark = {name: shard.documents for name, shard in manifest.shards.items()}
    monkeypatch.undo()
    update_index(spark, lake, rebuild=True, shard_count=8)
    before = read_manifest(index_root(lake.root))
    assert before is not None
    assert {name: shard.documents for name, shard in before.shards.items()} == with_spark

    [old] = lake.files("message")
    more = table_rows(spark, "message", message_row("new", '"ebb"', 41)).coalesce(1)
    lake.append("message", more, 41)
    Path(old).write_bytes(b"nobody reads this")
    updated = update_index(spark, lake)
    assert (updated.shards_written, updated.documents) == (1, 41)
    after = read_manifest(index_root(lake.root))
    assert after is not None
    assert len(set(after.shards.values()) & set(before.shards.values())) == 7
    assert (found(lake, "ebb"), len(found(lake, "tide"))) == ({"new"}, 40)


def test_a_table_that_was_made_anew_is_indexed_anew(spark: "SparkSession", lake: Lake) -> None:
    """Also messages that the new table does not have any more are then gone."""
    import shutil

    with pytest.raises(LakeError, match="tidelog pipeline run"):
        update_index(spark, lake)
    lake.append("message", table_rows(spark, "message", message_row("m0", '"one"', 1)), 1)
    update_index(spark, lake, shard_count=2)
    shutil.rmtree(lake.path("message"))
    lake.append("message", table_rows(spark, "message", message_row("m1", '"two"', 1)), 1)
    assert update_index(spark, lake, shard_count=2).is_rebuilt
    assert (found(lake, "one"), found(lake, "two")) == (set(), {"m1"})
    shard = next(iter(read_manifest(index_root(lake.root)).shards.values()))  # type: ignore[union-attr]
    shutil.rmtree(index_root(lake.root) / shard.folder)
    assert update_index(spark, lake, shard_count=2).is_rebuilt
    assert found(lake, "two") == {"m1"}


def test_an_update_that_breaks_off_leaves_the_old_index_or_the_new_one(
    spark: "SparkSession", lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the manifest the old one answers, behind it the new one; the next update tidies.

    That `kill -9` leaves no other files is in `test_forget`.
    """

    def state() -> tuple[set[str], set[str], int]:
        folders = [entry for entry in index_root(lake.root).iterdir() if entry.is_dir()]
        return found(lake, "old"), found(lake, "new"), len(folders)

    lake.append("message", table_rows(spark, "message", message_row("m0", '"old words"', 1)), 1)
    update_index(spark, lake, shard_count=1)
    lake.upsert("message", table_rows(spark, "message", message_row("m0", '"new words"', 2)), 2)
    for point, expected in (
        (FaultPoint.INDEX_WRITTEN, ({"m0"}, set(), 2)),
        (FaultPoint.INDEX_PUBLISHED, (set(), {"m0"}, 2)),
    ):
        monkeypatch.setattr(faultpoint, "_armed", faultpoint._parse(f"{point}=eio"))
        with pytest.raises(OSError, match="injected"):
            update_index(spark, lake)
        assert state() == expected
    assert update_index(spark, lake).through == 2
    assert state() == (set(), {"m0"}, 1)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (None, ""),
        ('"as it is: {\\"a\\":1}"', 'as it is: {"a":1}'),
        ('{"a":"one","b":{"c":["two",3,true]},"d":"three"}', "one\ntwo\nthree"),
        ("17", ""),
        ("[" * 5000 + "]" * 5000, "[" * 5000 + "]" * 5000),
    ],
)
def test_the_words_of_a_message(data: str | None, text: str) -> None:
    """A string is its own text; of everything else the strings in it count."""
    assert text_of(data) == text


# A shard, without Spark.


@pytest.fixture
def root(lake: Lake) -> Path:
    """Where the index is."""
    path = index_root(lake.root)
    path.mkdir(parents=True)
    return path


def test_a_hit_says_where_and_shows_what(lake: Lake, root: Path) -> None:
    """Place, name, time and the words around what was found, marked by character."""
    shard = put(root, None, ("m1", "grüße aus 漢字 dem hafen"), ("m7", "der hafen ruht"))
    assert shard is not None
    publish(root, shard)
    answer = search(lake.root, "hafen grüße")
    assert (answer.total, answer.through) == (1, 9)
    [hit] = answer.hits
    assert (hit.app_id, hit.channel, hit.message_serial) == ("app", "room", "m1")
    assert (hit.name, hit.committed_id, hit.updated_at) == ("greeting", 1, 1000)
    marked = {hit.snippet[begin:end] for begin, end in hit.highlights}
    assert marked == {"grüße", "hafen"}
    assert found(lake, "hafen") == {"m1", "m7"}
    assert found(lake, "hafen", channel="hall") == {"m7"}
    assert found(lake, "hafen", app_id="app", channel="room") == {"m1"}
    assert found(lake, "hafen", app_id="other") == set()
    [only_name, _] = search(lake.root, "name:greeting").hits
    assert only_name.snippet
    assert search(lake.root, "hafen", 1).total == 2
    assert len(search(lake.root, "hafen", 1).hits) == 1


def test_a_delete_is_a_mark_and_an_erasure_leaves_no_byte(root: Path) -> None:
    """A deleted message costs a mark; an erased one costs the segments that held it, no others."""
    words = ("alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel")
    first = put(root, None, *((f"m{n}", word) for n, word in enumerate(words)))
    assert first is not None
    assert put(root, first, ("m99", None), ("m98", DELETED)) is None, "they were never there"
    second = put(root, first, ("m8", "india"), ("m9", "kilo"))
    assert second is not None
    deleted = put(root, second, ("m3", DELETED))
    assert deleted is not None
    assert deleted.documents == 9

    def stores(shard: Shard) -> set[int]:
        return {file.stat().st_ino for file in (root / shard.folder).glob("*.store")}

    def held(shard: Shard) -> set[str]:
        every = (*words, "india", "kilo", "lima", "mike", "november")
        return {word for word in every if files_with(root / shard.folder, word)}

    assert stores(first) < stores(second) == stores(deleted), "no document was written again"
    assert put(root, deleted, ("m3", DELETED)) is None
    changed = put(root, deleted, ("m4", "lima"))
    assert changed is not None
    assert held(changed) == {*words, "india", "kilo", "lima"}, "old texts are only marked"
    assert stores(changed) > stores(deleted)

    erased = put(root, changed, ("m3", None), ("m4", None), ("m99", None))
    assert erased is not None
    assert held(erased) == {*words, "india", "kilo"} - {"delta", "echo"}
    assert erased.documents == 8
    assert len(stores(erased) & stores(second)) == 1, "the segment of the others stays"
    assert put(root, erased, ("m3", None), ("m4", None)) is None, "there is nothing left of them"
    assert len([each for each in root.iterdir() if each.is_dir()]) == 5, "nothing half-made stays"


def test_a_segment_of_many_marks_is_written_anew(root: Path) -> None:
    """A quarter of it may be marked; with more, the documents that are left move."""
    words = ("alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel")
    shard = put(root, None, *((f"m{n}", word) for n, word in enumerate(words)))
    assert shard is not None
    shard = put(root, shard, ("m0", DELETED), ("m1", DELETED))
    assert shard is not None
    assert files_with(root / shard.folder, "alpha")
    shard = put(root, shard, ("m2", DELETED))
    assert shard is not None
    assert shard.documents == 5
    assert [word for word in words if files_with(root / shard.folder, word)] == list(words[3:])


def test_many_changes_leave_what_a_model_has(lake: Lake, root: Path) -> None:
    """Whatever is put, deleted and erased in whatever order: what lives is found, once.

    Of an erased message no text that it ever had is in a file.
    """
    chance = random.Random(5)
    shard: Shard | None = None
    live: dict[str, str] = {}
    texts: dict[str, set[str]] = {}
    gone: set[str] = set()
    for step in range(12):
        changes: dict[str, str | None] = {}
        for number in chance.sample(range(40), chance.choice((1, 3, 10, 30))):
            serial, what = f"m{number}", chance.choice(("put", "put", "put", "delete", "erase"))
            live.pop(serial, None)
            if what == "put":
                word = "".join(chance.choices(string.ascii_lowercase, k=12))
                changes[serial] = live[serial] = word
                texts.setdefault(serial, set()).add(word)
            else:
                changes[serial] = DELETED if what == "delete" else None
            if what == "erase":
                gone |= texts.pop(serial, set())
        shard = put(root, shard, *changes.items()) or shard
        assert shard is not None
        publish(root, shard, step)
        sweep_index(root, read_manifest(root))
        assert shard.documents == len(live)
        assert {word: found(lake, word) for word in live.values()} == {
            word: {serial} for serial, word in live.items()
        }
    assert gone
    assert [word for word in gone if files_with(root, word)] == []


def test_an_open_index_sees_the_next_one(lake: Lake, root: Path) -> None:
    """A reader that is open answers from the newest manifest, though the old files are gone."""
    shard = put(root, None, ("m1", "one"))
    assert shard is not None
    publish(root, shard)
    index = SearchIndex(lake.root)
    assert index.search("one").total == 1
    changed = put(root, shard, ("m1", "two"))
    assert changed is not None
    publish(root, changed, through=10)
    sweep_index(root, read_manifest(root))
    assert (index.search("one").total, index.search("two").total) == (0, 1)
    assert index.search("two").through == 10


def test_what_cannot_be_searched_says_why(lake: Lake, root: Path) -> None:
    """No index, one of another version, a damaged one; each says what to do."""
    with pytest.raises(NoIndex, match=r"yet\. Build it: `tidelog pipeline run`"):
        search(lake.root, "one")
    (root / "manifest.json").write_text('{"format":0}')
    with pytest.raises(NoIndex, match="this version cannot read"):
        search(lake.root, "one")
    publish(root, Shard("nowhere", 1))
    with pytest.raises(NoIndex, match=r"damaged\. Build it: `tidelog pipeline run`"):
        search(lake.root, "one")


@pytest.mark.parametrize(
    ("query", "limit", "why"),
    [
        (" ", 10, "empty"),
        ("a" * (MAX_QUERY_CHARACTERS + 1), 10, "longer than"),
        ("one", 0, "between 1 and"),
        ("one", MAX_HITS + 1, "between 1 and"),
        ("one AND (", 10, "cannot be understood"),
        ("nothing:one", 10, "Field does not exist"),
        ("text:/o.e/", 10, "Regex queries are not allowed"),
        ("\ud800", 10, "cannot be understood"),
    ],
)
def test_a_query_has_bounds(lake: Lake, root: Path, query: str, limit: int, why: str) -> None:
    """Length, number of hits and syntax; the answer says which."""
    shard = put(root, None, ("m1", "one"))
    assert shard is not None
    publish(root, shard)
    with pytest.raises(BadQuery, match=why):
        search(lake.root, query, limit)


def test_a_search_ends_in_time(lake: Lake, root: Path) -> None:
    """A search that has no time left is given up."""
    shard = put(root, None, ("m1", "one"))
    assert shard is not None
    publish(root, shard)
    with pytest.raises(SearchTimeout, match="too long"):
        SearchIndex(lake.root).search("one", timeout_seconds=0)


def test_searching_needs_neither_spark_nor_a_lake_library(lake: Lake, root: Path) -> None:
    """The reader loads no pyspark, no deltalake and no pyarrow, and starts no JVM."""
    shard = put(root, None, ("m1", "one"))
    assert shard is not None
    publish(root, shard)
    code = (
        "import sys, pathlib; from tidelog.pipeline.search.index import search; "
        "print(search(pathlib.Path(sys.argv[1]), 'one').total, "
        "{'pyspark', 'deltalake', 'pyarrow', 'pandas'} & sys.modules.keys())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(lake.root)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "1 set()\n"


def test_a_shard_goes_although_a_lock_comes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of tantivy's threads may put it there while the folder is being removed."""
    folder = tmp_path / "0001-shard"
    folder.mkdir()
    (folder / "meta.json").touch()
    comes = iter([True, True, False])
    remove = os.rmdir

    def disturbed(path: str, **place: int | None) -> None:
        if next(comes):
            (folder / ".tantivy-meta.lock").touch()
        remove(path, **place)

    monkeypatch.setattr(os, "rmdir", disturbed)
    sweep_index(tmp_path, None)
    assert not folder.exists()
