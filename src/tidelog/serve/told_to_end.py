"""The signals that end a process which has one event loop after the other.

A loop leaves its handlers behind when it is closed, and a signal that comes then would be lost.
"""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial


class ToldToEnd:
    """SIGTERM and SIGINT, from when this is made until the process ends."""

    def __init__(self) -> None:
        self.is_told = False
        self._stop: Callable[[], object] | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._told)

    @contextmanager
    def calls(self, stop: Callable[[], None]) -> Iterator[None]:
        """Within this a signal calls `stop`, on the loop that runs; otherwise it ends at once.

        A second SIGTERM does nothing: a service manager may have told all processes of a server,
        and its supervisor tells them too. SIGINT is how that tells them to hurry.
        """
        self._stop = partial(asyncio.get_running_loop().call_soon_threadsafe, stop)
        try:
            yield
        finally:
            self._stop = None

    def _told(self, number: int, _: object) -> None:
        was_told, self.is_told = self.is_told, True
        if self._stop is None:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        elif not was_told or number == signal.SIGINT:
            self._stop()
