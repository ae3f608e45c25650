"""First act, channels: an assistant's answer grows word by word while three onlookers watch."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from tidelog.base.net.direct_socket import connect
from tidelog.client import ChannelClient, ChannelPublisher
from tidelog.client.channels.client import Channel
from tidelog.demo.narration import Claim, Narrator
from tidelog.demo.stage import APP_ID, APP_KEY, Stage
from tidelog.demo.waiting import until

CHANNEL = "tides"
QUESTION = "Why does the tide come in?"
SENTENCES = (
    "The moon pulls the sea, and the earth turns under it.",
    "Twice a day the water stands high, half a day apart.",
    "When sun and moon pull in one line, the tide is a spring tide.",
    "In a bay that swings at the same pace the water climbs by metres.",
    "Each tide follows the last one, in order, and none is left out.",
)
MISTAKE, CORRECTION = "Tides come from the wind.", "Waves come from the wind."
PAUSE_S = 0.04
"""Between two words: a model writes about so fast."""

BROWSER, LATE, PUSHER = "browser (V2)", "late joiner (V2)", "Pusher client (V1)"


async def play(stage: Stage, narrator: Narrator, random: Random) -> list[Claim]:
    """Play it; returns what was proved by asking the onlookers."""
    narrator.act("Channels", "a message can grow, change and go after it was sent")
    words = [f"{word} " for word in " ".join(random.sample(SENTENCES, 4)).split()]
    words[-1] = words[-1].rstrip()
    text = "".join(words)
    async with (
        ChannelPublisher(stage.url, APP_ID, APP_KEY, stage.app_secret) as publisher,
        _subscribed(stage) as browser,
        _pusher(stage) as heard,
    ):
        question = await publisher.publish(CHANNEL, "question", QUESTION)
        narrator.say(f"asked: {QUESTION}")
        answer = await publisher.publish(CHANNEL, "answer", "", extras=_status("streaming"))
        assert answer.message_serial  # noqa: S101 - versioned
        assert question.message_serial  # noqa: S101 - as above
        serial = answer.message_serial
        narrator.say("the assistant streams its answer; somebody joins when half of it is there")
        async with _subscribed_late(stage, at := asyncio.Event()) as late:
            for number, word in enumerate(words, 1):
                is_last = number == len(words)
                extras = _status("complete") if is_last else None
                await publisher.append(CHANNEL, serial, word, extras=extras)
                if number == len(words) // 2:
                    at.set()
                narrator.show(_panes(browser, late.get("channel"), heard, serial))
                await asyncio.sleep(PAUSE_S)
            mistake = await publisher.publish(CHANNEL, "remark", MISTAKE)
            assert mistake.message_serial  # noqa: S101 - versioned
            await publisher.update(
                CHANNEL, mistake.message_serial, data=CORRECTION, description="a mistake"
            )
            await publisher.delete(CHANNEL, question.message_serial, clear=["data"])
            narrator.say("a wrong remark was corrected, and the question withdrawn")
            joined = late["channel"]
            expected = {serial: text, mistake.message_serial: CORRECTION}

            async def do_all_see_it() -> bool:
                return _visible(browser) == _visible(joined) == expected

            await until(do_all_see_it)
            narrator.show(_panes(browser, joined, heard, serial))
            return [
                Claim("the browser's text is the assistant's", _visible(browser), expected),
                Claim("the late joiner has the same", _visible(joined), expected),
                Claim(
                    "the Pusher client got every message once, when it was published",
                    [name for name, _ in heard],
                    ["question", "answer", "remark"],
                ),
            ]


def _status(status: str) -> dict[str, Any]:
    return {"ai": {"transport": {"status": status}}}


def _visible(channel: Channel) -> dict[str, Any]:
    return {each.serial: each.data for each in channel.messages if not each.is_deleted}


def _panes(
    browser: Channel, late: Channel | None, heard: list[tuple[str, str]], serial: str
) -> Mapping[str, str]:
    def text(channel: Channel | None) -> str:
        message = None if channel is None else channel.get(serial)
        return str(message.data) if message is not None else "…"

    names = ", ".join(name for name, _ in heard)
    return {BROWSER: text(browser), LATE: text(late), PUSHER: f"events: {names}"}


@asynccontextmanager
async def _subscribed(stage: Stage) -> AsyncIterator[Channel]:
    async with (
        ChannelClient(stage.socket_url, APP_KEY) as client,
        client.subscribe(CHANNEL, rewind=100) as channel,
    ):
        reader = asyncio.create_task(_read(channel))
        try:
            yield channel
        finally:
            reader.cancel()


async def _read(channel: Channel) -> None:
    async for _ in channel:
        pass


@asynccontextmanager
async def _subscribed_late(stage: Stage, at: asyncio.Event) -> AsyncIterator[dict[str, Channel]]:
    """A subscriber that comes when it is told to; the channel is in what is yielded from then."""
    there: dict[str, Channel] = {}
    leave = asyncio.Event()

    async def join() -> None:
        await at.wait()
        async with _subscribed(stage) as channel:
            there["channel"] = channel
            await leave.wait()

    task = asyncio.create_task(join())
    try:
        yield there
    finally:
        leave.set()
        at.set()
        await task


@asynccontextmanager
async def _pusher(stage: Stage) -> AsyncIterator[list[tuple[str, str]]]:
    """A client that speaks plain Pusher; the events it was sent."""
    heard: list[tuple[str, str]] = []
    url = f"{stage.socket_url}/app/{APP_KEY}?protocol=7&client=demo&version=1"
    async with connect(url) as connection:
        request = {"event": "pusher:subscribe", "data": {"channel": CHANNEL}}
        await connection.send(json.dumps(request))
        while json.loads(await connection.recv())["event"] != (
            "pusher_internal:subscription_succeeded"
        ):
            pass

        async def listen() -> None:
            async for frame in connection:
                event = json.loads(frame)
                if not event["event"].startswith("pusher"):
                    heard.append((event["event"], event["data"]))

        listener = asyncio.create_task(listen())
        try:
            yield heard
        finally:
            listener.cancel()
