"""Updates and deletes that keep the data: it is stored once, shown everywhere, and sent in time."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from support.channels.peer import Api, ChannelsNode, Peer, channels_server, unique
from tidelog.base.settings.limits import Limits
from tidelog.channels.upkeep.verifier import verify_channels
from tidelog.testing.clock import FakeClock

pytestmark = pytest.mark.asyncio(loop_scope="module")
Stores = Callable[[str], Awaitable[str]]

LARGE = 200_000
STREAMING = {"ai": {"transport": {"status": "streaming"}}}
COMPLETE = {"ai": {"transport": {"status": "complete"}}}


async def large_message(api: Api, channel: str, size: int = LARGE) -> str:
    """A message of so many bytes; its serial."""
    ack = await api.publish(channel, "x")
    await api.mutate("update", channel, ack["message_serial"], data="y" * size)
    serial: str = ack["message_serial"]
    return serial


async def stored_bytes(node: ChannelsNode, channel: str) -> int:
    """Content in the log of a channel."""
    async with node.store() as store:
        entries = await store.stream_entries(f"channels/tide/{channel}", 0)
    return sum(len(entry.body or b"") for entry in entries)


async def texts_of(api: Api, channel: str, serial: str) -> dict[str, str]:
    """What each version says, by its description; page by page."""
    found: dict[str, str] = {}
    cursor: dict[str, Any] = {}
    while True:
        page = await api.versions(channel, serial, direction="oldest_first", **cursor)
        for item in page["items"]:
            found[item["version"].get("description", "")] = item.get("data")
        if not page["has_more"]:
            return found
        cursor = {"cursor": page["next_cursor"]}


async def frames_of(peer: Peer, count: int) -> list[dict[str, Any]]:
    """The next frames."""
    return [await peer.receive() for _ in range(count)]


async def test_kept_data_is_stored_once(node: ChannelsNode, api: Api) -> None:
    """Updates, deletes and changes of the stream's status add what they say, not the message."""
    channel = unique()
    serial = await large_message(api, channel)
    before = await stored_bytes(node, channel)
    for n in range(20):
        await api.mutate("update", channel, serial, description=f"u{n}")
        await api.mutate("update", channel, serial, extras=STREAMING)
        await api.mutate("delete", channel, serial, extras=COMPLETE)
    assert await stored_bytes(node, channel) - before < 60 * 1000
    assert (await api.item(channel, serial))["data"] == "y" * LARGE


async def test_a_change_of_status_rewrites_no_large_state(node: ChannelsNode, api: Api) -> None:
    """A stream that opens and ends again and again writes its message a few times."""
    channel = unique()
    serial = await large_message(api, channel)
    number = int(serial[-20:])
    states = set()
    async with node.store() as store:
        for n in range(20):
            extras = STREAMING if n % 2 == 0 else COMPLETE
            await api.mutate("update", channel, serial, extras=extras)
            [(through, _)] = await store.rows(
                "channels_message", (f"channels/tide/{channel}", number)
            )
            states.add(through)
            is_listed = any(
                row[1] == number
                for row in await store.rows(
                    "channels_open_streams", ("", 0, "channels0", 2**62, 1000)
                )
            )
            assert is_listed is (n % 2 == 0), "whether it is open is known all the same"
        assert len(states) <= 2
        async for looked in verify_channels(store):
            assert not looked.damage


@pytest.mark.inside
async def test_every_view_shows_kept_data(tmp_path: Path, stores: Stores) -> None:
    """It is the same before and after a restart, and when what said it first has been purged."""
    store, channel, clock = await stores("kept"), unique(), FakeClock()
    window = {"retention_window_seconds": 1000, "purge_interval_seconds": 3600}

    async def check(node: ChannelsNode, api: Api, live: list[dict[str, Any]]) -> None:
        assert (await api.item(channel, serial))["data"] == "second, and more"
        [row] = (await api.history(channel))["items"]
        assert row["message"]["data"] == "second, and more"
        async with node.v2() as peer:
            await peer.subscribe(channel, rewind=1)
            assert (await peer.receive())["data"] == "second, and more"
        for mode in ("delta", "full"):
            async with node.v2(append_mode=mode) as peer:
                first = live[0]["serial"] - 1
                await peer.resume(**{channel: {"serial": first, "stream_id": live[0]["stream_id"]}})
                replayed = await frames_of(peer, len(live))
                if mode == "delta":
                    assert replayed == live
                else:
                    assert replayed[-1]["data"] == "second, and more"
                assert (await peer.resumed())["recovered"][0]["replayed"] == len(live)

    async with (
        channels_server(tmp_path, store, clock=clock, versioned_messages=window) as node,
        node.v2() as reader,
    ):
        api = node.api
        api.now = lambda: clock.now_ms() / 1000
        await reader.subscribe(channel)
        serial = (await api.publish(channel, "first"))["message_serial"]
        await api.mutate("update", channel, serial, description="kept first")
        await api.mutate("update", channel, serial, data="second", description="second")
        clock.advance(900_000)
        await api.mutate("update", channel, serial, name="other", description="kept second")
        await api.mutate("append", channel, serial, data=", and more", description="more")
        await api.mutate("delete", channel, serial, description="kept all")
        live = await frames_of(reader, 6)
        assert [frame["data"] for frame in live] == [
            "first",
            "first",
            "second",
            "second",
            ", and more",
            "second, and more",
        ]
        assert await texts_of(api, channel, serial) == {
            "": "first",
            "kept first": "first",
            "second": "second",
            "kept second": "second",
            "more": ", and more",
            "kept all": "second, and more",
        }
        newest = await api.versions(channel, serial, limit=1)
        assert [item["data"] for item in newest["items"]] == ["second, and more"]
        await check(node, api, live)
    async with channels_server(tmp_path, store, clock=clock, versioned_messages=window) as node:
        api = node.api
        api.now = lambda: clock.now_ms() / 1000
        await check(node, api, live)
        clock.advance(200_000)
        assert await node.surface.owner.retention.tick() == 3
        await check(node, api, live[3:])
        assert (await texts_of(api, channel, serial))["kept second"] == "second"
        async for looked in verify_channels(node.surface.service.store):
            assert not looked.damage
    async with channels_server(tmp_path, store, clock=clock, versioned_messages=window) as node:
        api = node.api
        api.now = lambda: clock.now_ms() / 1000
        await check(node, api, live[3:])
        await api.mutate("update", channel, serial, clear_fields=["data"])
        await api.mutate("update", channel, serial, description="kept nothing")
        assert "data" not in await api.item(channel, serial)


async def test_pages_of_versions_end_after_some_megabytes(api: Api) -> None:
    """However many versions show the same large text, a page of them does not hold it so often."""
    channel = unique()
    serial = await large_message(api, channel, 1_000_000)
    for n in range(10):
        await api.mutate("update", channel, serial, description=f"u{n}")
    page = await api.versions(channel, serial)
    assert 1 <= len(page["items"]) < 10
    texts = await texts_of(api, channel, serial)
    assert {len(texts[f"u{n}"]) for n in range(10)} == {1_000_000}


async def test_kept_data_does_not_cut_a_reader(tmp_path: Path, stores: Stores) -> None:
    """Small requests that send a large message to every reader wait for those that read."""
    limits = Limits(send_buffer_bytes=2_000_000)
    async with channels_server(tmp_path, await stores("paced"), limits=limits) as node:
        api, channel = node.api, unique()
        serial = await large_message(api, channel)
        async with node.v2() as reader, node.v2(append_mode="full") as whole:
            await reader.subscribe(channel)
            await whole.subscribe(channel)
            # Nobody reads meanwhile: what was sent lies in the sockets, the rest in the server.
            await asyncio.gather(
                *(api.mutate("update", channel, serial, description=f"u{n}") for n in range(60))
            )
            await api.mutate("append", channel, serial, data="z")
            await api.publish(channel, "next")
            for peer, appended in ((reader, "z"), (whole, "y" * LARGE + "z")):
                frames = await frames_of(peer, 62)
                assert [frame["serial"] for frame in frames] == list(range(3, 65))
                assert {frame["data"] for frame in frames[:60]} == {"y" * LARGE}
                assert [frame["data"] for frame in frames[60:]] == [appended, "next"]


async def test_a_resume_comes_after_what_is_being_sent(node: ChannelsNode, api: Api) -> None:
    """Who resumes while large frames wait for it gets them first, then what it asked for."""
    channel = unique()
    serial = await large_message(api, channel)
    async with node.v2() as reader:
        stream_id = (await reader.subscribe(channel))["stream_id"]
        await asyncio.gather(
            *(api.mutate("update", channel, serial, description=f"u{n}") for n in range(30))
        )
        await reader.resume(**{channel: {"serial": 2, "stream_id": stream_id}})
        live, again = await frames_of(reader, 30), await frames_of(reader, 30)
        assert [frame["serial"] for frame in live] == list(range(3, 33))
        assert again == live
        assert (await reader.resumed())["recovered"][0]["replayed"] == 30
        await api.publish(channel, "next")
        assert (await reader.receive())["data"] == "next"


async def test_erased_kept_data_is_gone(node: ChannelsNode, api: Api) -> None:
    """Forgetting a message empties what its versions say and what they refer to."""
    channel = unique()
    serial = (await api.publish(channel, "secret"))["message_serial"]
    await api.mutate("update", channel, serial, description="kept")
    body = {"channel": channel, "message_serial": serial, "reason": "asked"}
    assert (await api.post("/forget", body)).json()["complete"]
    assert await stored_bytes(node, channel) == 0
