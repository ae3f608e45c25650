"""Streams whose writer is gone: the server ends them, once, and only if nobody wrote since."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.channels.peer import Api, ChannelsNode, channels_server, ok, refused, unique
from tidelog.channels import stored
from tidelog.testing.clock import FakeClock

pytestmark = pytest.mark.asyncio(loop_scope="module")

Stores = Callable[[str], Awaitable[str]]

TIMEOUT_MS = 60_000
EXTRAS = {
    "headers": {"tenant": "acme", "n": 1},
    "mine": {"kept": [1, 2.50, "\u00e9"]},
    "ai": {
        "transport": {"run-id": "r1", "status": "streaming", "model": "m"},
        "codec": {"status": "streaming"},
        "other": {"x": None},
    },
}


def streaming(**transport: str) -> dict[str, Any]:
    """Extras of a message that is being written."""
    return {"ai": {"transport": {"status": "streaming", **transport}}}


def own(extras: dict[str, Any]) -> dict[str, Any]:
    """Without the headers that the server adds."""
    kept = json.loads(json.dumps(extras))
    kept["headers"] = {k: v for k, v in kept["headers"].items() if not k.startswith("sockudo_")}
    return dict(kept)


def status(item: dict[str, Any]) -> str:
    """Of a message's stream."""
    found: str = item["extras"]["ai"]["transport"]["status"]
    return found


@asynccontextmanager
async def serving(
    directory: Path, store: str, clock: FakeClock, **limits: Any
) -> AsyncIterator[ChannelsNode]:
    """A server whose time the test moves; its sweep looks several times a second."""
    async with channels_server(directory, store, clock=clock, ai_transport=limits) as node:
        node.api.now = lambda: clock.now_ms() / 1000
        yield node


async def ended(api: Api, channel: str, serial: str) -> dict[str, Any]:
    """The message once its stream is not open any more."""
    async with asyncio.timeout(20):
        while status(item := await api.item(channel, serial)) == "streaming":  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
    return item


@pytest.fixture(autouse=True)
def quick_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests move the server's time, and wait in their own."""
    from tidelog.channels.upkeep import streams

    monkeypatch.setattr(streams, "SWEEP_SECONDS", 0.05)


@pytest.mark.inside
async def test_a_stream_without_a_writer_is_cancelled(tmp_path: Path, stores: Stores) -> None:
    """After 60 s: one update by `server`, of which only two members of the extras are new."""
    clock, channel = FakeClock(), unique()
    async with serving(tmp_path, await stores("orphans, alone"), clock) as node, node.v2() as v2:
        api = node.api
        await v2.subscribe(channel)
        ack = await api.publish(channel, "Hel", extras=EXTRAS)
        serial = ack["message_serial"]
        clock.advance(30_000)
        await api.mutate("append", channel, serial, data="lo")
        for event in ("chat.message", "sockudo:message.append"):
            await v2.expect(event, channel)
        clock.advance(TIMEOUT_MS - 1)
        await asyncio.sleep(0.2)
        assert status(await api.item(channel, serial)) == "streaming", "not 60 s yet"
        clock.advance(1)
        item = await ended(api, channel, serial)
        wanted = json.loads(json.dumps(EXTRAS))
        wanted["ai"]["transport"] |= {"status": "cancelled", "error-code": "orphan_timeout"}
        assert own(item["extras"]) == wanted
        assert (item["action"], item["data"], item["name"]) == ("update", "Hello", "chat.message")
        assert item["version"].keys() == {"serial", "timestamp_ms"}
        frame = await v2.expect("sockudo:message.update", channel)
        assert own(frame["extras"]) == wanted
        assert (frame["data"], frame["serial"]) == ("Hello", 3)
        text = refused(
            await api.try_mutate("append", channel, serial, data="!"), 400, "invalid_input"
        )
        assert "terminal" in text
        entries = await node.server.store.stream_entries(f"channels/tide/{channel}", 2)
        assert [(entry.kind, entry.actor) for entry in entries] == [("message.update", "server")]
        await asyncio.sleep(0.2)
        assert len((await api.versions(channel, serial))["items"]) == 3, "ended once"
        metrics = (await node.client.get(f"{api.url}/metrics")).text
        assert 'tidelog_channels_streams_closed_total{reason="orphan_timeout"} 1.0' in metrics


async def test_a_channel_full_of_orphans_takes_new_streams(tmp_path: Path, stores: Stores) -> None:
    """Also when the server was started again since: they are found in the store."""
    clock, channel = FakeClock(), unique()
    store, most = await stores("orphans, full"), {"max_open_streaming_messages_per_channel": 40}
    async with serving(tmp_path, store, clock, **most) as node:
        serials = [
            (await node.api.publish(channel, "", extras=streaming()))["message_serial"]
            for _ in range(40)
        ]
        response = await node.api.events(channel, data="", extras=streaming())
        refused(response, 413, "payload_too_large", ai_code=40009)
    clock.advance(TIMEOUT_MS)
    async with serving(tmp_path, store, clock, **most) as node:
        await asyncio.sleep(0.2)
        assert status(await node.api.item(channel, serials[0])) == "streaming", (
            "its writer could not write while there was no server"
        )
        clock.advance(TIMEOUT_MS)
        for serial in serials:
            assert status(await ended(node.api, channel, serial)) == "cancelled"
        ok(await node.api.events(channel, data="", extras=streaming()))


async def test_a_deleted_stream_stays_deleted(tmp_path: Path, stores: Stores) -> None:
    """An update would show it again."""
    clock, channel = FakeClock(), unique()
    async with serving(tmp_path, await stores("orphans, deleted"), clock) as node:
        api = node.api
        serial = (await api.publish(channel, "x", extras=streaming()))["message_serial"]
        await api.mutate("delete", channel, serial, clear_fields=["data"])
        clock.advance(TIMEOUT_MS)
        item = await ended(api, channel, serial)
        assert (item["action"], status(item)) == ("delete", "cancelled")
        assert "data" not in item


async def test_only_streams_that_the_limits_are_for_are_ended(
    tmp_path: Path, stores: Stores
) -> None:
    """With prefixes configured the others are left alone, as by the other limits (channels D14)."""
    clock, inside, outside = FakeClock(), unique("ai:x"), unique("room")
    async with serving(
        tmp_path, await stores("orphans, prefixes"), clock, channels=["ai:"]
    ) as node:
        api = node.api
        there = (await api.publish(outside, "", extras=streaming()))["message_serial"]
        here = (await api.publish(inside, "", extras=streaming()))["message_serial"]
        clock.advance(TIMEOUT_MS)
        await ended(api, inside, here)
        assert status(await api.item(outside, there)) == "streaming"


async def test_a_large_message_is_ended_under_a_smaller_limit(
    tmp_path: Path, stores: Stores
) -> None:
    """The limit was lowered since: the message could not be written, but its stream can end."""
    clock, channel, store = FakeClock(), unique(), await stores("orphans, large")
    async with serving(tmp_path, store, clock) as node:
        ack = await node.api.publish(channel, "x" * 1000, extras=streaming())
    async with serving(tmp_path, store, clock, max_accumulated_message_bytes=10) as node:
        clock.advance(TIMEOUT_MS)
        item = await ended(node.api, channel, ack["message_serial"])
        assert item["data"] == "x" * 1000


@pytest.mark.inside
async def test_a_writer_that_was_only_slow_is_left_alone(
    tmp_path: Path, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was found is decided again: an append that came in between counts."""
    clock, channel = FakeClock(), unique()
    async with serving(tmp_path, await stores("orphans, slow"), clock) as node:
        api = node.api
        serial = (await api.publish(channel, "a", extras=streaming()))["message_serial"]
        found: list[Any] = []
        read = stored.open_streams

        async def late(*arguments: Any) -> Any:
            """Between what is found and the decision, the writer is back."""
            page = await read(*arguments)
            if page and not found:
                await api.mutate("append", channel, serial, data="b")
                found.extend(page)
            return page

        monkeypatch.setattr("tidelog.channels.upkeep.streams.open_streams", late)
        clock.advance(TIMEOUT_MS)
        async with asyncio.timeout(20):
            while not found:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        assert status(await api.item(channel, serial)) == "streaming"
        clock.advance(TIMEOUT_MS)
        assert (await ended(api, channel, serial))["data"] == "ab"
