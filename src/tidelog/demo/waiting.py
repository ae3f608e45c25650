"""Waiting for onlookers, for a bounded time."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

SECONDS = 30.0
"""Enough for a busy machine. What has not come true by then is told by the claim about it."""

POLL_SECONDS = 0.02


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    """Wait until it is so, or until patience ends."""
    with suppress(TimeoutError):
        async with asyncio.timeout(SECONDS):
            while not await is_so():  # noqa: ASYNC110 - what is asked is not ours to be told by
                await asyncio.sleep(POLL_SECONDS)
