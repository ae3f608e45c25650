"""One question for all who ask it at the same time."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Together(Generic[T]):
    """Asks for all who want to know; they are told the same.

    Who comes while it is being asked is told what is said the next time, because what is on its way
    may be older. So two questions wait at most, however many want to know, and however long nobody
    answers.
    """

    def __init__(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._ask = ask
        self._asked: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None

    async def answer(self) -> T:
        """What is so now; whoever gives up waiting takes nothing from the others."""
        if self._next is not None:
            return await asyncio.shield(self._next)
        if self._asked is None or self._asked.done():
            self._asked = _begun(self._ask())
            return await asyncio.shield(self._asked)
        self._next = _begun(self._later(self._asked))
        return await asyncio.shield(self._next)

    async def _later(self, before: "asyncio.Task[T]") -> T:
        await asyncio.wait({before})
        self._asked, self._next = self._next, None
        return await self._ask()


def _begun(work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    task = asyncio.create_task(work)
    task.add_done_callback(_heard)
    return task


def _heard(task: "asyncio.Task[Any]") -> None:
    """Also if nobody waits any more."""
    if not task.cancelled():
        task.exception()
