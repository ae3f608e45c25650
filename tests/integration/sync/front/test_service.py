"""Sync on a real server: who gets what, in which order, and what failures leave behind."""

import asyncio
import json
import random
import socket as sockets
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from support.log.nodes import running_node
from support.store.catalogue import Database
from support.sync.peer import (
    EVENT,
    MODEL,
    SECRET,
    TREE,
    Peer,
    SyncNode,
    act,
    connected,
    envelope,
    move,
    note,
    open_peer,
    outcome,
    push,
    sync_server,
    token,
    write_model,
)
from tidelog.base.clock import SystemClock
from tidelog.base.errors import DataError, StoreUnavailable
from tidelog.base.settings.limits import Limits
from tidelog.sync.front import service as service_module
from tidelog.sync.front.service import SyncService
from tidelog.sync.settings import SyncSettings
from tidelog.sync.surface import open_halves


class Tampered:
    """A store's real writer that refuses or holds back what a test tells it to."""

    def __init__(self, node: SyncNode) -> None:
        self._writer = node.store.writer
        self.refuse: Callable[[Any], Exception | None] = lambda effects: None
        self.begun = 0
        self.gate = asyncio.Event()
        self.gate.set()
        node.store.writer = self

    async def begin(self, names: Any, seen: int) -> Any:
        """Wait at the gate, then begin."""
        self.begun += 1
        await self.gate.wait()
        return await self._writer.begin(names, seen)

    async def commit(self, batch_id: bytes, effects: Any) -> None:
        """Commit, unless it is to be refused."""
        error = self.refuse(effects)
        if error is not None:
            await self._writer.rollback()
            raise error
        await self._writer.commit(batch_id, effects)

    async def confirm(self) -> None:
        """See `Writer.confirm`."""
        await self._writer.confirm()

    async def rollback(self) -> None:
        """Roll back."""
        await self._writer.rollback()

    async def committed(self, batch_id: bytes) -> bool:
        """Ask the real one."""
        return bool(await self._writer.committed(batch_id))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something becomes true that nothing tells of."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.005)


# One connection per client.


async def test_a_newer_connection_of_a_client_closes_the_older(tmp_path: Path) -> None:
    """The older is closed with 4409 and without a message; its subscriptions end with it."""
    async with (
        sync_server(tmp_path) as node,
        connected(node.ws_url, "c") as older,
        connected(node.ws_url, "other") as other,
    ):
        await older.subscribe("p")
        async with connected(node.ws_url, "c") as newer:
            assert await older.close_code() == 4409
            assert outcome(await other.submit(note("a"))) == ["committed"]
            assert await newer.is_quiet()
            assert set(node.service.clients) == {"c", "other"}
            assert node.service._subscribers == {}
            await newer.subscribe("p")
            await other.submit(note("b"))
            assert [event["id"] for event in await newer.broadcasts(1)] == ["b"]
        await until(lambda: set(node.service.clients) == {"other"})


async def test_a_failed_handshake_evicts_nobody(tmp_path: Path) -> None:
    """Neither a wrong token nor a profile that cannot be met touches the client's connection."""
    async with sync_server(tmp_path) as node, connected(node.ws_url, "c") as older:
        await older.subscribe("p")
        for changes, code in (
            ({"token": token("d")}, 4401),
            ({"supported_profiles": ["x"]}, 4407),
            ({"required_tree_policy": "loose"}, 4407),
        ):
            async with open_peer(node.ws_url) as newer:
                await newer.send("connect", {"token": token("c"), "client_id": "c", **changes})
                await newer.expect("error")
                assert await newer.close_code() == code
        async with connected(node.ws_url, "other") as other:
            await other.submit(note("a"))
        assert [event["id"] for event in await older.broadcasts(1)] == ["a"]


async def test_who_hangs_up_in_the_middle_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer gone during its handshake evicts nobody; one gone during a sync subscribes nobody."""
    async with sync_server(tmp_path) as node, connected(node.ws_url, "c") as older:
        catch_up, gate = node.server.committer.catch_up, asyncio.Event()
        waiting = 0

        async def held() -> None:
            nonlocal waiting
            waiting += 1
            await gate.wait()
            await catch_up()

        async with connected(node.ws_url, "d") as leaving:
            monkeypatch.setattr(node.server.committer, "catch_up", held)
            payload = {"partitions": ["p"], "since_committed_id": 0}
            await leaving.send("sync", {**payload, "subscription_partitions": ["p"]})
            async with open_peer(node.ws_url) as newer:
                await newer.send("connect", {"token": token("c"), "client_id": "c"})
                await until(lambda: waiting == 2)
        await until(lambda: len(node.service._open) == 1)
        gate.set()
        assert await older.is_quiet(), "still there"
        assert set(node.service.clients) == {"c"}
        assert node.service._subscribers == {}
        await older.subscribe("p")
        assert {name: [*to] for name, to in node.service._subscribers.items()} == {
            "p": [node.service.clients["c"]]
        }


# Who gets a broadcast.


async def test_broadcasts_go_to_other_subscribers_once(tmp_path: Path) -> None:
    """Not to the origin, once however many partitions match, nothing for rejects and replays."""
    async with (
        sync_server(tmp_path) as node,
        connected(node.ws_url, "origin") as origin,
        connected(node.ws_url, "both") as both,
        connected(node.ws_url, "tree", TREE) as tree,
        connected(node.ws_url, "none") as none,
    ):
        await origin.subscribe("p", "q")
        await both.subscribe("p", "q", "r")
        await tree.subscribe("q")
        await none.sync("p", "q")
        forbidden = {**note("x"), "partitions": ["p", ""]}
        bad = note("y")
        bad["event"]["payload"]["schema"] = "unknown"
        results = await origin.submit(note("a", "q", "p"), forbidden, bad, note("b", "p"))
        assert outcome(results) == [
            "committed",
            "validation_failed partitions.1",
            "validation_failed event.payload.schema",
            "committed",
        ]
        assert await origin.submit(note("a", "p", "q")) == [results[0]]
        got = await both.broadcasts(2)
        assert got == [
            {
                **note("a", "p", "q"),
                "client_id": "origin",
                "committed_id": results[0]["committed_id"],
                "status_updated_at": results[0]["status_updated_at"],
            },
            {
                **note("b", "p"),
                "client_id": "origin",
                "committed_id": results[3]["committed_id"],
                "status_updated_at": results[3]["status_updated_at"],
            },
        ]
        assert await tree.broadcasts(1) == got[:1], "profiles do not restrict delivery (sync D45)"
        for peer in (origin, both, tree, none):
            assert await peer.is_quiet()
        await both.subscribe("r")
        await origin.submit(note("c", "p"))
        assert await both.is_quiet(), "the set was replaced"
        assert (await none.sync("p"))["effective_subscriptions"] == []
        assert (await both.sync("p"))["effective_subscriptions"] == ["r"]
        assert (await both.sync("p", subscription_partitions=[]))["effective_subscriptions"] == []
        assert node.service._origins == {}


async def test_everybody_sees_commits_in_one_order(
    engine: str, store_location: str, tmp_path: Path
) -> None:
    """Results and broadcasts of concurrent submitters ascend on every connection (sync D28)."""
    del engine
    rng = random.Random(5)
    partitions = ["a", "b", "c"]

    async def run(peer: Peer, number: int, batches: list[int]) -> None:
        for batch, size in enumerate(batches):
            names = [rng.sample(partitions, rng.randint(1, 3)) for _ in range(size)]
            events = [note(f"{number}-{batch}-{n}", *names[n]) for n in range(size)]
            await peer.send("submit_events", {"events": events})

    async with sync_server(tmp_path, store=store_location) as node, AsyncExitStack() as stack:
        peers = [
            await stack.enter_async_context(connected(node.ws_url, f"c{number}"))
            for number in range(8)
        ]
        for peer in peers:
            await peer.subscribe(*partitions)
            peer.received.clear()
        plan = [[rng.randint(1, 9) for _ in range(12)] for _ in peers]
        await asyncio.gather(*(run(peer, n, plan[n]) for n, peer in enumerate(peers)))
        total = sum(map(sum, plan))
        for number, peer in enumerate(peers):
            seen: list[int] = []
            mine: list[str] = []
            while len(seen) < total:
                message = await peer.receive()
                if message["type"] == "event_broadcast":
                    seen.append(message["payload"]["committed_id"])
                    assert message["payload"]["client_id"] != f"c{number}"
                else:
                    results = message["payload"]["results"]
                    assert outcome(results) == ["committed"] * len(results)
                    seen += [result["committed_id"] for result in results]
                    mine += [result["id"] for result in results]
            first = seen[0]
            assert seen == list(range(first, first + total)), "dense, and in one order"
            assert len(mine) == sum(plan[number])
            assert await peer.is_quiet()


# Sync.


async def test_subscribers_attach_without_gap_or_double(
    engine: str, store_location: str, tmp_path: Path
) -> None:
    """Page and broadcasts together hold every event once, whenever one attaches (sync D39)."""
    del engine
    writers, each, readers = 4, 90, 8
    committed, first_attached = 0, asyncio.Event()
    turns = [asyncio.Event() for _ in range(readers)]
    """Of the readers: each begins when so much of the log is there that they differ."""
    turns[0].set()
    async with sync_server(tmp_path, store=store_location) as node:

        async def write(writer: int) -> None:
            nonlocal committed
            async with connected(node.ws_url, f"w{writer}") as peer:
                for number in range(each):
                    if number == each // 2:
                        await first_attached.wait()  # else a slow machine has it attach last too
                    partition = "pq"[number % 2]
                    result = await peer.submit(note(f"{writer}-{number}", partition))
                    assert outcome(result) == ["committed"]
                    committed += 1
                    turns[min(committed * readers // (writers * each), readers - 1)].set()
                    await asyncio.sleep(0.001)

        async def attach(number: int) -> tuple[int, list[int]]:
            await turns[number].wait()
            async with connected(node.ws_url, f"s{number}") as peer:
                try:
                    page = await peer.sync("p", "q", limit=50, subscription_partitions=["p", "q"])
                finally:
                    first_attached.set()
                watermark, paged = page["sync_to_committed_id"], page["events"]
                while page["has_more"]:
                    await asyncio.sleep(0.01)
                    since = page["next_since_committed_id"]
                    assert since == page["events"][-1]["committed_id"] < watermark
                    page = await peer.sync("p", "q", since=since, limit=50)
                    assert page["sync_to_committed_id"] == watermark, "constant over all pages"
                    assert len(page["events"]) <= 50
                    paged += page["events"]
                assert page["next_since_committed_id"] == watermark
                assert all(event["committed_id"] <= watermark for event in paged)

                def live() -> list[dict[str, Any]]:
                    return [m["payload"] for m in peer.received if m["type"] == "event_broadcast"]

                while len(paged) + len(live()) < writers * each:
                    await peer.receive()
                assert await peer.is_quiet()
                assert all(event["committed_id"] > watermark for event in live())
                return len(paged), [event["committed_id"] for event in paged + live()]

        attaching = [asyncio.create_task(attach(number)) for number in range(readers)]
        await asyncio.gather(*(write(writer) for writer in range(writers)))
        shares = []
        for paged, ids in await asyncio.gather(*attaching):
            assert ids == sorted(set(ids))
            assert len(ids) == writers * each
            shares.append(paged)
        assert min(shares) < max(shares), "they attached at different moments"


async def test_nothing_comes_before_connected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that is known is sent to, also in the step in which it became known."""
    joined = SyncService._joined

    def with_a_new_version(service: SyncService, *given: Any) -> None:
        joined(service, *given)
        service._version_changed(3, 4)

    monkeypatch.setattr(SyncService, "_joined", with_a_new_version)
    async with sync_server(tmp_path) as node, connected(node.ws_url) as peer:
        assert [each["type"] for each in peer.received] == ["connected"]
        assert (await peer.expect("version_changed"))["new_model_version"] == 4


async def test_pages_are_exact(engine: str, store_location: str, tmp_path: Path) -> None:
    """No empty last page, `has_more` only if more matches, own events too, other surfaces' not."""
    del engine
    async with (
        sync_server(tmp_path, store=store_location, sync_limit_min=2) as node,
        connected(node.ws_url) as peer,
        connected(node.ws_url, "d") as other,
    ):
        empty = await peer.sync("p")
        assert empty["events"] == []
        assert (empty["sync_to_committed_id"], empty["has_more"]) == (0, False)
        assert empty["model_version"] == 3
        names = ["p", "q", "p", "r", "p", "q"]
        results = await other.submit(*(note(str(n), name) for n, name in enumerate(names)))
        ids = [result["committed_id"] for result in results]
        last = ids[-1]
        page = await peer.sync("q", "p", limit=3)
        assert page["partitions"] == ["p", "q"]
        assert [event["id"] for event in page["events"]] == ["0", "1", "2"]
        assert (page["next_since_committed_id"], page["has_more"]) == (ids[2], True)
        await other.submit(note("later", "p"))
        page = await peer.sync("p", "q", since=ids[2], limit=2)
        assert [event["id"] for event in page["events"]] == ["4", "5"]
        assert (page["has_more"], page["next_since_committed_id"]) == (False, last)
        assert page["sync_to_committed_id"] == last, "the watermark of the cycle's first page"
        page = await peer.sync("p", since=last)
        assert [event["id"] for event in page["events"]] == ["later"]
        assert page["sync_to_committed_id"] == last + 1
        page = await peer.sync("r", since=ids[3])
        assert page["events"] == [], "the lower bound is exclusive"
        assert [event["id"] for event in (await other.sync("r"))["events"]] == ["3"]


async def test_a_cursor_from_the_future_is_told_the_truth(tmp_path: Path) -> None:
    """No events, the real maximum, subscriptions replaced all the same, and no cycle (sync D40)."""
    async with sync_server(tmp_path) as node, connected(node.ws_url) as peer:
        await peer.submit(*(note(str(n)) for n in range(3)))
        for since in (4, 10**9, 2**63, 10**40):
            page = await peer.sync("p", since=since, subscription_partitions=["p", "q"])
            assert page["events"] == []
            assert page["has_more"] is False
            assert (page["sync_to_committed_id"], page["next_since_committed_id"]) == (3, 3)
            assert page["effective_subscriptions"] == ["p", "q"]
        async with connected(node.ws_url, "d") as other:
            await other.submit(note("x"))
        await peer.broadcasts(1)


async def test_a_refused_sync_changes_nothing(tmp_path: Path) -> None:
    """Subscriptions and the open cycle outlive `bad_request` and `forbidden` (sync D42)."""
    async with sync_server(tmp_path, sync_limit_min=1) as node, open_peer(node.ws_url) as peer:
        narrow = token("c", prefixes=["p"])
        payload = {"token": narrow, "client_id": "c", "supported_profiles": [EVENT]}
        await peer.send("connect", payload)
        await peer.expect("connected")
        await peer.submit(*(note(str(n)) for n in range(3)))
        first = await peer.sync("p", limit=1, subscription_partitions=["p"])
        await peer.submit(note("later"))
        bad = {"since_committed_id": 1, "subscription_partitions": []}
        await peer.send("sync", {"partitions": ["p", "x", "b"], **bad})
        error = await peer.expect("error")
        assert error["code"] == "forbidden"
        assert error["details"]["partitions"] == ["b", "x"]
        await peer.send("sync", {"partitions": [], **bad})
        assert (await peer.expect("error"))["code"] == "bad_request"
        page = await peer.sync("p", since=1, limit=5)
        assert page["sync_to_committed_id"] == first["sync_to_committed_id"] == 3
        assert page["effective_subscriptions"] == ["p"]


async def test_the_watermark_counts_sync_events_only(tmp_path: Path) -> None:
    """Other surfaces move neither the watermark nor `server_last_committed_id` (sync D38)."""
    async with sync_server(tmp_path) as node, connected(node.ws_url) as peer:
        await peer.submit(note("a"))
        async with open_peer(node.ws_url.replace("/sync", "/probe/ws")) as probe:
            for key in "xyz":
                message = {"op": "put", "stream": "s", "key": key, "value": 1}
                await probe.socket.send(json.dumps(message))
                await probe.socket.recv()
        assert (await peer.sync("p"))["sync_to_committed_id"] == 1
        async with open_peer(node.ws_url) as fresh:
            await fresh.send("connect", {"token": token("d"), "client_id": "d"})
            assert (await fresh.expect("connected"))["server_last_committed_id"] == 1
        [result] = await peer.submit(note("b"))
        assert result["committed_id"] == 5, "the counter is shared"


# Backpressure and failures.


async def test_a_peer_that_does_not_read_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the send limits the slow one is closed as 1013; others get everything (sync D46)."""
    codes: dict[str, int] = {}
    original = service_module._Connection.closed

    def closed(connection: Any, code: int) -> None:
        codes[connection.client_id] = code
        original(connection, code)

    monkeypatch.setattr(service_module._Connection, "closed", closed)
    limits = Limits(send_buffer_bytes=100_000)
    async with (
        sync_server(tmp_path, limits=limits) as node,
        connected(node.ws_url, "writer") as writer,
        connected(node.ws_url, "reader") as reader,
    ):
        host, port = node.server.url.removeprefix("http://").split(":")
        narrow = sockets.socket()
        narrow.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
        narrow.setblocking(False)
        await asyncio.get_running_loop().sock_connect(narrow, (host, int(port)))
        await reader.subscribe("p")
        async with connected(node.ws_url, "slow", sock=narrow, max_queue=1) as slow:
            await slow.subscribe("p")
            count = 0
            while "slow" not in codes:
                assert count < 200
                await writer.submit(note(str(count), data="x" * 100_000))
                await reader.broadcasts(1)
                count += 1
            assert codes == {"slow": 1013}
            assert set(node.service.clients) == {"writer", "reader"}
            await writer.submit(note("after"))
            assert [event["id"] for event in await reader.broadcasts(1)] == ["after"]
        async with connected(node.ws_url, "slow") as again:
            assert len(await again.whole("p")) == count + 1, "sync is the way back"


async def test_a_full_queue_is_told_and_nothing_of_it_stored(tmp_path: Path) -> None:
    """With no room to wait a submit is `rate_limited`; the connection and its order stay."""
    limits = Limits(commit_queue_requests=1, commit_batch_requests=1)
    async with (
        sync_server(tmp_path, limits=limits) as node,
        connected(node.ws_url, "a") as first,
        connected(node.ws_url, "b") as second,
        connected(node.ws_url, "c") as third,
        connected(node.ws_url, "t", TREE) as tree,
    ):
        writer = Tampered(node)
        writer.gate.clear()
        committer: Any = node.server.committer
        await first.send("submit_events", {"events": [note("1")]})
        await until(lambda: writer.begun == 1)
        await second.send("submit_events", {"events": [note("2")]})
        await until(lambda: len(committer._queue) == 1)
        for peer, item in ((third, note("3")), (tree, push("4", "n"))):
            await peer.send("submit_events", {"events": [item]})
            error = await peer.expect("error")
            assert error["code"] == "rate_limited"
            assert error["details"]["retry_after_ms"] > 0
            assert await peer.is_quiet()
        assert all(state.pins == 0 for state in node.owner.states._states.values())
        writer.gate.set()
        await first.expect("submit_events_result")
        await second.expect("submit_events_result")
        assert await node.counts() == (2, 2)
        assert [r["committed_id"] for r in await third.submit(note("3"))] == [3]
        assert [r["committed_id"] for r in await tree.submit(push("4", "n"))] == [4]


async def test_a_store_that_fails_takes_nothing_and_spoils_nothing(
    engine: str, store_location: str, tmp_path: Path
) -> None:
    """`server_error` and close; the tree is as before, so the same push succeeds later."""
    del engine
    async with (
        sync_server(tmp_path, store=store_location) as node,
        connected(node.ws_url, "watch") as watch,
    ):
        await watch.subscribe("p", "q")
        writer = Tampered(node)
        async with connected(node.ws_url, "c", TREE) as peer:
            results = await peer.submit(push("1", "a"), push("2", "b", parent="a"))
            assert outcome(results) == ["committed"] * 2
            await watch.broadcasts(2)
            writer.refuse = lambda effects: StoreUnavailable("injected")
            failing = [
                push("3", "n", "p", "q", parent="_root"),
                move("4", "b"),
                act("5", "treeDelete", options={"id": "a"}),
                act("6", "treeUpdate", options={"id": "b"}, value={"x": 1}),
            ]
            await peer.send("submit_events", {"events": failing})
            error = await peer.expect("error")
            assert error["code"] == "server_error"
            assert "injected" not in json.dumps(error)
            assert await peer.close_code() == 1011
        assert await node.counts() == (2, 2)
        assert await watch.is_quiet()
        writer.refuse = lambda effects: None
        async with connected(node.ws_url, "c", TREE) as peer:
            results = await peer.submit(
                push("c1", "x", parent="n"),
                push("c2", "x", parent="b"),
                push("c3", "y", position={"after": "b"}),
                *failing[:2],
                push("c4", "n"),
                push("c5", "n", "q"),
            )
            assert outcome(results) == [
                "validation_failed event.payload.options.parent",
                "committed",
                "validation_failed event.payload.options.position.after",
                "committed",
                "committed",
                "validation_failed event.payload.value.id",
                "validation_failed event.payload.value.id",
            ]
        assert [event["id"] for event in await watch.broadcasts(3)] == ["c2", "3", "4"]


async def test_a_poison_item_fails_with_what_follows_it(
    engine: str, store_location: str, tmp_path: Path
) -> None:
    """Earlier items stay and are broadcast, not to the origin; later ones fail too (sync D29)."""
    del engine

    def poison(effects: Any) -> Exception | None:
        found = any(entry.entity == "poison" for entry in effects.entries)
        return DataError("injected") if found else None

    async with (
        sync_server(tmp_path, store=store_location) as node,
        connected(node.ws_url, "watch") as watch,
        connected(node.ws_url, "neighbour") as neighbour,
    ):
        await watch.subscribe("p")
        writer = Tampered(node)
        writer.refuse = poison
        items = [push("1", "a"), push("2", "b", parent="a"), push("poison", "c"), push("4", "d")]
        async with connected(node.ws_url, "c", TREE) as peer:
            await peer.subscribe("p")
            writer.gate.clear()
            await peer.send("submit_events", {"events": items})
            await until(lambda: writer.begun == 1)
            await neighbour.send("submit_events", {"events": [note("n", "q")]})
            writer.gate.set()
            assert (await peer.expect("error"))["code"] == "server_error"
            assert await peer.close_code() == 1011
        await neighbour.expect("submit_events_result")
        assert [event["id"] for event in await watch.broadcasts(2)] == ["1", "2"]
        assert await watch.is_quiet()
        writer.refuse = lambda effects: None
        async with connected(node.ws_url, "c", TREE) as peer:
            events = await peer.whole("p")
            assert [event["id"] for event in events] == ["1", "2"]
            results = await peer.submit(
                *items[:2], push("x", "x", parent="c"), *items[2:], push("y", "y", parent="c")
            )
            assert outcome(results) == [
                "committed",
                "committed",
                "validation_failed event.payload.options.parent",
                "committed",
                "committed",
                "committed",
            ]
            for event, result in zip(events, results, strict=False):
                assert result["committed_id"] == event["committed_id"], "a replay"
        assert [event["id"] for event in await watch.broadcasts(3)] == ["poison", "4", "y"]


# Several submits of one connection on their way.


async def test_submits_in_flight_share_a_batch_and_keep_their_order(
    engine: str, store_location: str, tmp_path: Path
) -> None:
    """Results come in the order of the requests, also of those refused; each before broadcasts."""
    del engine
    async with (
        sync_server(tmp_path, store=store_location) as node,
        connected(node.ws_url, "c") as peer,
        connected(node.ws_url, "first") as first,
        connected(node.ws_url, "watch") as watch,
    ):
        await watch.subscribe("p")
        writer = Tampered(node)
        writer.gate.clear()
        committer: Any = node.server.committer
        await first.send("submit_events", {"events": [note("0")]})
        await until(lambda: writer.begun == 1)
        await peer.send("submit_events", {"events": [note("1"), note("2")]})
        await peer.send("submit_events", {"events": [note("3"), note("x", "")]})
        await peer.send("submit_events", {"events": [note("4")]})
        await peer.send("submit_events", {"events": []})
        await peer.send("submit_events", {"events": [note("5")]})
        await peer.send("heartbeat", {})
        await until(lambda: len(committer._queue) == 3)
        writer.gate.set()
        results = [(await peer.expect("submit_events_result"))["results"] for _ in range(3)]
        assert (await peer.expect("error"))["code"] == "bad_request"
        results.append((await peer.expect("submit_events_result"))["results"])
        await peer.expect("heartbeat_ack")
        assert [[each["id"] for each in result] for result in results] == [
            ["1", "2"],
            ["3", "x"],
            ["4"],
            ["5"],
        ]
        found = [each["committed_id"] for result in results for each in result if each["id"] != "x"]
        assert found == [2, 3, 4, 5, 6]
        assert [event["id"] for event in await watch.broadcasts(6)] == [*"012345"]


async def test_what_is_in_flight_outlives_its_connection(tmp_path: Path) -> None:
    """Whoever hangs up has submitted what was accepted; a retry tells, and nothing is lost."""
    async with sync_server(tmp_path) as node, connected(node.ws_url, "watch") as watch:
        await watch.subscribe("p")
        writer = Tampered(node)
        writer.gate.clear()
        async with connected(node.ws_url, "c") as peer:
            for name in "abc":
                await peer.send("submit_events", {"events": [note(name)]})
            await until(lambda: len(node.service.clients["c"].unanswered) == 3)
        await until(lambda: "c" not in node.service.clients)
        writer.gate.set()
        assert [event["id"] for event in await watch.broadcasts(3)] == [*"abc"]
        async with connected(node.ws_url, "c") as again:
            results = await again.submit(*(note(name) for name in "abc"))
            assert [each["committed_id"] for each in results] == [1, 2, 3]


async def test_a_full_queue_does_not_change_the_order(tmp_path: Path) -> None:
    """A submit that found no room after others of its connection is tried again in its turn."""
    limits = Limits(commit_queue_requests=2, commit_batch_requests=1)
    async with sync_server(tmp_path, limits=limits) as node, connected(node.ws_url, "c") as peer:
        writer = Tampered(node)
        writer.gate.clear()
        for name in "abcdef":
            await peer.send("submit_events", {"events": [note(name)]})
        await until(lambda: writer.begun == 1 and len(node.service.clients["c"].unanswered) >= 2)
        writer.gate.set()
        for number, name in enumerate("abcdef", start=1):
            [result] = (await peer.expect("submit_events_result"))["results"]
            assert (result["id"], result["committed_id"]) == (name, number)


async def test_nothing_overtakes_a_submit_that_failed(
    engine: str, store_location: str, tmp_path: Path
) -> None:
    """What was queued after it is not committed either: the client retries all (sync D9)."""
    del engine

    def poison(effects: Any) -> Exception | None:
        found = any(entry.entity == "poison" for entry in effects.entries)
        return DataError("refused by the test") if found else None

    async with (
        sync_server(tmp_path, store=store_location) as node,
        connected(node.ws_url, "other") as other,
    ):
        writer = Tampered(node)
        writer.gate.clear()
        async with connected(node.ws_url, "c", TREE) as peer:
            await other.send("submit_events", {"events": [note("0")]})
            await until(lambda: writer.begun == 1)
            writer.gate.set()
            await other.expect("submit_events_result")
            assert outcome(await peer.submit(push("1", "a"))) == ["committed"]
            writer.gate.clear()
            writer.refuse = poison
            await other.send("submit_events", {"events": [note("2")]})
            await until(lambda: writer.begun == 3)
            await peer.send("submit_events", {"events": [push("poison", "b")]})
            await peer.send("submit_events", {"events": [push("3", "c")]})
            await until(lambda: len(node.service.clients["c"].unanswered) == 2)
            writer.gate.set()
            assert (await peer.expect("error"))["code"] == "server_error"
            assert await peer.close_code() == 1011
        writer.refuse = lambda effects: None
        async with connected(node.ws_url, "c", TREE) as again:
            assert [event["id"] for event in await again.whole("p")] == ["0", "1", "2"]
            results = await again.submit(push("poison", "b"), push("3", "c", parent="b"))
            assert outcome(results) == ["committed", "committed"]
        assert all(state.pins == 0 for state in node.owner.states._states.values())


async def test_a_sync_that_cannot_be_read_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failing read is `server_error` and close; the client comes back and gets its page."""
    async with sync_server(tmp_path) as node:
        rows_within = node.store.rows_within

        async def failing_within(*_: Any, **__: Any) -> Any:
            raise StoreUnavailable("injected")

        async with connected(node.ws_url) as peer:
            await peer.submit(note("a"))
            monkeypatch.setattr(node.store, "rows_within", failing_within)
            await peer.send("sync", {"partitions": ["p"], "since_committed_id": 0})
            assert (await peer.expect("error"))["code"] == "server_error"
            assert await peer.close_code() == 1011
        async with connected(node.ws_url, "t", TREE) as peer:
            await peer.send("submit_events", {"events": [push("b", "n")]})
            assert (await peer.expect("error"))["code"] == "server_error"
            assert await peer.close_code() == 1011
        monkeypatch.setattr(node.store, "rows_within", rows_within)
        async with connected(node.ws_url, "t", TREE) as peer:
            assert outcome(await peer.submit(push("b", "n"))) == ["committed"]
            assert [event["id"] for event in await peer.whole("p")] == ["a", "b"]


# State.


def random_items(seed: int, count: int) -> list[dict[str, Any]]:
    """Tree actions on a few ids in a few partitions, about half of them impossible."""
    rng = random.Random(seed)
    items = []
    for number in range(count):
        names = rng.sample(["p", "q", "r", "s"], rng.choice([1, 1, 1, 2]))
        node, other, third = (f"n{rng.randrange(9)}" for _ in range(3))
        position = rng.choice(["first", "last", {"after": third}, {"before": third}])
        place = {"parent": rng.choice([other, "_root"]), "position": position}
        items.append(
            rng.choice(
                [
                    push(f"i{number}", node, *names, **place),
                    push(f"i{number}", node, *names),
                    move(f"i{number}", node, *names, **place),
                    act(f"i{number}", "treeDelete", *names, options={"id": node}),
                    act(f"i{number}", "treeUpdate", *names, options={"id": node}, value={"k": 1}),
                    act(f"i{number}", "unset", *names),
                ]
            )
        )
    return items


async def test_a_state_that_was_forgotten_judges_the_same(
    engine: str, store_location: str, tmp_path: Path
) -> None:
    """A server that rebuilds its states all the time says what one says that keeps them."""
    del engine
    items = random_items(11, 240)
    rebuilt = 0
    verdicts: list[str] = []
    async with (
        sync_server(tmp_path / "roomy") as roomy,
        sync_server(tmp_path / "tiny", store=store_location, max_cached_bytes=1) as tiny,
        connected(roomy.ws_url, "c", TREE) as expected,
        connected(tiny.ws_url, "c", TREE) as peer,
    ):
        for start in range(0, len(items), 6):
            batch = items[start : start + 6]
            rebuilt += len({n for item in batch for n in item["partitions"]})
            rebuilt -= len(tiny.owner.states._states)
            wanted = outcome(await expected.submit(*batch))
            verdicts += wanted
            assert outcome(await peer.submit(*batch)) == wanted
            assert tiny.owner.states.used_bytes == 0, "bounded at every request"
            kept = roomy.owner.states
            assert kept._size == sum(state.tree.size for state in kept._states.values())
        assert rebuilt > 40, "states were really forgotten"
        assert min(verdicts.count("committed"), len(verdicts) - verdicts.count("committed")) > 40
        for name in "pqrs":
            pinned = await tiny.owner.states.pin([name])
            mine = pinned[name].tree.export()
            tiny.owner.states.unpin(pinned)
            pinned = await roomy.owner.states.pin([name])
            assert mine == pinned[name].tree.export()
            roomy.owner.states.unpin(pinned)


async def test_many_cold_submits_load_a_state_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests that need a state while it is being loaded wait for it and see the same one."""
    async with sync_server(tmp_path) as node, connected(node.ws_url, "c", TREE) as peer:
        await peer.submit(*(push(f"i{n}", f"n{n}") for n in range(50)))
    loads = 0
    async with sync_server(tmp_path) as node, AsyncExitStack() as stack:
        rows = node.store.rows

        async def counted(query: str, key: Any) -> Any:
            nonlocal loads
            loads += query == "sync_snapshot"
            await asyncio.sleep(0.02)
            return await rows(query, key)

        monkeypatch.setattr(node.store, "rows", counted)
        peers = [
            await stack.enter_async_context(connected(node.ws_url, f"c{n}", TREE)) for n in range(6)
        ]
        results = await asyncio.gather(
            *(peer.submit(push(f"x{n}", "same", parent="n7")) for n, peer in enumerate(peers))
        )
        assert sorted(result["status"] for [result] in results) == ["committed"] + ["rejected"] * 5
        assert loads == 1


# Several nodes.


async def test_a_second_node_sees_the_trees_of_the_first(
    postgresql_url: str, tmp_path: Path
) -> None:
    """What one node committed is in the state the other decides on, warm or cold."""
    async with (
        sync_server(tmp_path / "a", store=postgresql_url) as first,
        sync_server(tmp_path / "b", store=postgresql_url) as second,
        connected(first.ws_url, "a", TREE) as a,
        connected(second.ws_url, "b", TREE) as b,
    ):
        await b.subscribe("p")
        assert outcome(await a.submit(push("1", "x"))) == ["committed"]
        [cold] = await b.submit(push("2", "x"))
        assert outcome([cold]) == ["validation_failed event.payload.value.id"]
        assert outcome(await a.submit(push("3", "y"), push("4", "z"))) == ["committed"] * 2
        [warm] = await b.submit(push("5", "y"))
        assert outcome([warm]) == ["validation_failed event.payload.value.id"]
        assert outcome(await b.submit(move("6", "x", parent="z"))) == ["committed"]
        [inside] = await a.submit(move("7", "z", parent="x"))
        assert outcome([inside]) == ["validation_failed event.payload.options.parent"]
        [replay] = await b.submit(push("1", "x"))
        assert replay["status"] == "committed", "the same id on the other node is a replay"
        seen = [m["payload"]["id"] for m in b.received if m["type"] == "event_broadcast"]
        assert seen == ["1", "3", "4"]
        for number in range(10):
            [result] = await a.submit(push(f"z{number}", f"z{number}"))
            page = await b.sync("p", since=result["committed_id"] - 1)
            assert page["sync_to_committed_id"] == result["committed_id"], "it caught up first"
            assert [event["id"] for event in page["events"]] == [f"z{number}"]
        for number in range(20):
            await asyncio.gather(
                a.submit(push(f"a{number}", f"n{number}")),
                b.submit(push(f"b{number}", f"n{number}")),
            )
        events = await a.whole("p")
        pushed = [event["event"]["payload"].get("value", {}).get("id") for event in events]
        assert [pushed.count(f"n{number}") for number in range(20)] == [1] * 20


async def test_what_is_committed_while_a_node_starts_is_not_overlooked(
    postgresql_url: str, tmp_path: Path
) -> None:
    """A node's watermark includes events of other nodes that came between its first steps."""
    async with (
        sync_server(tmp_path / "a", store=postgresql_url) as first,
        connected(first.ws_url, "a") as a,
        running_node(postgresql_url, name="node-b", clock=SystemClock()) as second,
    ):
        store: Any = second.store
        rows, done = store.rows, False

        async def interrupted(query: str, key: Any) -> Any:
            nonlocal done
            found = await rows(query, key)
            if query == "sync_setting" and not done:
                done = True
                await a.submit(note("meanwhile"))
                await second.committer.catch_up()
            return found

        store.rows = interrupted
        options: dict[str, Any] = {"jwt_secret": SECRET, "model_file": write_model(tmp_path)}
        settings = SyncSettings(**options)
        owner, service = await open_halves(second.committer, store, settings, SystemClock())
        assert done
        assert (owner.last_event, service.last_event) == (1, 1)


# Content.

ODD = ["\0", "a\0b", "\ue000", "\ue0000", "\U0001f600", "\uffff", "\u2028", "'\"\\", "%", " "]
"""Texts that some store or encoder could get wrong."""


async def test_any_text_survives_everywhere(
    engine: str, store_location: str, tmp_path: Path
) -> None:
    """U+0000, non-BMP and private-use characters in ids, names and content come back unchanged."""
    del engine
    async with (
        sync_server(tmp_path, store=store_location) as node,
        connected(node.ws_url, "watch") as watch,
    ):
        partitions = [f"p{text}" for text in ODD]
        await watch.subscribe(*partitions)
        for number, text in enumerate(ODD):
            async with connected(node.ws_url, f"c{text}") as peer:
                item = note(f"i{text}", f"p{text}", data={text: [text, {"n": text}]})
                [result] = await peer.submit(item)
                assert result["status"] == "committed"
                assert await peer.submit(item) == [result], "known again under its own id"
                [broadcast] = await watch.broadcasts(1)
                assert broadcast == {
                    **item,
                    "client_id": f"c{text}",
                    "committed_id": number + 1,
                    "status_updated_at": result["status_updated_at"],
                }
                assert (await peer.sync(f"p{text}"))["events"] == [broadcast]
        assert len(await watch.whole(*partitions)) == len(ODD), "no two of them are one"
        async with connected(node.ws_url, "t", TREE) as tree:
            for text in ODD:
                item = push(f"t{text}", f"n{text}", f"t{text}")
                assert outcome(await tree.submit(item)) == ["committed"]
                again = push(f"u{text}", f"n{text}", f"t{text}")
                field = "validation_failed event.payload.value.id"
                assert outcome(await tree.submit(again)) == [field]
    async with (
        sync_server(tmp_path, store=store_location) as node,
        connected(node.ws_url, "t", TREE) as tree,
    ):
        for text in ODD:
            again = push(f"v{text}", f"n{text}", f"t{text}")
            field = "validation_failed event.payload.value.id"
            assert outcome(await tree.submit(again)) == [field], "also from the log"


async def test_an_event_is_delivered_byte_for_byte(
    engine: str, store_location: str, tmp_path: Path
) -> None:
    """Whitespace, number spelling, escapes and key order stay; equality is that of the values."""
    del engine
    raw = (
        r'{ "payload" : {"data":{"z":1.0,"a":-0,"e":1E2 , "u":"\u00e9\/","k":[ 1e0,0.10 ]},'
        '\t"schema":"any"},\n "type":"event"}'
    )
    other = raw.replace("1.0", "1").replace("-0", "0").replace("1E2", "100").replace("\t", "")
    partitions = '["p","pe\\u0301"]'

    def text(item_id: str, event: str, key: str = "event") -> str:
        item = f'{{"id":"{item_id}", "{key}": {event} ,"partitions":{partitions}}}'
        return envelope("submit_events", {"events": ["?"]}).replace('"?"', item)

    async with (
        sync_server(tmp_path, store=store_location) as node,
        connected(node.ws_url, "watch") as watch,
        connected(node.ws_url) as peer,
    ):
        await watch.subscribe("p")
        await peer.socket.send(text("a", raw))
        [first] = (await peer.expect("submit_events_result"))["results"]
        broadcast = await watch.socket.recv(decode=False)
        assert f'"event":{raw}'.encode() in broadcast
        assert '"partitions":["p","p\u00e9"]'.encode() in broadcast
        await watch.send("sync", {"partitions": ["p"], "since_committed_id": 0})
        assert f'"event":{raw}'.encode() in await watch.socket.recv(decode=False)
        await peer.socket.send(text("a", other))
        assert (await peer.expect("submit_events_result"))["results"] == [first], "equal values"
        await peer.socket.send(text("a", raw.replace("0.10", "0.11")))
        [changed] = (await peer.expect("submit_events_result"))["results"]
        assert outcome([changed]) == ["validation_failed event"]
        await peer.socket.send(text("a", raw).replace('"p",', '"q",'))
        [moved] = (await peer.expect("submit_events_result"))["results"]
        assert outcome([moved]) == ["validation_failed partitions"]
        await peer.socket.send(text("b", raw, key="\\u0065vent"))
        await peer.expect("submit_events_result")
        assert f'"event":{raw}'.encode() in await watch.socket.recv(decode=False)


async def test_integers_that_others_would_round_are_refused(tmp_path: Path) -> None:
    """Each beyond ±(2^53-1) is named by its path; the bounds themselves and floats are fine."""
    async with sync_server(tmp_path) as node, connected(node.ws_url) as peer:
        limit = 2**53 - 1
        [result] = await peer.submit(note("a", data=[limit, {"x.y": -limit - 1, "b": [limit + 1]}]))
        assert outcome([result]) == [
            "validation_failed event.payload.data.1.b.0 event.payload.data.1.x.y"
        ]
        [huge] = await peer.submit(note("a", data=10**4000))
        assert outcome([huge]) == ["validation_failed event.payload.data"]
        fine = [limit, -limit, 1e300, 2.0**60]
        assert outcome(await peer.submit(note("a", data=fine))) == ["committed"]
        assert (await peer.sync("p"))["events"][0]["event"]["payload"]["data"] == fine


async def test_ids_are_global_and_remember_their_first_use(tmp_path: Path) -> None:
    """Another client's equal item is a replay, an altered one names what differs (sync 9)."""
    async with (
        sync_server(tmp_path) as node,
        connected(node.ws_url, "a") as a,
        connected(node.ws_url, "b") as b,
        connected(node.ws_url, "t", TREE) as t,
    ):
        await b.subscribe("p")
        [first] = await a.submit(note("x", "p", "q"))
        await b.broadcasts(1)
        assert await b.submit(note("x", "q", "p", "p")) == [first]
        assert await t.submit(note("x", "q", "p")) == [first], "before the profile is looked at"
        assert [e["client_id"] for e in await a.whole("p")] == ["a"]
        [event] = await b.submit(note("x", "p", "q", data=2))
        [names] = await b.submit(note("x", "p"))
        [both] = await b.submit(note("x", "p", data=2))
        assert [outcome([r])[0] for r in (event, names, both)] == [
            "validation_failed event",
            "validation_failed partitions",
            "validation_failed event",
        ]
        message = "id already committed with different payload"
        assert all(r["errors"][0]["message"] == message for r in (event, names, both))
        bad = note("y")
        bad["event"]["payload"]["extra"] = 1
        assert outcome(await a.submit(bad)) == ["validation_failed event.payload.extra"]
        assert outcome(await a.submit(note("y"))) == ["committed"], (
            "rejections leave no trace (sync D27)"
        )


async def test_the_relations_of_the_protocol_can_be_queried(
    engine: str, store_location: str, tmp_path: Path
) -> None:
    """events, event_partitions, event_ids, snapshots and meta hold what sync 16 says."""
    prefix = "sync_" if engine == "sqlite" else "sync."
    async with (
        sync_server(tmp_path, store=store_location) as node,
        connected(node.ws_url, "c\u00e9") as peer,
        connected(node.ws_url, "t", TREE) as tree,
    ):
        results = await peer.submit(
            note("a", "q", "p", data={"x": "\t"}), note("b\U0001f600"), note("c", "q")
        )
        results += await tree.submit(push("d", "n", "t"))
        events = await peer.whole("p", "q", "t")
        await node.service.set_model_version(9)
        async with asyncio.timeout(60):
            pinned = await node.owner.states.pin(["t"])
        state = pinned["t"].tree.export()
        node.owner.states.unpin(pinned)
        await put_snapshot(node, "t")
        database = Database(store_location)
        found = await database.run(
            "SELECT committed_id, id, client_id, partitions, event, status_updated_at "
            f"FROM {prefix}events ORDER BY committed_id"
        )
        assert [
            {
                "committed_id": row[0],
                "id": row[1],
                "client_id": row[2],
                "partitions": json.loads(row[3]),
                "event": json.loads(row[4]),
                "status_updated_at": row[5],
            }
            for row in found
        ] == events
        found = await database.run(
            f"SELECT partition, committed_id FROM {prefix}event_partitions "
            "ORDER BY committed_id, partition"
        )
        assert found == [("p", 1), ("q", 1), ("p", 2), ("q", 3), ("t", 4)]
        found = await database.run(
            f"SELECT id, committed_id, status_updated_at, hash FROM {prefix}event_ids "
            "ORDER BY committed_id"
        )
        keys = ("id", "committed_id", "status_updated_at")
        assert [row[:3] for row in found] == [tuple(r[key] for key in keys) for r in results]
        assert len({bytes(row[3]) for row in found}) == 4
        assert {len(row[3]) for row in found} == {32}
        found = await database.run(
            f"SELECT partition, state, committed_id, model_version FROM {prefix}snapshots"
        )
        assert [(row[0], json.loads(row[1]), *row[2:]) for row in found] == [("t", state, 4, 9)]
        [meta] = await database.run(f"SELECT last_committed_id, model_version FROM {prefix}meta")
        assert meta == (4, 9)


async def test_an_event_with_a_nul_does_not_hide_the_others(
    engine: str, store_location: str, tmp_path: Path
) -> None:
    """The relation of events can be queried although one of them holds U+0000."""
    prefix = "sync_" if engine == "sqlite" else "sync."
    async with (
        sync_server(tmp_path, store=store_location) as node,
        connected(node.ws_url) as peer,
    ):
        await peer.submit(note("a"), note("b", data="\0"), note("c", "p\0"))
        rows = await Database(store_location).run(
            f"SELECT event, partitions FROM {prefix}events ORDER BY committed_id"
        )
        events = await peer.whole("p", "p\0")
        assert [json.loads(row[0]) for row in rows] == [event["event"] for event in events]
        assert [json.loads(row[1]) for row in rows] == [event["partitions"] for event in events]


async def put_snapshot(node: SyncNode, partition: str) -> None:
    """Let the server store the state of a partition, as an administrator does."""
    async with httpx.AsyncClient(base_url=node.server.url, verify=False) as http:
        answer = await http.put(
            "/sync/admin/snapshot",
            json={"partition": partition},
            headers={"authorization": f"Bearer {node.settings.admin_token}"},
        )
        assert answer.status_code == 200


async def test_the_handshake_tells_what_a_client_needs(tmp_path: Path) -> None:
    """`connected` has identity, time, position, limits, and the model version if it is offered."""
    async with (
        sync_server(tmp_path / "both", max_batch_size=7, sync_limit_max=70) as node,
        connected(node.ws_url) as peer,
    ):
        [message] = peer.received
        payload = message["payload"]
        assert payload.pop("server_time") <= SystemClock().now_ms()
        limits = payload.pop("limits")
        assert payload == {
            "client_id": "c",
            "server_last_committed_id": 0,
            "incarnation": node.server.committer.incarnations.current.id,
            "began": 0,
            "capabilities": {"profile": EVENT, "accepted_event_types": ["event"]},
            "model_version": 3,
        }
        assert limits.items() >= {
            ("max_batch_size", 7),
            ("sync_limit_min", 50),
            ("sync_limit_max", 70),
            ("max_message_bytes", 1_048_576),
            ("max_in_flight_drafts", 200),
        }
    async with (
        sync_server(tmp_path / "tree", profiles=[TREE], model=MODEL) as node,
        connected(node.ws_url, profile=TREE) as peer,
    ):
        assert "model_version" not in peer.received[0]["payload"]
        assert "model_version" not in await peer.sync("p")


async def test_timers_close_what_is_silent_or_expired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service's own timer ends a silent peer with 4408 and an expired one with 4401.

    Time passes when all is ready for it, however long that takes.
    """
    loop = asyncio.get_running_loop()
    async with (
        sync_server(tmp_path) as node,
        connected(node.ws_url) as peer,
        open_peer(node.ws_url) as anonymous,
    ):
        await peer.subscribe("p")
        monkeypatch.setattr(node.service, "steady", lambda: loop.time() + 3600)
        assert await peer.close_code() == 4408
        assert await anonymous.close_code() == 4408
        assert node.service._subscribers == {}
    async with sync_server(tmp_path) as node, open_peer(node.ws_url) as peer:
        expiring = token("c", exp=int(time.time()) + 3600)
        await peer.send("connect", {"token": expiring, "client_id": "c"})
        await peer.expect("connected")
        later = SimpleNamespace(time=lambda: time.time() + 3600)
        monkeypatch.setattr(service_module, "time", later)
        assert (await peer.expect("error"))["code"] == "auth_failed"
        assert await peer.close_code() == 4401


async def test_the_end_of_a_server_is_announced(tmp_path: Path) -> None:
    """An orderly end answers what was accepted and closes with 1001."""
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(sync_server(tmp_path))
        peer = await stack.enter_async_context(connected(node.ws_url))
        await peer.send("submit_events", {"events": [note("a")]})
        await peer.expect("submit_events_result")
        node.server.stop()
        assert await peer.close_code() == 1001


async def test_the_hard_cap_cuts_off_and_the_soft_one_does_not(tmp_path: Path) -> None:
    """Up to four times the limit a message is refused, beyond it the transport closes (sync D1)."""
    async with (
        sync_server(tmp_path, max_message_bytes=2000) as node,
        connected(node.ws_url) as peer,
    ):
        for size in (2001, 8000):
            await peer.socket.send("x" * size)
            error = await peer.expect("error")
            assert error["code"] == "bad_request"
            assert error["details"]["max_message_bytes"] == 2000
        assert await peer.is_quiet()
        await peer.socket.send("x" * 8001)
        assert await peer.close_code() == 1009
