"""The dialect of npm's insieme on a real server, beside clients that speak the protocol's own."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

from support.sync import peer as own
from support.sync.insieme_peer import connected, task, unconnected
from support.sync.peer import SyncNode, note, push, sync_server, token
from tidelog.base.settings.limits import Limits
from tidelog.sync.front import service
from tidelog.sync.front.service import SyncService

Json = dict[str, Any]


@pytest.fixture
async def node(engine: str, store_location: str, tmp_path: Path) -> AsyncIterator[SyncNode]:
    """A server on either engine."""
    del engine
    async with sync_server(
        tmp_path, store=store_location, sync_limit_min=1, max_batch_size=4
    ) as running:
        yield running


@pytest.fixture
async def sqlite_node(tmp_path: Path) -> AsyncIterator[SyncNode]:
    """A server, for what no engine has a part in."""
    async with sync_server(tmp_path, sync_limit_min=1, max_batch_size=4) as running:
        yield running


def brief(events: list[Json]) -> list[tuple[str, str, str]]:
    """Id, partition and type of events."""
    return [(event["id"], event["partition"], event["type"]) for event in events]


async def test_clients_of_both_dialects_in_one_partition_see_each_other(node: SyncNode) -> None:
    """Live and by pages, each in its own words, and each event once (sync 21.3)."""
    async with (
        own.connected(node.ws_url, "ours") as ours,
        connected(node.ws_url, "theirs") as theirs,
        connected(node.ws_url, "other", "o") as other,
    ):
        await ours.subscribe("p/tasks")
        item = task("a", userId="u", schemaVersion=3, meta={"clientTs": 7, "x": [1]})
        [result] = await theirs.submit(item)
        assert result["status"] == "committed"
        [event] = await ours.broadcasts(1)
        assert event == {
            "id": "a",
            "client_id": "theirs",
            "partitions": ["p/tasks"],
            "event": {
                "type": "event",
                "payload": {"schema": "any", "data": {"title": "a"}},
                "meta": {"schemaVersion": 3, "clientTs": 7, "x": [1], "userId": "u"},
            },
            "committed_id": result["committedId"],
            "status_updated_at": result["serverTs"],
        }
        committed = await ours.submit(note("b", "p/tasks", "p/more", "o/x", data={"n": 1}))
        broadcast = await theirs.expect("event_broadcast")
        assert broadcast == {
            "id": "b",
            "projectId": "p",
            "partition": "more",
            "partitions": ["more", "tasks"],
            "committedId": committed[0]["committed_id"],
            "type": "any",
            "schemaVersion": 1,
            "payload": {"n": 1},
            "meta": {"clientId": "ours", "clientTs": committed[0]["status_updated_at"]},
            "serverTs": committed[0]["status_updated_at"],
        }
        assert brief([await other.expect("event_broadcast")]) == [("b", "x", "any")]
        page = await theirs.sync()
        mine = {**item, "committedId": result["committedId"], "serverTs": result["serverTs"]}
        mine["meta"] = {"clientTs": 7, "x": [1], "clientId": "theirs"}
        assert page["events"] == [mine, broadcast]
        assert (page["hasMore"], page["projectId"]) == (False, "p")
        assert page["nextSinceCommittedId"] == page["syncToCommittedId"]
        assert [each["id"] for each in await ours.whole("p/tasks")] == ["a", "b"]


async def test_tree_actions_are_shared(node: SyncNode) -> None:
    """Both change one state, and the server judges both by it."""
    async with (
        own.connected(node.ws_url, "ours", own.TREE) as ours,
        connected(node.ws_url, "theirs") as theirs,
    ):
        assert own.outcome(await ours.submit(push("a", "n1", "p/tree"))) == ["committed"]
        pushed = await theirs.expect("event_broadcast")
        assert brief([pushed]) == [("a", "tree", "treePush")]
        again = {"target": "t", "value": {"id": "n1"}}
        below = {"target": "t", "value": {"id": "n2"}, "options": {"parent": "n1"}}
        first = await theirs.submit(task("b", "tree", type="treePush", payload=below))
        assert first[0]["status"] == "committed"
        [twice] = await theirs.submit(task("c", "tree", type="treePush", payload=again))
        assert (twice["status"], twice["reason"]) == ("rejected", "validation_failed")
        assert [error["field"] for error in twice["errors"]] == ["payload.value.id"]
        moved = own.move("d", "n1", "p/tree", parent="n2")
        assert own.outcome(await ours.submit(moved)) == [
            "validation_failed event.payload.options.parent"
        ]


async def test_what_comes_after_a_rejection_is_not_processed(node: SyncNode) -> None:
    """Sent again without it, it is; what was before it is committed (sync D68)."""
    async with connected(node.ws_url) as peer, connected(node.ws_url, "d") as other:
        items = [task("a"), task("b", type="nope"), task("c"), task("d")]
        first, second, *rest = await peer.submit(*items)
        assert (first["status"], second["status"]) == ("committed", "rejected")
        assert [(each["status"], each["reason"], each["blockedById"]) for each in rest] == [
            ("not_processed", "prior_item_failed", "b")
        ] * 2
        assert [each["status"] for each in await peer.submit(*items[2:])] == ["committed"] * 2
        assert brief([await other.expect("event_broadcast") for _ in range(3)]) == [
            (name, "tasks", "any") for name in "acd"
        ]


async def test_stopping_is_a_flag_of_the_submit_in_the_other_dialect(sqlite_node: SyncNode) -> None:
    """Where it is absent a rejected item stops none."""
    async with own.connected(sqlite_node.ws_url) as peer:
        items = [note("a"), {**note("b"), "partitions": []}, note("c")]
        await peer.send("submit_events", {"events": items, "stop_at_rejection": True})
        results = (await peer.expect("submit_events_result"))["results"]
        assert [each["status"] for each in results] == ["committed", "rejected", "not_processed"]
        assert (results[2]["reason"], results[2]["blocked_by"]) == ("prior_item_failed", "b")
        await peer.send("submit_events", {"events": items, "stop_at_rejection": 1})
        assert (await peer.expect("error"))["code"] == "bad_request"
        results = await peer.submit(*items)
        assert [each["status"] for each in results] == ["committed", "rejected", "committed"]
        assert results[0]["committed_id"] < results[2]["committed_id"]


async def test_a_retry_is_a_duplicate_in_either_dialect(node: SyncNode) -> None:
    """One table of keys: the same content gets the first result, other content is rejected."""
    async with (
        own.connected(node.ws_url, "ours") as ours,
        connected(node.ws_url) as first,
        connected(node.ws_url, "d") as second,
    ):
        [committed] = await first.submit(task("a"))
        await second.expect("event_broadcast")
        assert await first.submit(task("a")) == [committed]
        assert await second.submit(task("a", payload={"title": "a"})) == [committed]
        changes: list[Json] = [
            {"payload": {}},
            {"schemaVersion": 2},
            {"meta": {"clientTs": 6}},
            {"partition": "x"},
            {"userId": "u"},
        ]
        for change in changes:
            [rejected] = await second.submit(task("a", **change))
            assert (rejected["status"], rejected["reason"]) == ("rejected", "validation_failed")
        event = {
            "type": "event",
            "payload": {"schema": "any", "data": {"title": "a"}},
            "meta": {"schemaVersion": 1, "clientTs": 5},
        }
        [same] = await ours.submit({"id": "a", "partitions": ["p/tasks"], "event": event})
        assert same["committed_id"] == committed["committedId"]
        assert (await first.whole())[0]["committedId"] == committed["committedId"]
        assert await node.counts() == (1, 1)


async def test_a_token_of_a_user_writes_as_that_user_in_either_dialect(
    sqlite_node: SyncNode,
) -> None:
    """Whoever may write as ana cannot make clients of the dialect believe it was bo (sync D77)."""
    async with own.connected(sqlite_node.ws_url, "ours", claims={"userId": "ana"}) as ours:
        outer, inner = note("a", "p/tasks"), note("b", "p/tasks")
        outer["event"]["meta"] = {"userId": "bo"}
        inner["event"]["payload"]["meta"] = {"userId": "bo"}
        results = await ours.submit(outer, inner)
        assert [(each["reason"], each["errors"][0]["field"]) for each in results] == [
            ("forbidden", "event.meta.userId"),
            ("forbidden", "event.payload.meta.userId"),
        ]
        outer["event"]["meta"] = {"userId": "ana"}
        [result] = await ours.submit(outer)
        assert result["status"] == "committed"


async def test_pages_of_a_project_are_exact(node: SyncNode) -> None:
    """In the order of the log over all of its partitions, and of no other (sync D70)."""
    async with own.connected(node.ws_url, "ours") as ours, connected(node.ws_url) as peer:
        names = ["p/a", "p/b", "p/\0", "p/\ue000", "p/a/b", "p", "p/", "p0/a", "o/a", "pp/a"]
        expected = []
        for number in range(24):
            chosen = {names[number % 10], names[number * 7 % 10]}
            [result] = await ours.submit(note(f"n{number}", *chosen, data={"n": number}))
            if any(name.startswith("p/") and name != "p/" for name in chosen):
                expected.append(result["committed_id"])
                await peer.expect("event_broadcast")
        for limit in (1, 2, 7, 500):
            events = await peer.whole(limit=limit)
            assert [event["committedId"] for event in events] == expected
        page = await peer.sync(expected[2], limit=3)
        assert [event["committedId"] for event in page["events"]] == expected[3:6]
        assert (page["hasMore"], page["nextSinceCommittedId"]) == (True, expected[5])
        [late] = await ours.submit(note("late", "p/a"))
        more = await peer.sync(expected[5])
        assert more["syncToCommittedId"] == late["committed_id"]
        found = [event["committedId"] for event in more["events"]]
        assert found == [*expected[6:], late["committed_id"]]


@pytest.mark.inside
async def test_pages_and_broadcasts_are_in_order(
    sqlite_node: SyncNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is committed while a client catches up reaches it by a page, or after the last one."""
    read = SyncService._read_page
    async with (
        connected(sqlite_node.ws_url, "writer") as writer,
        connected(sqlite_node.ws_url) as peer,
    ):

        async def slow(self: SyncService, *arguments: Any) -> Any:
            """Something is committed while the page is read."""
            found = await read(self, *arguments)
            await writer.submit(task(f"m{len(during)}"))
            during.append(f"m{len(during)}")
            return found

        for number in range(5):
            await writer.submit(task(f"n{number}"))
            await peer.expect("event_broadcast")
        during: list[str] = []
        monkeypatch.setattr(SyncService, "_read_page", slow)
        page = await peer.sync(0, limit=2)
        seen = [event["committedId"] for event in page["events"]]
        while page["hasMore"]:
            page = await peer.sync(page["nextSinceCommittedId"], limit=2)
            seen += [event["committedId"] for event in page["events"]]
        monkeypatch.undo()
        await writer.submit(task("last"))
        while len(seen) < 5 + len(during) + 1:
            seen.append((await peer.expect("event_broadcast"))["committedId"])
        assert seen == sorted(set(seen))
        assert len(during) > 2


@pytest.mark.inside
async def test_what_is_too_much_to_hold_comes_by_another_page(
    sqlite_node: SyncNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read that takes long costs no more memory than a page."""
    monkeypatch.setattr(service, "MAX_HELD_BYTES", 300)
    read = SyncService._read_page
    async with (
        connected(sqlite_node.ws_url, "writer") as writer,
        connected(sqlite_node.ws_url) as peer,
    ):

        async def slow(self: SyncService, *arguments: Any) -> Any:
            """Much is committed while the page is read."""
            found = await read(self, *arguments)
            await writer.submit(*[task(f"n{number}") for number in range(4)])
            return found

        with monkeypatch.context() as patched:
            patched.setattr(SyncService, "_read_page", slow)
            page = await peer.sync()
        assert (page["events"], page["hasMore"]) == ([], True)
        await writer.submit(task("more"))
        page = await peer.sync(page["nextSinceCommittedId"])
        assert len(page["events"]) == 5
        await writer.submit(task("last"))
        assert (await peer.expect("event_broadcast"))["id"] == "last"


async def test_pages_are_cut_by_bytes(sqlite_node: SyncNode) -> None:
    """As in the other dialect: a megabyte, and at least one event."""
    async with connected(sqlite_node.ws_url) as peer:
        for number in range(5):
            [result] = await peer.submit(task(f"n{number}", payload={"text": "x" * 400_000}))
            assert result["status"] == "committed"
        page = await peer.sync()
        assert (len(page["events"]), page["hasMore"]) == (2, True)
        assert len(await peer.whole()) == 5


async def test_a_cursor_beyond_the_log_is_told(sqlite_node: SyncNode) -> None:
    """The client has seen another log; it gets an empty page, and what is broadcast (sync D75)."""
    async with (
        connected(sqlite_node.ws_url) as peer,
        connected(sqlite_node.ws_url, "d") as other,
    ):
        await peer.send("sync", {"projectId": "p", "sinceCommittedId": 1000})
        payload = await peer.expect("error")
        assert (payload["code"], payload["details"]) == (
            "history_reset",
            {"sinceCommittedId": 1000},
        )
        page = await peer.expect("sync_response")
        assert (page["events"], page["hasMore"], page["syncToCommittedId"]) == ([], False, 0)
        await other.submit(task("a"))
        assert (await peer.expect("event_broadcast"))["id"] == "a"


async def test_two_tabs_share_a_client_id(sqlite_node: SyncNode) -> None:
    """Neither is closed, and each sees what the other commits (sync D72)."""
    async with (
        connected(sqlite_node.ws_url, "tab") as first,
        connected(sqlite_node.ws_url, "tab") as second,
        own.connected(sqlite_node.ws_url, "tab") as ours,
    ):
        await ours.subscribe("p/tasks")
        await first.submit(task("a"))
        assert (await second.expect("event_broadcast"))["id"] == "a"
        assert (await ours.broadcasts(1))[0]["id"] == "a"
        await second.submit(task("b"))
        assert (await first.expect("event_broadcast"))["id"] == "b"


async def test_bad_input_has_the_dialects_errors_and_disturbs_nobody(sqlite_node: SyncNode) -> None:
    """Before the handshake and after it; the connection stays unless the code says otherwise."""
    async with (
        unconnected(sqlite_node.ws_url) as peer,
        connected(sqlite_node.ws_url, "d") as neighbour,
    ):
        await peer.send("sync", {"projectId": "p", "sinceCommittedId": 0})
        assert (await peer.error())[0] == "bad_request"
        await peer.send("connect", {"token": token("c"), "clientId": "c"})
        assert (await peer.error())[0] == "bad_request"
        await peer.send("connect", {"token": token("c"), "clientId": "c", "projectId": "p"})
        await peer.expect("connected")
        await peer.send("heartbeat", {})
        assert (await peer.error())[0] == "bad_request"
        await peer.send("sync", {"projectId": "o", "sinceCommittedId": 0})
        assert (await peer.error())[0] == "forbidden"
        peer.reply_to = ""  # what is no message has no id
        await peer.socket.send(b"\0")
        assert (await peer.error())[0] == "bad_request"
        [refused] = await peer.submit(task("a", project="o"))
        assert (refused["status"], refused["reason"]) == ("rejected", "forbidden")
        assert await sqlite_node.counts() == (0, 0)
        await peer.sync()
        assert (await neighbour.submit(task("b")))[0]["status"] == "committed"
        assert (await peer.expect("event_broadcast"))["id"] == "b"
        await peer.send("sync", {}, protocolVersion="2.0")
        assert (await peer.error())[0] == "protocolVersion_unsupported"
        assert await peer.close_code() == 4406


async def test_who_may_not_connect_is_told_and_closed(sqlite_node: SyncNode) -> None:
    """A token opens a project by the prefix that all of its partitions have."""
    handshakes: list[tuple[Json, str, int]] = [
        ({"token": "x"}, "auth_failed", 4401),
        ({"clientId": "d"}, "auth_failed", 4401),
        ({"token": token("c", prefixes=["o/"])}, "forbidden", 4403),
        ({"token": token("c", prefixes=[], allowed_partitions=["p/"])}, "forbidden", 4403),
    ]
    for handshake, code, closed in handshakes:
        async with unconnected(sqlite_node.ws_url) as peer:
            whole = {"token": token("c"), "clientId": "c", "projectId": "p", **handshake}
            await peer.send("connect", whole)
            assert (await peer.error())[0] == code
            assert await peer.close_code() == closed


async def test_an_idle_connection_ends_with_its_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package does not connect again after that code."""
    async with sync_server(tmp_path) as node, unconnected(node.ws_url) as peer:
        brief_token = token("c", exp=int(time.time()) + 3600)
        await peer.send("connect", {"token": brief_token, "clientId": "c", "projectId": "p"})
        await peer.expect("connected")
        later = SimpleNamespace(time=lambda: time.time() + 3600)
        monkeypatch.setattr(service, "time", later)
        peer.reply_to = ""
        assert (await peer.error())[0] == "auth_failed"
        assert await peer.close_code() == 4401


async def test_pongs_keep_a_connection_alive_and_silence_ends_it(tmp_path: Path) -> None:
    """Every WebSocket replies to pings by itself; one that does not is gone (sync D74)."""
    async with (
        sync_server(tmp_path, heartbeat_timeout_ms=600) as node,
        connected(node.ws_url) as alive,
    ):
        reader, writer = await raw_connection(node, "silent")
        async with asyncio.timeout(own.WAIT_SECONDS):
            rest = await reader.readuntil(b"\x88\x02" + (4408).to_bytes(2, "big"))
        writer.close()
        assert rest.count(b"\x89\x00") >= 1, "it was not pinged"
        await asyncio.sleep(1.2)
        assert (await alive.submit(task("a")))[0]["status"] == "committed"


async def raw_connection(
    node: SyncNode, client_id: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection after its handshake whose peer replies to nothing."""
    address = urlsplit(node.url)
    narrow = socket.socket()
    narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # so that little fills it
    narrow.setblocking(False)
    await asyncio.get_running_loop().sock_connect(narrow, (address.hostname, address.port))
    reader, writer = await asyncio.open_connection(sock=narrow)
    writer.write(
        b"GET /sync HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    await reader.readuntil(b"\r\n\r\n")
    payload = {"token": token(client_id), "clientId": client_id, "projectId": "p"}
    say(writer, "connect", payload)
    return reader, writer


def say(writer: asyncio.StreamWriter, kind: str, payload: Json) -> None:
    """Send a message, in a frame of 126 to 65,535 bytes."""
    message = {"type": kind, "protocolVersion": "1.0", "payload": payload}
    text = json.dumps(message).ljust(126).encode()
    writer.write(b"\x81\xfe" + len(text).to_bytes(2, "big") + bytes(4) + text)


@pytest.mark.inside
async def test_a_slow_consumer_is_dropped_and_catches_up(tmp_path: Path) -> None:
    """What it did not take it gets by pages (sync D46)."""
    limits = Limits(send_buffer_bytes=200_000)
    async with sync_server(tmp_path, limits=limits) as node:
        reader, writer = await raw_connection(node, "slow")
        assert b'"connected"' in await reader.read(1000)
        say(writer, "sync", {"projectId": "p", "sinceCommittedId": 0})
        assert b'"sync_response"' in await reader.read(1000)
        async with connected(node.ws_url, "fast") as fast:
            number = 0
            while any(each.client_id == "slow" for each in node.service.active()):
                number += 1
                await fast.submit(task(f"n{number}", payload={"text": "x" * 50_000}))
            assert node.server.metrics.slow_consumers._value.get() == 1
            assert len(await fast.whole()) == number
        writer.close()


@pytest.mark.inside
async def test_a_project_of_too_many_partitions_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an error that says what to do; others are served."""
    monkeypatch.setattr(service, "MAX_PROJECT_PARTITIONS", 3)
    async with sync_server(tmp_path) as node, connected(node.ws_url) as peer:
        await peer.submit(*[task(f"n{number}", f"q{number}") for number in range(3)])
        assert len((await peer.sync())["events"]) == 3
        await peer.submit(task("n4", "q4"))
        await peer.send("sync", {"projectId": "p", "sinceCommittedId": 0})
        code, text = await peer.error()
        assert (code, "more than 3 partitions" in text) == ("bad_request", True)
        assert (await peer.submit(task("n5")))[0]["status"] == "committed"


@pytest.mark.inside
async def test_an_operator_sees_who_is_connected(sqlite_node: SyncNode) -> None:
    """With the dialect in place of a profile, and the project as what it follows."""
    async with connected(sqlite_node.ws_url) as peer:
        await peer.submit(task("a"))
        await peer.sync()
        [connection] = sqlite_node.service.active()
        assert connection.session.profile == "insieme"
        assert (connection.subscriptions, connection.cursor) == (("p",), 1)


async def test_a_message_that_is_too_large_is_refused(tmp_path: Path) -> None:
    """The limit is told."""
    async with (
        sync_server(tmp_path, max_message_bytes=2000) as node,
        connected(node.ws_url) as peer,
    ):
        await peer.send("submit_events", {"events": [task("a", payload={"x": "y" * 2000})]})
        peer.reply_to = ""
        payload = await peer.expect("error")
        assert payload["code"] == "bad_request"
        assert payload["details"] == {"maxMessageBytes": 2000}
