"""Erasure erases: what is forgotten is served nowhere, and no byte of it is left in the store."""

import asyncio
import json
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from support.channels.peer import (
    Api,
    ChannelsNode,
    Peer,
    channel_path,
    channels_server,
    message_path,
    ok,
    refused,
    unique,
)
from tidelog.base.errors import StoreUnavailable
from tidelog.channels.decide import erasures
from tidelog.channels.decide.erasures import Erasure
from tidelog.channels.upkeep import erasing
from tidelog.channels.upkeep.erasing import Erasing
from tidelog.channels.upkeep.verifier import verify_channels
from tidelog.log.derived import verify_rows
from tidelog.log.verify import verify
from tidelog.store.engine import Store
from tidelog.testing.clock import FakeClock

pytestmark = pytest.mark.asyncio(loop_scope="module")

Stores = Callable[[str], Awaitable[str]]

SECRET = "the moon is made of gruyere"
STREAMING = {"ai": {"transport": {"status": "streaming"}}}
COMPLETE = {"ai": {"transport": {"status": "complete"}}}


async def forget(api: Api, **target: Any) -> None:
    """Ask for an erasure, and wait until it is complete."""
    ok(await api.post("/forget", {"reason": "a test", **target}))
    await completed(api, **target)


async def completed(api: Api, **target: Any) -> None:
    """Wait until an erasure is complete."""
    while not ok(await api.get("/forget", **target))["complete"]:  # noqa: ASYNC110 - over HTTP
        await asyncio.sleep(0.02)


async def purge(api: Api, channel: str, operation: str = "purge", **fields: Any) -> dict[str, Any]:
    """Purge a channel, all of it unless `fields` say otherwise; or reset it."""
    body = {"confirm_channel": channel, "confirm_operation": operation, "reason": "a test"}
    if operation == "purge":
        body |= fields or {"mode": "all"}
    answer = ok(await api.post(f"{channel_path(channel)}/history/{operation}", body))
    assert answer["complete"] is True
    return answer


async def bytes_of(store: str) -> bytes:
    """Everything in the files of a store, as they are on disk."""
    if not store.startswith("postgresql://"):
        path = Path(store)
        wal = path.with_name(path.name + "-wal")
        return b"".join(each.read_bytes() for each in (path, wal) if each.exists())
    connection = await asyncpg.connect(store)
    try:
        tables = await connection.fetch(
            "SELECT oid::regclass::text AS name FROM pg_class WHERE relkind = 'r' "
            "AND relnamespace = 'tidelog'::regnamespace"
        )
        await nobody_sees_the_past(connection)
        # What the planner had sampled, at any moment, has been replaced there.
        for name in (*(table["name"] for table in tables), "pg_catalog.pg_statistic"):
            await connection.execute(f"VACUUM FULL {name}")
        await connection.execute("CHECKPOINT")
        files = await connection.fetch(
            "SELECT pg_read_binary_file(pg_relation_filepath(oid)) AS file FROM pg_class "
            "WHERE relkind IN ('r', 't', 'i') AND pg_relation_filepath(oid) IS NOT NULL "
            "AND relnamespace IN ('tidelog'::regnamespace, 'pg_toast'::regnamespace)"
        )
        return b"".join(row["file"] for row in files)
    finally:
        await connection.close()


async def nobody_sees_the_past(connection: asyncpg.Connection) -> None:
    """Wait for reads that began before now: VACUUM leaves them what they may yet look at."""
    now = await connection.fetchval("SELECT pg_current_xact_id()::text")
    while await connection.fetchval(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND pid <> pg_backend_pid() AND age(backend_xmin) > age($1::text::xid)",
        now,
    ):
        pass


async def written(api: Api, ana: Peer, channel: str, secret: str = SECRET) -> dict[str, Any]:
    """A message that ana streamed: created, appended to, folded, updated; the ack of its create."""
    own = {"socket_id": ana.socket_id}
    ack = await api.publish(channel, secret, extras=STREAMING, message_id=f"id of {secret}", **own)
    serial = ack["message_serial"]
    for n in range(8):
        await api.mutate(
            "append", channel, serial, data=f"{n} {secret} " * 60, op_id=f"op {n}", **own
        )
    await api.mutate("append", channel, serial, data="end", extras=COMPLETE, **own)
    await api.mutate("update", channel, serial, name=secret[:20], description=secret, **own)
    return ack


async def damage(store: Store) -> list[str]:
    """What is not as it should be, in the log and beside it."""
    *_, last = [progress async for progress in verify(store)]
    found = [] if last.finding is None else [last.finding.problem]
    async for _, looked in verify_rows(store, {"channels": verify_channels}):
        found += [each.problem for each in looked.damage]
    return found


async def sign_in(peer: Peer) -> None:
    """As ana, who may change what she wrote."""
    own = ("message_append_own", "message_update_own")
    await peer.signin("ana", {name: ["*"] for name in own})


async def nothing_is_served(node: ChannelsNode, channel: str, ack: dict[str, Any]) -> None:
    """Of a message that was erased, by any way to it."""
    api, path = node.api, message_path(channel, ack["message_serial"])
    for method, rest, body in (
        ("GET", "", None),
        ("GET", "/versions", None),
        ("GET", "/summary", None),
        ("POST", "/summary", {}),
        ("POST", "/append", {"data": "x", "op_id": "op 1"}),
        ("POST", "/update", {"data": "x"}),
        ("POST", "/delete", {}),
    ):
        sent = None if body is None else json.dumps(body).encode()
        refused(await api.request(method, path + rest, sent), 404, "not_found")
    page = await api.history(channel)
    assert SECRET not in json.dumps(page)
    assert ack["message_serial"] not in json.dumps(page)
    async with node.v2() as peer, node.v1() as old:
        head = await peer.subscribe(channel, rewind=100)
        seen: list[dict[str, Any]] = []
        while not seen or seen[-1]["event"] != "sockudo:rewind_complete":
            seen.append(await peer.receive())
        await peer.send("channel_history", {"channel": channel})
        seen.append(await peer.receive())
        for serial in (0, ack["delivery_serial"], ack["delivery_serial"] + 5):
            await peer.resume(**{channel: {"serial": serial, "stream_id": head["stream_id"]}})
            failed = json.loads((await peer.expect(":resume_failed", channel))["data"])
            assert failed["code"] == "position_expired"
            await peer.resumed()
        assert SECRET not in json.dumps(seen)
        await old.attach(channel)
        assert SECRET not in json.dumps(await old.receive())
        if "cache-" in channel:
            assert SECRET not in json.dumps(await old.receive())
        await old.quiet()


@pytest.mark.inside
@pytest.mark.parametrize("how", ["message", "actor", "channel", "purge", "reset"])
async def test_what_is_forgotten_is_gone(
    tmp_path: Path, stores: Stores, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From versions, history, rewind, resume, caches and every file; its places stay."""
    monkeypatch.setattr(erasing, "PRUNE_ENTRIES", 7)  # so that it takes several steps
    store = await stores(f"erasure by {how}")
    async with channels_server(tmp_path, store) as node, node.v2() as ana, node.v2() as full:
        await sign_in(ana)
        api, channel, elsewhere = node.api, unique("cache-room"), unique()
        await full.subscribe(channel)
        before = await api.publish(channel, "before")
        ack = await written(api, ana, channel)
        after = await api.publish(channel, "after")
        other = await api.publish(elsewhere, "another channel")
        assert SECRET.encode() in await bytes_of(store)
        serial = ack["message_serial"]
        if how == "message":
            await forget(api, channel=channel, message_serial=serial)
        elif how == "actor":
            await forget(api, actor="ana")
        elif how == "channel":
            await forget(api, channel=channel)
        else:
            await purge(api, channel, how)
        await nothing_is_served(node, channel, ack)
        async with asyncio.timeout(60):
            # What a background process of PostgreSQL can still see stays until that has ended.
            while SECRET.encode() in await bytes_of(store):
                assert store.startswith("postgresql://")
        entries = await node.surface.service.store.entries(0)
        erased = [entry for entry in entries if entry.entity == serial]
        assert len(erased) == 11
        assert {(entry.body, entry.data, entry.actor) for entry in erased} == {(None, None, "ana")}
        assert {len(entry.body_digest) for entry in erased} == {16}
        assert await damage(node.surface.service.store) == []
        is_narrow = how in ("message", "actor")
        page = await api.history(channel, direction="oldest_first")
        kept = [row["message"]["message_serial"] for row in page["items"]]
        assert kept == ([m["message_serial"] for m in (before, after)] if is_narrow else [])
        assert page["continuity"]["retained_messages"] == len(kept)
        assert (await api.item(elsewhere, other["message_serial"]))["data"] == "another channel"
        for message in (before, after) if is_narrow else ():
            assert len((await api.versions(channel, message["message_serial"]))["items"]) == 1
        again = await api.publish(channel, "anew", message_id=f"id of {SECRET}")
        assert again["delivery_serial"] == after["delivery_serial"] + 1, "numbering goes on"
        assert again["history_serial"] == after["history_serial"] + 1
        assert again["message_serial"] != serial, "its receipt went with it"
    async with channels_server(tmp_path, store) as node:
        refused(await node.api.get(message_path(channel, serial)), 404, "not_found")
        assert (await node.api.item(channel, again["message_serial"]))["data"] == "anew"


async def test_only_what_is_named_goes(node: ChannelsNode, api: Api) -> None:
    """Another actor, another app and another channel keep theirs; so does what comes later."""
    mine, theirs = unique("private-room"), unique("private-room")
    async with node.v2() as ana, node.v2() as bob:
        name = unique("ana")
        for peer, user in ((ana, name), (bob, unique("bob"))):
            await peer.signin(user, {"message_append_any": ["*"]})
        own = {"socket_id": ana.socket_id}
        created = [await api.publish(channel, SECRET, **own) for channel in (mine, theirs)]
        touched = await api.publish(mine, "of bob", socket_id=bob.socket_id)
        await api.mutate("append", mine, touched["message_serial"], data=SECRET, **own)
        kept = await api.publish(mine, "of bob, too", socket_id=bob.socket_id)
        foreign = ok(await node.plain.events(mine, data=SECRET, info="subscription_count"))[
            "channels"
        ][mine]
        await forget(api, actor=name)
        later = await api.publish(mine, "later", **own)
        for channel, ack in zip((mine, theirs, mine), (*created, touched), strict=True):
            refused(await api.get(message_path(channel, ack["message_serial"])), 404, "not_found")
        assert (await api.item(mine, kept["message_serial"]))["data"] == "of bob, too"
        assert (await api.item(mine, later["message_serial"]))["data"] == "later"
        assert (await node.plain.item(mine, foreign["message_serial"]))["data"] == SECRET


@pytest.mark.inside
async def test_a_long_log_is_searched_in_pages(
    node: ChannelsNode, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an actor wrote is found wherever it lies, and once more what it wrote since."""
    monkeypatch.setattr(erasing, "SEARCHED_ENTRIES", 2)
    monkeypatch.setattr(erasing, "NOTED_PAGES", 3)
    monkeypatch.setattr(erasing, "MESSAGES_PER_STEP", 1)
    channel, name = unique(), unique("ana")
    async with node.v2() as ana:
        await ana.signin(name)
        own = {"socket_id": ana.socket_id}
        for round_ in range(2):
            acks = [
                await api.publish(channel, str(n), **(own if n % 9 < 2 else {})) for n in range(20)
            ]
            await forget(api, actor=name)
            for n, ack in enumerate(acks):
                answer = await api.get(message_path(channel, ack["message_serial"]))
                assert answer.status_code == (404 if n % 9 < 2 else 200), (round_, n)


async def test_a_delete_keeps_its_chain(api: Api) -> None:
    """It marks a message; erasing is another thing."""
    channel = unique()
    ack = await api.publish(channel, SECRET)
    await api.mutate("delete", channel, ack["message_serial"], clear_fields=["data"])
    page = await api.versions(channel, ack["message_serial"], direction="oldest_first")
    assert [item.get("data") for item in page["items"]] == [SECRET, None]


async def test_a_part_is_purged(node: ChannelsNode, api: Api) -> None:
    """Messages below the bound are gone with all of their versions, the others stay as they are."""
    channel = unique()
    acks = [await api.publish(channel, f"{SECRET} {n}") for n in range(5)]
    await api.mutate("append", channel, acks[0]["message_serial"], data="!")  # delivery serial 6
    await api.publish(channel, "kept")
    stream_id = (await api.history(channel))["continuity"]["stream_id"]
    await purge(api, channel, mode="before_serial", before_serial=3)
    for n, ack in enumerate(acks):
        if n < 2:
            refused(await api.get(message_path(channel, ack["message_serial"])), 404, "not_found")
        else:
            assert (await api.item(channel, ack["message_serial"]))["data"] == f"{SECRET} {n}"
    async with node.store() as store:
        entries = await store.stream_entries(f"channels/tide/{channel}", 0)
    assert [entry.body is None for entry in entries] == [
        True,
        True,
        False,
        False,
        False,
        True,
        False,
    ]
    async with node.v2() as peer:
        await peer.resume(**{channel: {"serial": 5, "stream_id": stream_id}})
        failed = json.loads((await peer.expect(":resume_failed", channel))["data"])
        assert failed["code"] == "position_expired", "the floor is past their last version"
        await peer.resumed()
        await peer.resume(**{channel: {"serial": 6, "stream_id": stream_id}})
        assert (await peer.receive())["data"] == "kept"
        assert (await peer.resumed())["recovered"][0]["replayed"] == 1


@pytest.mark.inside
async def test_the_floor_of_a_long_channel(
    api: Api, node: ChannelsNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the last version of what is purged lies too far back, replay ends not far from it."""
    monkeypatch.setattr(erasures, "NEWEST_ENTRIES", 4)
    channel = unique()
    for n in range(9):
        await api.publish(channel, str(n))
    await purge(api, channel, mode="before_serial", before_serial=2)
    state = await node.surface.owner.states.load_channel(f"channels/tide/{channel}")
    assert (state.history_floor, state.replay_floor) == (1, 5)
    await purge(api, channel, mode="before_serial", before_serial=8)
    assert (state.history_floor, state.replay_floor) == (7, 7)
    await purge(api, channel, mode="before_serial", before_serial=3)
    assert (state.history_floor, state.replay_floor) == (7, 7), "floors only rise"


async def test_orders_that_are_none(api: Api) -> None:
    """400 and 404 as everywhere, and nothing is changed."""
    channel = unique()
    ack = await api.publish(channel, SECRET)
    serial = ack["message_serial"]
    wrong: dict[str, Any]
    for wrong in (
        {},
        {"channel": channel},
        {"channel": channel, "reason": " "},
        {"reason": "r"},
        {"reason": "r", "message_serial": serial},
        {"reason": "r", "channel": channel, "actor": "ana"},
        {"reason": "r", "actor": "ana", "message_serial": serial},
        {"reason": "r", "channel": "a b"},
        {"reason": "r", "actor": ""},
        {"reason": "r", "actor": "x" * 129},
        {"reason": "r", "actor": "tide"},
        {"reason": "r", "actor": "server"},
        {"reason": "r", "channel": channel, "message_serial": "a b"},
    ):
        refused(await api.post("/forget", wrong), 400, "invalid_input")
    for place in (
        {"channel": unique(), "message_serial": serial},
        {"channel": channel, "message_serial": "x"},
        {"channel": channel, "message_serial": serial[:-1] + "9"},
    ):
        refused(await api.post("/forget", {"reason": "r", **place}), 404, "not_found")
        refused(await api.get("/forget", **place), 404, "not_found")
    refused(await api.get("/forget"), 400, "invalid_input")
    assert (await api.item(channel, serial))["data"] == SECRET


@pytest.mark.inside
async def test_what_was_asked_for_is_done_after_a_restart(
    tmp_path: Path, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is served no more when it is accepted, and removed by whoever comes next."""
    store = await stores("erasure left over")

    async def fail(self: Erasing) -> None:
        raise StoreUnavailable("a test")

    channel, single = unique(), unique()
    async with channels_server(tmp_path, store) as node, node.v2() as ana:
        await sign_in(ana)
        api = node.api
        acks = [await written(api, ana, name) for name in (channel, single)]
        with monkeypatch.context() as broken:
            broken.setattr(Erasing, "carry_out", fail)
            broken.setattr(erasing, "ANSWER_SECONDS", 0.05)
            serial = acks[1]["message_serial"]
            for target in ({"channel": channel}, {"channel": single, "message_serial": serial}):
                answer = ok(await api.post("/forget", {"reason": "r", **target}))
                assert answer == {"ok": True, "complete": False}
            for name, ack in zip((channel, single), acks, strict=True):
                await nothing_is_served(node, name, ack)
                key = (int(ack["message_serial"][-20:]), 2**62, 10)
                store_ = node.surface.service.store
                assert await store_.rows("channels_versions_before", key) == (), "the dashboard's"
            assert await damage(node.surface.service.store) == [], "it is on its way"
    assert SECRET.encode() in await bytes_of(store)
    async with channels_server(tmp_path, store) as node:
        for target in ({"channel": channel}, {"channel": single, "message_serial": serial}):
            await completed(node.api, **target)
        assert SECRET.encode() not in await bytes_of(store)


@pytest.mark.inside
async def test_content_that_outlived_its_erasure_is_found(
    tmp_path: Path, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`log verify` looks for it."""

    async def leave(self: Erasing, erasure: Erasure) -> None:
        del self, erasure

    monkeypatch.setattr(Erasing, "_empty_channel", leave)
    async with channels_server(tmp_path, await stores("erasure undone")) as node:
        channel = unique()
        await node.api.publish(channel, SECRET)
        await forget(node.api, channel=channel)
        assert await damage(node.surface.service.store) == ["was erased, but is still there"]


@pytest.mark.inside
async def test_writers_go_on_while_a_channel_is_erased(
    node: ChannelsNode, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is published meanwhile is accepted and kept, to this channel too."""
    monkeypatch.setattr(erasing, "PRUNE_ENTRIES", 3)
    channel = unique()
    old = [await api.publish(channel, SECRET) for _ in range(60)]
    erasure = asyncio.create_task(forget(api, channel=channel))
    new: list[dict[str, Any]] = []
    while not erasure.done():
        new.append(await api.publish(channel, "new"))
    await erasure
    new.append(await api.publish(channel, "new"))
    kept = [row["message"]["message_serial"] for row in (await api.history(channel))["items"]]
    names = [ack["message_serial"] for ack in (*old, *new)]
    assert kept == names[: -len(kept) - 1 : -1], "all that came after the order, and no other"
    assert 0 < len(kept) <= len(new)


@pytest.mark.inside
async def test_an_emptied_message_can_still_be_forgotten(tmp_path: Path, stores: Stores) -> None:
    """Retention was faster; the lake may have it."""
    clock = FakeClock()
    window = {"retention_window_seconds": 100, "purge_interval_seconds": 3600}
    async with channels_server(
        tmp_path, await stores("erasure late"), clock=clock, versioned_messages=window
    ) as node:
        api, channel = node.api, unique()
        api.now = lambda: clock.now_ms() / 1000
        ack = await api.publish(channel, SECRET)
        clock.advance(200_000)
        assert await node.surface.owner.retention.tick() == 1
        await forget(api, channel=channel, message_serial=ack["message_serial"])


async def test_a_reader_of_the_file_is_waited_for(tmp_path: Path) -> None:
    """Whoever still reads the WAL keeps it; the erasure is complete when it is cut."""
    path = tmp_path / "tidelog.db"
    async with channels_server(tmp_path, str(path)) as node:
        api, channel = node.api, unique()
        await api.publish(channel, SECRET)
        with closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM log").fetchone()
            answer = ok(await api.post("/forget", {"reason": "r", "channel": channel}))
            assert answer["complete"] is False
            assert SECRET.encode() in await bytes_of(str(path))
        await completed(api, channel=channel)
        assert SECRET.encode() not in await bytes_of(str(path))


async def test_a_last_event_that_nothing_else_is_kept_of(node: ChannelsNode, api: Api) -> None:
    """A cache channel gives new subscribers none that was forgotten."""
    name = unique("ana")
    async with node.v2() as ana:
        await ana.signin(name)
        for target in ("channel", "actor"):
            channel = unique("cache-live")
            live = {"extras": {"ephemeral": True}, "socket_id": ana.socket_id}
            ok(await api.events(channel, data=SECRET, **live))
            await forget(api, **({"channel": channel} if target == "channel" else {"actor": name}))
            async with node.v2() as peer:
                await peer.subscribe(channel)
                await peer.expect(":cache_miss", channel)
