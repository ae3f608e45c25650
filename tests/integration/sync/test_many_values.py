"""Messages with many JSON values, and partitions with many large events: nobody else waits long."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.sync import insieme_peer
from support.sync.insieme_peer import task
from support.sync.peer import (
    EVENT,
    MODEL,
    TREE,
    act,
    connected,
    envelope,
    note,
    outcome,
    sync_server,
    token,
)
from tidelog.client import SyncClient
from tidelog.sync.protocol.profiles import Model
from tidelog.sync.upkeep.state_cache import PAGE_BYTES, TURN_BYTES, CachedState

MOST = 1000


async def test_what_has_too_many_values_is_refused_in_either_dialect(tmp_path: Path) -> None:
    """By socket and by polling; the connection goes on, and nothing was written (sync D78)."""
    many: list[list[int]] = [[] for _ in range(MOST)]
    async with sync_server(tmp_path, max_message_values=MOST) as node:
        async with connected(node.ws_url) as peer:
            await peer.send("submit_events", {"events": [note("a", data=many)]})
            error = await peer.expect("error")
            assert (error["code"], error["details"]["max_message_values"]) == ("bad_request", MOST)
            assert outcome(await peer.submit(note("b"))) == ["committed"]
        async with insieme_peer.connected(node.ws_url) as other:
            await other.send("submit_events", {"events": [task("c", payload={"many": many})]})
            error = (await other.receive())["payload"]
            assert (error["code"], error["details"]["maxMessageValues"]) == ("bad_request", MOST)
        async with httpx.AsyncClient(base_url=node.server.url, verify=False) as client:
            response = await client.post(
                "/sync/v1/submit",
                headers={"authorization": f"Bearer {token('polling')}"},
                content=envelope("submit_events", {"events": [note("d", data=many)]}),
            )
        assert response.status_code == 400
        assert response.json()["payload"]["details"]["max_message_values"] == MOST
        assert (await node.counts())[0] == 1


async def test_a_client_submits_one_by_one_what_is_too_much_together(tmp_path: Path) -> None:
    """Drafts that fit singly are committed; the one that does not is rejected."""

    def client_of(url: str | None) -> SyncClient:
        return SyncClient(
            url,
            client_id="ada",
            token=token("ada"),
            store=tmp_path / "ada.db",
            model=Model.parse(MODEL["tree_targets"], MODEL["schemas"], MODEL["model_version"]),
            profile=EVENT,
            reduce=lambda state, event: {"n": state.get("n", 0) + 1},
            partitions=["p"],
        )

    async with asyncio.timeout(60), sync_server(tmp_path, max_message_values=MOST) as node:
        async with client_of(None) as client:
            for number, values in enumerate((600, 600, 1000, 600)):
                event = {"type": "event", "payload": {"schema": "any", "data": [0] * values}}
                await client.submit(partitions=["p"], event=event, id=f"d{number}")
        async with client_of(node.ws_url) as client:
            await client.wait("d3")
            assert client.pending() == []
            assert [draft.id for draft in client.rejected()] == ["d2"]
            assert client.view("p") == {"n": 3}


async def test_others_get_their_turn_while_a_partition_of_large_events_is_loaded(
    tmp_path: Path, store_location: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read a page of bytes at a time, and applied a little at a time."""
    del engine
    count, size = 40, 60_000
    async with (
        sync_server(tmp_path, store=store_location) as node,
        connected(node.ws_url, "t", TREE) as peer,
    ):
        for number in range(count):
            value = {"id": f"n{number}", "text": "x" * size}
            results = await peer.submit(act(f"e{number}", "treePush", value=value))
            assert outcome(results) == ["committed"]
    async with sync_server(tmp_path, store=store_location) as node:
        turns, applied = 0, dict[int, int]()
        follow, rows_within = CachedState.follow, node.store.rows_within
        pages: list[int] = []

        def counted(state: CachedState, committed_id: int, event: dict[str, Any]) -> Any:
            applied[turns] = applied.get(turns, 0) + size
            return follow(state, committed_id, event)

        async def noted(query: str, positions: Any, *, most_bytes: int) -> Any:
            found = await rows_within(query, positions, most_bytes=most_bytes)
            pages.append(sum(len(row[-1]) for row in found))
            return found

        async def tick() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        monkeypatch.setattr(CachedState, "follow", counted)
        monkeypatch.setattr(node.store, "rows_within", noted)
        async with connected(node.ws_url, "t", TREE) as peer:
            ticking = asyncio.create_task(tick())
            results = await peer.submit(act("last", "treePush", value={"id": "n7"}))
            ticking.cancel()
        assert outcome(results) == ["validation_failed event.payload.value.id"]
        assert sum(applied.values()) == count * size
        assert max(applied.values()) <= TURN_BYTES + size
        assert sum(pages) > count * size
        assert max(pages) <= PAGE_BYTES
