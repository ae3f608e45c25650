"""Pasts that are long or have moved: large messages, resets and purges on the way back."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from support.channels.peer import Api, ChannelsNode, channels_server, unique
from tidelog.testing.clock import FakeClock

pytestmark = pytest.mark.asyncio(loop_scope="module")
Stores = Callable[[str], Awaitable[str]]

MEGABYTE = 1_000_000


async def test_large_messages_reach_a_healthy_reader(node: ChannelsNode, api: Api) -> None:
    """Rewind and history of twenty megabytes are sent as fast as they are read, not cut off."""
    channel = unique()
    for n in range(20):
        ack = await api.publish(channel, "x")
        await api.mutate("update", channel, ack["message_serial"], data=str(n) + "y" * MEGABYTE)
    async with node.v2() as peer:
        await peer.subscribe(channel, rewind=20)
        texts = [(await peer.receive())["data"].split("y")[0] for _ in range(20)]
        assert texts == [str(n) for n in range(20)]
        done = (await peer.expect(":rewind_complete", channel))["data"]
        assert (done["historical_count"], done["complete"]) == (20, True)
        await peer.send("channel_history", {"channel": channel})
        page = (await peer.expect(":channel_history", channel))["data"]
        assert 1 <= len(page["items"]) < 20, "a page ends after some megabytes"
        assert page["has_more"]


async def pages(api: Api, channel: str) -> list[dict[str, Any]]:
    """All rows of a history, page by page."""
    rows: list[dict[str, Any]] = []
    cursor: dict[str, str] = {}
    while True:
        page = await api.history(channel, **cursor)
        rows += page["items"]
        if not page["has_more"]:
            return rows
        cursor = {"cursor": page["next_cursor"]}


async def test_pages_of_large_messages_neither_repeat_nor_skip(api: Api) -> None:
    """A page that ends early for its size is continued by its cursor."""
    channel = unique()
    for _ in range(12):
        ack = await api.publish(channel, "x")
        await api.mutate("update", channel, ack["message_serial"], data="y" * MEGABYTE)
    assert [row["serial"] for row in await pages(api, channel)] == list(range(12, 0, -1))


async def test_a_reset_between_resume_and_subscribe_is_told(node: ChannelsNode, api: Api) -> None:
    """What was resumed under the old `stream_id` is not continued under the new one."""
    channel = unique()
    await api.publish(channel, "old")
    async with node.v2() as control, node.v2() as peer:
        head = await control.subscribe(channel)
        await peer.resume(**{channel: {"serial": 1, "stream_id": head["stream_id"]}})
        assert (await peer.resumed())["recovered"][0]["replayed"] == 0
        await api.publish(channel, "between")
        body = {"confirm_channel": channel, "confirm_operation": "reset", "reason": "test"}
        assert (await api.post(f"/channels/{channel}/history/reset", body)).status_code == 200
        await peer.subscribe(channel)
        failed = await peer.expect(":resume_failed", channel)
        assert '"code":"stream_reset"' in failed["data"]
        await api.publish(channel, "new")
        assert (await peer.receive())["data"] == "new"


@pytest.mark.inside
async def test_a_reset_leaves_nothing_to_retention(tmp_path: Path, stores: Stores) -> None:
    """It empties what was there, so that retention finds nothing when that is old (L8)."""
    clock = FakeClock()
    window = {"retention_window_seconds": 100, "purge_interval_seconds": 3600}
    async with channels_server(
        tmp_path, await stores("reset"), clock=clock, versioned_messages=window
    ) as node:
        api, channel = node.api, unique()
        api.now = lambda: clock.now_ms() / 1000
        await api.publish(channel, "secret")
        body = {"confirm_channel": channel, "confirm_operation": "reset", "reason": "test"}
        assert (await api.post(f"/channels/{channel}/history/reset", body)).status_code == 200
        clock.advance(200_000)
        assert await node.surface.owner.retention.tick() == 0
        entries = await node.surface.service.store.entries(0)
        assert [entry.body for entry in entries] == [None]


async def test_a_cache_channel_is_resumed_without_repeating(node: ChannelsNode, api: Api) -> None:
    """Resume, then subscribe, on a cache channel under load: behind the cached event, each once."""
    channel = unique("cache-room")
    async with node.v2() as control:
        head = await control.subscribe(channel)
    await api.publish(channel, "first")
    async with node.v2() as peer:
        await peer.resume(**{channel: {"serial": 0, "stream_id": head["stream_id"]}})
        writing = asyncio.gather(*(api.publish(channel, str(n)) for n in range(60)))
        await asyncio.sleep(0.01)
        await peer.attach(channel)
        await writing
        await api.publish(channel, "last")
        frames: list[dict[str, Any]] = []
        while not frames or frames[-1].get("serial") != 62:
            frames.append(await peer.receive())
        names = [frame["event"].rpartition(":")[2] for frame in frames]
        after = frames[names.index("subscription_succeeded") + 2 :]
        serials = [frame["serial"] for frame in after if frame["event"] == "chat.message"]
        assert serials == list(range(serials[0], 63))


async def test_a_resume_reads_as_many_pages_as_it_needs(tmp_path: Path, stores: Stores) -> None:
    """Within the window a position is good whatever the bytes, from memory and after a restart."""
    store, channel = await stores("resume"), unique()
    async with channels_server(tmp_path, store) as node:
        api = node.api
        async with node.v2() as control:
            stream_id = (await control.subscribe(channel))["stream_id"]
        for _ in range(101):
            batch = [{"name": "tick", "channel": channel, "data": "x"}] * 10
            assert (await api.post("/batch_events", {"batch": batch})).status_code == 200
        await resume_all(node, channel, stream_id, 1010)
        ack = await api.publish(channel, "large")
        for _ in range(9):
            await api.mutate("update", channel, ack["message_serial"], data="y" * MEGABYTE)
    async with channels_server(tmp_path, store) as node:
        await resume_all(node, channel, stream_id, 1020)


async def resume_all(node: ChannelsNode, channel: str, stream_id: str, count: int) -> None:
    """Resume from the beginning: every operation comes once, in order."""
    for is_subscribed in (False, True):
        async with node.v2() as peer:
            if is_subscribed:
                await peer.subscribe(channel)
            await peer.resume(**{channel: {"serial": 0, "stream_id": stream_id}})
            serials = [(await peer.receive())["serial"] for _ in range(count)]
            assert serials == list(range(1, count + 1))
            assert (await peer.resumed())["recovered"][0]["replayed"] == count
