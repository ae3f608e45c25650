"""Which states of channels stay in memory, and that nobody looks through all of them."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tidelog.channels.decide import state as module
from tidelog.channels.decide.state import Changed, Created, MessageState, StateCache
from tidelog.channels.protocol.verbs import APPEND, CREATE
from tidelog.channels.protocol.version import EVENT, Version
from tidelog.channels.upkeep import state_loader
from tidelog.channels.upkeep.state_loader import StateLoader
from tidelog.log.tail import Tail
from tidelog.store.rows import Entry, Row


class EmptyStore:
    """A store in which no channel has anything yet; counts what is read."""

    def __init__(self) -> None:
        self.read: list[str] = []

    async def rows(self, query: str, key: Sequence[Any]) -> tuple[Row, ...]:
        """The row of an untouched channel."""
        assert query == "channels_channel"
        self.read.append(key[0])
        return ((0,) * 9,)


async def nowhere() -> None:
    """There is nothing to catch up with."""


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for two states that nobody holds."""
    monkeypatch.setattr(module, "MAX_IDLE_CHANNELS", 2)


@pytest.mark.usefixtures("few")
async def test_idle_channels_are_forgotten_the_oldest_first() -> None:
    """What is held stays, however many; of the rest, what was used last."""
    store: Any = EmptyStore()
    states = StateLoader(store, Tail(0), 1000, nowhere)
    held = [await states.load_channel(f"held-{n}") for n in range(5)]
    for stream in ("a", "b", "a", "c"):
        states.release(await states.load_channel(stream))
    assert states.streams() == [*(each.stream for each in held), "a", "c"]
    again = states.channel("a")
    assert again is not None
    states.release(again)
    states.release(held[0])
    assert states.channel("c") is None, "it was used before a"
    assert store.read == [*(each.stream for each in held), "a", "b", "c"]


@pytest.mark.usefixtures("few")
async def test_a_release_looks_at_no_channel_that_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node with 100,000 subscribed channels pays for each publish what one with ten pays."""
    store: Any = EmptyStore()
    states = StateLoader(store, Tail(0), 1000, nowhere)
    held = [await states.load_channel(f"held-{n}") for n in range(50)]
    looked: list[str] = []

    class Watched(dict[str, Any]):
        """Tells who goes through it."""

        def items(self) -> Any:
            """See `dict.items`."""
            looked.append("all")
            return super().items()

        def __iter__(self) -> Any:
            looked.append("all")
            return super().__iter__()

    monkeypatch.setattr(states, "_channels", Watched(states._channels))
    for each in held:
        pinned = states.channel(each.stream)
        assert pinned is each
        states.release(pinned)
        states.release(each)
    assert looked == []
    assert len(states._channels) == 2


def entry(at: int, serial: int, kind: str, message: int) -> Entry:
    """An entry of a channel that is not read for this."""
    entity = f"{0:020d}:log:{message:020d}"
    return Entry(at, "c", serial, "channels", kind, entity, "", "a", 1, b"", None, b"", b"")


def version(at: int, serial: int, kind: str, message: int, history_serial: int) -> Version:
    """The version that such an entry is."""
    return Version(
        message_id="i",
        history_serial=history_serial,
        kind=kind,
        committed_id=at,
        delivery_serial=serial,
        message_serial=f"{0:020d}:log:{message:020d}",
    )


async def test_what_was_decided_here_is_included_without_being_read() -> None:
    """What others have decided is not: neither in the channel nor in the message."""
    store: Any = EmptyStore()
    states = StateLoader(store, Tail(0), 1000, nowhere)
    channel = await states.load_channel("c")
    create, append = version(1, 1, CREATE, 1, 1), version(2, 2, APPEND, 1, 1)
    Created(states, channel, create).apply()
    message = states.peek(1)
    assert message is not None
    Changed(channel, message, append, is_folded=False).apply()
    assert (channel.delivered_serial, channel.delivered_history) == (0, 0)
    assert states.has_included(entry(1, 1, CREATE, 1), 1)
    assert (channel.delivered_serial, channel.delivered_history) == (1, 1)
    assert states.has_included(entry(2, 2, APPEND, 1), 1)
    assert (channel.delivered_serial, channel.delivered_history) == (2, 1)

    assert not states.has_included(entry(3, 3, EVENT, 3), 3), "another node's"
    states.follow("c", version(3, 3, EVENT, 3, 2), 3)
    assert (channel.delivered_serial, channel.delivered_history) == (3, 2)
    channel.serial = 4
    assert not states.has_included(entry(4, 4, APPEND, 1), 1), "the message has not got it"
    assert states.has_included(entry(5, 9, CREATE, 5)._replace(stream="unknown"), 5)


async def test_a_message_is_looked_for_in_two_channels_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is found in its own, with what comes while it is read, and never in the other one."""
    reading = {name: asyncio.get_running_loop().create_future() for name in ("c", "other")}

    async def read(store: Any, stream: str, number: int) -> Any:
        assert (store, number) == (None, 1)
        return await reading[stream]

    monkeypatch.setattr(state_loader, "read_message", read)
    store: Any = None
    states = StateLoader(store, Tail(2), 1000, nowhere)
    loads = [asyncio.create_task(states.load_message(name, 1)) for name in reading]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not states.has_included(entry(2, 2, APPEND, 1), 1)
    states.follow("c", version(2, 2, APPEND, 1, 1), 1)
    reading["other"].set_result(None)
    reading["c"].set_result((version(1, 1, CREATE, 1, 1), 1, 0))
    found, elsewhere = await asyncio.gather(*loads)
    assert elsewhere is None
    assert found is not None
    assert (found.stream, found.latest.committed_id) == ("c", 2)
    assert await states.load_message("c", 1) is found
    assert states.message("other", 1) is None
    assert not states._loading


def test_what_is_forgotten_takes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """However it went; the least recently used goes first when there is none left."""
    monkeypatch.setattr(module, "MAX_IDLE_MESSAGES", 1000)
    states = StateCache(10_000)  # room for two

    def add(number: int) -> None:
        create = version(number, number, CREATE, number, number)
        create.data_bytes = 4000
        states.add(MessageState("c", number, create))

    def kept() -> list[int]:
        return states.messages_of("c", 1000)

    add(1)
    add(2)
    states.forget_messages([1])
    add(3)
    assert kept() == [2, 3]
    states.drop(2)
    add(4)
    assert kept() == [3, 4]
    take_back = states.erase("c", 3)
    add(5)
    assert kept() == [4, 5]
    take_back()
    assert kept() == [3], "a quarter of the room is free again"
    states.forget_idle_messages()
    add(6)
    add(6)
    add(7)
    assert kept() == [6, 7]
    add(8)
    assert kept() == [8]
