"""The HTTP side: find the route, read the body, answer.

Neither a framework nor ASGI stands in between: their request objects and messages cost as much
again as the work they are for (docs/measurements.md).
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Iterable
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from tidelog.base.errors import (
    ClockSkewed,
    OutcomeUnknown,
    QueueFull,
    ShuttingDown,
    StoreError,
    StoreUnavailable,
)
from tidelog.base.metrics import Metrics
from tidelog.base.settings import Limits
from tidelog.base.surface import HttpRequest, HttpResponse, Route
from tidelog.web.handshake import refuse
from tidelog.web.routing import Paths

_log = logging.getLogger(__name__)

DISCARD_SECONDS = 1.0
"""How long the rest of a body that is too large is read and dropped."""

_RETRY_SOON = (b"retry-after", b"1")


class HttpApp:
    """Routes of all surfaces and of the server itself, behind one set of limits."""

    def __init__(self, routes: Iterable[Route], metrics: Metrics, limits: Limits) -> None:
        self._metrics = metrics
        self._limits = limits
        self._answered: Counter[int] = Counter()
        """Requests answered since the metrics were last shown, by status."""
        self._sent_bytes = self._received_bytes = 0
        metrics.before_render(self._count)
        by_path: dict[str, dict[str, Route]] = {}
        for route in routes:
            by_path.setdefault(route.path, {})[route.method] = route
        self._paths: Paths[dict[str, Route]] = Paths()
        for path, methods in by_path.items():
            self._paths.add(path, methods)

    async def respond(self, cycle: RequestResponseCycle) -> HttpResponse:
        """Answer one request; never raises."""
        response = await self._respond(cycle)
        self._answered[response.status] += 1
        self._sent_bytes += len(response.body)
        return response

    def _count(self) -> None:
        for status, requests in self._answered.items():
            self._metrics.http_requests.labels(status).inc(requests)
        self._answered.clear()
        self._metrics.sent_bytes.inc(self._sent_bytes)
        self._metrics.received_bytes.inc(self._received_bytes)
        self._sent_bytes = self._received_bytes = 0

    async def _respond(self, cycle: RequestResponseCycle) -> HttpResponse:
        scope = cycle.scope
        found = self._paths.find(scope["raw_path"])
        if found is None:
            await self._skip_body(cycle)
            return refuse(404, "there is nothing at this path")
        methods, params = found
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        route = methods.get(method)
        if route is None:
            await self._skip_body(cycle)
            allowed = ", ".join(sorted(methods)).encode()
            return refuse(405, "this path does not take that method", (b"allow", allowed))
        body: bytes | HttpResponse
        if not cycle.more_body and len(cycle.body) <= self._limits.max_body_bytes:
            body = bytes(cycle.body)  # all of it came with the headers, as it mostly does
            self._received_bytes += len(body)
        else:
            body = await self._read_body(scope, cycle.receive)
            if isinstance(body, HttpResponse):
                return body
        client, server = scope.get("client"), scope.get("server")
        request = HttpRequest(
            method=scope["method"],
            raw_path=scope["raw_path"],
            query_string=scope["query_string"],
            headers=tuple(scope["headers"]),
            body=body,
            peer=client[0] if client else "",
            params=params,
            local=(server[0], server[1]) if server and server[1] is not None else None,
        )
        try:
            return await route.handle(request)
        except (QueueFull, ShuttingDown, StoreUnavailable, OutcomeUnknown) as error:
            self._metrics.refusals.labels(type(error).__name__).inc()
            code = "backpressure" if isinstance(error, QueueFull) else "service_unavailable"
            # An engine's own text names hosts and roles, and anybody may ask.
            is_inside = isinstance(error, StoreError) and not isinstance(error, ClockSkewed)
            text = "the store does not answer" if is_inside else str(error)
            return refuse(503, text, _RETRY_SOON, code=code)
        except Exception:  # noqa: BLE001 - whatever a surface raises must not reach the peer
            _log.exception("%s %s failed", method, route.path)
            return refuse(500, "Internal server error")

    async def _skip_body(self, cycle: RequestResponseCycle) -> None:
        """Read what a refused request still sends: closing on it could overtake the refusal."""
        if cycle.more_body:
            await self._read_body(cycle.scope, cycle.receive)

    async def _read_body(self, scope: Any, receive: Any) -> bytes | HttpResponse:
        limit = self._limits.max_body_bytes
        for name, value in scope["headers"]:
            if name == b"content-length" and int(value) > limit:
                return await self._too_large(receive)
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._limits.idle_timeout_ms / 1000):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return refuse(400, "the connection ended before the body did")
                    part = message["body"]
                    size += len(part)
                    if size > limit:
                        return await self._too_large(receive)
                    parts.append(part)
                    if not message["more_body"]:
                        break
        except TimeoutError:
            self._metrics.refusals.labels("body_timeout").inc()
            return refuse(
                408, "the request's body did not arrive in time", (b"connection", b"close")
            )
        self._received_bytes += size
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _too_large(self, receive: Any) -> HttpResponse:
        """Read on for a moment before answering.

        A connection that is closed on a peer which is still sending is reset, and the reset can
        overtake the answer.
        """
        self._metrics.refusals.labels("body_size").inc()
        limit = self._limits.max_body_bytes
        discarded, more = 0, True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DISCARD_SECONDS):
                while more and discarded <= limit:
                    message = await receive()
                    discarded += len(message.get("body", b""))
                    more = message.get("more_body", False)
        error = f"the body is larger than {limit} bytes (setting limits.max_body_bytes)"
        return refuse(413, error, (b"connection", b"close"))
