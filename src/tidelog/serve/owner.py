"""The program that owns the log: store, committer and the owner's half of every surface.

It has no connection but links of fronts, which come and go. There is one link for each front, and
it carries all surfaces: so a front has its owner or has not, and what it hears is in one order.
"""

import asyncio
import contextlib
import signal
import socket
from functools import partial
from pathlib import Path
from typing import Any

from tidelog.base.clock import SystemClock
from tidelog.base.garbage_collection import leave_startup_out
from tidelog.base.supervised import Supervised
from tidelog.config.metrics import all_metrics
from tidelog.config.settings import Settings
from tidelog.link.unix import Served, WithinTrace, owner_link
from tidelog.serve import gathering, program, read_pauses
from tidelog.serve.gathering import GatheringOwner, metrics_topic
from tidelog.serve.program import Arguments
from tidelog.serve.read_pauses import PausingOwner
from tidelog.serve.server import Node, traced
from tidelog.serve.surfaces import EXTENSIONS, halved
from tidelog.web.served_store import open_served
from tidelog.web.watchdog import Watchdog


async def own(settings: Settings, given: Arguments) -> None:
    """Own the log until SIGTERM; then finish what was accepted, and end.

    Raises:
        StoreUntrustworthy: the disk failed an fsync.
        HistoryReplaced: the store has another log than before; a new owner continues with that.
    """
    clock = SystemClock()
    tracing, committer_class = traced(settings)
    store = await open_served(settings, EXTENSIONS, clock)
    try:
        committer = await committer_class.start(store, clock, all_metrics(), settings.limits)
        try:
            supervised = Supervised()
            with supervised.living():
                node = Node(settings, clock, store, committer)
                within = None if tracing is None else tracing.within
                await _serve(node, given.socket, supervised, within)
        finally:
            await committer.abandon()  # over already, unless something failed
    finally:
        await store.close()
        if tracing is not None:
            await tracing.close()


async def _serve(node: Node, path: str, supervised: Supervised, within: WithinTrace | None) -> None:
    committer, loop = node.committer, asyncio.get_running_loop()
    processes = GatheringOwner(metrics_topic(committer.metrics), lambda: committer.problem)
    pauses = PausingOwner()
    node.store.read_gate.others = pauses.paused
    surfaces = [
        Served(processes, gathering.VOCABULARY),
        Served(pauses, read_pauses.VOCABULARY),
        *[Served(await each.open_owner(node), each.vocabulary) for each in halved(node.settings)],
    ]
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    link = partial(owner_link, surfaces, committer.tail.brake, within)
    links = await loop.create_unix_server(link, sock=_bound(path))
    leave_startup_out()
    watchdog = Watchdog()
    watchdog.start()
    head = await node.store.head()
    supervised.ready(f"{head.log_id} {head.committed_id}")
    stopping = asyncio.ensure_future(told.wait())
    ends: set[asyncio.Future[Any]] = {stopping, committer.failed, committer.replaced}
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    watchdog.stop()
    links.close()
    if committer.failed.done():
        raise committer.failed.result()
    if committer.replaced.done():
        raise committer.replaced.result()
    await _until_fronts_ended(processes, node.settings)
    await committer.stop()
    await asyncio.sleep(0)  # the last answers leave with this turn of the loop


async def _until_fronts_ended(processes: GatheringOwner, settings: Settings) -> None:
    """A supervisor ends them first; a service manager may tell all processes at once."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(settings.limits.shutdown_grace_ms / 1000):
            await processes.all_left()


def _bound(path: str) -> socket.socket:
    """A socket at this path in place of a dead owner's: whoever is here has the store's lock."""
    Path(path).unlink(missing_ok=True)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    bound.bind(path)
    Path(path).chmod(0o600)  # before it listens: nobody else's process is a front
    return bound


if __name__ == "__main__":
    program.run(own)
