"""Every open connection of a server, and how they all end."""

import asyncio

from tidelog.base.metrics import Metrics
from tidelog.base.settings.limits import Limits
from tidelog.web.sockets import Sockets

WAIT_SECONDS = 60.0


class Connection:
    """One that leaves when it is told to, or when the test says so."""

    surface = "test"

    def __init__(self, sockets: Sockets, *, is_deaf: bool = False) -> None:
        self._sockets = sockets
        self._is_deaf = is_deaf
        sockets.add(self)

    def sweep(self, now: float) -> None:
        """Nothing is due."""

    def shutdown(self) -> None:
        """Leave, as a peer does that reads."""
        if not self._is_deaf:
            self.leave()

    def abort(self) -> None:
        """Be dropped."""
        self.leave()

    def leave(self) -> None:
        """Be gone."""
        self._sockets.remove(self)


async def test_who_comes_while_all_are_closed_is_closed_too() -> None:
    """A stream that was asked for on a kept connection does not hold up the end of a server."""
    sockets = Sockets(asyncio.get_running_loop(), Metrics(), Limits())
    deaf = Connection(sockets, is_deaf=True)
    closing = asyncio.create_task(sockets.close_all())
    await asyncio.sleep(0)
    assert sockets.full
    Connection(sockets)
    deaf.leave()
    async with asyncio.timeout(WAIT_SECONDS):
        await closing
    assert len(sockets) == 0
