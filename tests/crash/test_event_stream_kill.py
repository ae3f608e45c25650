"""`kill -9` of the real process while answers are streamed to those who read server-sent events."""

import asyncio
import random
from pathlib import Path

from support.channels.events import heard
from support.channels.peer import APP
from support.channels.process import channels_process
from tidelog.client import ChannelPublisher
from tidelog.client.backoff import Backoff

KILLS = 3
CHANNELS = ("answers", "private-answers")
QUICK = Backoff(first=0.02, most=0.2)
WAIT_SECONDS = 120.0


class Reader:
    """What an `EventSource` does: it connects again with the id of the last event it saw."""

    def __init__(self, channel: str, port: int) -> None:
        self.channel = channel
        self.serials: list[int] = []
        self.text = ""
        self.connections = 0
        self.is_there = False
        """Whether it has subscribed."""
        self._port = port
        self._last_id = ""

    async def run(self) -> None:
        """Until the answer is complete."""
        while True:
            try:
                if await self._listen():
                    return
            except (OSError, EOFError):
                await asyncio.sleep(0.02)

    async def _listen(self) -> bool:
        async with heard(self._port, self.channel, last_id=self._last_id) as listener:
            self.connections += 1
            try:
                while True:
                    frame = await listener.frame()
                    assert frame["event"] != "sockudo:resume_failed", frame
                    self.is_there = self.is_there or "serial" in frame
                    if "extras" not in frame:
                        continue
                    self.serials.append(frame["serial"])
                    is_added = frame["event"] == "sockudo:message.append"
                    self.text = self.text + frame["data"] if is_added else frame["data"]
                    if frame["extras"]["ai"]["transport"]["status"] == "complete":
                        return True
            finally:
                self._last_id = listener.last_id


async def write(url: str, channel: str, is_enough: asyncio.Event) -> str:
    """An answer, word by word; returns all of it."""
    words: list[str] = []
    async with (
        ChannelPublisher(url, APP.id, APP.key, APP.secret, attempts=1000, backoff=QUICK) as app,
        app.stream(channel, "answer") as answer,
    ):
        while not is_enough.is_set():
            words.append(f"w{len(words)} ")
            await answer.write(words[-1])
            await asyncio.sleep(0.02)
    return "".join(words)


async def test_no_token_is_lost_or_doubled(
    tmp_path: Path, store_location: str, free_port: int
) -> None:
    """Three kills: each reader has every operation once, in order, and the whole text."""
    rng = random.Random(7)
    with channels_process(tmp_path, store_location) as server:
        server.port = free_port
        await asyncio.to_thread(server.start)
        readers = [Reader(channel, free_port) for channel in CHANNELS]
        reading = [asyncio.create_task(reader.run()) for reader in readers]
        async with asyncio.timeout(WAIT_SECONDS):
            while not all(reader.is_there for reader in readers):  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.01)
            is_enough = asyncio.Event()
            writing = [asyncio.create_task(write(server.url, each, is_enough)) for each in CHANNELS]
            for _ in range(KILLS):
                goals = [len(reader.serials) + 3 for reader in readers]
                while any(  # noqa: ASYNC110 - nothing tells
                    len(reader.serials) < goal for reader, goal in zip(readers, goals, strict=True)
                ):
                    await asyncio.sleep(0.01)
                await asyncio.sleep(rng.random() * 0.2)
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
            is_enough.set()
            texts = await asyncio.gather(*writing)
            await asyncio.gather(*reading)
        for reader, text in zip(readers, texts, strict=True):
            assert reader.text == text
            first, count = reader.serials[0], len(reader.serials)
            assert reader.serials == list(range(first, first + count))
            assert reader.connections > KILLS
