"""Two servers on one log: a channel is the same channel on both."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from support.channels_peer import (
    ChannelsNode,
    channels_server,
    nothing_else,
    ok,
    refused,
    unique,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


@asynccontextmanager
async def two_nodes(tmp_path: Path, store: str) -> AsyncIterator[tuple[ChannelsNode, ChannelsNode]]:
    """Two servers on one PostgreSQL."""
    async with (
        channels_server(tmp_path / "a", store) as a,
        channels_server(tmp_path / "b", store) as b,
    ):
        yield a, b


async def test_a_channel_on_two_nodes(tmp_path: Path, postgresql_url: str) -> None:
    """Frames, serials, receipts and versions do not depend on the node that is asked."""
    channel = unique("private-room")
    async with (
        two_nodes(tmp_path, postgresql_url) as (a, b),
        a.v2() as on_a,
        b.v2() as on_b,
        b.v1() as old,
    ):
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
        items = [await node.api.item(channel, serial) for node in (a, b)]
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
        assert (ok(one), two.content) == (ok(two), one.content)
        chosen = {"data": "m", "message_id": unique("id")}
        assert ok(await b.api.events(channel, **chosen)) == ok(
            await a.api.events(channel, **chosen)
        )
        live = [await on_a.receive() for _ in range(3)]
        assert [await on_b.receive() for _ in range(3)] == live
        await nothing_else(a.api, channel, on_a, on_b)
        async with b.v2() as moved:
            await moved.resume(**{channel: {"serial": 30, "stream_id": heads[0]["stream_id"]}})
            assert [await moved.receive() for _ in range(3)] == live


async def test_a_publisher_on_another_node(tmp_path: Path, postgresql_url: str) -> None:
    """7.3: an actor's socket may be on any node."""
    channel = unique("private-room")
    async with two_nodes(tmp_path, postgresql_url) as (a, b), a.v2() as ana, b.v2() as other:
        await ana.signin("ana", {"message_append_own": ["*"]})
        await ana.subscribe(channel)
        await other.subscribe(channel)
        ack = await b.api.publish(channel, "x", socket_id=ana.socket_id)
        assert (await other.receive())["user_id"] == "ana"
        fields = {"data": "y", "socket_id": ana.socket_id}
        await b.api.mutate("append", channel, ack["message_serial"], **fields)
        await other.expect("sockudo:message.append", channel)
        await ana.expect("sockudo:message.append", channel)  # not the create: it was excluded
