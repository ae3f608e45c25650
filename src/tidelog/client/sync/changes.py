"""What the application is told: each change to its listeners, or to its own loop in order."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple, Self

from tidelog.client.sync.messages import Json
from tidelog.client.sync.store import Arrival
from tidelog.sync.protocol.tree import VALUE_BYTES, weight_of

CHANGE_NAMES = (
    "connected",
    "sync_page",
    "committed",
    "rejected",
    "withdrawn",
    "broadcast",
    "version_changed",
    "history_reset",
    "error",
    "status_changed",
)
"""The changes there are."""

MAX_WAITING = 1000
"""Changes kept for a slow consumer; beyond that the oldest are dropped."""

MAX_WAITING_BYTES = 16 * 1024**2
"""The same by size, as a change may have an event of a megabyte."""

MISSED = "missed"
"""Name of the change that tells a slow consumer how many it did not get: look at the views."""


class Change(NamedTuple):
    """Something the application may want to know."""

    name: str
    """One of `CHANGE_NAMES`, or `MISSED`."""
    partitions: tuple[str, ...]
    """Whose views may have changed."""
    data: Json


Listener = Callable[[Change], None]


class Listeners:
    """Changes until those who listen have been told."""

    def __init__(self) -> None:
        self._untold: deque[Change] = deque()
        self._listeners: dict[str, list[Listener]] = {name: [] for name in CHANGE_NAMES}
        self._telling = False

    def on(self, name: str, listener: Listener) -> Callable[[], None]:
        """Call `listener` for every change of that name; returns how to stop that."""
        listeners = self._listeners[name]
        listeners.append(listener)
        return lambda: listeners.remove(listener)

    def emit(self, name: str, partitions: tuple[str, ...], data: Json) -> None:
        """Note a change; the listeners are told once everything it refers to is done."""
        self._untold.append(Change(name, partitions, data))

    def emit_commits(self, arrivals: Iterable[Arrival]) -> None:
        """Note which events of this client's own are committed now."""
        for arrival in arrivals:
            if arrival.was_local:
                data = {"id": arrival.id, "committed_id": arrival.committed_id}
                self.emit("committed", arrival.partitions, data)

    def fail(self, code: str, message: str, details: Json | None = None) -> None:
        """Note an error, the server's or our own."""
        self.emit("error", (), {"code": code, "message": message, "details": details or {}})

    def tell(self) -> None:
        """Call the listeners. Changes that one of them makes are told after the current one."""
        if self._telling:
            return
        self._telling = True
        try:
            while self._untold:
                change = self._untold.popleft()
                for listener in list(self._listeners[change.name]):
                    listener(change)
        finally:
            self._telling = False


class Changes:
    """One consumer's changes, from its creation on; `async for` ends when the client closes."""

    def __init__(self) -> None:
        self._waiting: deque[Change] = deque()
        self._sizes: deque[int] = deque()
        """About the memory of each."""
        self._bytes = 0
        self._missed = 0
        self._ended = False
        self._news = asyncio.Event()

    def add(self, change: Change) -> None:
        """Keep a change until the consumer comes for it."""
        size = weight_of(change.data) * VALUE_BYTES
        while self._waiting and (
            len(self._waiting) >= MAX_WAITING or self._bytes + size > MAX_WAITING_BYTES
        ):
            self._pop()
            self._missed += 1
        self._waiting.append(change)
        self._sizes.append(size)
        self._bytes += size
        self._news.set()

    def end(self) -> None:
        """Nothing more will come."""
        self._ended = True
        self._news.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change:
        """The next change; one that tells what was missed comes before those that follow it."""
        while not self._waiting:
            if self._ended:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        if self._missed:
            missed, self._missed = self._missed, 0
            return Change(MISSED, (), {"count": missed})
        return self._pop()

    def _pop(self) -> Change:
        self._bytes -= self._sizes.popleft()
        return self._waiting.popleft()
