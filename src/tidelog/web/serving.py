"""Surfaces on one port, from start to orderly end, whatever process has the log."""

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from tidelog import __version__
from tidelog.base.errors import StoreError, TidelogError
from tidelog.base.metrics import Metrics
from tidelog.base.serving.openapi import FLAG, TEXT, WHOLE, Operation, document, record
from tidelog.base.serving.surface import HttpRequest, HttpResponse, Route, Surface
from tidelog.config.settings import Settings
from tidelog.store.engine import Store
from tidelog.web.accepting import PlainListener
from tidelog.web.addresses import Addresses
from tidelog.web.app import HttpApp
from tidelog.web.browser_client import BrowserClient
from tidelog.web.development import Gate
from tidelog.web.fanout import Fanout
from tidelog.web.http import http_protocol
from tidelog.web.listening import url_of
from tidelog.web.server import PortServer
from tidelog.web.tls import TlsListener
from tidelog.web.unauthenticated import Unauthenticated
from tidelog.web.websocket import WebSocketService

if TYPE_CHECKING:
    from tidelog.web.tracing import Tracing

_log = logging.getLogger(__name__)

READY_SECONDS = 2.0
"""A store that does not answer within this is not ready; load balancers ask every few seconds."""


CLOSE_SECONDS = 0.5
"""How long a server that will begin again waits for replies to its close frames: everybody else
waits with it, to come back, for whoever has vanished without a word."""


FIGURES_SECONDS = 5.0
"""How long the metrics of other processes are waited for; scrapers wait for ten seconds."""


class Backing(Protocol):
    """What takes the work that surfaces accept: the committer, or a link to its process."""

    @property
    def position(self) -> int:
        """How far of the log was delivered here."""

    async def problem(self) -> str | None:
        """Why no writes are taken, if none are; anybody may read it."""

    async def figures(self) -> bytes:
        """The metrics of the whole server, in Prometheus' text format.

        Raises:
            TidelogError: they cannot be had just now.
        """

    async def stop(self) -> None:
        """Take nothing new, and return when what was accepted is done."""

    async def abandon(self) -> None:
        """End at once."""


class Serving:
    """What is ready to be served; `run` does, until `stop`."""

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        store: Store,
        backing: Backing,
        surfaces: Sequence[Surface],
        listener: socket.socket,
        tracing: "Tracing | None" = None,
        tls: ssl.SSLContext | None = None,
        *,
        takes_turns: bool = False,
    ) -> None:
        """`takes_turns`: with other processes that serve the same port."""
        self.settings = settings
        self.metrics = metrics
        self.store = store
        self.listener = listener
        """Where it listens."""
        self._backing = backing
        self._tracing = tracing
        self._stopping = self.is_told_to_stop = False
        self._hurry = asyncio.Event()
        limits = settings.limits
        fanout = Fanout(asyncio.get_running_loop(), metrics, limits, settings.channels.flush_ms)
        endpoints = [
            msgspec.structs.replace(endpoint, surface=surface.name)
            for surface in surfaces
            for endpoint in surface.endpoints()
        ]
        self._routes = [
            *self._own_routes(),
            *(route for surface in surfaces for route in surface.routes()),
        ]
        if settings.dev:
            gate = Gate()
            endpoints, self._routes = gate.endpoints(endpoints), gate.routes(self._routes)
        if tracing is not None:
            endpoints, self._routes = tracing.endpoints(endpoints), tracing.routes(self._routes)
        self._openapi: bytes | None = None
        addresses = Addresses(settings.per_address)
        unauthenticated = Unauthenticated(limits.unauthenticated_total_bytes, metrics)
        self._websockets = WebSocketService(
            endpoints,
            fanout,
            metrics,
            limits,
            addresses,
            unauthenticated,
            deflates=settings.compression,
        )
        app = HttpApp(self._routes, metrics, limits, addresses)
        protocol = http_protocol(
            app,
            limits,
            metrics,
            addresses,
            unauthenticated,
            fanout,
            self._websockets.sockets,
        )
        self._server = PortServer(
            protocol,
            self._websockets.connection,
            max(1, limits.keep_alive_timeout_ms // 1000),
            self._finish_accepted,
            PlainListener()
            if tls is None and takes_turns
            else TlsListener(tls, limits, metrics, addresses, takes_turns=takes_turns)
            if tls is not None
            else None,
        )

    @property
    def url(self) -> str:
        """Where the server listens."""
        return url_of(self.listener, self.settings)

    async def run(self) -> None:
        """Serve until `stop` or `end`; then finish what was accepted and close all but the port."""
        try:
            await self._server.serve(self.listener.dup())
        finally:
            await self._backing.abandon()  # over already, unless serving failed
            await self.store.close()
            if self._tracing is not None:
                await self._tracing.close()

    def stop(self) -> None:
        """Begin the orderly end; `run` returns when it is complete. Again: wait for no peer."""
        if self.is_told_to_stop:
            self._server.hurry()
            self._hurry.set()
        self.is_told_to_stop = True
        self.end()

    def end(self) -> None:
        """Begin the orderly end, of the server's own accord: it will begin again."""
        self._server.end()

    async def _finish_accepted(self) -> None:
        """Commit and answer what waits, then close the connections; nothing new is taken.

        Takes no longer than `shutdown_grace_ms`, and stops waiting when told to hurry.
        """
        self._stopping = True
        hurry = asyncio.ensure_future(self._hurry.wait())
        deadline = time.monotonic() + self.settings.limits.shutdown_grace_ms / 1000

        async def bounded(work: Awaitable[None]) -> bool:
            task = asyncio.ensure_future(work)
            left = max(0.0, deadline - time.monotonic())
            await asyncio.wait({task, hurry}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            done = task.done()
            task.cancel()
            return done

        if not await bounded(self._backing.stop()):
            _log.error("accepted work did not finish within shutdown_grace_ms; giving it up")
            await self._backing.abandon()
        await asyncio.sleep(0)  # the answers leave with the flush of this turn of the loop
        patience = None if self.is_told_to_stop else CLOSE_SECONDS
        await bounded(self._websockets.close_all(patience))
        hurry.cancel()

    def _own_routes(self) -> Sequence[Route]:
        health = record("live", live=FLAG, ready=FLAG, log_id=TEXT, head=WHOLE, delivered=WHOLE)
        health["properties"]["incarnation"] = TEXT
        health["properties"]["reason"] = TEXT
        ready = Operation(
            summary="Whether the store responds and writes are accepted.",
            tag="server",
            answer=health,
            error=health,
        )
        live = Operation(summary="Whether the process responds.", tag="server", answer=health)
        metrics = Operation(
            summary="Metrics for Prometheus.", tag="server", answer=TEXT, media_type="text/plain"
        )
        described = Operation(summary="This document.", tag="server", answer={"type": "object"})
        return (
            Route("GET", "/healthz", self._get_ready, ready),
            Route("GET", "/healthz/ready", self._get_ready, ready),
            Route("GET", "/healthz/live", self._get_live, live),
            Route("GET", "/metrics", self._get_metrics, metrics),
            Route("GET", "/openapi.json", self._get_openapi, described),
            BrowserClient().route(),
        )

    async def _get_openapi(self, request: HttpRequest) -> HttpResponse:
        """Built when it is first asked for, and kept: anybody may ask, and it takes 10 ms."""
        del request
        if self._openapi is None:
            described = document(self._routes, title="tidelog", version=__version__)
            self._openapi = msgspec.json.encode(described)
        return HttpResponse(200, self._openapi)

    async def _get_live(self, request: HttpRequest) -> HttpResponse:
        del request
        return HttpResponse(200, msgspec.json.encode({"live": True}))

    async def _get_ready(self, request: HttpRequest) -> HttpResponse:
        """Ready: the store answers, and new writes are taken."""
        del request
        health: dict[str, object] = {"live": True, "ready": False}
        try:
            async with asyncio.timeout(READY_SECONDS):
                head = await self.store.head()
            health |= {
                "ready": not self._stopping,
                "log_id": head.log_id,
                "incarnation": head.incarnation,
                "head": head.committed_id,
                "delivered": self._backing.position,
            }
            try:
                async with asyncio.timeout(READY_SECONDS):
                    problem = await self._backing.problem()
            except TimeoutError:
                problem = "the owner of the log does not answer"
            if problem:
                health["ready"] = False
                health["reason"] = problem
        except TimeoutError:
            health["reason"] = "the store does not answer"
        except StoreError:
            # Not the error's own text: it names hosts and roles, and anybody may ask.
            health["reason"] = "the store does not answer as it should; see the server's log"
        return HttpResponse(200 if health["ready"] else 503, msgspec.json.encode(health))

    async def _get_metrics(self, request: HttpRequest) -> HttpResponse:
        """Those of all processes, or none: a part of them would look as if much were undone."""
        del request
        text = "text/plain; version=0.0.4; charset=utf-8"
        try:
            async with asyncio.timeout(FIGURES_SECONDS):
                return HttpResponse(200, await self._backing.figures(), content_type=text)
        except TimeoutError:
            problem = "the owner of the log does not answer"
        except TidelogError as error:
            problem = str(error)
        return HttpResponse(503, f"# {problem}\n".encode(), content_type=text)
