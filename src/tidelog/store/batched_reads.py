"""Reads in batches: all that wait ask the store together.

A request that asked alone would spend more on its visit to a reading thread, or on its round trip
to a server, than on everything else. What waits while one read is under way goes with the next.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from tidelog.base.errors import QueueFull, StoreError
from tidelog.store.engine import Store
from tidelog.store.rows import Key, Row

BATCH = 256
"""Questions in one visit to the store."""

MAX_WAITING = 8192
"""Questions waiting; more are refused, because each belongs to a request held in memory."""

_log = logging.getLogger(__name__)

Q = TypeVar("Q")
A = TypeVar("A")


class Batched(Generic[Q, A]):
    """Asks many questions at once and hands out the answers in the order of the questions."""

    def __init__(self, ask: Callable[[Sequence[Q]], Awaitable[Sequence[A]]], name: str) -> None:
        self._ask = ask
        self._name = name
        self._waiting: deque[tuple[Q, asyncio.Future[A]]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, question: Q) -> A:
        """One answer.

        Raises:
            QueueFull: too many wait.
            StoreError: whatever the store said.
        """
        if len(self._waiting) >= MAX_WAITING:
            raise QueueFull("more waits for the store than is kept; retry in a moment")
        answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, answer))
        if self._task is None:
            self._task = asyncio.create_task(self._work(), name=self._name)
        return await answer

    async def _work(self) -> None:
        try:
            while self._waiting:
                count = min(BATCH, len(self._waiting))
                await self._answer([self._waiting.popleft() for _ in range(count)])
        finally:
            self._task = None

    async def _answer(self, batch: Sequence[tuple[Q, "asyncio.Future[A]"]]) -> None:
        try:
            answers = await self._ask([question for question, _ in batch])
        except StoreError as error:
            self._fail(batch, error)
        except Exception:  # noqa: BLE001 - a mistake of ours; those who wait must hear of it
            _log.exception("%s failed", self._name)
            self._fail(batch, StoreError("the store could not be asked"))
        except BaseException:
            for _, future in batch:
                future.cancel()
            raise
        else:
            for (_, future), answer in zip(batch, answers, strict=True):
                if not future.done():
                    future.set_result(answer)

    def _fail(self, batch: Sequence[tuple[Q, "asyncio.Future[A]"]], error: StoreError) -> None:
        for _, future in batch:
            if not future.done():
                future.set_exception(error)


class BatchedReads:
    """Reads by named queries, each query in batches of its own."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._by_query: dict[str, Batched[Key, tuple[Row, ...]]] = {}

    async def rows(self, query: str, key: Key) -> tuple[Row, ...]:
        """What a named query answers now."""
        batched = self._by_query.get(query)
        if batched is None:
            batched = self._by_query[query] = Batched(self._asker(query), f"tidelog-{query}")
        return await batched(key)

    def _asker(self, query: str) -> Callable[[Sequence[Key]], Awaitable[list[tuple[Row, ...]]]]:
        async def ask(keys: Sequence[Key]) -> list[tuple[Row, ...]]:
            return await self._store.rows_of(query, keys)

        return ask
