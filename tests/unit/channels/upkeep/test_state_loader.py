"""Which states of channels stay in memory, and that nobody looks through all of them."""

from collections.abc import Sequence
from typing import Any

import pytest

from tidelog.channels.decide import state as module
from tidelog.channels.upkeep.state_loader import StateLoader
from tidelog.log.tail import Tail
from tidelog.store.rows import Row


class EmptyStore:
    """A store in which no channel has anything yet; counts what is read."""

    def __init__(self) -> None:
        self.read: list[str] = []

    async def rows(self, query: str, key: Sequence[Any]) -> tuple[Row, ...]:
        """The row of an untouched channel."""
        assert query == "channels_channel"
        self.read.append(key[0])
        return ((0,) * 9,)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for two states that nobody holds."""
    monkeypatch.setattr(module, "MAX_IDLE_CHANNELS", 2)


@pytest.mark.usefixtures("few")
async def test_idle_channels_are_forgotten_the_oldest_first() -> None:
    """What is held stays, however many; of the rest, what was used last."""
    store: Any = EmptyStore()
    states = StateLoader(store, Tail(0), 1000)
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
    states = StateLoader(store, Tail(0), 1000)
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
