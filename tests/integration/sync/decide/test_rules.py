"""Rules of the sync protocol that no other test checks by itself."""

import asyncio
from pathlib import Path

from support.log.nodes import another_writes, blocked, running_node
from support.sync.peer import (
    EVENT,
    TREE,
    connected,
    note,
    open_peer,
    outcome,
    push,
    sync_server,
    token,
)
from tidelog.log.decision import Names
from tidelog.sync.decide.rules import STREAM, SubmitItem, in_sequence
from tidelog.sync.protocol.items import PreparedItem, refused_item
from tidelog.sync.protocol.wire import Committed, NotProcessed, Rejected


async def test_the_model_version_is_told_to_every_profile(tmp_path: Path) -> None:
    """A tree connection of a server that offers both profiles is told it as well (sync D13)."""
    async with sync_server(tmp_path) as node:
        for profile in (TREE, EVENT):
            async with connected(node.ws_url, profile=profile) as peer:
                assert peer.received[0]["payload"]["model_version"] == 3
                assert (await peer.sync("p"))["model_version"] == 3


async def test_known_ids_are_found_after_rights_and_before_validation(tmp_path: Path) -> None:
    """A repeated push is a replay, no duplicate; without rights no id can be probed (sync D25)."""
    async with (
        sync_server(tmp_path) as node,
        connected(node.ws_url, "t", TREE) as tree,
        open_peer(node.ws_url) as stranger,
    ):
        [first] = await tree.submit(push("a", "n"))
        assert await tree.submit(push("a", "n")) == [first]
        assert outcome(await tree.submit(push("b", "n"))) == [
            "validation_failed event.payload.value.id"
        ]
        narrow = {"token": token("s", prefixes=["x"]), "client_id": "s"}
        await stranger.send("connect", narrow)
        await stranger.expect("connected")
        answers = [await stranger.submit(push(name, "n")) for name in ("a", "unknown")]
        assert [outcome(answer) for answer in answers] == [["forbidden partitions.0"]] * 2


async def test_own_events_are_paged(tmp_path: Path) -> None:
    """A client is sent what it submitted itself, also on the same connection (sync D34)."""
    async with sync_server(tmp_path) as node, connected(node.ws_url) as peer:
        await peer.submit(note("a"), note("b"))
        page = await peer.sync("p")
        assert [(event["id"], event["client_id"]) for event in page["events"]] == [
            ("a", "c"),
            ("b", "c"),
        ]


async def test_pipelined_syncs_are_answered_in_order(tmp_path: Path) -> None:
    """Syncs sent without waiting each get a response, in order and without error (sync D41)."""
    async with sync_server(tmp_path) as node, connected(node.ws_url) as peer:
        names = ["p", "q", "p", "r"]
        await peer.submit(*(note(name, name) for name in "pqr"))
        for name in names:
            await peer.send("sync", {"partitions": [name], "since_committed_id": 0})
        pages = [await peer.expect("sync_response") for _ in names]
        assert [page["partitions"] for page in pages] == [[name] for name in names]
        assert [page["events"][0]["id"] for page in pages] == names


async def test_a_later_page_may_replace_the_subscriptions(tmp_path: Path) -> None:
    """The set is replaced in the middle of a cycle, and the watermark stays (sync D43)."""
    async with (
        sync_server(tmp_path, sync_limit_min=1) as node,
        connected(node.ws_url) as peer,
        connected(node.ws_url, "d") as other,
    ):
        await other.submit(*(note(str(number)) for number in range(3)))
        first = await peer.sync("p", limit=1, subscription_partitions=["p"])
        await other.submit(note("missed", "q"))
        second = await peer.sync(
            "p", since=first["next_since_committed_id"], limit=1, subscription_partitions=["q"]
        )
        assert second["has_more"]
        assert second["sync_to_committed_id"] == first["sync_to_committed_id"] == 3
        assert second["effective_subscriptions"] == ["q"]
        await other.submit(note("left", "p"), note("live", "q"))
        assert [event["id"] for event in await peer.broadcasts(1)] == ["live"]
        assert await peer.is_quiet()
        assert [event["id"] for event in await peer.whole("q")] == ["missed", "live"]


async def test_an_event_must_pass_in_all_its_partitions(tmp_path: Path) -> None:
    """One partition that refuses it is enough, and then it happened in none (sync D48)."""
    async with sync_server(tmp_path) as node, connected(node.ws_url, profile=TREE) as peer:
        results = await peer.submit(
            push("1", "a", "q"),
            push("2", "a", "p", "q"),
            push("3", "b", "p", parent="a"),
            push("4", "c", "q", "p"),
            push("5", "d", "p", parent="c"),
            push("6", "d", "q", parent="c"),
            push("7", "e", "q", "p", parent="a", position={"after": "x"}),
        )
        assert outcome(results) == [
            "committed",
            "validation_failed event.payload.value.id",
            "validation_failed event.payload.options.parent",
            "committed",
            "committed",
            "committed",
            "validation_failed event.payload.options.parent",
        ], "of the last one p, the first in order, is reported"


async def test_a_sequence_that_is_decided_again_begins_again(postgresql_url: str) -> None:
    """What was rejected when another node came between blocks nothing before it (sync D68)."""
    item = PreparedItem("a", "c", ("p",), {"type": "event"}, b"{}", b"f", b"h", None, ())
    refused = refused_item("b", "c", {"type": "event"}, ("forbidden", ()))
    later = PreparedItem("d", "c", ("p",), {"type": "event"}, b"{}", b"f", b"h", None, ())
    items = [SubmitItem(each) for each in (item, refused, later)]
    names = Names(dedupe=(items[0].key, items[2].key), streams=(STREAM,))
    async with running_node(postgresql_url) as node:
        async with another_writes(postgresql_url):
            answered = node.submit(in_sequence(items), names)
            await blocked(postgresql_url)
        answers = await asyncio.wrap_future(answered)
        assert node.committer.metrics.overtaken._value.get() == 1
    assert [type(answer) for answer in answers] == [Committed, Rejected, NotProcessed]
