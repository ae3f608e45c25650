"""While histories are read, however slowly: health, subscribing, publishing and changing go on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.channels.peer import channel_path, channels_server, ok, unique
from tidelog.channels.front.reads.history_reader import PAGES_AT_ONCE
from tidelog.store.sqlite import LANE_READERS


async def test_nobody_waits_for_somebodys_history(store_location: str, tmp_path: Path) -> None:
    """Nothing of the channel and its message is in memory; all that is needed is read at once."""
    channel, cached = unique(), unique("cache-room")
    async with channels_server(tmp_path, store_location) as node:
        serial = (await node.api.publish(channel, "a"))["message_serial"]
        await node.api.publish(cached, "news")
    async with (
        channels_server(tmp_path, store_location) as node,
        asyncio.timeout(60),  # or it would wait for ever
    ):
        async with occupied(node.server.store):
            reading = asyncio.create_task(node.api.get(f"{channel_path(channel)}/history"))
            answer = await node.client.get(f"{node.api.url}/healthz")
            assert answer.status_code == 200, answer.text
            async with node.v2() as peer:
                await peer.subscribe(channel)
                await peer.subscribe(cached)
                assert (await peer.receive())["data"] == "news"
                await node.api.mutate("append", channel, serial, data="b")
                assert (await peer.receive())["data"] == "b"
                await node.api.publish(channel, "c")
                assert (await peer.receive())["data"] == "c"
            await node.api.publish(unique(), "d")
            assert not reading.done()
        page = ok(await reading)
        assert [item["message"]["data"] for item in page["items"]] == ["c", "ab"]


async def test_pages_are_made_a_few_at_a_time(
    store_location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page is work for the event loop: many readers wait in line, and not everybody for them."""
    channel = unique()
    async with channels_server(tmp_path, store_location) as node:
        await node.api.publish(channel, "a")
        store, at_once, most = node.server.store, 0, 0
        rows = store.rows

        async def counted(query: str, key: Any) -> Any:
            nonlocal at_once, most
            if query != "channels_history_rows":
                return await rows(query, key)
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0.01)  # long enough for all of them to be here at once
            found = await rows(query, key)
            at_once -= 1
            return found

        async def rewind() -> None:
            async with node.v2() as peer:
                await peer.send("subscribe", {"channel": channel, "rewind": 1})
                while (await peer.receive())["event"] != "sockudo:rewind_complete":
                    pass

        monkeypatch.setattr(store, "rows", counted)
        path = f"{channel_path(channel)}/history"
        pages = await asyncio.gather(
            *(node.api.get(path) for _ in range(4)), *(rewind() for _ in range(4))
        )
        assert [len(ok(page)["items"]) for page in pages[:4]] == [1] * 4  # type: ignore[arg-type]
        assert most == PAGES_AT_ONCE


@asynccontextmanager
async def occupied(store: Any) -> AsyncIterator[None]:
    """Let all that read histories be busy for the length of the block."""
    async with AsyncExitStack() as stack:
        if store.is_shared:
            for _ in range(store._long.get_max_size()):
                await stack.enter_async_context(store._long.acquire())
            yield
            return
        released = asyncio.Event()
        loop = asyncio.get_running_loop()

        def read(_: object) -> None:
            asyncio.run_coroutine_threadsafe(released.wait(), loop).result()

        busy = [asyncio.create_task(store._long.read(read)) for _ in range(LANE_READERS)]
        try:
            yield
        finally:
            released.set()
            await asyncio.gather(*busy)
