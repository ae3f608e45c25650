"""A cold start by snapshot (sync 10.1, D67): the state of a partition instead of its events."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from support.sync.admin import Admin, admin
from support.sync.peer import (
    EVENT,
    MODEL,
    TREE,
    Peer,
    act,
    connected,
    envelope,
    outcome,
    push,
    token,
)
from tidelog.client import SyncClient
from tidelog.client.sync.changes import Changes
from tidelog.sync.front import snapshots
from tidelog.sync.protocol.profiles import Model

Ask = Callable[..., Awaitable[dict[str, Any]]]
"""Asks for a page of `p` from 0."""


async def grow(peer: Peer, *nodes: str, partition: str = "p", text: str = "") -> None:
    """Push nodes at the end."""
    for start in range(0, len(nodes), 25):
        items = [
            act(
                f"{partition}-{node}",
                "treePush",
                partition,
                value={"id": node, "text": text},
                options={"position": "last"},
            )
            for node in nodes[start : start + 25]
        ]
        assert set(outcome(await peer.submit(*items))) == {"committed"}


def over_http(administrator: Admin) -> Ask:
    """Ask by polling."""

    async def ask(profile: str = TREE, **fields: Any) -> dict[str, Any]:
        payload = {"partitions": ["p"], "since_committed_id": 0, **fields}
        answer = await administrator.http.post(
            "/sync/v1/sync",
            content=envelope("sync", payload),
            headers={"authorization": f"Bearer {token('c')}", "x-sync-profile": profile},
        )
        assert answer.status_code == 200, answer.text
        page: dict[str, Any] = answer.json()["payload"]
        return page

    return ask


def over_socket(peer: Peer) -> Ask:
    """Ask over a connection."""

    async def ask(**fields: Any) -> dict[str, Any]:
        payload = {"partitions": ["p"], "since_committed_id": 0, **fields}
        await peer.send("sync", payload)
        return await peer.wait_for("sync_response")

    return ask


@pytest.mark.parametrize("way", ["socket", "http"])
async def test_the_state_comes_instead_of_the_events(
    tmp_path: Path, store_location: str, way: str
) -> None:
    """One answer holds the state; the events after it follow, and those before it never do."""
    async with (
        admin(tmp_path, store=store_location, sync_limit_min=1) as administrator,
        connected(administrator.node.ws_url, "t", TREE) as peer,
    ):
        ask = over_socket(peer) if way == "socket" else over_http(administrator)
        await grow(peer, *"abcd")
        assert "snapshot" not in await ask(accept_snapshot=True), "there is none yet"
        at = await administrator.snapshot("p")
        state = await administrator.state("p")
        page = await ask(accept_snapshot=True)
        assert (json.loads(page["snapshot"]), page["snapshot_committed_id"]) == (state, at)
        assert (page["events"], page["has_more"]) == ([], False)
        assert page["next_since_committed_id"] == page["sync_to_committed_id"] == at
        assert "snapshot_next" not in page
        await grow(peer, *"efg")
        first = await ask(accept_snapshot=True)
        assert (first["snapshot"], first["snapshot_committed_id"]) == (page["snapshot"], at)
        assert (first["events"], first["has_more"]) == ([], True)
        assert first["next_since_committed_id"] == at
        watermark = first["sync_to_committed_id"]
        repeated = {} if way == "socket" else {"sync_to_committed_id": watermark}
        rest = await ask(accept_snapshot=True, limit=2, **repeated | {"since_committed_id": at})
        assert "snapshot" not in rest
        assert [event["id"] for event in rest["events"]] == ["p-e", "p-f"]
        assert (rest["has_more"], rest["sync_to_committed_id"]) == (True, watermark)


async def test_only_a_cold_start_of_one_tree_gets_it(tmp_path: Path, store_location: str) -> None:
    """Whoever does not ask, asks for more, has something, or has another profile gets events."""
    async with (
        admin(tmp_path, store=store_location) as administrator,
        connected(administrator.node.ws_url, "t", TREE) as peer,
        connected(administrator.node.ws_url, "e", EVENT) as other,
    ):
        ask, polled = over_socket(peer), over_http(administrator)
        await grow(peer, *"abc")
        await administrator.snapshot("p")
        for page in (
            await ask(),
            await ask(accept_snapshot=False),
            await ask(snapshot_committed_id=3, snapshot_from=0),
            await ask(accept_snapshot=True, partitions=["p", "q"]),
            await over_socket(other)(accept_snapshot=True),
            await polled(accept_snapshot=True, profile=EVENT),
        ):
            assert not page.keys() & {"snapshot", "snapshot_committed_id", "snapshot_next"}
            assert len(page["events"]) == 3
        assert len((await ask(accept_snapshot=True, since_committed_id=1))["events"]) == 2
        for wrong in ({"accept_snapshot": 1}, {"snapshot_from": -1}, {"snapshot_from": "x"}):
            await peer.send("sync", {"partitions": ["p"], "since_committed_id": 0, **wrong})
            assert (await peer.expect("error"))["code"] == "bad_request"
        await administrator.ok("PUT", "model-version", {"model_version": 4})
        assert "snapshot" not in await ask(accept_snapshot=True), "it is of another version"
        await administrator.snapshot("p")
        assert "snapshot" in await ask(accept_snapshot=True)


async def test_a_snapshot_of_the_future_is_not_given(tmp_path: Path, store_location: str) -> None:
    """A cycle whose watermark lies before the snapshot gets events: the state has later ones."""
    async with (
        admin(tmp_path, store=store_location, sync_limit_min=1) as administrator,
        connected(administrator.node.ws_url, "t", TREE) as peer,
    ):
        ask = over_http(administrator)
        await grow(peer, *"abc")
        await administrator.snapshot("p")
        page = await ask(accept_snapshot=True, sync_to_committed_id=2)
        assert "snapshot" not in page
        assert [event["committed_id"] for event in page["events"]] == [1, 2]


@pytest.mark.parametrize("way", ["socket", "http"])
async def test_a_state_larger_than_a_page_comes_in_parts(
    tmp_path: Path, store_location: str, way: str
) -> None:
    """Each within `max_bytes`, cut between characters; one that was replaced starts anew."""
    async with (
        admin(tmp_path, store=store_location) as administrator,
        connected(administrator.node.ws_url, "t", TREE) as peer,
    ):
        ask = over_socket(peer) if way == "socket" else over_http(administrator)
        await grow(peer, *(f"n{number}" for number in range(60)), text="a€😀ü" * 100)
        at = await administrator.snapshot("p")
        state = await administrator.state("p")
        await grow(peer, "later")
        parts: list[str] = []
        fields: dict[str, Any] = {"accept_snapshot": True, "max_bytes": 10_001}
        while True:
            page = await ask(**fields)
            parts.append(page["snapshot"])
            assert (page["events"], page["has_more"]) == ([], True)
            assert len(parts[-1].encode()) <= 10_001
            assert page["snapshot_committed_id"] == at
            if "snapshot_next" not in page:
                break
            assert page["next_since_committed_id"] == 0
            if way == "http":
                fields["sync_to_committed_id"] = page["sync_to_committed_id"]
            fields |= {"snapshot_committed_id": at, "snapshot_from": page["snapshot_next"]}
        assert json.loads("".join(parts)) == state
        assert len(parts) > 5
        assert (page["next_since_committed_id"], page["sync_to_committed_id"]) == (at, at + 1)
        least = await ask(accept_snapshot=True, max_bytes=0)
        assert 4000 < len(least["snapshot"].encode()) <= 4096, "no part is ridiculously small"
        for odd in (parts[0].index("€") + 1, 10**9):
            again = await ask(**fields | {"snapshot_from": odd})
            assert again["snapshot"] == parts[0], "no place where a part can start"
        newer = await administrator.snapshot("p")
        page = await ask(accept_snapshot=True, snapshot_committed_id=at, snapshot_from=10_000)
        assert page["snapshot_committed_id"] == newer
        assert page["snapshot"].startswith("{")


async def test_a_state_that_is_too_large_is_not_given(
    tmp_path: Path, store_location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are the events still."""
    async with (
        admin(tmp_path, store=store_location) as administrator,
        connected(administrator.node.ws_url, "t", TREE) as peer,
    ):
        await grow(peer, *"abc")
        await administrator.snapshot("p")
        [row] = await administrator.node.store.rows("sync_snapshot", ("p",))
        ask = over_socket(peer)
        monkeypatch.setattr(snapshots, "MAX_STATE_BYTES", len(row[0]))
        assert "snapshot" in await ask(accept_snapshot=True)
        monkeypatch.setattr(snapshots, "MAX_STATE_BYTES", len(row[0]) - 1)
        page = await ask(accept_snapshot=True)
        assert ("snapshot" in page, len(page["events"])) == (False, 3)


async def test_a_damaged_snapshot_is_not_given(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not what was stored: the events are, and the log says so."""
    async with (
        admin(tmp_path) as administrator,
        connected(administrator.node.ws_url, "t", TREE) as peer,
    ):
        await grow(peer, *"abc")
        await administrator.snapshot("p")
        ask = over_socket(peer)
        assert "snapshot" in await ask(accept_snapshot=True)
        rows = administrator.node.store.rows

        async def damaged(query: str, key: Any) -> Any:
            found = await rows(query, key)
            if query != "sync_snapshot_within":
                return found
            return tuple((text.replace(b"a", b"b", 1), *rest) for text, *rest in found)

        administrator.node.store.rows = damaged
        page = await ask(accept_snapshot=True)
        assert ("snapshot" in page, len(page["events"])) == (False, 3)
        assert "ignored the snapshot" in caplog.text


def client_of(
    url: str, folder: Path, name: str, targets: Any = MODEL["tree_targets"]
) -> SyncClient:
    """A client of the tree profile."""
    return SyncClient(
        url,
        client_id=name,
        token=token(name),
        store=folder / f"{name}.db",
        model=Model.parse(targets, MODEL["schemas"], MODEL["model_version"]),
        partitions=["p"],
    )


def pages(changes: Changes) -> list[dict[str, Any]]:
    """What the client was told of pages so far."""
    return [change.data for change in list(changes._waiting) if change.name == "sync_page"]


async def test_a_client_starts_from_the_state(tmp_path: Path, store_location: str) -> None:
    """Its view is that of a client that has all the events; it fetches those after the state."""
    async with (
        asyncio.timeout(60),
        admin(tmp_path, store=store_location) as administrator,
        connected(administrator.node.ws_url, "t", TREE) as peer,
    ):
        url = administrator.node.ws_url
        await grow(peer, *(f"n{number}" for number in range(300)))
        await peer.submit(act("gone", "treeDelete", options={"id": "n7"}))
        async with client_of(url, tmp_path, "early") as early:
            await early.sync()
            at = await administrator.snapshot("p")
            await grow(peer, *"abcde")
            async with client_of(url, tmp_path, "late") as late:
                changes = late.changes()
                await late.sync()
                fetched = pages(changes)
                assert [page.get("snapshot") for page in fetched] == [at, None]
                assert [page["events"] for page in fetched] == [0, 5]
                await early.sync()
                assert late.view("p") == early.view("p") == await administrator.state("p")
                draft = await late.submit(
                    partitions=["p"],
                    event={
                        "type": "treeDelete",
                        "payload": {"target": "t", "options": {"id": "a"}},
                    },
                )
                assert (await late.wait(draft.id)).status == "committed"
                await early.sync()
                assert late.view("p") == early.view("p")
            await grow(peer, "f")  # while it is away: later, it might come as a broadcast
            async with client_of(url, tmp_path, "late") as late:
                changes = late.changes()
                await late.sync()
                assert [page["events"] for page in pages(changes)] == [1]
                await early.sync()
                assert late.view("p") == early.view("p")


async def test_a_client_starts_from_a_state_larger_than_a_page_and_deeper_than_a_message(
    tmp_path: Path, store_location: str
) -> None:
    """1.5 MB of text, and a tree of 200 levels, which no message could hold as such."""
    async with (
        asyncio.timeout(60),
        admin(tmp_path, store=store_location) as administrator,
        connected(administrator.node.ws_url, "t", TREE) as peer,
    ):
        await grow(peer, *(f"n{number}" for number in range(100)), text='"€' * 3000)
        deep = [push(f"d{n}", f"d{n}", parent=f"d{n - 1}" if n else "_root") for n in range(200)]
        assert set(outcome(await peer.submit(*deep[:100]))) == {"committed"}
        assert set(outcome(await peer.submit(*deep[100:]))) == {"committed"}
        at = await administrator.snapshot("p")
        async with client_of(administrator.node.ws_url, tmp_path, "late") as late:
            changes = late.changes()
            await late.sync()
            assert [(page["events"], page.get("snapshot")) for page in pages(changes)] == [(0, at)]
            assert late.view("p") == await administrator.state("p")


async def test_a_client_that_cannot_use_the_state_fetches_the_events(tmp_path: Path) -> None:
    """Its model lacks a target; what it knows of the partition it has all the same."""
    async with (
        asyncio.timeout(60),
        admin(tmp_path) as administrator,
        connected(administrator.node.ws_url, "t", TREE) as peer,
    ):
        await grow(peer, *"abc")
        value = {"type": "set", "payload": {"target": "v", "value": 1}}
        await peer.submit({"id": "v", "partitions": ["p"], "event": value})
        await administrator.snapshot("p")
        targets = {"t": MODEL["tree_targets"]["t"]}
        async with client_of(administrator.node.ws_url, tmp_path, "old", targets) as old:
            await old.sync()
            assert list(old.view("p")["t"]["items"]) == ["a", "b", "c"]
            await old.sync()
            assert list(old.view("p")["t"]["items"]) == ["a", "b", "c"]
