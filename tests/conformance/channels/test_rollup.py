"""Checks 77 to 80: appends that come together (channels 5.13)."""

import asyncio
import random
from itertools import pairwise
from typing import Any

import pytest

from support.channels.events import heard, refusal
from support.channels.peer import Api, ChannelsNode, Peer, unique
from support.channels.rolled import Json, taken_apart

pytestmark = pytest.mark.asyncio(loop_scope="module")

WINDOW = "500"
"""Long enough for the appends of a test to come within it; a test that cannot be sure says again
what it says until they do."""
TOKENS = ("The ", "tide ", "comes ", "\N{WATER WAVE}", " in\n", '"so"')


def ai(status: str) -> Json:
    """Extras of a stream."""
    return {"ai": {"transport": {"status": status}}}


async def stream(api: Api, channel: str) -> str:
    """Write a whole answer; returns its text."""
    ack = await api.publish(channel, "", extras=ai("streaming"))
    for text in TOKENS:
        await api.mutate("append", channel, ack["message_serial"], data=text)
    last = {"data": ".", "extras": ai("complete")}
    await api.mutate("append", channel, ack["message_serial"], **last)
    return "".join(TOKENS) + "."


async def frames_of(peer: Peer, last: int) -> list[Json]:
    """The next frames up to that serial."""
    frames = [await peer.receive()]
    while frames[-1]["serial"] < last:
        frames.append(await peer.receive())
    return frames


def ends_of(frames: list[Json]) -> list[tuple[Any, ...]]:
    """What a frame of several appends has of its last one."""
    headers = (frame["extras"]["headers"] for frame in frames)
    return [
        (frame["serial"], frame["message_id"], header["sockudo_version_serial"])
        for frame, header in zip(frames, headers, strict=True)
    ]


async def test_check_77_appends_within_a_window_come_together(node: ChannelsNode, api: Api) -> None:
    """In either mode; the first and the last at once; who did not ask gets each as it is."""
    channel = unique()
    async with (
        node.v2() as plain,
        node.v2(append_rollup_window="0") as zero,
        node.v2(append_rollup_window=WINDOW) as delta,
        node.v2(append_rollup_window=WINDOW, append_mode="full") as full,
    ):
        for peer in (plain, zero, delta, full):
            await peer.subscribe(channel)
        is_rolled, last = False, 0
        while not is_rolled:
            whole = await stream(api, channel)
            last += 2 + len(TOKENS)
            every = await frames_of(plain, last)
            assert await frames_of(zero, last) == every
            assert not any("rolled" in frame for frame in every)
            together = await frames_of(delta, last)
            assert taken_apart(together) == taken_apart(every)
            assert set(ends_of(together)) <= set(ends_of(every))
            assert together[:2] == every[:2], "the first append does not wait"
            assert together[-1]["extras"]["ai"]["transport"]["status"] == "complete"
            wholes = await frames_of(full, last)
            assert set(ends_of(wholes)) <= set(ends_of(every))
            assert wholes[-1]["data"] == whole
            for before, frame in pairwise(wholes[1:]):
                assert frame["serial"] - len(frame.get("rolled", "x")) == before["serial"]
                assert frame["data"].startswith(before["data"])
            is_rolled = len(together) < len(every) and len(wholes) < len(every)
        for peer in (plain, zero, delta, full):
            await peer.quiet()


async def test_check_78_what_is_held_comes_before_anything_else(
    node: ChannelsNode, api: Api
) -> None:
    """Other messages, other operations, events that are not kept, members, replies, the end."""
    channel = unique("presence-room")
    async with node.v2() as plain, node.v2(append_rollup_window=WINDOW) as rolled:
        for peer in (plain, rolled):
            await peer.subscribe(channel, {"user_id": "ana"})
        one, two = [
            (await api.publish(channel, "", name=name))["message_serial"] for name in ("a", "b")
        ]
        for other in ("append", "update", "delete", "event", "member"):
            for text in TOKENS:
                await api.mutate("append", channel, one, data=text)
            match other:
                case "append":
                    await api.mutate("append", channel, two, data="x")
                case "update" | "delete":
                    await api.mutate(other, channel, one, description=other)
                case "event":
                    await api.events(channel, data="x", extras={"ephemeral": True})
                case "member":
                    async with node.v2() as guest:
                        await guest.subscribe(channel, {"user_id": "bob"})
        ended = "sockudo_internal:member_removed"
        every, together = [await plain.receive()], [await rolled.receive()]
        for peer, frames in ((plain, every), (rolled, together)):
            while frames[-1]["event"] != ended:
                frames.append(await peer.receive())
        assert taken_apart(together) == taken_apart(every)
        # A reply on the socket that waits: history has what was held, and comes after it.
        while True:
            for text in TOKENS:
                await api.mutate("append", channel, one, data=text)
            await rolled.send("channel_history", {"channel": channel, "limit": 1})
            together = [await rolled.receive()]
            while together[-1]["event"] != "sockudo:channel_history":
                together.append(await rolled.receive())
            every = [await plain.receive() for _ in TOKENS]
            assert taken_apart(together[:-1]) == taken_apart(every)
            if len(together) <= len(every):
                break


async def test_check_79_a_position_in_the_middle_of_a_window(node: ChannelsNode, api: Api) -> None:
    """Who is cut off while something is held for it misses nothing and gets nothing twice.

    Whenever that is, and by whichever way it comes back.
    """
    channel = unique()
    chance = random.Random(79)
    ack = await api.publish(channel, "")
    words = [f"w{number} " for number in range(40)]

    async def write() -> None:
        for word in words:
            await api.mutate("append", channel, ack["message_serial"], data=word)

    async with node.v2(append_rollup_window=WINDOW) as peer:
        succeeded = await peer.subscribe(channel)
    at: Json = {"stream_id": succeeded["stream_id"], "serial": succeeded["serial"]}
    known: list[tuple[str, int | None, Any]] = []
    head = len(words) + 1
    writing = asyncio.create_task(write())
    while at["serial"] < head:
        async with node.v2(append_rollup_window=WINDOW) as peer:
            is_subscribed = chance.random() < 0.5
            if is_subscribed:
                await peer.subscribe(channel)
            await peer.resume(**{channel: at})
            if not is_subscribed:
                await peer.attach(channel)
            left = chance.randint(1, 6)
            while left and at["serial"] < head:
                frame = await peer.receive()
                new = [each for each in taken_apart([frame]) if (each[1] or 0) > at["serial"]]
                if frame["event"] == "sockudo:message.append" and new[:1]:
                    if new[0][1] != at["serial"] + 1:
                        continue  # live, before what the resume brings
                    known += new
                    at = {"stream_id": frame["stream_id"], "serial": frame["serial"]}
                    left -= 1
            peer.socket.transport.abort()
    await writing
    assert [serial for _, serial, _ in known] == list(range(2, head + 1))
    assert [text for _, _, text in known] == words


async def test_check_80_events_come_together_too(node: ChannelsNode, api: Api) -> None:
    """With the position of the last append as id; another window is refused."""
    channel = unique()
    status, code, _ = await refusal(node.port, channel, append_rollup_window=60)
    assert (status, code) == (400, "ai_rollup_window_invalid")
    async with (
        heard(node.port, channel, append_rollup_window=WINDOW) as listener,
        node.v2() as plain,
    ):
        await listener.subscribed()
        await plain.subscribe(channel)
        is_rolled, last = False, 0
        while not is_rolled:
            await stream(api, channel)
            last += 2 + len(TOKENS)
            every = await frames_of(plain, last)
            together = [await listener.frame()]
            while together[-1]["serial"] < last:
                together.append(await listener.frame())
                end = together[-1]
                assert listener.last_id == f"{end['stream_id']}:{end['serial']}"
            assert taken_apart(together) == taken_apart(every)
            is_rolled = len(together) < len(every)
