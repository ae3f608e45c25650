"""A plug-in on a real server: refusals on the wire, and neighbours that are not affected."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from support.sync.application import MOST_ITEMS
from support.sync.peer import (
    TREE,
    Peer,
    SyncNode,
    act,
    connected,
    envelope,
    note,
    open_peer,
    outcome,
    push,
    sync_server,
    token,
)
from tidelog.base.errors import ConfigError

PLUGIN = "support.sync.application:Rules"


def without_time(result: dict[str, Any]) -> dict[str, Any]:
    """A rejected result but for the moment of the decision."""
    return {name: value for name, value in result.items() if name != "status_updated_at"}


def rejected(item_id: str, reason: str, *errors: tuple[str, str]) -> dict[str, Any]:
    """The whole result of a rejected item."""
    listed = [{"field": field, "message": message} for field, message in errors]
    return {"id": item_id, "status": "rejected", "reason": reason, "errors": listed}


async def archivist(node: SyncNode, peer: Peer) -> None:
    """Shake hands as somebody with a role."""
    given = {"token": token("a", role="archivist"), "client_id": "a"}
    await peer.send("connect", {**given, "supported_profiles": ["canonical"]})
    await peer.expect("connected")


async def test_the_authorizer_is_asked_besides_the_token(
    engine: str, store_location: str, tmp_path: Path
) -> None:
    """Submit, sync and subscribe need both; a refused sync gives no data and changes nothing."""
    del engine
    async with (
        sync_server(tmp_path, store=store_location, plugin=PLUGIN) as node,
        connected(node.ws_url) as peer,
        open_peer(node.ws_url) as writer,
    ):
        await archivist(node, writer)
        items = (note("1", "closed"), note("2", "archive"), note("3", "p", "closed-2"), note("4"))
        results = await peer.submit(*items)
        assert [without_time(result) for result in results[:3]] == [
            rejected("1", "forbidden", ("partitions.0", "not allowed")),
            rejected("2", "forbidden", ("partitions.0", "not allowed")),
            rejected("3", "forbidden", ("partitions.1", "not allowed")),
        ]
        assert outcome(results)[3] == "committed"
        assert outcome(await writer.submit(note("2", "archive"))) == ["committed"]
        page = await peer.sync("archive", "p", subscription_partitions=["p"])
        assert [event["id"] for event in page["events"]] == ["4", "2"], "reading is allowed"
        for fields in (
            {"partitions": ["p", "closed"]},
            {"partitions": ["p"], "subscription_partitions": ["closed"]},
            {"partitions": ["raises", "odd", "p"]},
        ):
            await peer.send("sync", {"since_committed_id": 0, **fields})
            error = await peer.expect("error")
            assert error["code"] == "forbidden"
            names = {*fields["partitions"], *fields.get("subscription_partitions", ())} - {"p"}
            assert error["details"]["partitions"] == sorted(names)
        assert (await peer.sync("p"))["effective_subscriptions"] == ["p"]


async def test_the_token_is_asked_besides_the_authorizer(tmp_path: Path) -> None:
    """What the plug-in allows and the token does not open stays closed, over HTTP too."""
    async with (
        sync_server(tmp_path, plugin=PLUGIN) as node,
        httpx.AsyncClient(base_url=node.server.url, verify=False) as http,
    ):
        headers = {
            "authorization": f"Bearer {token('c', prefixes=['p', 'closed'])}",
            "x-sync-profile": "canonical",
        }
        body = envelope("submit_events", {"events": [note("1", "q"), note("2", "closed")]})
        answer = await http.post("/sync/v1/submit", content=body, headers=headers)
        results = answer.json()["payload"]["results"]
        assert outcome(results) == ["forbidden partitions.0"] * 2
        for name in ("q", "closed"):
            body = envelope("sync", {"partitions": [name], "since_committed_id": 0})
            answer = await http.post("/sync/v1/sync", content=body, headers=headers)
            assert answer.status_code == 403
            assert answer.json()["payload"]["details"]["partitions"] == [name]


async def test_every_refusal_has_the_protocols_shape_and_no_neighbours(
    engine: str, store_location: str, tmp_path: Path
) -> None:
    """Stateless, stateful, raising, without an answer, too slow: each alone, the rest commits."""
    del engine
    failed = ("event", "the application's rules failed; ask whoever runs the server")
    slow = ("event", "the application's rules took too long; ask whoever runs the server")
    expected = {
        "rude": [("event.payload.data", "is not kind"), ("event.payload.data", "is rude")],
        "raises": [failed],
        "surrogate": [failed],
        "raises late": [failed],
        "no answer": [failed],
        "slow": [slow],
        "after first": [("event.payload.data", "there is no first item")],
    }
    async with (
        sync_server(tmp_path, store=store_location, plugin=PLUGIN) as node,
        connected(node.ws_url) as peer,
        connected(node.ws_url, "watch") as watch,
    ):
        await watch.subscribe("p")
        items = [
            item
            for data in expected
            for item in (note(data, data=data), note(f"fine beside {data}", data={"greedy": data}))
        ]
        results = await peer.submit(*items)
        assert [without_time(result) for result in results[::2]] == [
            rejected(data, "validation_failed", *errors) for data, errors in expected.items()
        ]
        assert outcome(results[1::2]) == ["committed"] * len(expected)
        broadcasts = await watch.broadcasts(len(expected))
        assert [event["event"] for event in broadcasts] == [item["event"] for item in items[1::2]]
        assert await node.counts() == (len(expected), len(expected)), "L5"
        async with httpx.AsyncClient(base_url=node.server.url, verify=False) as http:
            metrics = (await http.get("/metrics")).text
        for label in ('"check",reason="over_budget"', '"check",reason="raised"'):
            assert f"tidelog_sync_plugin_failures_total{{method={label}}}" in metrics


async def test_a_known_id_is_replayed_whatever_the_plugin_says_now(tmp_path: Path) -> None:
    """Deduplication comes before the application's rules and after its authorizer (sync D25)."""
    async with sync_server(tmp_path) as node, connected(node.ws_url) as peer:
        first = await peer.submit(note("a", data="rude"), note("b", data="slow"))
        hidden = await peer.submit(note("c", "closed"))
        assert outcome(first + hidden) == ["committed"] * 3
    async with sync_server(tmp_path, plugin=PLUGIN) as node, connected(node.ws_url) as peer:
        assert await peer.submit(note("a", data="rude"), note("b", data="slow")) == first
        assert outcome(await peer.submit(note("c", "closed"))) == ["forbidden partitions.0"]


async def test_a_check_sees_the_items_before_it_in_the_same_request(
    engine: str, store_location: str, tmp_path: Path
) -> None:
    """The state is that of the committed items, cold or warm, of every partition of the event."""
    del engine
    full = "validation_failed event.payload.value"
    async with (
        sync_server(tmp_path, store=store_location, plugin=PLUGIN) as node,
        connected(node.ws_url, "c", TREE) as tree,
        connected(node.ws_url, "e") as peer,
    ):
        assert outcome(await peer.submit(note("0", data="after first"))) == [
            "validation_failed event.payload.data"
        ]
        pushes = [push(f"i{n}", f"n{n}") for n in range(MOST_ITEMS + 2)]
        results = await tree.submit(
            push("first", "first"), *pushes, push("q", "n", "q"), push("both", "x", "q", "p")
        )
        verdicts = outcome(results)
        assert verdicts == [*["committed"] * MOST_ITEMS, *[full] * 3, "committed", full]
        assert results[-1]["errors"][0]["message"] == "p is full"
        assert outcome(await peer.submit(note("1", data="after first"))) == ["committed"]
        frozen = act("f", "set", "r", target="v.mode", value="frozen")
        assert outcome(await tree.submit(frozen, push("late", "x", "r"))) == [
            "committed",
            "validation_failed event.payload.target",
        ]
    async with (
        sync_server(tmp_path, store=store_location, plugin=PLUGIN) as node,
        connected(node.ws_url, "c", TREE) as tree,
        connected(node.ws_url, "e") as peer,
    ):
        assert outcome(await tree.submit(push("again", "y"))) == [full]
        assert outcome(await peer.submit(note("2", data="after first"))) == ["committed"]


@pytest.mark.parametrize(
    "plugin", ["support.nowhere:Rules", "support.sync.application:NOT_A_PLUGIN"]
)
async def test_a_server_does_not_start_with_a_wrong_plugin(tmp_path: Path, plugin: str) -> None:
    """The setting is named, and nothing is served without the rules it asks for."""
    with pytest.raises(ConfigError, match=f"sync.plugin: {plugin}"):
        async with sync_server(tmp_path, plugin=plugin):
            raise AssertionError("it started")
