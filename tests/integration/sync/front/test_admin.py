"""Administration of sync: `/sync/admin/...`."""

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from support.cli.command import run as run_command
from support.log.nodes import running_node, verdict
from support.sync.admin import admin
from support.sync.peer import (
    ADMIN_TOKEN,
    EVENT,
    MODEL,
    SECRET,
    TREE,
    Peer,
    act,
    connected,
    note,
    outcome,
    push,
    write_model,
)
from tidelog.base.clock import SystemClock
from tidelog.base.errors import StoreUnavailable
from tidelog.sync.settings import SyncSettings
from tidelog.sync.surface import open_halves
from tidelog.testing.process import ServerProcess

ROUTES = [
    ("GET", "model-version"),
    ("PUT", "model-version"),
    ("GET", "connections"),
    ("GET", "snapshot"),
    ("PUT", "snapshot"),
    ("POST", "retention"),
]


async def test_only_the_admin_token_opens_administration(tmp_path: Path) -> None:
    """Without it, with a wrong one or with a client's token every route answers 401."""
    async with admin(tmp_path) as administrator:
        for method, path in ROUTES:
            wrong = ("", "Bearer", "Bearer x", f"bearer {ADMIN_TOKEN}", f"Bearer {ADMIN_TOKEN}x")
            for given in (*wrong, f"Basic {ADMIN_TOKEN}", ADMIN_TOKEN):
                headers = {"authorization": given} if given else {}
                url = f"/sync/admin/{path}"
                answer = await administrator.http.request(
                    method, url, headers=headers, content=b'{"model_version":9}'
                )
                assert answer.status_code == 401
                assert "error" in answer.json()
        assert (await administrator.ok("GET", "model-version")) == {"model_version": 3}


async def test_malformed_orders_are_told_why(tmp_path: Path) -> None:
    """Bodies that are no orders, and numbers no store can hold, are 400 and change nothing."""
    async with admin(tmp_path) as administrator:
        orders: dict[str, list[Any]] = {
            "model-version": [None, {}, [], {"model_version": "4"}, {"model_version": 2**63}],
            "snapshot": [{}, {"partition": 1}, {"partition": ""}, {"partition": "p" * 129}],
            "retention": [{}, {"through": "1"}, {"through": 1.5}, {"through": 2**63}],
        }
        for path, bodies in orders.items():
            method = "POST" if path == "retention" else "PUT"
            for body in bodies:
                status, answer = await administrator.call(method, path, body)
                assert status == 400, (path, body)
                assert answer["error"]
        assert (await administrator.ok("GET", "model-version")) == {"model_version": 3}


# The model version.


async def test_a_new_model_version_is_announced(tmp_path: Path) -> None:
    """To active connections of the event profile only, once, and in what follows (sync D47)."""
    async with (
        admin(tmp_path) as administrator,
        connected(administrator.node.ws_url, "e") as event,
        connected(administrator.node.ws_url, "t", TREE) as tree,
    ):
        answer = await administrator.ok("PUT", "model-version", {"model_version": 7})
        assert answer == {"old_model_version": 3, "new_model_version": 7}
        assert await event.expect("version_changed") == answer
        await administrator.ok("PUT", "model-version", {"model_version": 7})
        for peer in (event, tree):
            assert await peer.is_quiet(), "nothing for trees, nothing for what is already known"
            assert (await peer.sync("p"))["model_version"] == 7
        async with connected(administrator.node.ws_url, "f", TREE) as later:
            assert later.received[0]["payload"]["model_version"] == 7


async def test_the_model_version_is_durable(
    engine: str, store_location: str, tmp_path: Path
) -> None:
    """It survives restarts until the configuration names another, which then counts, silently."""
    del engine

    async def started(configured: int, then: int | None = None) -> int:
        model = {**MODEL, "model_version": configured}
        async with admin(tmp_path, store=store_location, model=model) as administrator:
            found: int = (await administrator.ok("GET", "model-version"))["model_version"]
            async with connected(administrator.node.ws_url) as peer:
                assert peer.received[0]["payload"]["model_version"] == found
                if then is not None:
                    await administrator.ok("PUT", "model-version", {"model_version": then})
                else:
                    assert await peer.is_quiet()
            return found

    assert await started(3) == 3
    assert await started(3, then=9) == 3
    assert await started(3) == 9, "set by an administrator"
    assert await started(3) == 9
    assert await started(5) == 5, "configured anew"
    assert await started(5) == 5
    assert await started(3) == 3
    assert await started(3, then=-2) == 3
    assert await started(3) == -2


async def test_a_start_that_breaks_off_does_not_forget_the_new_version(tmp_path: Path) -> None:
    """The configured and the current version change together or not at all."""
    location = str(tmp_path / "tidelog.db")

    async def start(configured: int, commits: int) -> int | None:
        model_file = write_model(tmp_path, {**MODEL, "model_version": configured})
        options: dict[str, Any] = {"jwt_secret": SECRET, "model_file": model_file}
        async with running_node(location, clock=SystemClock()) as node:
            store: Any = node.store
            commit, left = store.writer.commit, commits

            async def limited(*arguments: Any) -> None:
                nonlocal left
                left -= 1
                if left < 0:
                    await store.writer.rollback()
                    raise StoreUnavailable("the process ended here")
                await commit(*arguments)

            store.writer.commit = limited
            try:
                _, service = await open_halves(
                    node.committer, store, SyncSettings(**options), SystemClock()
                )
            except StoreUnavailable:
                return None
            return service.model_version

    assert await start(3, 99) == 3
    for commits in (0, 1):
        await start(5, commits)
        assert await start(5, 99) == 5
        assert await start(3, 99) == 3


# Connections.


async def test_connections_are_listed_with_their_cursors(tmp_path: Path) -> None:
    """Who is active, in which profile, subscribed to what, and how far; nobody else."""
    async with (
        admin(tmp_path) as administrator,
        connected(administrator.node.ws_url, "b", TREE) as b,
        connected(administrator.node.ws_url, "a") as a,
    ):
        await a.submit(note("1"), note("2", "q"))
        await a.sync("q", "p", subscription_partitions=["q", "p"])
        await a.submit(note("3"))
        expected = {
            "last_committed_id": 3,
            "connections": [
                {"client_id": "a", "profile": EVENT, "subscriptions": ["p", "q"], "cursor": 2},
                {"client_id": "b", "profile": TREE, "subscriptions": [], "cursor": 0},
            ],
        }
        assert await administrator.ok("GET", "connections") == expected
        await b.send("disconnect", {})
        assert await b.close_code() == 1000
        expected["connections"] = expected["connections"][:1]  # type: ignore[index]
        assert await administrator.ok("GET", "connections") == expected


# Snapshots.


async def grow(peer: Peer, partition: str, count: int, first: int = 0) -> None:
    """Push a chain of nodes into a partition."""
    numbers = range(first, first + count)
    items = [
        push(f"{partition}{n}", f"n{n}", partition, parent=f"n{n - 1}" if n % 10 else "_root")
        for n in numbers
    ]
    for start in range(0, count, 100):
        results = await peer.submit(*items[start : start + 100])
        assert set(outcome(results)) == {"committed"}


async def test_a_cold_start_reads_only_what_is_behind_the_snapshot(
    engine: str, store_location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stored snapshot is used if it is of the current model version, and then few events are."""
    del engine

    async def events_read(name: str) -> int:
        """How many events a server that has just started reads to judge a submit."""
        read = 0
        async with admin(tmp_path, store=store_location) as administrator:
            rows_within = administrator.node.store.rows_within

            async def counted(query: str, positions: Any, *, most_bytes: int) -> Any:
                nonlocal read
                found = await rows_within(query, positions, most_bytes=most_bytes)
                read += len(found)
                return found

            monkeypatch.setattr(administrator.node.store, "rows_within", counted)
            async with connected(administrator.node.ws_url, "t", TREE) as peer:
                results = await peer.submit(
                    push(f"{name}-1", "n7"), push(f"{name}-2", name, parent="n219")
                )
                wrong = "validation_failed event.payload.value.id"
                assert outcome(results) == [wrong, "committed"]
        return read

    async with (
        admin(tmp_path, store=store_location) as administrator,
        connected(administrator.node.ws_url, "t", TREE) as peer,
    ):
        await grow(peer, "p", 200)
        assert await administrator.snapshot("p") == 200
        await grow(peer, "p", 20, first=200)
    assert await events_read("a") == 20
    async with admin(tmp_path, store=store_location) as administrator:
        await administrator.ok("PUT", "model-version", {"model_version": 4})
    assert await events_read("b") == 221, "a snapshot of another model version does not count"
    async with admin(tmp_path, store=store_location) as administrator:
        before = await administrator.state("p")
        assert await administrator.snapshot("p") == 222
    assert await events_read("c") == 0, "one of the version that an administrator set does"
    async with admin(tmp_path, store=store_location) as administrator:
        after = await administrator.state("p")
        assert len(after["t"]["items"]) == len(before["t"]["items"]) + 1


async def test_a_clients_snapshot_is_checked(
    engine: str, store_location: str, tmp_path: Path
) -> None:
    """Stored only with the digest of its position, the current model version, and a valid state."""
    del engine
    async with (
        admin(tmp_path, store=store_location) as administrator,
        connected(administrator.node.ws_url, "t", TREE) as peer,
    ):
        await peer.submit(push("1", "a"), push("2", "b", parent="a"), push("3", "c"))
        digests = [e.digest.hex() for e in await administrator.node.store.entries(0)]
        state = await administrator.state("p")
        good = {
            "partition": "p",
            "state": state,
            "committed_id": 3,
            "model_version": 3,
            "digest": digests[2],
        }
        broken = {"t": {"items": {}, "tree": [{"id": "x", "children": []}]}}
        changes: list[dict[str, Any]] = [
            {"digest": digests[1]},
            {"digest": ""},
            {"digest": digests[2].upper() + "0"},
            {"committed_id": 2},
            {"committed_id": 4},
            {"committed_id": 10**15},
            {"committed_id": 0, "digest": digests[0]},
            {"committed_id": -7, "digest": digests[0]},
            {"model_version": 2},
            {"model_version": 4},
            {"state": {"unknown": {}}},
            {"state": broken},
            {"state": {"t": 5}},
            {"state": []},
        ]
        for change in changes:
            status, answer = await administrator.call("PUT", "snapshot", {**good, **change})
            assert status == 400, change
            assert answer["error"]
        assert await administrator.node.store.rows("sync_snapshot", ("p",)) == ()
        answer = await administrator.ok("PUT", "snapshot", good)
        assert answer == {"partition": "p", "committed_id": 3}
        [stored] = await administrator.node.store.rows("sync_snapshot", ("p",))
        assert (json.loads(stored[0]), *stored[1:3]) == (state, 3, 3)
        older = {**good, "committed_id": 2, "digest": digests[1]}
        status, answer = await administrator.call("PUT", "snapshot", older)
        assert status == 400, "snapshots never go back"
        assert "newer" in answer["error"]
        assert await administrator.node.store.rows("sync_snapshot", ("p",)) == (stored,)
    async with (
        admin(tmp_path, store=store_location) as administrator,
        connected(administrator.node.ws_url, "t", TREE) as peer,
    ):
        assert outcome(await peer.submit(push("4", "d", parent="b"))) == ["committed"]


async def test_names_of_partitions_have_one_form_here_too(tmp_path: Path) -> None:
    """A snapshot asked for in NFD is that of the NFC partition."""
    async with (
        admin(tmp_path) as administrator,
        connected(administrator.node.ws_url, "t", TREE) as peer,
    ):
        await peer.submit(push("1", "a", "p\u00e9"))
        answer = await administrator.ok("PUT", "snapshot", {"partition": "pe\u0301"})
        assert answer == {"partition": "p\u00e9", "committed_id": 1}


async def test_a_state_can_be_looked_at_without_storing_it(tmp_path: Path) -> None:
    """GET answers the state with all that is committed, and its position; nothing is stored."""
    async with (
        admin(tmp_path) as administrator,
        connected(administrator.node.ws_url, "t", TREE) as peer,
    ):
        await peer.submit(push("1", "a", "p\u00e9"), push("2", "b", "p\u00e9", parent="a"))
        answer = await administrator.ok("GET", "snapshot?partition=pe%CC%81")
        assert (answer["partition"], answer["committed_id"]) == ("p\u00e9", 2)
        assert answer["model_version"] == 3
        assert set(answer["state"]["t"]["items"]) == {"a", "b"}
        assert await administrator.node.store.rows("sync_snapshot", ("p\u00e9",)) == ()
        for wrong in ("snapshot", "snapshot?partition=", f"snapshot?partition={'p' * 129}"):
            status, _ = await administrator.call("GET", wrong)
            assert status == 400, wrong


async def test_a_snapshot_that_cannot_be_read_is_ignored(tmp_path: Path) -> None:
    """The log is the truth: a damaged snapshot costs time, not the partition."""
    async with (
        admin(tmp_path) as administrator,
        connected(administrator.node.ws_url, "t", TREE) as peer,
    ):
        await grow(peer, "p", 12)
        await administrator.snapshot("p")
    for damaged in (
        b"{",
        b"\xff",
        b"[]",
        b"5",
        b'{"other":{}}',
        b'{"t":{}}',
        b'{"t":{"items":{}}}',
    ):
        connection = sqlite3.connect(tmp_path / "tidelog.db")
        connection.execute("UPDATE sync_snapshots SET state = ?", (damaged,))
        connection.commit()
        connection.close()
        async with admin(tmp_path) as administrator:
            assert len((await administrator.state("p"))["t"]["items"]) == 12, damaged


async def test_a_tree_too_deep_for_json_has_no_snapshot(tmp_path: Path) -> None:
    """It is refused with a reason, and the partition goes on."""
    async with (
        admin(tmp_path) as administrator,
        connected(administrator.node.ws_url, "t", TREE) as peer,
    ):
        for start in range(0, 1500, 100):
            await peer.submit(
                *(
                    push(f"i{n}", f"n{n}", parent=f"n{n - 1}" if n else "_root")
                    for n in range(start, start + 100)
                )
            )
        status, answer = await administrator.call("PUT", "snapshot", {"partition": "p"})
        assert status == 400
        assert "deep" in answer["error"]
        assert outcome(await peer.submit(push("x", "x", parent="n1499"))) == ["committed"]


async def test_a_snapshot_never_holds_what_may_be_taken_back(
    postgresql_url: str, tmp_path: Path
) -> None:
    """Taken while a commit is under way that then fails, it is of the state before or after."""
    async with (
        admin(tmp_path, store=postgresql_url) as administrator,
        connected(administrator.node.ws_url, "t", TREE) as peer,
    ):
        await peer.submit(push("1", "a"))
        writer = administrator.node.store.writer
        commit, deciding, gate = writer.commit, asyncio.Event(), asyncio.Event()

        async def failing(*arguments: Any) -> None:
            writer.commit = commit
            deciding.set()
            await gate.wait()
            await writer.rollback()
            raise StoreUnavailable("injected")

        writer.commit = failing
        await peer.send("submit_events", {"events": [push("2", "phantom")]})
        await deciding.wait()
        taking = asyncio.create_task(administrator.snapshot("p"))
        await asyncio.sleep(0.1)
        gate.set()
        assert await taking == 1
        [stored] = await administrator.node.store.rows("sync_snapshot", ("p",))
        assert list(json.loads(stored[0])["t"]["items"]) == ["a"]


async def test_orders_that_meet_in_one_batch_do_not_fail_it(
    engine: str, store_location: str, tmp_path: Path
) -> None:
    """Several snapshots of one partition and several versions at once all succeed."""
    del engine
    async with (
        admin(tmp_path, store=store_location) as administrator,
        connected(administrator.node.ws_url, "t", TREE) as peer,
    ):
        await peer.submit(push("1", "a"), push("2", "b", "q"))
        writer = administrator.node.store.writer
        begin, gate, begun = writer.begin, asyncio.Event(), asyncio.Event()

        async def held(*arguments: Any) -> Any:
            begun.set()
            await gate.wait()
            return await begin(*arguments)

        writer.begin = held
        await peer.send("submit_events", {"events": [push("3", "c")]})
        await begun.wait()
        orders = [asyncio.create_task(administrator.snapshot(name)) for name in "ppqpq"]
        versions = [
            asyncio.create_task(administrator.ok("PUT", "model-version", {"model_version": n}))
            for n in (5, 6, 7)
        ]
        committer: Any = administrator.node.server.committer
        async with asyncio.timeout(60):
            while len(committer._queue) < 8:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.01)
        gate.set()
        assert await asyncio.gather(*orders) == [1, 1, 2, 1, 2]
        await asyncio.gather(*versions)
        await peer.expect("submit_events_result")
        [stored] = await administrator.node.store.rows("sync_setting", ("model_version",))
        assert stored == (administrator.node.service.model_version,)


# Retention.


async def test_only_what_every_partition_has_behind_it_is_archived(
    engine: str, store_location: str, tmp_path: Path
) -> None:
    """The all-partitions rule; sync from 0 and dedupe stay complete, restarted too (sync D57)."""
    del engine
    async with (
        admin(tmp_path, store=store_location) as administrator,
        connected(administrator.node.ws_url, "e") as event,
        connected(administrator.node.ws_url, "t", TREE) as tree,
    ):
        await tree.submit(push("1", "a", "p"), push("2", "b", "p", "q"), push("3", "c", "q"))
        await event.submit(note("4", "p"), note("5", "p", "r"), note("6", "q"))
        complete = await event.whole("p", "q", "r")
        assert await administrator.retain(100) == 0, "no partition has a snapshot"
        assert await administrator.snapshot("p") == 5
        assert await administrator.retain(0) == 0
        assert await administrator.retain(3) == 1, "1 alone: 2 is in q too, 4 is beyond"
        assert await administrator.retain(100) == 1, "4; 5 is in r too"
        assert await administrator.retain(100) == 0, "each only once"
        assert await administrator.snapshot("q") == 6
        assert await administrator.retain(100) == 3
        await event.submit(note("7", "p"), note("8", "q"))
        complete += await event.whole("p", "q", since=6)
        assert await administrator.snapshot("p") == 7, "events without effect on trees count too"
        assert await administrator.retain(100) == 1
        bodies = {e.committed_id: e.body for e in await administrator.node.store.entries(0)}
        assert {at for at, body in bodies.items() if body is not None} == {5, 8}
        assert await event.whole("p", "q", "r") == complete
        again = await tree.submit(push("1", "a", "p"))
        assert again[0]["committed_id"] == 1, "a replay needs no body (sync D32)"
        assert outcome(await tree.submit(push("1", "x", "p"))) == ["validation_failed event"]
        progress = await verdict(administrator.node.store)
        assert progress.finding is None
    async with (
        admin(tmp_path, store=store_location) as administrator,
        connected(administrator.node.ws_url, "e") as event,
        connected(administrator.node.ws_url, "t", TREE) as tree,
    ):
        assert await event.whole("p", "q", "r") == complete
        results = await tree.submit(push("9", "a", "p"), act("10", "unset", "q"))
        assert outcome(results) == ["validation_failed event.payload.value.id", "committed"]


async def test_retention_goes_on_while_clients_write(tmp_path: Path) -> None:
    """A large archive in steps neither stops submits nor loses what a sync reads meanwhile."""
    async with (
        admin(tmp_path) as administrator,
        connected(administrator.node.ws_url, "e") as event,
        connected(administrator.node.ws_url, "r") as reader,
    ):
        for start in range(0, 2500, 100):
            await event.submit(*(note(f"{n}") for n in range(start, start + 100)))
        assert await administrator.snapshot("p") == 2500
        archiving = asyncio.create_task(administrator.retain(2500))
        seen = await reader.whole("p", limit=50)
        assert outcome(await event.submit(note("meanwhile"))) == ["committed"]
        assert await archiving == 2500
        assert [e["id"] for e in seen][:2500] == [str(n) for n in range(2500)]
        assert [e["id"] for e in await reader.whole("p")][-1] == "meanwhile"


def test_commands_say_when_a_server_has_no_sync(tmp_path: Path) -> None:
    """Not that there is nothing at a path, which nobody named, but what to set."""
    with ServerProcess(data_dir=tmp_path) as server:
        server.start()
        for command in (["connections"], ["model-version"], ["snapshot", "home"]):
            ended = run_command("sync", *command, "--url", server.url)
            assert ended.returncode == 1
            assert ended.stderr.startswith(f"tidelog: {server.url} does not serve sync. Set sync.")
