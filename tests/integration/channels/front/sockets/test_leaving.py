"""A socket with many subscriptions drops: its channels are left in turns, and all of them."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support.channels.peer import channels_server, unique, until
from tidelog.channels.front.sockets import leaving

CHANNELS = 30


async def test_a_turn_of_the_loop_ends_few_subscriptions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there were; members are told in their order, and nothing of them stays."""
    monkeypatch.setattr(leaving, "STEPS_PER_TURN", 10)
    rooms = [unique("presence-room") for _ in range(CHANNELS)]
    async with channels_server(tmp_path) as node, node.v1() as peer, node.v1() as other:
        hub, loop = node.surface.service.hub, asyncio.get_running_loop()
        for room in rooms:
            await peer.subscribe(room, {"user_id": "ada"})
            await other.subscribe(room, {"user_id": "bob"})
            assert (await peer.receive())["event"] == "pusher_internal:member_added"
            await other.subscribe(unique())
        left = watch_turns(node.surface.service, monkeypatch, loop)
        other.socket.transport.abort()
        for room in rooms:
            frame = await peer.receive()
            assert frame["event"] == "pusher_internal:member_removed"
            assert frame["channel"] == room
        await until(lambda: len(hub.counts()) == CHANNELS)
        assert hub.counts() == [(f"channels/tide/{room}", 1) for room in rooms]
        assert sum(left.values()) == 2 * CHANNELS
        assert max(left.values()) <= 10, "a room with two members takes three steps, others one"
        assert hub.count("tide") == 1
        await peer.quiet()


async def test_who_is_back_meanwhile_has_never_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's new socket joins before the old one's turn: nobody is told of either."""
    room, another = unique("presence-room"), unique("presence-room")
    async with channels_server(tmp_path) as node, node.v1() as peer, node.v1() as other:
        for name in (room, another):
            await peer.subscribe(name, {"user_id": "ada"})
            await other.subscribe(name, {"user_id": "bob"})
            assert (await peer.receive())["event"] == "pusher_internal:member_added"
        hub = node.surface.service.hub
        with monkeypatch.context() as held:
            held.setattr(leaving, "STEPS_PER_TURN", 0)
            other.socket.transport.abort()
            await until(lambda: hub.count("tide") == 1)
            async with node.v1() as back:
                await back.subscribe(room, {"user_id": "bob"})
                held.undo()
                frame = await peer.receive()
                assert (frame["event"], frame["channel"]) == (
                    "pusher_internal:member_removed",
                    another,
                )
                await peer.quiet()
                await node.api.publish(room, "hello")
                assert (await peer.receive())["data"] == "hello"
                assert (await back.receive())["data"] == "hello"
        frame = await peer.receive()
        assert (frame["event"], frame["channel"]) == ("pusher_internal:member_removed", room)


def watch_turns(
    service: Any, monkeypatch: pytest.MonkeyPatch, loop: asyncio.AbstractEventLoop
) -> Counter[int]:
    """Counts the subscriptions that end in each turn of the loop, from now on."""
    turn = 0
    ended: Counter[int] = Counter()
    unsubscribe = service._leaving._unsubscribe

    def next_turn() -> None:
        nonlocal turn
        turn += 1
        loop.call_soon(next_turn)

    def count(connection: Any, name: str) -> None:
        ended[turn] += 1
        unsubscribe(connection, name)

    monkeypatch.setattr(service._leaving, "_unsubscribe", count)
    next_turn()
    return ended
