"""What a program does for its supervisor: it says that it is ready, and from then on that it lives.

Signs of life are given by the event loop. So one that is held up gives none, and neither does a
process that stands still; nobody but its supervisor can help either.
"""

import asyncio
import contextlib
import os
from collections.abc import Iterator

READY_VARIABLE = "TIDELOG_READY"
"""Number of the pipe by which a program says that it is ready; nobody sets it."""

MOST_SAID_BYTES = 4096
"""Of what a program says when it is ready; so much is written at once or not at all."""

SIGN_SECONDS = 1.0
"""Between two signs of life."""

_SIGN = b"."


def server_process() -> int:
    """What one stops to end this server: the supervisor of a program that starts, or itself.

    A program that is stopped alone is started again.
    """
    return os.getppid() if READY_VARIABLE in os.environ else os.getpid()


class Supervised:
    """A program that may have a supervisor; one for the whole process."""

    def __init__(self) -> None:
        self._pipe: int | None = None
        """Since it is ready, if somebody listens."""
        self._is_living = False

    def ready(self, text: str = "") -> None:
        """Say that this program has started, and a little more, which has one line. Once.

        Within `living` that is its first sign of life.
        """
        if given := os.environ.pop(READY_VARIABLE, ""):
            with contextlib.suppress(OSError, ValueError):  # somebody else's variable
                pipe = int(given)
                os.set_blocking(pipe, False)
                said = b"+" + text.encode()[: MOST_SAID_BYTES - 3] + b"\n"
                os.write(pipe, said + _SIGN if self._is_living else said)
                self._pipe = pipe

    @contextlib.contextmanager
    def living(self) -> Iterator[None]:
        """Within this the running event loop gives signs of life, as soon as all is ready."""
        loop = asyncio.get_running_loop()
        timer: asyncio.Handle

        def live() -> None:
            nonlocal timer
            timer = loop.call_later(SIGN_SECONDS, live)
            if self._pipe is not None:
                with contextlib.suppress(OSError):  # it is full: nobody has looked for a while
                    os.write(self._pipe, _SIGN)

        timer = loop.call_soon(live)
        self._is_living = True
        try:
            yield
        finally:
            self._is_living = False
            timer.cancel()
