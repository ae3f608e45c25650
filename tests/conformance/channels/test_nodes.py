"""Two servers on one log: whatever a client can notice is the same on both."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from support.channels.peer import (
    ChannelsNode,
    channel_path,
    channels_server,
    message_path,
    nothing_else,
    ok,
    refused,
    token,
    unique,
)
from tidelog.testing.postgresql import create_database

pytestmark = pytest.mark.asyncio(loop_scope="module")

Nodes = tuple[ChannelsNode, ChannelsNode]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def nodes(
    postgresql_server: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Nodes]:
    """Two servers on one PostgreSQL."""
    store = await create_database(postgresql_server)
    async with (
        channels_server(tmp_path_factory.mktemp("a"), store) as a,
        channels_server(tmp_path_factory.mktemp("b"), store) as b,
    ):
        yield a, b


async def becomes(node: ChannelsNode, path: str, expected: dict[str, Any], **params: Any) -> None:
    """A question of which the answer follows the other node a little later."""
    answer: dict[str, Any] = {}
    for _ in range(200):
        answer = ok(await node.api.get(path, **params))
        if answer == expected:
            return
        await asyncio.sleep(0.01)
    assert answer == expected


async def test_a_channel_on_two_nodes(nodes: Nodes) -> None:
    """Frames, serials, receipts and versions do not depend on the node that is asked."""
    a, b = nodes
    channel = unique("private-room")
    async with a.v2() as on_a, b.v2() as on_b, b.v1() as old:
        heads = [await peer.subscribe(channel) for peer in (on_a, on_b)]
        await old.subscribe(channel)
        assert heads[0]["stream_id"] == heads[1]["stream_id"]
        acks = await asyncio.gather(
            *((a if n % 2 else b).api.publish(channel, str(n)) for n in range(20))
        )
        assert sorted(ack["delivery_serial"] for ack in acks) == list(range(1, 21))
        frames = [await on_a.receive() for _ in range(20)]
        assert [frame["serial"] for frame in frames] == list(range(1, 21))
        assert [await on_b.receive() for _ in range(20)] == frames, "ids included"
        for frame in frames:
            assert (await old.receive())["data"] == frame["data"]

        serial = acks[0]["message_serial"]
        fragments = [f"<{n}>" for n in range(10)]
        answers = await asyncio.gather(
            *(
                (a if n % 2 else b).api.mutate("append", channel, serial, data=fragment)
                for n, fragment in enumerate(fragments)
            )
        )
        assert {answer["status"] for answer in answers} == {"applied"}
        items = [await node.api.item(channel, serial) for node in nodes]
        assert items[0] == items[1]
        assert all(items[0]["data"].count(fragment) == 1 for fragment in fragments)
        frames = [await on_a.receive() for _ in range(10)]
        assert [await on_b.receive() for _ in range(10)] == frames

        fields = {"data": "x", "op_id": "once"}
        first = await a.api.mutate("append", channel, serial, **fields)
        again = await b.api.mutate("append", channel, serial, **fields)
        assert again == {**first, "status": "duplicate"}
        response = await b.api.try_mutate("append", channel, serial, data="y", op_id="once")
        refused(response, 400, "invalid_input")
        keyed = {"data": "k", "idempotency_key": unique("key"), "info": "subscription_count"}
        one = await a.api.events(channel, **keyed)
        two = await b.api.events(channel, **keyed)
        assert (one.status_code, one.content) == (200, two.content)
        chosen = {"data": "m", "message_id": unique("id")}
        receipts = [ok(await node.api.events(channel, **chosen)) for node in (b, a)]
        assert receipts[0] == receipts[1]
        live = [await on_a.receive() for _ in range(3)]
        assert [await on_b.receive() for _ in range(3)] == live
        await nothing_else(a.api, channel, on_a, on_b)
        async with b.v2() as moved:
            position = {"serial": 30, "stream_id": heads[0]["stream_id"]}
            await moved.resume(**{channel: position})
            assert (await moved.resumed())["recovered"][0]["replayed"] == 0
            assert (await moved.subscribe(channel))["serial"] == 30
            assert [await moved.receive() for _ in range(3)] == live


async def test_kept_data_on_another_node(nodes: Nodes) -> None:
    """A node that never had the message shows what is kept, in order, large or small."""
    a, b = nodes
    channel = unique()
    for size in (10, 100_000):
        serial = (await a.api.publish(channel, "x"))["message_serial"]
        await a.api.mutate("update", channel, serial, data="y" * size)
        async with b.v2() as on_b:
            await on_b.subscribe(channel)
            for n in range(3):
                await a.api.mutate("update", channel, serial, description=str(n))
                await a.api.publish(channel, str(n))
            await a.api.mutate("update", channel, serial, data="z")
            await a.api.mutate("delete", channel, serial)
            frames = [await on_b.receive() for _ in range(8)]
        kept = "y" * size
        assert [frame["data"] for frame in frames] == [kept, "0", kept, "1", kept, "2", "z", "z"]
        assert [frame["serial"] - frames[0]["serial"] for frame in frames] == list(range(8))


async def test_actors_on_another_node(nodes: Nodes) -> None:
    """7.3: an actor's socket may be on any node; what it is and may do is known there too."""
    a, b = nodes
    channel = unique("private-room")
    async with a.v2() as ana, b.v2() as other, a.v1() as old:
        await ana.signin("ana", {"message_append_own": ["*"]})
        await old.signin("ana", {"message_append_own": ["*"]})
        await ana.subscribe(channel)
        await other.subscribe(channel)
        ack = await b.api.publish(channel, "x", socket_id=ana.socket_id)
        serial = ack["message_serial"]
        assert (await other.receive())["user_id"] == "ana"

        async def attempt(kind: str, socket_id: str, **body: Any) -> Any:
            body = {"data": "y", "socket_id": socket_id, **body}
            return await b.api.try_mutate(kind, channel, serial, **body)

        assert (await attempt("append", ana.socket_id)).status_code == 200
        for peer in (other, ana):  # for ana not the create: it was excluded
            assert (await peer.expect("sockudo:message.append", channel))["user_id"] == "ana"
        for response, text in (
            (
                await attempt("update", ana.socket_id),
                f"Connection is not allowed to update message on channel '{channel}'",
            ),
            (
                await attempt("append", ana.socket_id, client_id="bo"),
                "Requested client_id 'bo' does not match authenticated actor 'ana'",
            ),
            (
                await attempt("append", old.socket_id),
                "Mutation actor socket must use protocol V2",
            ),
            (
                await attempt("append", "12.34"),
                "Mutation actor socket '12.34' is not connected",
            ),
        ):
            assert refused(response, 401, "auth_failed") == text


async def test_presence_on_two_nodes(nodes: Nodes) -> None:
    """One list of members, and one event per user, wherever its sockets are."""
    a, b = nodes
    channel = unique("presence-lab")
    ana, bo = ({"user_id": name, "user_info": {"name": name}} for name in ("ana", "bo"))

    def members(frame: dict[str, Any]) -> Any:
        return json.loads(frame["data"])["presence"]["hash"]

    async with a.v1() as first, b.v2() as second:
        assert members(await first.subscribe(channel, ana)) == {"ana": {"name": "ana"}}
        await becomes(b, f"{channel_path(channel)}/users", {"users": [{"id": "ana"}]})
        both = {"ana": {"name": "ana"}, "bo": {"name": "bo"}}
        assert members(await second.subscribe(channel, bo)) == both
        frame = await first.expect("_member_added", channel)
        assert json.loads(frame["data"]) == bo
        async with b.v1() as again:  # ana's second socket, on the other node
            assert members(await again.subscribe(channel, ana)) == both
            counts = {"occupied": True, "subscription_count": 3, "user_count": 2}
            for node in nodes:
                await becomes(
                    node, channel_path(channel), counts, info="subscription_count,user_count"
                )
            await first.send("unsubscribe", {"channel": channel})
            await first.quiet()
            counts["subscription_count"] = 2
            await becomes(b, channel_path(channel), counts, info="subscription_count,user_count")
            await second.quiet()
            await again.quiet()
        frame = await second.expect("_member_removed", channel)
        assert json.loads(frame["data"]) == {"user_id": "ana"}
        await becomes(a, f"{channel_path(channel)}/users", {"users": [{"id": "bo"}]})
        await first.subscribe(channel, {"user_id": "cy"})
        await second.expect("_member_added", channel)
        async with a.v2() as watch:
            assert (
                members(await watch.subscribe(channel, {"user_id": "cy"}))["bo"] == bo["user_info"]
            )
            await second.send("presence_update", {"user_info": {"n": 2}}, channel=channel)
            frame = await watch.expect("_presence_update", channel)
            assert json.loads(frame["data"]) == {"user_id": "bo", "user_info": {"n": 2}}
            assert members(await watch.subscribe(channel, {"user_id": "cy"}))["bo"] == {"n": 2}
        await second.expect("_presence_update", channel)
        await second.send("client-wave", "hey", channel=channel)
        assert await first.expect("client-wave", channel) == {
            "event": "client-wave",
            "channel": channel,
            "data": "hey",
            "user_id": "bo",
        }


async def test_what_is_not_kept_reaches_the_other_node(nodes: Nodes) -> None:
    """Ephemeral events, summaries and what a cache channel gives to a new subscriber."""
    a, b = nodes
    channel = unique()
    async with b.v1() as v1, b.v2() as v2, b.v2() as excluded:
        for peer in (v1, v2, excluded):
            await peer.subscribe(channel)
        ack = await a.api.publish(channel, "kept")
        for peer in (v1, v2, excluded):
            await peer.expect("chat.message", channel)
        fields = {"extras": {"ephemeral": True}, "socket_id": excluded.socket_id}
        ok(await a.api.events(channel, data="gone", **fields))
        plain = {"event": "chat.message", "channel": channel, "data": "gone"}
        assert await v1.receive() == plain
        frame = await v2.expect("chat.message", channel)
        assert (frame["data"], "serial" in frame) == ("gone", False)
        path = f"{message_path(channel, ack['message_serial'])}/summary"
        summary = ok(await a.api.post(path, {}))
        for peer in (v2, excluded):
            frame = await peer.expect("sockudo:message.summary", channel)
            data = frame["data"]
            assert (json.loads(data) if isinstance(data, str) else data) == summary
        await nothing_else(a.api, channel, v1, v2, excluded)
    cached = unique("cache-room")
    await a.api.publish(cached, "last")
    async with b.v1() as late:
        await late.subscribe(cached)
        assert (await late.receive())["data"] == "last"


async def test_closing_on_another_node(nodes: Nodes) -> None:
    """Users and tokens are ended wherever they are connected."""
    a, b = nodes
    name, client, jti = unique("user"), unique("client"), unique("jti")
    text = token(client, jti=jti)
    async with b.v1() as one, b.v2() as other, b.v2(token=text) as held:
        await one.signin(name)
        await other.signin(unique("user"))
        assert ok(await a.api.post(f"/users/{name}/terminate_connections", {})) == {"ok": True}
        await one.expect_close(4009)
        ok(await a.api.post("/revocations", {"jti": jti}))
        assert (await held.expect(":token_expired"))["data"]["code"] == 40160
        assert await held.closed() == 4009
        await other.quiet()
        async with b.v2() as again:
            await again.signin(name)
            assert ok(await a.api.post(f"/users/{name}/force_reconnect", {})) == {"ok": True}
            await again.expect_close(4200)
        async with b.open(f"protocol=2&token={text}", protocol=2) as back:
            await back.expect_error(4009)
            assert await back.closed() == 4009
        channel = f"#server-to-user-{name}"
        async with b.v2() as user:
            await user.signin(name)
            await user.subscribe(channel)
            await a.api.publish(channel, "for you")
            assert (await user.expect("chat.message", channel))["data"] == "for you"


async def test_a_reset_is_seen_on_the_other_node(nodes: Nodes) -> None:
    """History and continuity have one state."""
    a, b = nodes
    channel = unique()
    for n in range(3):
        await a.api.publish(channel, str(n))
    async with b.v2() as v2:
        head = await v2.subscribe(channel)
        body = {"confirm_channel": channel, "confirm_operation": "reset", "reason": "a test"}
        answer = ok(await a.api.post(f"{channel_path(channel)}/history/reset", body))
        assert answer["previous_stream_id"] == head["stream_id"]
        new = answer["new_stream_id"]
        state = ok(await a.api.get(f"{channel_path(channel)}/history/state"))
        await becomes(b, f"{channel_path(channel)}/history/state", state)
        ack = await b.api.publish(channel, "new")
        page = await b.api.history(channel)
        assert [row["serial"] for row in page["items"]] == [ack["history_serial"]]
        assert page["continuity"]["stream_id"] == new
    async with b.v2() as peer:
        await peer.resume(**{channel: {"serial": 3, "stream_id": head["stream_id"]}})
        data = json.loads((await peer.expect(":resume_failed", channel))["data"])
        assert data["code"] == "stream_reset"
        assert (await peer.resumed())["recovered"] == []
        await peer.quiet()
    async with b.v2() as again:
        assert (await again.subscribe(channel))["stream_id"] == new


@pytest.mark.inside
async def test_a_rewind_on_a_node_that_lags_repeats_nothing(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows show the store's latest; what they show does not come again when the tail gets there."""
    a, b = nodes
    channel = unique()
    serial = (await a.api.publish(channel, ""))["message_serial"]
    store = b.surface.service.store
    read = store.entries

    async def slowly(*arguments: Any, **options: Any) -> Any:
        await asyncio.sleep(0.02)
        return await read(*arguments, **options)

    monkeypatch.setattr(store, "entries", slowly)
    done = asyncio.Event()

    async def write() -> None:
        while not done.is_set():
            await a.api.mutate("append", channel, serial, data="x")

    async def watch() -> None:
        async with b.v2() as peer:
            await peer.subscribe(channel, rewind=5)
            last = 0
            for _ in range(12):
                frame = await peer.receive()
                if frame["event"] == "sockudo:message.append":
                    assert frame["serial"] == last + 1 or last == 0
                    last = frame["serial"]

    writers = [asyncio.create_task(write()) for _ in range(3)]
    try:
        await asyncio.sleep(0.1)
        await asyncio.gather(*(watch() for _ in range(6)))
    finally:
        done.set()
        await asyncio.gather(*writers)


@pytest.mark.inside
async def test_a_message_that_another_node_has_purged_is_gone_at_once(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that has not heard of a purge yet refuses the append all the same."""
    a, b = nodes
    channel = unique()
    serial = (await b.api.publish(channel, "old"))["message_serial"]
    retention: Any = a.surface.owner.retention
    states = b.surface.owner.states
    monkeypatch.setattr(states, "forget_messages", lambda _: None)
    window = type(retention._settings)(retention_window_seconds=0.001)
    monkeypatch.setattr(retention, "_settings", window)
    await asyncio.sleep(0.01)
    assert await retention.tick() >= 1
    response = await b.api.try_mutate("append", channel, serial, data="late")
    refused(response, 404, "not_found")
