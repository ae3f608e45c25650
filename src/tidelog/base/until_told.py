"""How a coroutine waits for what is told."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from tidelog.base.told import Told

T = TypeVar("T")


async def until_told(begin: Callable[[Told[T]], None]) -> T:
    """Begin something and wait for what it tells.

    Raises:
        Exception: what it tells, or fails with at once.
    """
    done: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def told(outcome: T | Exception) -> None:
        if done.done():
            return  # whoever waited was cancelled
        if isinstance(outcome, Exception):
            done.set_exception(outcome)
        else:
            done.set_result(outcome)

    begin(told)
    return await done
