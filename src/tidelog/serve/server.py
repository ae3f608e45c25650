"""The server: store, committer, fan-out and surfaces on one port, from start to orderly end."""

import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tidelog.base.clock import ServerClock, SystemClock
from tidelog.base.errors import ConfigError
from tidelog.base.metrics import Metrics
from tidelog.base.serving.surface import Surface
from tidelog.config.metrics import all_metrics
from tidelog.config.settings import Settings
from tidelog.log.committer import Committer
from tidelog.store.engine import Store
from tidelog.store.schema import Extension
from tidelog.web.certificate import tls_context
from tidelog.web.listening import listen
from tidelog.web.served_store import open_served
from tidelog.web.serving import Serving

if TYPE_CHECKING:
    from tidelog.web.tracing import Tracing


class Node(NamedTuple):
    """What a surface is mounted on."""

    settings: Settings
    clock: ServerClock
    store: Store
    committer: Committer


Mount = Callable[[Node], Awaitable[Surface]]
"""Makes a surface on a running node."""


class Beside:
    """The `Backing` of a server whose log is in the same process."""

    def __init__(self, committer: Committer) -> None:
        self._committer = committer
        self.stop = committer.stop
        self.abandon = committer.abandon

    @property
    def position(self) -> int:
        """See `Backing.position`."""
        return self._committer.position

    async def problem(self) -> str | None:
        """See `Backing.problem`."""
        return self._committer.problem

    async def figures(self) -> bytes:
        """See `Backing.figures`."""
        return self._committer.metrics.render()


class Server(Serving):
    """A server and its log in one process; `open` makes one, `run` serves until `stop`."""

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        store: Store,
        committer: Committer,
        surfaces: Sequence[Surface],
        listener: socket.socket,
        tracing: "Tracing | None" = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        backing = Beside(committer)
        super().__init__(settings, metrics, store, backing, surfaces, listener, tracing, tls)
        self.committer = committer

    @classmethod
    async def open(
        cls,
        settings: Settings,
        *,
        mounts: Sequence[Mount] = (),
        extensions: Sequence[Extension] = (),
        clock: ServerClock | None = None,
        listener: socket.socket | None = None,
    ) -> "Server":
        """Open the store and the port; from here on the port is taken but not yet served.

        A `listener` is one that `run` left open; it is closed if the server cannot be opened.
        """
        clock = clock or SystemClock()
        tls = tls_context(settings)
        tracing, committer_class = traced(settings)
        listener = listener or listen(settings.host, settings.port)
        try:
            store = await open_served(settings, extensions, clock)
        except BaseException:
            listener.close()
            raise
        metrics = all_metrics()
        try:
            committer = await committer_class.start(store, clock, metrics, settings.limits)
        except BaseException:
            await store.close()
            listener.close()
            raise
        node = Node(settings, clock, store, committer)
        try:
            surfaces = [await mount(node) for mount in mounts]
            return cls(settings, metrics, store, committer, surfaces, listener, tracing, tls)
        except BaseException:
            await committer.stop()
            await store.close()
            listener.close()
            raise

    async def run(self) -> None:
        """Serve until `stop`; then finish what was accepted and close.

        Raises:
            StoreUntrustworthy: the disk failed an fsync and the process must end.
            HistoryReplaced: the store has another log than this server has served; a new server
                must be opened. The `listener` is still open, and lets its peers wait for it.
        """
        self.committer.failed.add_done_callback(lambda _: self.stop())
        self.committer.replaced.add_done_callback(lambda _: self.end())
        await super().run()
        if self.committer.replaced.done() and not self.is_told_to_stop:
            raise self.committer.replaced.result()
        self.listener.close()
        if self.committer.failed.done():
            raise self.committer.failed.result()


def traced(settings: Settings) -> "tuple[Tracing | None, type[Committer]]":
    """What tells of every request and every commit."""
    tracing = tracing_of(settings)
    if tracing is None:
        return None, Committer
    from tidelog.log.traced import TracedCommitter

    tracing.share()
    return tracing, TracedCommitter


def tracing_of(settings: Settings) -> "Tracing | None":
    """What tells of every request; nothing is imported unless it is wanted."""
    if not settings.tracing.endpoint:
        return None
    try:
        from tidelog.web.tracing import Tracing
    except ImportError as error:
        raise ConfigError(
            f"tracing.endpoint is set and {error.name} is not installed. Install: "
            "pip install 'tidelog[otel]', or leave tracing.endpoint empty."
        ) from error
    return Tracing(settings.tracing)
