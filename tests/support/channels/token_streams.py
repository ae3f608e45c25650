"""Writers of token streams that repeat what was lost, and what must have come of them."""

import asyncio
import random
from collections import Counter
from typing import Any

from support.channels.peer import message_path
from support.channels.raw import (
    LOST,
    Follower,
    Json,
    RawClient,
    after,
    latest_of,
    of_frame,
    of_item,
)

TOKENS = 40
"""Appends of one message; then the stream ends it and begins another."""
TOKEN_SECONDS = 0.05
"""From an answer to the next token."""
RETRY_SECONDS = (0.05, 0.3)
"""Before a lost request is repeated: a hundred clients must not keep the server from starting."""
CHANNELS = ("tokens", "private-ai:a", "private-ai:b", "chat;1")
STREAMING = {"ai": {"transport": {"status": "streaming"}}}
COMPLETE = {"ai": {"transport": {"status": "complete"}}}


class Message:
    """A streamed message as its writer knows it."""

    def __init__(self, channel: str, serial: str) -> None:
        self.channel = channel
        self.serial = serial
        self.text = ""
        """All that was acknowledged."""
        self.pending = ""
        """What was asked for and not yet answered."""
        self.acks: list[tuple[Json, Json]] = []
        """Bodies of appends and their answers, in order."""


class Stream:
    """A writer of tokens: every one has its key and is repeated until it is answered."""

    def __init__(self, number: int, port: Any) -> None:
        self.number = number
        self.channel = CHANNELS[number % len(CHANNELS)]
        self.messages: list[Message] = []
        self.creates: list[tuple[Json, Json]] = []
        self.statuses: Counter[str] = Counter()
        self.repeated = 0
        self._client = RawClient(port)
        self._tokens = 0
        self._rng = random.Random(number)

    @property
    def acknowledged(self) -> int:
        """Operations that were answered."""
        return len(self.creates) + sum(len(message.acks) for message in self.messages)

    async def run(self, stopping: asyncio.Event) -> None:
        """Stream one message after the other; the last one is ended too."""
        while not stopping.is_set():
            body = {
                "name": "ai-token",
                "channel": self.channel,
                "data": "",
                "message_id": f"m-{self.number}-{len(self.messages)}",
                "extras": STREAMING,
            }
            ack = (await self._until_answered("/events", body))["channels"][self.channel]
            message = Message(self.channel, ack["message_serial"])
            self.creates.append((body, ack))
            self.messages.append(message)
            for _ in range(TOKENS):
                await self._append(message, {"data": f"{self.number}.{self._tokens} "})
                if stopping.is_set():
                    break
                await asyncio.sleep(TOKEN_SECONDS)
            await self._append(message, {"data": "", "extras": COMPLETE})
        self.close()

    def close(self) -> None:
        """Hang up; so it does at its own end."""
        self._client.close()

    async def _append(self, message: Message, body: Json) -> None:
        body["op_id"] = f"{self.number}.{self._tokens}"
        self._tokens += 1
        message.pending = body["data"]
        path = f"{message_path(message.channel, message.serial)}/append"
        ack = await self._until_answered(path, body)
        self.statuses[ack["status"]] += 1
        message.text += message.pending
        message.pending = ""
        message.acks.append((body, ack))

    async def _until_answered(self, path: str, body: Json) -> Json:
        while True:
            try:
                answer = await self._client.request("POST", path, body)
            except LOST:
                self.repeated += 1
            else:
                if answer.status == 200:
                    found: Json = answer.json
                    return found
                assert answer.status == 503, answer
            await asyncio.sleep(self._rng.uniform(*RETRY_SECONDS))


def serials(ack: Json) -> tuple[Any, ...]:
    """What must be the same in every answer to an operation."""
    return tuple(ack[f"{name}_serial"] for name in ("message", "version", "history", "delivery"))


async def check_messages(client: RawClient, streams: list[Stream]) -> dict[str, dict[str, Any]]:
    """Every message is exactly what was acknowledged; returns them by channel and serial."""
    found: dict[str, dict[str, Any]] = {channel: {} for channel in CHANNELS}
    for stream in streams:
        for message in stream.messages:
            path = message_path(message.channel, message.serial)
            latest = of_item((await client.get(path))["item"])
            page = await client.get(f"{path}/versions", direction="oldest_first")
            assert not page["has_more"]
            first, *appends = [of_item(item) for item in page["items"]]
            state = first
            for version in appends:
                state = after(state, version)
            assert state == latest
            assert latest.data == message.text, "once and in order"
            assert [
                (v.message_serial, v.version_serial, v.history_serial, v.delivery_serial)
                for v in appends
            ] == [serials(ack) for _, ack in message.acks]
            assert latest.extras["ai"] == COMPLETE["ai"]
            found[message.channel][message.serial] = latest
    return found


async def check_retries(client: RawClient, streams: list[Stream], rng: random.Random) -> None:
    """Whatever was acknowledged is a duplicate now, with the serials it had."""
    for stream in rng.sample(streams, min(25, len(streams))):
        body, first = rng.choice(stream.creates)
        answer = await client.request("POST", "/events", body)
        again = answer.json["channels"][stream.channel]
        assert (answer.status, serials(again)) == (200, serials(first))
        message = rng.choice(stream.messages)
        path = f"{message_path(message.channel, message.serial)}/append"
        for body, first in rng.sample(message.acks, min(3, len(message.acks))):
            answer = await client.request("POST", path, body)
            assert (answer.status, answer.json["status"]) == (200, "duplicate"), answer
            assert serials(answer.json) == serials(first)


async def check_followers(
    followers: list[tuple[Follower, asyncio.Task[None]]],
    messages: dict[str, dict[str, Any]],
    heads: Counter[str],
) -> None:
    """Every subscriber has every operation once, and holds what everybody holds."""
    for follower, task in followers:
        await follower.reach(heads[follower.channel], task, 60)
    for follower, task in followers:
        task.cancel()
        [ended] = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(ended, asyncio.CancelledError), ended
        head = heads[follower.channel]
        assert [frame["serial"] for frame in follower.frames] == list(range(1, head + 1))
        assert len({frame["message_id"] for frame in follower.frames}) == head
        views = [of_frame(frame) for frame in follower.frames]
        assert latest_of(views, is_full=follower.is_full) == messages[follower.channel]
        assert follower.attached > 1, "it came back"
