"""Retention of channels: it keeps up, shows its lag, and goes on where it was."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.channels.peer import ChannelsNode, channels_server, message_path
from tidelog.channels import stored
from tidelog.channels.front.reads import message_reader
from tidelog.channels.upkeep import retention as module
from tidelog.store.rows import Row
from tidelog.testing.clock import FakeClock

WINDOW_SECONDS = 100
OLD_MS = (WINDOW_SECONDS + 7) * 1000
STREAMING = {"ai": {"transport": {"status": "streaming"}}}


@asynccontextmanager
async def server(
    tmp_path: Path, location: str, clock: FakeClock, **options: Any
) -> AsyncIterator[ChannelsNode]:
    """A server whose versions are old after some time, and that looks for them when it is told."""
    window = {"retention_window_seconds": WINDOW_SECONDS, "purge_interval_seconds": 3600}
    async with channels_server(
        tmp_path, location, clock=clock, versioned_messages={**window, **options}
    ) as node:
        node.api.now = lambda: clock.now_ms() / 1000
        yield node


async def kept(node: ChannelsNode) -> int:
    """Entries that have their content."""
    return sum(surface.entries - surface.pruned for surface in await node.server.store.stats())


def metric(node: ChannelsNode, name: str) -> float:
    """What `/metrics` shows for channels."""
    value = node.server.committer.metrics.registry.get_sample_value(name, {"surface": "channels"})
    assert value is not None
    return value


async def publish(node: ChannelsNode, count: int) -> None:
    """Messages of one version in three channels."""
    for number in range(count):
        await node.api.publish(f"room-{number % 3}", f"text {number}")


async def test_it_goes_on_until_nothing_is_due(
    tmp_path: Path, store_location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than fits into one go is not left for the next interval."""
    monkeypatch.setattr(module, "REST_SECONDS", 0.01)
    clock = FakeClock()
    limits = {"purge_batch_size": 2, "purge_tick_versions": 4}
    async with server(tmp_path, store_location, clock, **limits) as node:
        await publish(node, 15)
        clock.advance(OLD_MS)
        await publish(node, 1)
        node.surface.owner.retention.start(0)
        async with asyncio.timeout(30):
            # What is removed is counted a moment after it was committed; nobody tells.
            removed = "tidelog_retention_removed_total"
            while await kept(node) > 1 or metric(node, removed) < 15:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert metric(node, "tidelog_retention_removed_total") == 15
        for number in range(3):
            history = await node.api.history(f"room-{number}")
            assert len(history["items"]) == (1 if number == 0 else 0)


async def test_its_lag_is_shown(tmp_path: Path, store_location: str) -> None:
    """For how much longer than it should the oldest version is kept, at any moment."""
    clock, lag = FakeClock(), "tidelog_retention_lag_seconds"
    one = {"purge_batch_size": 1, "purge_tick_versions": 1}
    async with server(tmp_path, store_location, clock, **one) as node:
        retention = node.surface.owner.retention
        assert await retention.tick() == 0
        await publish(node, 1)
        clock.advance(20_000)
        await publish(node, 1)
        assert await retention.tick() == 0
        assert metric(node, lag) == 0
        clock.advance(OLD_MS - 20_000)
        assert metric(node, lag) == 7
        clock.advance(23_000)
        assert metric(node, lag) == 30
        assert await retention.tick() == 1
        assert metric(node, lag) == 10
        assert await retention.tick() == 1
        assert metric(node, lag) == 0
    async with server(tmp_path, store_location, clock) as node:
        await publish(node, 1)
    clock.advance(OLD_MS)
    async with server(tmp_path, store_location, clock) as node:
        assert metric(node, lag) == 7, "known from the start"


async def test_it_goes_on_where_it_was_after_a_restart(
    tmp_path: Path, store_location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was emptied is not looked through again, nor are entries of others."""
    clock = FakeClock()
    async with server(tmp_path, store_location, clock) as node:
        await publish(node, 7)
        clock.advance(OLD_MS)
        assert await node.surface.owner.retention.tick() == 7
        await publish(node, 2)
    clock.advance(OLD_MS)
    async with server(tmp_path, store_location, clock) as node:
        asked: list[tuple[Any, ...]] = []
        store = node.server.store
        rows = store.rows

        async def note(query: str, key: tuple[Any, ...]) -> tuple[Row, ...]:
            if query in ("channels_too_old", "last_before"):
                asked.append(key)
            return await rows(query, key)

        monkeypatch.setattr(store, "rows", note)
        assert await node.surface.owner.retention.tick() == 2
        assert [key[0] for key in asked] == [7]
        assert await kept(node) == 0


async def test_a_look_that_finds_nothing_reads_nothing(
    tmp_path: Path, store_location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much is kept after the place it has come to."""
    clock = FakeClock()
    async with server(tmp_path, store_location, clock) as node:
        await publish(node, 5)
        store = node.server.store
        rows, asked = store.rows, []

        async def note(query: str, key: tuple[Any, ...]) -> tuple[Row, ...]:
            asked.append(query)
            return await rows(query, key)

        monkeypatch.setattr(store, "rows", note)
        assert await node.surface.owner.retention.tick() == 0
        assert "committed_at" in asked
        assert not {"channels_too_old", "last_before"} & set(asked)


async def test_messages_that_are_old_in_part_are_kept_whole(
    tmp_path: Path, store_location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With steps cut anywhere by count and by bytes, what is left reads as it did before."""
    monkeypatch.setattr(module, "PAGE_BYTES", 700)
    clock = FakeClock()
    async with server(tmp_path, store_location, clock, purge_batch_size=5) as node:
        api, channels = node.api, [f"ai:{n}" for n in range(4)]
        serials = [
            (await api.publish(each, "x" * 90, extras=STREAMING))["message_serial"]
            for each in channels
        ]
        gone = (await api.publish("ai:0", "gone", extras=STREAMING))["message_serial"]
        for number in range(3):
            for channel, serial in zip(channels, serials, strict=True):
                await api.mutate("append", channel, serial, data=f"-{number}")
        clock.advance(OLD_MS)
        for channel, serial in zip(channels, serials, strict=True):
            await api.mutate("append", channel, serial, data="-new")
        before = [await api.item(*each) for each in zip(channels, serials, strict=True)]
        assert await node.surface.owner.retention.tick() == 17
        assert await kept(node) == 4
        after = [await api.item(*each) for each in zip(channels, serials, strict=True)]
        assert after == before
        assert after[0]["data"] == "x" * 90 + "-0-1-2-new"
        assert (await api.get(message_path("ai:0", gone))).status_code == 404
        states = node.surface.owner.states
        state = await states.load_channel(f"channels/{api.app.id}/ai:0")
        assert state.open_streams == 1, "the one that is gone is not open any more"
        states.release(state)
    async with server(tmp_path, store_location, clock) as node:
        again = [await node.api.item(*each) for each in zip(channels, serials, strict=True)]
        assert again == before


async def test_a_message_that_changes_while_it_is_removed_stays(
    tmp_path: Path, store_location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its new version comes after it was found to be old, and before it is gone."""
    clock = FakeClock()
    async with server(tmp_path, store_location, clock) as node:
        serial = (await node.api.publish("ai:0", "begun", extras=STREAMING))["message_serial"]
        await publish(node, 2)
        clock.advance(OLD_MS)
        store = node.server.store
        rows_of = store.rows_of
        looked: list[Any] = []

        async def change(query: str, keys: Any) -> Any:
            found = await rows_of(query, keys)
            if query == "channels_end" and not looked:
                looked.append(keys)
                await node.api.mutate("append", "ai:0", serial, data=" and ended")
                node.surface.owner.states.forget_idle_messages()
            return found

        monkeypatch.setattr(store, "rows_of", change)
        assert await node.surface.owner.retention.tick() == 3
        assert len(looked) == 1
        assert (await node.api.item("ai:0", serial))["data"] == "begun and ended"
        assert await kept(node) == 1


async def test_who_subscribes_while_versions_go_knows_where_the_rest_begins(
    tmp_path: Path, store_location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The channel was read before that was committed, and is shown after it as it is now."""
    clock = FakeClock()
    async with server(tmp_path, store_location, clock) as node:
        for text in "abc":
            await node.api.publish("room", text)
    clock.advance(OLD_MS)
    async with server(tmp_path, store_location, clock) as node, node.v2() as peer:
        writer = node.server.store.writer
        commit = writer.commit
        subscribed: list[Any] = []

        async def subscribe_first(*arguments: Any) -> Any:
            if not subscribed:
                subscribed.append(await peer.subscribe("room"))
            return await commit(*arguments)

        monkeypatch.setattr(writer, "commit", subscribe_first)
        assert await node.surface.owner.retention.tick() == 3
        assert len(subscribed) == 1
        channel = node.surface.service.hub.channel("channels/tide/room")
        assert channel is not None
        assert channel.state is not None
        assert channel.state.replay_floor == 3


async def test_nodes_share_the_work(tmp_path: Path, postgresql_url: str) -> None:
    """What one has removed the other does not look at, and both know where the place is."""
    clock = FakeClock()
    async with (
        server(tmp_path / "a", postgresql_url, clock, purge_batch_size=3) as first,
        server(tmp_path / "b", postgresql_url, clock, purge_batch_size=3) as second,
    ):
        await publish(first, 20)
        clock.advance(OLD_MS)
        ticks = (node.surface.owner.retention.tick() for node in (first, second))
        assert sum(await asyncio.gather(*ticks)) == 20
        assert await kept(first) == 0
        assert await second.surface.owner.retention.tick() == 0
        assert metric(first, "tidelog_retention_lag_seconds") == 0


async def test_what_is_read_while_versions_go_is_right(
    tmp_path: Path, store_location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of its reads a purge comes after: no version shows another one's data."""
    monkeypatch.setattr(stored, "VERSIONS_PER_READ", 2)
    monkeypatch.setattr(message_reader, "VERSIONS_PER_READ", 2)
    clock = FakeClock()
    async with server(tmp_path, store_location, clock) as node:
        for at in range(1, 9):
            channel = f"ai:{at}"
            serial, said = await _versions_apart(node, channel, clock)
            direction = ("oldest_first", "newest_first")[at % 2]
            with _purging(node, at, monkeypatch):
                page = await node.api.versions(channel, serial, direction=direction)
            found = {item["delivery_serial"]: item["data"] for item in page["items"]}
            assert found == {place: said[place] for place in found}, at
            assert found.keys() >= {7, 8}, at


async def test_what_is_sent_again_while_versions_go_is_right(
    tmp_path: Path, store_location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or it is not sent, and the resume fails: a fragment never stands for the whole text."""
    clock, failures = FakeClock(), set()
    recovery = {"buffer_ttl_seconds": 0.001}
    window = {"retention_window_seconds": WINDOW_SECONDS, "purge_interval_seconds": 3600}
    async with channels_server(
        tmp_path,
        store_location,
        clock=clock,
        versioned_messages=window,
        connection_recovery=recovery,
        max_cached_text_bytes=1,
    ) as node:
        node.api.now = lambda: clock.now_ms() / 1000
        for at in range(1, 6):
            channel = f"ai:{at}"
            _, said = await _versions_apart(node, channel, clock)
            said |= {2: "a-1", 4: "a-1-2"}
            node.surface.owner.states.forget_idle_messages()
            async with node.v2(append_mode="full") as reader:
                stream_id = (await reader.subscribe(channel))["stream_id"]
                with _purging(node, at, monkeypatch):
                    await reader.resume(**{channel: {"serial": 1, "stream_id": stream_id}})
                    while (frame := await reader.receive())["event"] != "sockudo:resume_success":
                        if frame["event"] == "sockudo:resume_failed":
                            failures.add(json.loads(frame["data"])["code"])
                        else:
                            assert frame["data"] == said[frame["serial"]], (at, frame)
    assert "continuity_unverifiable" in failures, "it had begun"


async def _versions_apart(
    node: ChannelsNode, channel: str, clock: FakeClock
) -> tuple[str, dict[int, str]]:
    """A message whose create is gone and of which more is too old; what its versions say."""
    api, said = node.api, ["a", "-1", "a-1", "-2", "a-1-2", "b", "b", "b"]
    serial: str = (await api.publish(channel, "a"))["message_serial"]
    clock.advance(OLD_MS // 2)
    await api.mutate("append", channel, serial, data="-1")
    await api.mutate("update", channel, serial, description="kept")
    await api.mutate("append", channel, serial, data="-2")
    await api.mutate("update", channel, serial, description="kept")
    await api.mutate("update", channel, serial, data="b")
    clock.advance(OLD_MS // 2)
    await node.surface.owner.retention.tick()
    await api.mutate("update", channel, serial, description="kept")
    await api.mutate("delete", channel, serial, description="kept")
    clock.advance(OLD_MS // 2)
    return serial, dict(enumerate(said, 1))


@contextmanager
def _purging(node: ChannelsNode, at: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Retention comes after the store has been read so often."""
    store, count = node.server.store, 0
    rows = store.rows

    async def read(query: str, key: tuple[Any, ...]) -> tuple[Row, ...]:
        nonlocal count
        found = await rows(query, key)
        count += 1
        if count == at:
            await node.surface.owner.retention.tick()
        return found

    with monkeypatch.context() as patched:
        patched.setattr(store, "rows", read)
        yield
