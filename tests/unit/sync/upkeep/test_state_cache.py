"""The cache of partition states: bounded at every request, and never short of what is in use."""

from typing import Any

from tidelog.log.tail import Tail
from tidelog.sync.protocol.profiles import Model
from tidelog.sync.protocol.tree import STATE_BYTES, VALUE_BYTES
from tidelog.sync.settings import SyncSettings
from tidelog.sync.upkeep.state_cache import StateCache

MODEL = Model.parse({"t": {"kind": "tree", "actions": ["treePush"]}}, {}, 1)


class NoEvents:
    """A store in which nothing was ever written."""

    async def rows(self, query: str, key: Any) -> tuple[Any, ...]:
        """Nothing."""
        del query, key
        return ()

    async def lowest(self, query: str, names: Any, **bounds: int) -> list[int]:
        """Nothing."""
        del query, names, bounds
        return []


def cache(room_bytes: int) -> StateCache:
    """An empty cache with so much room."""
    settings = SyncSettings(max_cached_bytes=room_bytes)
    store: Any = NoEvents()
    return StateCache(store, Tail(0), MODEL, settings, 1)


def push(node: str) -> dict[str, Any]:
    """An event that adds two values and a node."""
    return {"type": "treePush", "payload": {"target": "t", "value": {"id": node}}}


async def test_states_without_content_are_forgotten_too() -> None:
    """A partition that only has events of the event profile costs memory all the same."""
    states = cache(10 * STATE_BYTES)
    for number in range(50):
        states.unpin(await states.pin([f"p{number}"]))
        assert states.used_bytes <= 10 * STATE_BYTES
    assert list(states._states) == [f"p{number}" for number in range(40, 50)], "the oldest went"


async def test_growth_and_its_undoing_are_counted() -> None:
    """Whatever decisions do to states, the sum is that of the states."""
    states = cache(2**30)
    pinned = await states.pin(["p", "q"])
    undo = [pinned["p"].follow(n, push(f"n{n}")) for n in range(1, 6)]
    pinned["q"].follow(9, push("x"))
    sizes = {name: state.tree.size for name, state in pinned.items()}
    assert states.used_bytes == sum(sizes.values()) * VALUE_BYTES + 2 * STATE_BYTES
    for take_back in reversed(undo):
        take_back()
    assert states.used_bytes == sizes["q"] * VALUE_BYTES + 2 * STATE_BYTES
    states.unpin(pinned)


async def test_what_is_in_use_is_never_forgotten() -> None:
    """However little room there is; it goes when the last request that needs it is over."""
    states = cache(1)
    first = await states.pin(["p", "q"])
    second = await states.pin(["p"])
    first["p"].follow(1, push("a"))
    states.unpin(first)
    assert list(states._states) == ["p"]
    assert states.pin_ready(["p"]) == second
    states.unpin(second)
    assert list(states._states) == ["p"]
    states.unpin(second)
    assert states.used_bytes == 0


async def test_a_state_that_could_not_be_loaded_leaves_nothing() -> None:
    """Neither in the cache nor in its size; the next request loads it anew."""
    states = cache(2**30)
    store: Any = states._store

    async def fails(query: str, key: Any) -> Any:
        raise OSError(query, key)

    store.rows = fails
    for _ in range(2):
        try:
            await states.pin(["p"])
        except OSError:
            assert states.used_bytes == 0
    del store.rows
    states.unpin(await states.pin(["p"]))
    assert states.used_bytes == STATE_BYTES
