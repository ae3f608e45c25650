"""The one connection of a process on which other nodes' wake-ups arrive."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import asyncpg

_log = logging.getLogger(__name__)

HEAD = "tidelog_head"
ANNOUNCEMENT = "tidelog_announcement"

RECONNECT_SECONDS = 1.0
"""Pause between attempts to listen again; meanwhile whoever waits polls."""

LOST = (
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)
"""Whatever the server or the driver says when it cannot do its work. The last is what the driver
raises when the server ended the connection between two statements."""

Heard = Callable[[int], None]
"""Takes the number that a wake-up carried."""


class Listener:
    """Listens on all channels of ours, and begins again when the connection is lost."""

    def __init__(self, connect: Callable[[], Awaitable[asyncpg.Connection]]) -> None:
        self._connect = connect
        self._watchers: dict[str, Heard] = {}
        self._task: asyncio.Task[None] | None = None

    def watch(self, channel: str, heard: Heard) -> None:
        """Call `heard` with the number of every wake-up on `channel`.

        And with 0 whenever it begins to listen: what was said before that was not heard.
        """
        self._watchers[channel] = heard
        if self._task is None:
            self._task = asyncio.create_task(self._listen(), name="tidelog-listen")

    def _heard(self, _connection: object, _pid: int, channel: str, payload: object) -> None:
        # Whoever may connect may notify: anything but a number is not from us.
        if channel in self._watchers and isinstance(payload, str) and payload.isdecimal():
            self._watchers[channel](int(payload))

    async def _listen(self) -> None:
        while True:
            try:
                connection = await self._connect()
                try:
                    lost = asyncio.Event()
                    connection.add_termination_listener(lambda _, lost=lost: lost.set())
                    for channel in (HEAD, ANNOUNCEMENT):
                        await connection.add_listener(channel, self._heard)
                    for heard in tuple(self._watchers.values()):
                        heard(0)
                    await lost.wait()
                finally:
                    connection.terminate()
            except LOST as error:
                _log.warning("not listening to other nodes: %s", error)
            await asyncio.sleep(RECONNECT_SECONDS)

    async def close(self) -> None:
        """Listen no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
