"""Forgetting: the content is in no file any more, and nothing else is lost."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.channels.peer import channels_server, ok
from support.log.log_writer import draft, read_log, write_log
from support.pipeline.killed_job import run_killed
from support.pipeline.lake_bytes import files_with
from support.pipeline.table_rows import table_rows
from tidelog.base import faultpoint
from tidelog.base.faultpoint import FaultPoint
from tidelog.channels.upkeep import erasing
from tidelog.channels.upkeep.erasing import Erasing
from tidelog.pipeline.fill.ingest import ingest
from tidelog.pipeline.forget import NothingToForget, forget, places_of
from tidelog.pipeline.frames import empty_frame
from tidelog.pipeline.lake.errors import LakeLocked
from tidelog.pipeline.lake.forgetting import is_unfinished
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.search.index import search
from tidelog.pipeline.search.index_build import update_index
from tidelog.pipeline.source.relations import read_relations
from tidelog.pipeline.source.store_address import StoreAddress
from tidelog.pipeline.tables import BY_NAME, TABLES_WITH_CONTENT
from tidelog.pipeline.transforms.changes import changes
from tidelog.pipeline.transforms.erasure import erased
from tidelog.pipeline.transforms.events import events, forgotten_index
from tidelog.pipeline.transforms.messages import fold, message_versions
from tidelog.pipeline.transforms.sends import remembered_keys, sends

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOMBSTONES = "broker_message_id string, mesh_id string, deleted_at bigint, reason string"


def entry(at: int, entity: str, actor: str, body: str, **columns: Any) -> dict[str, Any]:
    """A row of `log`."""
    return {
        "committed_id": at,
        "stream": "channels/app/room",
        "stream_serial": at,
        "surface": "channels",
        "kind": "message.create",
        "entity": entity,
        "actor": actor,
        "committed_at": 1_767_225_600_000 + at,
        "body": body.encode(),
        "body_digest": at.to_bytes(16, "big"),
        "digest": (1000 + at).to_bytes(16, "big"),
        **columns,
    }


def said(history: int, text: str, more: str = "") -> str:
    """Body of a version of a message."""
    return (
        f'{{"message_id":"i","history_serial":{history},"name":"n{text}","data":"{text}",'
        f'"data_bytes":9,"client_id":"c","metadata":{{"why":"{text}"}}{more}}}'
    )


def happened(item: str, partitions: str, text: str) -> str:
    """Body of a sync event."""
    event = f'{{"type":"set","payload":{{"value":"{text}"}}}}'
    return f'{{"id":"{item}","client_id":"eve","partitions":[{partitions}],"event":{event}}}'


SYNC: dict[str, Any] = {"stream": "sync", "surface": "sync", "kind": "set"}
SEND: dict[str, Any] = {"stream": "mesh/team", "surface": "mesh", "kind": "send.topic", "ref": "t"}
SENT = '{"client_message_id":"cm","sender_pubkey":"k","sender_name":"n","priority":"next"}'
ADDED = '{"message_id":"j","history_serial":2,"data":"lynx","data_bytes":9}'

LOG = (
    entry(1, "m1", "ana", said(1, "walrus")),
    entry(2, "m2", "ana", said(2, "otter")),
    entry(3, "m2", "mallory", said(2, "magpie"), kind="message.update"),
    entry(
        4, "m2", "ana", '{"message_id":"j","history_serial":2,"data":"lynx"}', kind="message.append"
    ),
    entry(5, "m3", "ana", said(3, "heron")),
    entry(6, "e/1", "eve", happened("e/1", '"p","q"', "badger"), **SYNC),
    entry(7, "e2", "eve", happened("e2", '"r"', "weasel"), **SYNC),
    entry(8, "b1", "bob", SENT[:-1] + ',"meta":{"note":"puffin"}}', data=b"\x00gannet", **SEND),
    entry(9, "b2", "bob", SENT, data=b"\xffplover", **SEND),
    entry(10, "m4", "mallory", said(4, "stoat"), kind="event"),
)
GONE = ("walrus", "magpie", "lynx", "badger", "puffin", "gannet", "stoat")
"""What is asked to be forgotten, one after the other: a message, what an actor wrote and what was
added to it, an event, a send with its meta and its bytes, and an event of a channel."""
STAYS = ("otter", "heron", "weasel", "plover")

ASKED: dict[str, Any] = {"messages": ["app/room/m1", "e/1", "b1"], "actors": ["mallory"]}


@pytest.fixture(scope="module")
def template(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake with everything in `LOG`, compacted and with what a killed write left."""
    lake = Lake(tmp_path_factory.mktemp("forget") / "lake")
    log = table_rows(spark, "log", *LOG)
    lake.append("log", log.where("committed_id <= 5").coalesce(1), 5)
    lake.append("log", log.where("committed_id > 5").coalesce(1), 10)
    derive(spark, lake, lake.append)
    states = [{"partition": name, "state": '{"v":"badger"}'} for name in ("p", "q")]
    states.append({"partition": "r", "state": '{"v":"weasel"}'})
    lake.append("snapshot", table_rows(spark, "snapshot", *states).coalesce(1), 10)
    for name in ("log", "message_version"):
        table = lake.delta(name)
        assert table is not None
        table.optimize.compact()
    left = lake.path("log") / "part-left" / "_temporary" / "0"
    left.mkdir(parents=True)
    pq.write_table(pa.table({"body": ["walrus"]}), left / "part.parquet")
    unborn = lake.path("audit") / "part-left"
    unborn.mkdir(parents=True)
    pq.write_table(pa.table({"supersedes": ["walrus"]}), unborn / "part.parquet")
    update_index(spark, lake, shard_count=2)
    return lake.root


def derive(
    spark: "SparkSession", lake: Lake, write: Callable[[str, "DataFrame", int], int]
) -> None:
    """Build the tables with content from the log, with the pipeline's own transformations."""
    log = lake.frame(spark, "log")
    versions = message_versions(log).coalesce(1)
    write("message_version", versions, 10)
    write("message", fold(lake.frame(spark, "message_version")).coalesce(1), 10)
    gone = forgotten_index(log, lake.frame(spark, "forgotten"))
    write("changes", changes(log).coalesce(1), 10)
    write("event", events(log, gone).coalesce(1), 10)
    write("send", sends(log, empty_frame(spark, TOMBSTONES)).coalesce(1), 10)


@pytest.fixture
def lake(template: Path, tmp_path: Path) -> Lake:
    """A copy of the lake."""
    shutil.copytree(template, tmp_path / "lake")
    return Lake(tmp_path / "lake")


def content(lake: Lake, name: str) -> list[dict[str, Any]]:
    """All rows of a table, in order."""
    key = BY_NAME[name].key
    rows = lake.arrow(name).to_pylist()
    return sorted(rows, key=lambda row: tuple(row[column] for column in key))


def places(lake: Lake) -> list[dict[str, Any]]:
    """The log without its content."""
    return [
        {name: value for name, value in row.items() if name not in ("body", "data")}
        for row in content(lake, "log")
    ]


def found_words(lake: Lake, words: tuple[str, ...]) -> dict[str, list[str]]:
    """In which files each word can be found."""
    return {word: files for word in words if (files := files_with(lake.root, word))}


def check_forgotten(lake: Lake, before: list[dict[str, Any]]) -> None:
    """Nothing of what was asked to go is left in any file, and all else is."""
    assert found_words(lake, GONE) == {}
    assert found_words(lake, STAYS).keys() == set(STAYS)
    assert places(lake) == before
    assert [search(lake.root, word).total for word in ("walrus", "lynx", "heron")] == [0, 0, 1]
    assert not is_unfinished(lake)


def test_forgotten_content_is_in_no_file(spark: "SparkSession", lake: Lake) -> None:
    """Searched in the bytes of every file, packed and unpacked; the rest stays as it was.

    The tables are then what a build from the erased log makes, later versions of a forgotten
    message arrive without content, and doing it again changes nothing.
    """
    assert found_words(lake, GONE).keys() == set(GONE), "the test can see what is there"
    before = places(lake)
    asked = forget(spark, lake, **ASKED, dry_run=True)
    assert found_words(lake, GONE).keys() == set(GONE)
    steps: list[str] = []
    done = forget(spark, lake, **ASKED, progress=steps.append)
    assert (asked.entities, done.entities) == (5, 5), "m1, m2, m4, e/1, b1"
    assert asked.rows == {name: done.rows[name] for name in TABLES_WITH_CONTENT}
    assert done.rows == {
        "log": 6,
        "message_version": 4,
        "message": 3,
        "changes": 6,
        "event": 2,
        "send": 1,
        "snapshot": 2,
    }
    assert done.partitions == asked.partitions == ("p", "q")
    assert steps == ["note", *TABLES_WITH_CONTENT, "snapshot", "search index", "vacuum"]
    check_forgotten(lake, before)
    assert [row["partition"] for row in content(lake, "snapshot")] == ["r"]
    m2 = next(row for row in content(lake, "message") if row["message_serial"] == "m2")
    assert (m2["history_serial"], m2["data"], m2["is_complete"]) == (2, None, False)

    erased_in_place = {name: content(lake, name) for name in TABLES_WITH_CONTENT}
    derive(spark, lake, lake.overwrite)
    assert {name: content(lake, name) for name in erased_in_place} == erased_in_place

    later = entry(11, "m1", "ana", said(1, "walrus"), kind="message.update")
    arriving = erased("log", table_rows(spark, "log", *LOG, later), lake.frame(spark, "forgotten"))
    arrived = {row["committed_id"]: (row["body"], row["data"]) for row in arriving.collect()}
    assert len(arrived) == len(LOG) + 1
    assert {at for at, (body, _) in arrived.items() if body is not None} == {2, 5, 7, 9}
    assert {at for at, (_, data) in arrived.items() if data is not None} == {9}

    again = forget(spark, lake, **ASKED)
    assert set(again.rows.values()) == {0}
    assert content(lake, "forgotten")[-1]["partitions"] == ["p", "q"]


def test_a_log_that_is_ingested_again_stays_forgotten(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """The store still has the content; a table that is filled from it anew does not."""
    location, lake = str(tmp_path / "tidelog.db"), Lake(tmp_path / "lake")
    drafts = [draft(n, body=b'{"data":"%s"}' % word.encode()) for n, word in enumerate(STAYS)]
    write_log(location, drafts)
    listed = {"stream": "channels/app/1", "entity": "e1", "first_committed_id": 2}
    lake.append("forgotten", table_rows(spark, "forgotten", listed), 0)
    assert ingest(spark, StoreAddress(location), lake) == len(STAYS)
    assert found_words(lake, STAYS).keys() == {*STAYS} - {STAYS[1]}
    stored = [(entry.committed_id, entry.digest) for entry in read_log(location)]
    assert [(row["committed_id"], row["digest"]) for row in content(lake, "log")] == stored


@pytest.mark.usefixtures("impatient")
def test_an_unknown_name_changes_nothing(spark: "SparkSession", lake: Lake) -> None:
    """A typing error must not look like success; neither may a second writer be disturbed."""
    before = {name: lake.files(name) for name in TABLES_WITH_CONTENT}
    with pytest.raises(NothingToForget, match="not in the lake: app/room/m9, nobody"):
        forget(spark, lake, messages=["app/room/m1", "app/room/m9"], actors=["nobody"])
    with Lake(lake.root).writing(), pytest.raises(LakeLocked):
        forget(spark, lake, **ASKED)
    assert {name: lake.files(name) for name in TABLES_WITH_CONTENT} == before
    assert lake.delta("forgotten") is None


NAMESAKES = (
    entry(1, "m1", "alice", said(1, "walrus"), stream="channels/tide/room"),
    entry(2, "m2", "alice", said(1, "otter"), stream="channels/bay/room"),
    entry(3, "m3", "bay/alice", said(1, "heron"), stream="channels/tide/room"),
    entry(4, "m4", "alice", said(1, "gannet"), stream="channels/bayside/room"),
    entry(5, "bay/room/m2", "bob", happened("bay/room/m2", '"p"', "badger"), **SYNC),
    entry(6, "e2", "alice", happened("e2", '"q"', "weasel"), **SYNC),
    entry(7, "e3", "bay/alice", happened("e3", '"q"', "stoat"), **SYNC),
    entry(8, "/e/4", "bob", happened("/e/4", '"p"', "lynx"), **SYNC),
    entry(9, "b1", "alice", SENT, data=b"\x00plover", **SEND),
)
"""Those who are called alike in other apps and surfaces, and ids that look like other names."""


@pytest.fixture
def namesakes(spark: "SparkSession", tmp_path: Path) -> Lake:
    """A lake with the log of `NAMESAKES` alone."""
    lake = Lake(tmp_path / "namesakes")
    lake.append("log", table_rows(spark, "log", *NAMESAKES).coalesce(1), len(NAMESAKES))
    return lake


@pytest.mark.parametrize(
    ("messages", "actors", "places", "gone"),
    [
        ((), ("bay/alice",), {"channels/bay": 1}, {2}),
        ((), ("tide/bay/alice",), {"channels/tide": 1}, {3}),
        ((), ("/bay/alice",), {"channels/tide": 1, "sync": 1}, {3, 7}),
        (("bay/room/m2",), (), {"channels/bay": 1}, {2}),
        (("/bay/room/m2", "//e/4"), (), {"sync": 2}, {5, 8}),
        (
            ("b1",),
            ("bay/alice", "tide/alice"),
            {"channels/bay": 1, "channels/tide": 1, "mesh/team": 1},
            {1, 2, 9},
        ),
        (
            (),
            ("alice",),
            {
                "channels/bay": 1,
                "channels/bayside": 1,
                "channels/tide": 1,
                "mesh/team": 1,
                "sync": 1,
            },
            {1, 2, 4, 6, 9},
        ),
    ],
)
def test_a_name_means_no_more_than_it_says(
    spark: "SparkSession",
    namesakes: Lake,
    messages: tuple[str, ...],
    actors: tuple[str, ...],
    places: dict[str, int],
    gone: set[int],
) -> None:
    """With an app it is what channels of that app have; any id and name can still be given."""
    assert places_of(spark, namesakes, messages=messages, actors=actors) == places
    done = forget(spark, namesakes, messages=messages, actors=actors)
    emptied = {row["committed_id"] for row in content(namesakes, "log") if row["body"] is None}
    assert (done.places, done.entities, emptied) == (places, len(gone), gone)


@pytest.mark.parametrize(
    ("messages", "actors"),
    [(("tide/room/m2",), ()), (("room/m2",), ()), ((), ("bay/bob",)), ((), ("sync/alice",))],
)
def test_a_name_of_another_app_or_surface_is_refused(
    spark: "SparkSession", namesakes: Lake, messages: tuple[str, ...], actors: tuple[str, ...]
) -> None:
    """Who has that name elsewhere is not meant; the refusal says how names are given."""
    with pytest.raises(NothingToForget, match="app_id/actor, or a name for every app"):
        forget(spark, namesakes, messages=messages, actors=actors)
    assert all(row["body"] is not None for row in content(namesakes, "log"))


KILLED = """
import sys
from pathlib import Path
from support.pipeline.killed_job import attached_session
from tidelog.pipeline.forget import forget
from tidelog.pipeline.lake.lake import Lake

forget(attached_session(), Lake(Path(sys.argv[1])))
"""


def test_a_killed_forget_is_finished_later(
    spark: "SparkSession", lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails after the note and one table, is taken up, dies by `kill -9`, and is finished."""
    before = places(lake)
    armed = faultpoint._parse(f"{FaultPoint.LAKE_COMMITTED}=enospc@2")
    monkeypatch.setattr(faultpoint, "_armed", armed)
    with pytest.raises(OSError, match="injected"):
        forget(spark, lake, **ASKED)
    monkeypatch.undo()
    assert is_unfinished(lake)
    assert found_words(lake, GONE)
    run_killed(spark, KILLED, str(lake.root), fault=f"{FaultPoint.INDEX_WRITTEN}=kill")
    assert is_unfinished(lake)
    assert search(lake.root, "walrus").total == 1, (
        "the old index answers until the new one is there"
    )
    forget(spark, lake)
    check_forgotten(lake, before)


async def chatted(location: str, directory: Path) -> None:
    """Messages of ana and of the server in two rooms, in words that a file can be searched for."""
    async with channels_server(directory, location) as node, node.v2() as ana:
        await ana.signin("ana", {"message_append_any": ["*"]})
        own = {"socket_id": ana.socket_id}
        await node.api.publish("room", "walrus", message_id="shrew")
        await node.api.publish("room", "heron", message_id="kite")
        changed = await node.api.publish("room", "otter")
        added = {"data": " lynx", "op_id": "vole", **own}
        await node.api.mutate("append", "room", changed["message_serial"], **added)
        await node.api.publish("room", "magpie", **own)
        await node.api.publish("hall", "badger")


async def erased_there(location: str, directory: Path) -> None:
    """The first message of one room, what ana wrote, and all of the other room."""
    async with channels_server(directory, location) as node:
        page = await node.api.history("room", direction="oldest_first")
        first = page["items"][0]["message"]["message_serial"]
        for target in (
            {"channel": "room", "message_serial": first},
            {"actor": "ana"},
            {"channel": "hall"},
        ):
            ok(await node.api.post("/forget", {"reason": "r", **target}))
        await node.api.publish("hall", "plover")


@pytest.mark.parametrize("is_pending", [False, True], ids=["erased", "pending"])
def test_what_the_store_erased_is_forgotten(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_pending: bool
) -> None:
    """The same messages, whether or not the server has come to all of them; nothing else is."""
    location, lake = str(tmp_path / "tidelog.db"), Lake(tmp_path / "lake")
    address = StoreAddress(location)
    asyncio.run(chatted(location, tmp_path / "server"))
    ingest(spark, address, lake)
    stored = read_relations(address, ["channel_erasure", "dedupe"])
    keys = remembered_keys(stored.frame(spark, "dedupe")).coalesce(1)
    lake.append("dedupe", keys, lake.through("log"))
    erasures = stored.tables["channel_erasure"]
    assert forget(spark, lake, erased_in_store=erasures).erased == 0
    if is_pending:
        monkeypatch.setattr(Erasing, "carry_out", _nothing)
        monkeypatch.setattr(erasing, "ANSWER_SECONDS", 0.0)
    asyncio.run(erased_there(location, tmp_path / "server"))
    ingest(spark, address, lake)
    gone = ("walrus", "otter", "lynx", "magpie", "badger", "shrew", "vole")
    assert found_words(lake, gone).keys() == set(gone), "the lake keeps what it has"
    before = places(lake)
    erasures = read_relations(address, ["channel_erasure"]).tables["channel_erasure"]
    tried = forget(spark, lake, erased_in_store=erasures, dry_run=True)
    done = forget(spark, lake, erased_in_store=erasures)
    assert (tried.erased, done.entities, done.erased) == (4, 0, 4)
    assert (tried.rows["log"], done.rows["log"], done.rows["dedupe"]) == (5, 5, 2)
    assert found_words(lake, gone) == {}
    stays = ("heron", "plover", "kite")
    assert found_words(lake, stays).keys() == set(stays)
    assert [row["key"] for row in content(lake, "dedupe")] == ["kite"]
    assert places(lake) == before
    again = forget(spark, lake, erased_in_store=erasures)
    assert (again.erased, set(again.rows.values())) == (0, {0})


async def _nothing(self: Erasing) -> None:
    del self
