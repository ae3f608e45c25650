"""The application's ear: changes in order, and an honest word when some were missed."""

import asyncio
from collections import deque
from typing import Self

from tidelog.client.sync.output import Change
from tidelog.sync.protocol.tree import VALUE_BYTES, weight_of

MAX_WAITING = 1000
"""Changes kept for a consumer that is behind; the oldest go first."""

MAX_WAITING_BYTES = 16 * 1024**2
"""The same by size, as a change may have an event of a megabyte."""

MISSED = "missed"
"""Name of the change that tells a slow consumer how many it did not get: look at the views."""


class Changes:
    """One consumer's changes, from its making on; `async for` ends when the client closes."""

    def __init__(self) -> None:
        self._waiting: deque[Change] = deque()
        self._sizes: deque[int] = deque()
        """Of those, about their memory."""
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
