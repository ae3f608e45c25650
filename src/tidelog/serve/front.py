"""The program that has connections: the front's half of every surface, on a link to the owner.

It waits for its owner. One that loses it asks the next one again what it may, under the key of its
client, and tells whoever else waits for an answer that nobody knows the outcome. Then it closes its
connections with the code that lets clients come back, and begins again on a new event loop: nothing
that was made of a log, or of a link, that is no more goes on there.
"""

import asyncio
import gc
import socket
from collections.abc import Sequence
from typing import NamedTuple

from tidelog.base import handed_on
from tidelog.base.clock import SystemClock
from tidelog.base.garbage_collection import leave_startup_out
from tidelog.base.supervised import Supervised
from tidelog.base.supervisor import LISTENER_VARIABLE
from tidelog.config.metrics import all_metrics
from tidelog.config.settings import Settings
from tidelog.dashboard.sessions import EndedLogins
from tidelog.link.ends import FrontEnd
from tidelog.link.unix import SocketLink, Trace, front_link, repeating_link
from tidelog.serve import gathering, program, read_pauses
from tidelog.serve.gathering import GatheringFront
from tidelog.serve.program import Arguments
from tidelog.serve.read_pauses import PausingFront
from tidelog.serve.server import tracing_of
from tidelog.serve.shares import share_of_front
from tidelog.serve.surfaces import EXTENSIONS, FrontNode, Halved, halved
from tidelog.serve.told_to_end import ToldToEnd
from tidelog.serve.workers import counted
from tidelog.web.certificate import tls_context
from tidelog.web.served_store import open_served
from tidelog.web.serving import Serving
from tidelog.web.watchdog import Watchdog

RETRY_SECONDS = 0.05
"""Between two attempts to reach the owner."""


class OwnerLink:
    """A front's ends of the link: two for all processes together, and one for each surface."""

    def __init__(self, path: str, surfaces: Sequence[Halved]) -> None:
        self.lost = asyncio.Event()
        self._path = path
        ours = (gathering.VOCABULARY, read_pauses.VOCABULARY)
        self._vocabularies = [*ours, *(each.vocabulary for each in surfaces)]
        self._link, self.ends = front_link(self._vocabularies, self.lost.set)
        self.all_processes, self.pauses, *self.of_surfaces = self.ends

    def hangs(self) -> bool:
        """Whether there is an owner that does not respond."""
        return self._link.is_silent

    def check(self) -> None:
        """Whether the owner that was lost is one to come back to.

        Raises:
            OtherVersion: it is of another version, and will be.
        """
        if self._link.refused is not None:
            raise self._link.refused

    def trace_by(self, trace: Trace) -> None:
        """Ask within the trace of whoever asks here."""
        self._link.trace = trace

    async def connect(self) -> None:
        """Return when an owner has accepted, however long that takes."""
        await self._connect(self._link)

    async def _connect(self, link: SocketLink) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                await loop.create_unix_connection(lambda: link, self._path)
            except (FileNotFoundError, ConnectionError, BlockingIOError):
                # Not there, ending, or with more fronts to let in than it has room for.
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    async def ask_again(self) -> None:
        """Ask the next owner what may be repeated, and the one after it if that is lost too.

        Until cancelled: whoever stops the front says how long it waits.
        """
        while True:
            lost = asyncio.Event()
            link = repeating_link(self._vocabularies, self.ends, lost.set)
            await self._connect(link)
            await lost.wait()
            if link.refused is not None:
                for end in self.ends:
                    end.lost()
                return


class Apart:
    """The `Backing` of a front: its owner, in another process."""

    def __init__(self, ends: Sequence[FrontEnd], processes: GatheringFront) -> None:
        self._ends = ends
        self.problem = processes.problem
        self.figures = processes.metrics

    @property
    def position(self) -> int:
        """See `Backing.position`."""
        return max(end.position for end in self._ends)

    async def stop(self) -> None:
        """See `Backing.stop`."""
        await asyncio.gather(*[end.finish() for end in self._ends])

    async def abandon(self) -> None:
        """See `Backing.abandon`."""
        for end in self._ends:
            end.lost()


class Lasting(NamedTuple):
    """What a front has for longer than an owner."""

    listener: socket.socket
    told: ToldToEnd
    supervised: Supervised
    ended_logins: EndedLogins


async def serve(settings: Settings, given: Arguments, lasting: Lasting) -> bool:
    """Serve until SIGTERM; returns whether the owner was lost.

    Raises:
        OtherVersion: the owner is of another version.
    """
    with lasting.supervised.living():
        return await _serve(settings, given, lasting)


async def _serve(settings: Settings, given: Arguments, lasting: Lasting) -> bool:
    settings = share_of_front(settings, counted(settings.workers))
    surfaces = halved(settings)
    owner = OwnerLink(given.socket, surfaces)
    await owner.connect()
    lost = asyncio.ensure_future(owner.lost.wait())
    opening = asyncio.ensure_future(_open(settings, given.name, surfaces, owner, lasting))
    await asyncio.wait({lost, opening}, return_when=asyncio.FIRST_COMPLETED)
    if owner.lost.is_set():
        opening.cancel()
        await asyncio.wait({opening})
        if opening.cancelled() or opening.exception() is not None:
            owner.check()
            await asyncio.sleep(RETRY_SECONDS)  # as if it had not been there
            return True
    server = opening.result()
    ending = asyncio.ensure_future(_end_without_owner(server, owner))
    leave_startup_out()
    watchdog = Watchdog()
    watchdog.start()
    lasting.supervised.ready()
    try:
        with lasting.told.calls(server.stop):
            await server.run()
    finally:
        watchdog.stop()
        ending.cancel()
    return owner.lost.is_set()


async def _end_without_owner(server: Serving, owner: OwnerLink) -> None:
    await owner.lost.wait()
    server.end()
    await owner.ask_again()


async def _open(
    settings: Settings,
    name: str,
    surfaces: Sequence[Halved],
    owner: OwnerLink,
    lasting: Lasting,
) -> Serving:
    clock, metrics, tls = SystemClock(), all_metrics(), tls_context(settings)
    topics = gathering.metrics_topic(metrics)
    processes = GatheringFront(owner.all_processes, name, topics, owner.hangs)
    store = await open_served(settings, EXTENSIONS, clock, read_only=True)
    try:
        PausingFront(owner.pauses, store.read_gate)
        node = FrontNode(settings, clock, store, metrics, processes, [], lasting.ended_logins)
        for surface, end in zip(surfaces, owner.of_surfaces, strict=True):
            node.mounted.append(await surface.open_front(node, end))
        backing, tracing = Apart(owner.ends, processes), tracing_of(settings)
        if tracing is not None:
            owner.trace_by(tracing.current)
        return Serving(
            settings,
            metrics,
            store,
            backing,
            node.mounted,
            lasting.listener,
            tracing=tracing,
            tls=tls,
            takes_turns=True,
        )
    except BaseException:
        await store.close()  # this process goes on
        raise


def main() -> None:
    """Serve the port that a supervisor has handed on."""
    listener = handed_on.inherited()
    if listener is None:
        raise SystemExit(f"tidelog: {LISTENER_VARIABLE} names no socket; a supervisor sets it")

    async def front(settings: Settings, given: Arguments) -> bool:
        return await serve(settings, given, lasting)

    lasting = Lasting(listener, ToldToEnd(), Supervised(), EndedLogins())
    while program.run(front) and not lasting.told.is_told:
        gc.unfreeze()  # what was made at the start does not stay until the end after all


if __name__ == "__main__":
    main()
