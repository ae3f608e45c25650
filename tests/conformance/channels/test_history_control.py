"""State, reset and purge of a history (channels 4.7, 6.1), and retention."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from sockudo_http_python import AsyncSockudo, Config

from support.channels.peer import (
    APP,
    UUID4,
    Api,
    ChannelsNode,
    channel_path,
    channels_server,
    message_path,
    ok,
    refused,
    unique,
)
from tidelog.testing.clock import FakeClock

pytestmark = pytest.mark.asyncio(loop_scope="module")

Stores = Callable[[str], Awaitable[str]]


def confirmed(channel: str, operation: str, **fields: Any) -> dict[str, Any]:
    """A body of an operator's request."""
    return {
        "confirm_channel": channel,
        "confirm_operation": operation,
        "reason": "a test",
        **fields,
    }


async def serials(api: Api, channel: str) -> list[int]:
    """The history serials, oldest first."""
    page = await api.history(channel, direction="oldest_first")
    return [row["serial"] for row in page["items"]]


async def test_state(api: Api) -> None:
    """The stream, its next serial, what is retained, and that it is healthy."""
    channel = unique()
    for n in range(3):
        await api.publish(channel, str(n))
    answer = ok(await api.get(f"{channel_path(channel)}/history/state"))
    page = await api.history(channel)
    assert set(answer) == {"channel", "stream"}
    assert answer["channel"] == channel
    stream = answer["stream"]
    assert set(stream) == {"stream_id", "next_serial", "retained", "state"}
    assert (stream["stream_id"], stream["next_serial"]) == (page["continuity"]["stream_id"], 4)
    assert stream["state"] == page["stream_state"]


async def test_reset(node: ChannelsNode, api: Api) -> None:
    """The stream is another: positions and cursors of the old one are good for nothing."""
    channel = unique()
    acks = [await api.publish(channel, str(n)) for n in range(3)]
    page = await api.history(channel, limit=1)
    path = f"{channel_path(channel)}/history/reset"
    for wrong in (
        {},
        {**confirmed(channel, "reset"), "confirm_channel": "x"},
        {**confirmed(channel, "reset"), "confirm_operation": "purge"},
        {**confirmed(channel, "reset"), "reason": " "},
        {"confirm_channel": channel, "confirm_operation": "reset"},
    ):
        refused(await api.post(path, wrong), 400, "invalid_input")
    assert await serials(api, channel) == [1, 2, 3]
    async with node.v2() as v2:
        head = await v2.subscribe(channel)
        answer = ok(await api.post(path, confirmed(channel, "reset", requested_by="me")))
        assert (answer["ok"], answer["operation"]) == (True, "reset")
        assert answer["previous_stream_id"] == head["stream_id"]
        new = answer["new_stream_id"]
        assert UUID4.fullmatch(new)
        assert new != head["stream_id"]
        assert answer["purged_messages"] == 3
        assert answer["purged_bytes"] > 0
        assert await serials(api, channel) == []
        cursor = {"cursor": page["next_cursor"], "limit": 1}
        refused(await api.get(f"{channel_path(channel)}/history", **cursor), 400, "invalid_input")
    async with node.v2() as again:
        assert (await again.subscribe(channel))["stream_id"] == new
        await again.resume(**{channel: {"serial": 3, "stream_id": head["stream_id"]}})
        data = json.loads((await again.expect(":resume_failed", channel))["data"])
        assert (data["code"], data["current_stream_id"]) == ("stream_reset", new)
        await again.resumed()
        ack = await api.publish(channel, "new")
        assert ack["delivery_serial"] > acks[-1]["delivery_serial"], "it never restarts"
        frame = await again.receive()
        assert (frame["stream_id"], frame["serial"]) == (new, ack["delivery_serial"])
        assert await serials(api, channel) == [ack["history_serial"]]


async def test_purge(node: ChannelsNode, api: Api) -> None:
    """Rows below the bound are gone, the stream stays the same."""
    channel = unique()
    acks = [await api.publish(channel, str(n)) for n in range(5)]
    stream_id = (await api.history(channel))["continuity"]["stream_id"]
    path = f"{channel_path(channel)}/history/purge"
    for wrong in (
        confirmed(channel, "purge"),
        confirmed(channel, "purge", mode="some"),
        confirmed(channel, "purge", mode="all", before_serial=2),
        confirmed(channel, "purge", mode="before_serial"),
        confirmed(channel, "purge", mode="before_serial", before_time_ms=2),
        confirmed(channel, "purge", mode="before_serial", before_serial=2, before_time_ms=2),
        confirmed(channel, "reset", mode="all"),
    ):
        refused(await api.post(path, wrong), 400, "invalid_input")
    cursor = (await api.history(channel, limit=4))["next_cursor"]  # points at serial 2
    body = confirmed(channel, "purge", mode="before_serial", before_serial=3)
    answer = ok(await api.post(path, body))
    assert (answer["ok"], answer["operation"], answer["purged_messages"]) == (True, "purge", 2)
    assert await serials(api, channel) == [3, 4, 5]
    continuity = (await api.history(channel))["continuity"]
    assert (continuity["stream_id"], continuity["oldest_available_serial"]) == (stream_id, 3)
    response = await api.get(f"{channel_path(channel)}/history", cursor=cursor, limit=4)
    refused(response, 400, "invalid_input")
    async with node.v2() as v2:
        await v2.subscribe(channel, rewind=10)
        assert [(await v2.receive())["data"] for _ in range(3)] == ["2", "3", "4"]
        await v2.expect(":rewind_complete", channel)
    config = Config(app_id=APP.id, key=APP.key, secret=APP.secret, port=node.port)
    async with AsyncSockudo(config) as server:
        result = await server.purge_channel_history(channel, "all", "a test")
        assert result.ok, result
        assert await serials(api, channel) == []
        result = await server.reset_channel_history(channel, "a test", "me")
        assert result.json()["previous_stream_id"] == stream_id
    ack = await api.publish(channel, "next")
    assert ack["history_serial"] == 6, "serials go on"
    assert ack["delivery_serial"] > acks[-1]["delivery_serial"]


async def test_purge_before_a_time(api: Api) -> None:
    """Rows published before it go."""
    channel = unique()
    for n in range(3):
        await api.publish(channel, str(n))
    newest = (await api.history(channel))["items"][0]["published_at_ms"]
    path = f"{channel_path(channel)}/history/purge"
    body = confirmed(channel, "purge", mode="before_time_ms", before_time_ms=newest + 1)
    assert ok(await api.post(path, body))["purged_messages"] == 3
    assert await serials(api, channel) == []


async def test_retention_of_history_and_lifetime_of_keys(tmp_path: Path, stores: Stores) -> None:
    """Old rows are hidden, messages are not; receipts live as channels D18 says."""
    clock = FakeClock()
    async with channels_server(
        tmp_path, await stores("clock"), clock=clock, history={"retention_seconds": 1000}
    ) as node:
        api, channel = node.api, unique()
        api.now = lambda: clock.now_ms() / 1000
        keyed = {"data": "keyed", "idempotency_key": "k", "info": "subscription_count"}
        first = ok(await api.events(channel, **keyed))
        chosen = {"data": "chosen", "message_id": "m"}
        second = ok(await api.events(channel, **chosen))
        clock.advance(119_000)
        assert ok(await api.events(channel, **keyed)) == first
        clock.advance(2_000)
        assert ok(await api.events(channel, **keyed))["channels"][channel]["delivery_serial"] == 3
        assert ok(await api.events(channel, **chosen)) == second
        assert await serials(api, channel) == [1, 2, 3]
        clock.advance(900_000)  # 1021 s after the first two, 900 s after the third
        assert await serials(api, channel) == [3]
        continuity = (await api.history(channel))["continuity"]
        assert continuity["oldest_available_serial"] == 3
        assert continuity["truncated_by_retention"] is True
        serial = first["channels"][channel]["message_serial"]
        assert (await api.item(channel, serial))["data"] == "keyed"
        assert ok(await api.events(channel, **chosen)) == second
        for seconds, count in ((899, 0), (901, 1)):
            async with node.v2() as v2:
                await v2.subscribe(channel, rewind={"seconds": seconds})
                for _ in range(count):
                    assert (await v2.receive())["serial"] == 3
                done = (await v2.expect(":rewind_complete", channel))["data"]
                assert done["historical_count"] == count
        async with node.v2() as v2:
            assert (await v2.subscribe(channel, rewind=10))["serial"] == 3
            assert (await v2.receive())["serial"] == 3
            done = (await v2.expect(":rewind_complete", channel))["data"]
            assert (done["historical_count"], done["truncated_by_retention"]) == (1, True)


async def test_clocks_and_buffers(tmp_path: Path, stores: Stores) -> None:
    """Serials go up though the clock goes back; the hot buffer ends and the store goes on."""
    clock = FakeClock(1_800_000_000_000)
    async with channels_server(tmp_path, await stores("clock"), clock=clock) as node:
        api, channel = node.api, unique()
        api.now = lambda: clock.now_ms() / 1000
        ack = await api.publish(channel, "a")
        serials = [ack["version_serial"]]
        for back in (1, 5_000, 3_600_000):
            clock.set(1_800_000_000_000 - back)
            answer = await api.mutate("append", channel, ack["message_serial"], data="b")
            serials.append(answer["version_serial"])
        assert serials == sorted(set(serials))
        page = await api.versions(channel, ack["message_serial"], direction="oldest_first")
        assert [item["version"]["serial"] for item in page["items"]] == serials
        assert (await api.item(channel, ack["message_serial"]))["data"] == "abbb"
        clock.set(1_800_000_010_000)
        async with node.v2() as v2:
            head = await v2.subscribe(channel)
        full = {"channel_positions": {channel: {"serial": 1, "stream_id": head["stream_id"]}}}
        legacy = {"channel_serials": {channel: 1}}
        for wish, source in ((full, "hot"), (legacy, "hot"), (full, "cold"), (legacy, None)):
            if source != "hot":
                clock.set(1_800_000_010_000 + 121_000)
            async with node.v2() as v2:
                await v2.send("resume", wish)
                if source is None:
                    data = json.loads((await v2.expect(":resume_failed", channel))["data"])
                    assert data["code"] == "continuity_unverifiable"
                    continue
                assert [(await v2.receive())["serial"] for _ in range(3)] == [2, 3, 4]
                [recovered] = (await v2.resumed())["recovered"]
                assert (recovered["source"], recovered["replayed"]) == (source, 3)


async def test_retention_of_versions(tmp_path: Path, stores: Stores) -> None:
    """Old versions go, newer ones of the same message stay; numbering goes on (channels 5.11)."""
    clock = FakeClock()
    async with channels_server(
        tmp_path,
        await stores("clock, too"),
        clock=clock,
        versioned_messages={"retention_window_seconds": 100, "purge_interval_seconds": 0.05},
    ) as node:
        api, channel = node.api, unique()
        api.now = lambda: clock.now_ms() / 1000
        gone = await api.publish(channel, "gone")
        kept = await api.publish(channel, "a")
        clock.advance(60_000)
        await api.mutate("update", channel, kept["message_serial"], data="b")
        clock.advance(60_000)
        response = await api.get(message_path(channel, gone["message_serial"]))
        for _ in range(400):  # the purge runs by itself
            if response.status_code == 404:
                break
            response = await api.get(message_path(channel, gone["message_serial"]))
        refused(response, 404, "not_found")
        page = await api.versions(channel, kept["message_serial"])
        assert [item["action"] for item in page["items"]] == ["update"]
        assert (await api.item(channel, kept["message_serial"]))["data"] == "b"
        assert [row["serial"] for row in (await api.history(channel))["items"]] == [2]
        ack = await api.publish(channel, "next")
        assert (ack["delivery_serial"], ack["history_serial"]) == (4, 3)
        async with node.v2() as v2:
            head = await v2.subscribe(channel)
            await v2.resume(**{channel: {"serial": 0, "stream_id": head["stream_id"]}})
            data = json.loads((await v2.expect(":resume_failed", channel))["data"])
            assert data["code"] == "position_expired"
