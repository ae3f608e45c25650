"""Malformed frames and requests by the thousand: the right refusal, and nothing else happens.

19,500 altogether: frames whose answer is known, frames with random damage, and HTTP requests whose
answer is known.
"""

import asyncio
import json
import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from support.channels.attacked import PRIVATE, ROOM, prepared
from support.channels.malformed_frames import Frame, damaged_frame, known_frame
from support.channels.malformed_requests import Requests
from support.channels.peer import APP, ChannelsNode, Peer, handshake
from support.channels.raw import RawClient, signed_target
from support.channels.refusals import ERRORS, LEAK, check_answer, check_frame

MORE = int(os.environ.get("TIDELOG_TEST_SOAK_FUZZ", "1"))
"""Times as many; `scripts/soak` has thirty."""
FRAMES = 3_000 * MORE
DAMAGED = 800 * MORE
REQUESTS = 2_500 * MORE
WINDOW = 50
SOCKETS = 4
CLIENTS = 4


# Frames.


def shown(frame: Frame) -> object:
    """What to print of a frame."""
    return frame.data[:200], frame.expected


async def send_known(node: ChannelsNode, number: int, count: int) -> Counter[str]:
    """So many frames over one socket, which stays open and answers each as it must."""
    rng = random.Random(number)
    is_v2 = number % 2 == 0
    seen: Counter[str] = Counter()
    async with node.v2() if is_v2 else node.v1() as peer:
        for start in range(0, count, WINDOW):
            window = [known_frame(rng, is_v2=is_v2) for _ in range(min(WINDOW, count - start))]
            for attempt in window:
                await peer.socket.send(attempt.data)
            for attempt in window:
                for expected in attempt.expected:
                    frame = await peer.receive()
                    try:
                        check_frame(frame, expected, is_v2=is_v2)
                    except AssertionError as error:
                        raise AssertionError(shown(attempt)) from error
                seen[str(attempt.expected[0]) if attempt.expected else "ignored"] += 1
            await peer.quiet()
    return seen


async def send_damaged(node: ChannelsNode, number: int, count: int) -> Counter[str]:
    """Whatever a damaged frame means: the socket stays open and every answer is a known one."""
    rng = random.Random(number)
    seen: Counter[str] = Counter()
    known = {
        *("sockudo:error", "sockudo:subscription_error", "sockudo:resume_success", "sockudo:pong"),
        *("sockudo:resume_failed", "sockudo:channel_history", "sockudo:rewind_complete"),
        *("sockudo_internal:subscription_succeeded", "sockudo:message.append", "chat.message"),
    }
    for start in range(0, count, WINDOW):
        async with node.v2() as peer:
            for _ in range(min(WINDOW, count - start)):
                await peer.socket.send(damaged_frame(rng))
                seen["damaged"] += 1
            await peer.send("ping", {})
            event = ""
            while event != "sockudo:pong":
                frame = await peer.receive()
                event = frame["event"]
                assert event in known, frame
                assert not LEAK.search(json.dumps(frame)), frame
                if event == "sockudo:error":
                    assert frame["data"]["code"] in ERRORS, frame
    return seen


async def end_sockets(node: ChannelsNode) -> Counter[str]:
    """What does close a socket: too much, or what is no text."""
    rng = random.Random(3)
    seen: Counter[str] = Counter()
    for number in range(40):
        async with connect(node.url("protocol=2"), compression=None, close_timeout=2) as socket:
            peer = Peer(socket, APP, 2)
            await handshake(peer)
            if number % 2:
                await socket.send("x" * (65_537 + rng.randrange(5000)))
                assert await peer.closed() == 1009
            else:
                await socket.send(rng.choice([b"\xff\xfe", b'{"event":"\xc0"}']), text=True)
                assert await peer.closed() == 1007
            seen["closed"] += 1
    for query in ("protocol=x", "protocol=2&format=xml", "protocol=2&append_mode=%00"):
        with pytest.raises(Exception, match="HTTP 400"):
            async with connect(node.url(query)):
                pass
        seen["closed"] += 1
    return seen


# Requests.


async def send_requests(node: ChannelsNode, serial: str, number: int, count: int) -> Counter[str]:
    """So many refused requests over one connection at a time."""
    rng = random.Random(1000 + number)
    requests = Requests(serial, time.time())
    client = RawClient(lambda: node.port)
    seen: Counter[str] = Counter()
    for _ in range(count):
        attempt = requests.make(rng)
        try:
            answer = await client.send_bytes(attempt.request)
        except Exception as error:
            raise AssertionError(attempt.request[:300]) from error
        assert answer.status == attempt.status, (answer, attempt.request[:400])
        check_answer(answer, attempt.request[:400])
        seen[f"HTTP {answer.status}"] += 1
    client.close()
    return seen


async def send_too_much(node: ChannelsNode) -> Counter[str]:
    """Bodies and heads beyond their limits."""
    client = RawClient(lambda: node.port)
    seen: Counter[str] = Counter()
    large = json.dumps({"name": "n", "channel": ROOM, "data": "x" * 102_401})
    for body in (large, "x" * 10_485_761):
        target = signed_target("POST", f"/apps/{APP.id}/events", body.encode(), {}, now=time.time())
        answer = await client.send("POST", target, body.encode())
        assert answer.status == 413
        check_answer(answer, "too large")
        seen["HTTP 413"] += 1
    answer = await client.send("GET", f"/apps/{APP.id}/channels?{'x' * 40_000}")
    assert answer.status == 431
    check_answer(answer, "head")
    seen["HTTP 431"] += 1
    client.close()
    return seen


# The test of both.


async def live(peer: Peer, done: asyncio.Event) -> int:
    """A neighbour that goes about its business, and hears nothing that is not for it."""
    beats = 0
    while not done.is_set():
        await peer.quiet()
        beats += 1
        await asyncio.sleep(0.05)
    return beats


async def stored(node: ChannelsNode) -> tuple[Any, ...]:
    """Everything that a refused request must leave alone."""
    store = node.server.store
    floors = await store.rows("channels_channel", (f"channels/{APP.id}/{ROOM}", 2**62))
    return await store.head(), await store.dedupe_count(), tuple(map(tuple, floors))


async def test_nothing_malformed_gets_through(tmp_path: Path) -> None:
    """Thousands of broken frames and requests: each is refused, log and neighbours as they were."""
    async with (
        prepared(tmp_path) as (node, serial),
        node.v2() as neighbour,
        node.v1() as old_neighbour,
    ):
        for peer in (neighbour, old_neighbour):
            await peer.subscribe(ROOM)
            await peer.subscribe(PRIVATE)
        before = await stored(node)
        done = asyncio.Event()
        async with asyncio.TaskGroup() as neighbouring:
            beats = [
                neighbouring.create_task(live(peer, done)) for peer in (neighbour, old_neighbour)
            ]
            async with asyncio.TaskGroup() as attacking:
                tasks = [
                    *(
                        attacking.create_task(send_known(node, n, FRAMES // SOCKETS))
                        for n in range(SOCKETS)
                    ),
                    attacking.create_task(send_damaged(node, 5, DAMAGED)),
                    *(
                        attacking.create_task(send_requests(node, serial, n, REQUESTS // CLIENTS))
                        for n in range(CLIENTS)
                    ),
                    attacking.create_task(end_sockets(node)),
                    attacking.create_task(send_too_much(node)),
                ]
            done.set()
        assert min(beat.result() for beat in beats) > 3
        seen = sum((task.result() for task in tasks), Counter[str]())
        assert seen.total() >= FRAMES + DAMAGED + REQUESTS
        assert seen.keys() >= {*map(str, ERRORS), "ignored", "resume_failed", "HTTP 405"}
        assert await stored(node) == before, "nothing was stored"
        assert len(node.surface.service.hub.clients(APP.id)) == 2, "no socket is left"
        item = await node.api.item(ROOM, serial)
        assert item["data"] == "text more"
        await node.api.publish(ROOM, "after", name="after")
        for peer in (neighbour, old_neighbour):
            assert (await peer.expect("after", ROOM))["data"] == "after"
        answer = await node.client.get(f"{node.server.url}/healthz")
        assert answer.json()["ready"] is True
        print(dict(seen))  # noqa: T201
