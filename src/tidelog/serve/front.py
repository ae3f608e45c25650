"""The program that has connections: the front's half of every surface, on a link to the owner.

It waits for its owner. One that loses it tells whoever waits for an answer that nobody knows the
outcome, closes its connections with the code that lets clients come back, and begins again.
"""

import asyncio
import signal
import socket
from collections.abc import Sequence

from tidelog.base import handed_on
from tidelog.base.clock import SystemClock
from tidelog.base.garbage_collection import leave_startup_out
from tidelog.base.supervisor import LISTENER_VARIABLE, say_ready
from tidelog.config.metrics import all_metrics
from tidelog.config.settings import Settings
from tidelog.link.unix import front_link
from tidelog.serve import program
from tidelog.serve.surfaces import EXTENSIONS, FrontNode, Halved, halved
from tidelog.web.certificate import tls_context
from tidelog.web.served_store import open_served
from tidelog.web.serving import Serving
from tidelog.web.watchdog import Watchdog

RETRY_SECONDS = 0.05
"""Between two attempts to reach the owner."""


class OwnerLink:
    """The `Backing` of a front: its end of the link, with all surfaces."""

    def __init__(self, surfaces: Sequence[Halved]) -> None:
        self.lost = asyncio.Event()
        vocabularies = [each.vocabulary for each in surfaces]
        self._link, self.ends = front_link(vocabularies, self.lost.set)

    @classmethod
    async def connect(cls, path: str, surfaces: Sequence[Halved]) -> "OwnerLink":
        """Return when an owner has accepted, however long that takes."""
        loop = asyncio.get_running_loop()
        while True:
            owner = cls(surfaces)
            try:
                await loop.create_unix_connection(lambda link=owner._link: link, path)  # type: ignore[misc]
            except (FileNotFoundError, ConnectionError):
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return owner

    @property
    def position(self) -> int:
        """See `Backing.position`."""
        return max(end.position for end in self.ends)

    @property
    def problem(self) -> str | None:
        """See `Backing.problem`."""
        return "the owner of the log is away; waiting for it" if self.lost.is_set() else None

    async def stop(self) -> None:
        """See `Backing.stop`."""
        await asyncio.gather(*[end.finish() for end in self.ends])

    async def abandon(self) -> None:
        """See `Backing.abandon`."""
        for end in self.ends:
            end.lost()


async def serve(settings: Settings, path: str, listener: socket.socket) -> bool:
    """Serve until SIGTERM; returns whether the owner was lost before that."""
    surfaces = halved(settings)
    owner = await OwnerLink.connect(path, surfaces)
    lost = asyncio.ensure_future(owner.lost.wait())
    opening = asyncio.ensure_future(_open(settings, surfaces, owner, listener))
    await asyncio.wait({lost, opening}, return_when=asyncio.FIRST_COMPLETED)
    if owner.lost.is_set():
        opening.cancel()
        return True
    server = opening.result()
    lost.add_done_callback(lambda _: server.end())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)
    leave_startup_out()
    watchdog = Watchdog()
    watchdog.start()
    say_ready()
    try:
        await server.run()
    finally:
        watchdog.stop()
    return owner.lost.is_set() and not server.is_told_to_stop


async def _open(
    settings: Settings, surfaces: Sequence[Halved], owner: OwnerLink, listener: socket.socket
) -> Serving:
    clock, metrics, tls = SystemClock(), all_metrics(), tls_context(settings)
    store = await open_served(settings, EXTENSIONS, clock, read_only=True)
    node = FrontNode(settings, clock, store, metrics)
    mounted = [
        await surface.open_front(node, end)
        for surface, end in zip(surfaces, owner.ends, strict=True)
    ]
    return Serving(settings, metrics, store, owner, mounted, listener, tls=tls)


def main() -> None:
    """Serve the port that a supervisor has handed on."""
    listener = handed_on.inherited()
    if listener is None:
        raise SystemExit(f"tidelog: {LISTENER_VARIABLE} names no socket; a supervisor sets it")

    async def front(settings: Settings, path: str) -> bool:
        return await serve(settings, path, listener)

    if program.run(front):
        handed_on.begin_again(listener)


if __name__ == "__main__":
    main()
