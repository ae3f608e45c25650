"""A pause of reads: while anybody reads, a write-ahead log cannot begin anew."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

QUIET_SECONDS = 0.25
"""How long those that have begun may take; ours mostly take milliseconds."""

MOST_SECONDS = 1.0
"""After so long a pause is over, whatever became of whoever asked for it."""

LOOK_SECONDS = 0.001


@asynccontextmanager
async def _nobody_else() -> AsyncIterator[bool]:
    yield True


class ReadGate:
    """Counts the reading threads of a store, and can keep new reads waiting."""

    def __init__(self) -> None:
        self.others: Callable[[], AbstractAsyncContextManager[bool]] = _nobody_else
        """Pauses the reads of other processes, and knows whether they have."""
        self._changed = threading.Condition()
        self._reading = 0
        self._closed_until = 0.0

    def enter(self) -> None:
        """A thread begins to read, when it may."""
        with self._changed:
            while self._closed_until and (left := self._closed_until - time.monotonic()) > 0:
                self._changed.wait(left)
            self._reading += 1

    def leave(self) -> None:
        """It has read."""
        with self._changed:
            self._reading -= 1

    def close(self, seconds: float) -> None:
        """No thread begins to read for so long, or until `open`."""
        with self._changed:
            self._closed_until = time.monotonic() + seconds

    def open(self) -> None:
        """Whoever waits reads now."""
        with self._changed:
            self._closed_until = 0.0
            self._changed.notify_all()

    async def quiet(self, seconds: float) -> bool:
        """Whether nobody reads, waiting for that for so long."""
        deadline = time.monotonic() + seconds
        while self._reading:
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(LOOK_SECONDS)
        return True

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[bool]:
        """Within this nobody begins to read; yields whether all who had begun have ended."""
        self.close(MOST_SECONDS)
        try:
            async with self.others() as are_quiet:
                yield await self.quiet(QUIET_SECONDS) and are_quiet
        finally:
            self.open()
