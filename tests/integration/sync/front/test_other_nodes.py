"""Sync on several nodes of one PostgreSQL: clients, model versions and retention reach across."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.store.catalogue import Database
from support.sync import insieme_peer
from support.sync.peer import (
    ADMIN_TOKEN,
    EVENT,
    TREE,
    Peer,
    SyncNode,
    connected,
    note,
    open_peer,
    outcome,
    push,
    sync_server,
    token,
)
from tidelog.base.errors import StoreDamaged, StoreUnavailable
from tidelog.base.settings.limits import Limits
from tidelog.sync.protocol.wire import SUPERSEDED
from tidelog.sync.upkeep import model_version as version_module
from tidelog.sync.upkeep.other_nodes import OtherNodes

HEADERS = {"authorization": f"Bearer {ADMIN_TOKEN}"}


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something becomes true that nothing tells of."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.005)


async def shake_hands(peer: Peer, client_id: str = "c") -> None:
    """Send `connect` and do not wait for the answer."""
    payload = {"token": token(client_id), "client_id": client_id, "supported_profiles": [EVENT]}
    await peer.send("connect", payload)


# The dialect of insieme.


async def test_clients_of_insiemes_dialect_on_two_nodes_see_each_other(
    postgresql_url: str, tmp_path: Path
) -> None:
    """Live and by pages, beside a client of ours."""
    async with (
        sync_server(tmp_path / "a", store=postgresql_url) as a,
        sync_server(tmp_path / "b", store=postgresql_url) as b,
        insieme_peer.connected(a.ws_url, "first") as first,
        insieme_peer.connected(b.ws_url, "second") as second,
        connected(b.ws_url, "ours") as ours,
    ):
        await ours.subscribe("p/tasks")
        await first.submit(insieme_peer.task("x"))
        assert (await second.expect("event_broadcast"))["id"] == "x"
        assert [event["id"] for event in await ours.broadcasts(1)] == ["x"]
        await second.submit(insieme_peer.task("y"))
        assert (await first.expect("event_broadcast"))["id"] == "y"
        for peer in (first, second):
            assert [event["id"] for event in await peer.whole()] == ["x", "y"]
        assert (await second.submit(insieme_peer.task("x")))[0]["committedId"] == 1


# One connection per client.


async def test_connecting_to_another_node_closes_the_older_connection(
    postgresql_url: str, tmp_path: Path
) -> None:
    """With 4409 and without a message; others stay, and the newer one can be replaced in turn."""
    async with (
        sync_server(tmp_path / "a", store=postgresql_url) as a,
        sync_server(tmp_path / "b", store=postgresql_url) as b,
        connected(a.ws_url, "c") as first,
        connected(a.ws_url, "other") as other,
    ):
        await first.subscribe("p")
        async with connected(b.ws_url, "c") as second:
            assert await first.close_code() == SUPERSEDED
            assert set(a.service.clients) == {"other"}
            assert a.service._subscribers == {}
            assert await other.is_quiet()
            async with connected(a.ws_url, "c") as third:
                assert await second.close_code() == SUPERSEDED
                assert await third.is_quiet()
                assert (set(a.service.clients), set(b.service.clients)) == ({"c", "other"}, set())


async def test_a_failed_handshake_elsewhere_evicts_nobody(
    postgresql_url: str, tmp_path: Path
) -> None:
    """Neither a wrong token nor a profile that cannot be met is told to other nodes."""
    async with (
        sync_server(tmp_path / "a", store=postgresql_url) as a,
        sync_server(tmp_path / "b", store=postgresql_url) as b,
        connected(a.ws_url, "c") as older,
    ):
        for changes, code in (({"token": token("d")}, 4401), ({"supported_profiles": ["x"]}, 4407)):
            async with open_peer(b.ws_url) as newer:
                await newer.send("connect", {"token": token("c"), "client_id": "c", **changes})
                await newer.expect("error")
                assert await newer.close_code() == code
        async with connected(b.ws_url, "other"):
            pass
        assert await older.is_quiet()
        assert set(a.service.clients) == {"c"}


async def test_of_simultaneous_connections_one_stays(postgresql_url: str, tmp_path: Path) -> None:
    """Whatever the order of arrival, both nodes agree on which of them it is."""
    async with (
        sync_server(tmp_path / "a", store=postgresql_url) as a,
        sync_server(tmp_path / "b", store=postgresql_url) as b,
    ):
        services = (a.service, b.service)
        for round_ in range(12):
            client_id = f"c{round_}"
            async with AsyncExitStack() as stack:
                peers = [
                    await stack.enter_async_context(open_peer(node.ws_url)) for node in (a, b, a, b)
                ]
                await asyncio.gather(*(shake_hands(peer, client_id) for peer in peers))

                await until(
                    lambda: (
                        sum(len(service._open) for service in services) == 1
                        and sum(len(service.clients) for service in services) == 1
                    )
                )
            await until(lambda: not a.service._open and not b.service._open)


async def test_a_claim_that_was_overtaken_before_it_was_known_is_given_up(
    postgresql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Node b hears of the later claim before it learns its own: the handshake ends with 4409."""
    async with (
        sync_server(tmp_path / "a", store=postgresql_url) as a,
        sync_server(tmp_path / "b", store=postgresql_url) as b,
        open_peer(b.ws_url) as early,
    ):
        gate, claim = asyncio.Event(), OtherNodes.claim
        claimed = 0

        async def held(nodes: OtherNodes, client_id: str) -> int:
            nonlocal claimed
            mine = await claim(nodes, client_id)
            if nodes is b.owner.others:
                claimed = mine
                await gate.wait()
            return mine

        monkeypatch.setattr(OtherNodes, "claim", held)
        await shake_hands(early)
        await until(lambda: claimed > 0)
        async with connected(a.ws_url, "c") as late:
            await until(lambda: b.owner.others.has_later_claim("c", claimed))
            gate.set()
            assert await early.close_code() == SUPERSEDED
            assert await late.is_quiet()
            assert (set(a.service.clients), set(b.service.clients)) == ({"c"}, set())


async def test_who_cannot_tell_the_others_is_not_connected(
    postgresql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that does not take the claim fails the handshake; the client tries again."""
    async with sync_server(tmp_path, store=postgresql_url) as node, open_peer(node.ws_url) as peer:

        async def fails(messages: Any) -> list[int]:
            raise StoreUnavailable("injected")

        monkeypatch.setattr(node.store, "announce", fails)
        await shake_hands(peer)
        assert (await peer.expect("error"))["code"] == "server_error"
        assert await peer.close_code() == 1011
        assert node.service.clients == {}


# Model version.


async def set_version(node: SyncNode, version: int) -> dict[str, Any]:
    """As an administrator does."""
    async with httpx.AsyncClient(base_url=node.server.url, headers=HEADERS, verify=False) as http:
        answer = await http.put("/sync/admin/model-version", json={"model_version": version})
        assert answer.status_code == 200
        result: dict[str, Any] = answer.json()
        return result


async def test_a_new_model_version_reaches_the_clients_of_every_node(
    postgresql_url: str, tmp_path: Path
) -> None:
    """Of the event profile, once, after what was committed before; later answers carry it."""
    async with (
        sync_server(tmp_path / "a", store=postgresql_url) as a,
        sync_server(tmp_path / "b", store=postgresql_url) as b,
        connected(a.ws_url, "a") as here,
        connected(b.ws_url, "b") as there,
        connected(b.ws_url, "t", TREE) as tree,
    ):
        await there.subscribe("p")
        await here.submit(*(note(f"i{n}") for n in range(50)))
        assert await set_version(a, 7) == {"old_model_version": 3, "new_model_version": 7}
        changed = {"old_model_version": 3, "new_model_version": 7}
        assert await here.expect("version_changed") == changed
        assert len(await there.broadcasts(50)) == 50
        assert await there.expect("version_changed") == changed
        assert b.service.model_version == b.owner.states.model_version == 7
        assert await tree.is_quiet()
        assert (await there.sync("p"))["model_version"] == 7
        await set_version(b, 7)
        assert await there.is_quiet(), "it is the version in use"
        assert await set_version(b, 8) == {"old_model_version": 7, "new_model_version": 8}
        assert await here.expect("version_changed") == {
            "old_model_version": 7,
            "new_model_version": 8,
        }


async def test_all_nodes_end_with_the_version_that_was_stored_last(
    postgresql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Administrators of several nodes change it at once, and reads fail now and then."""
    monkeypatch.setattr(version_module, "RETRY_SECONDS", 0.01)
    async with (
        sync_server(tmp_path / "a", store=postgresql_url) as a,
        sync_server(tmp_path / "b", store=postgresql_url) as b,
    ):
        rows, asked, failed = b.store.rows, 0, 0

        async def unsteady(query: str, key: Any) -> Any:
            nonlocal asked, failed
            if query == "sync_setting":
                asked += 1
                if asked % 2:
                    failed += 1
                    raise StoreUnavailable("injected")
            return await rows(query, key)

        monkeypatch.setattr(b.store, "rows", unsteady)
        await asyncio.gather(
            *(node.service.set_model_version(10 + n) for n, node in enumerate([a, b] * 8))
        )
        [(stored,)] = await a.store.rows("sync_setting", ("model_version",))
        await until(lambda: a.service.model_version == b.service.model_version == stored)
        asked = failed = 0  # a read of before may still be repeated: then that one fails
        await a.service.set_model_version(99)
        await until(lambda: b.service.model_version == 99)
        assert failed >= 1, "asked again after a failure"


async def test_a_version_that_was_not_heard_of_is_looked_for(
    postgresql_url: str, tmp_path: Path
) -> None:
    """A node that could not listen for long asks the store."""
    async with (
        sync_server(tmp_path / "b", store=postgresql_url) as b,
        connected(b.ws_url, "b") as peer,
    ):
        await Database(postgresql_url).run("UPDATE sync_settings SET value = 5")
        for missed in b.server.committer.announcements._missed:
            missed()
        assert (await peer.expect("version_changed"))["new_model_version"] == 5


# Retention on another node.


async def archive(node: SyncNode, *partitions: str) -> int:
    """Snapshots of the partitions, then retention of everything."""
    async with httpx.AsyncClient(
        base_url=node.server.url, headers=HEADERS, timeout=30, verify=False
    ) as http:
        for name in partitions:
            answer = await http.put("/sync/admin/snapshot", json={"partition": name})
            assert answer.status_code == 200, answer.text
        answer = await http.post("/sync/admin/retention", json={"through": 2**40})
        archived: int = answer.json()["archived"]
        return archived


@pytest.mark.parametrize("under_lock", [False, True])
async def test_a_node_that_lags_behind_retention_reads_the_archive(
    postgresql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, under_lock: bool
) -> None:
    """Broadcasts are whole and states right, whether it follows or finds them under the lock."""
    limits = Limits(head_poll_ms=86_400_000)
    async with (
        sync_server(tmp_path / "a", store=postgresql_url) as a,
        sync_server(tmp_path / "b", store=postgresql_url, limits=limits) as b,
        connected(a.ws_url, "w", TREE) as writer,
        connected(b.ws_url, "r", TREE) as reader,
    ):
        await reader.subscribe("p")
        assert outcome(await reader.submit(push("0", "n0"))) == ["committed"], "the state is warm"
        gate, entries = asyncio.Event(), b.store.entries

        async def held(*arguments: Any, **options: Any) -> Any:
            await gate.wait()
            return await entries(*arguments, **options)

        if under_lock:
            b.store._listener._watchers.clear()
        else:
            monkeypatch.setattr(b.store, "entries", held)
        items = [push(f"i{n}", f"m{n}", "p", "q") for n in range(20)]
        assert outcome(await writer.submit(*items)) == ["committed"] * 20
        await asyncio.sleep(0.1)
        assert b.server.committer.tail.position == 1, "it lags"
        assert await archive(a, "p", "q") == 21
        gate.set()
        again = [push("twice", "m3"), push("below", "x", parent="m19")]
        if under_lock:
            await reader.send("submit_events", {"events": again})
        else:
            await until(lambda: b.server.committer.tail.position == 21)
        broadcasts = await reader.broadcasts(20)
        assert [event["event"] for event in broadcasts] == [item["event"] for item in items]
        assert [event["committed_id"] for event in broadcasts] == list(range(2, 22))
        if not under_lock:
            await reader.send("submit_events", {"events": again})
        results = (await reader.expect("submit_events_result"))["results"]
        assert outcome(results) == ["validation_failed event.payload.value.id", "committed"]


async def test_a_body_that_is_nowhere_stops_delivery_rather_than_leave_a_gap(
    postgresql_url: str, tmp_path: Path
) -> None:
    """The node stays where it is and says so; a gap would be taken for the whole truth."""
    async with (
        sync_server(tmp_path / "a", store=postgresql_url) as a,
        connected(a.ws_url, "w") as writer,
    ):
        await writer.submit(note("i"))
        with pytest.raises(StoreDamaged, match=r"events \[1\] are neither"):
            await a.owner.archived([1])
