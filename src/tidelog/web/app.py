"""The HTTP side: find the route, judge who asks, read the body, respond.

Neither a framework nor ASGI stands in between: their request objects and messages cost as much
again as the work they are for (docs/measurements.md).
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from tidelog.base.errors import (
    ClockSkewed,
    OutcomeUnknown,
    QueueFull,
    ShuttingDown,
    StoreError,
    StoreUnavailable,
)
from tidelog.base.metrics import Metrics
from tidelog.base.serving.surface import HttpRequest, HttpResponse, Route
from tidelog.base.settings.limits import Limits
from tidelog.web.addresses import Addresses
from tidelog.web.cycle import Cycle
from tidelog.web.handshake import (
    CODES,
    OUTCOME_UNKNOWN,
    TOO_MANY_FAILURES,
    UNAVAILABLE,
    refuse,
)
from tidelog.web.routing import Paths

_log = logging.getLogger(__name__)

UNAUTHORIZED = 401
"""What a surface returns to a caller that could not prove who it is."""

_RETRY_SOON = (b"retry-after", b"1")


class HttpApp:
    """Routes of all surfaces and of the server itself, behind one set of limits."""

    def __init__(
        self, routes: Iterable[Route], metrics: Metrics, limits: Limits, addresses: Addresses
    ) -> None:
        self._metrics = metrics
        self._limits = limits
        self._addresses = addresses
        self._answered: Counter[int] = Counter()
        """Requests answered since the metrics were last shown, by status."""
        self._sent_bytes = self._received_bytes = 0
        metrics.before_render(self._count)
        by_path: dict[str, dict[str, _Bounded]] = {}
        for route in routes:
            by_path.setdefault(route.path, {})[route.method] = _bounded(route, limits)
        self._paths: Paths[dict[str, _Bounded]] = Paths()
        for path, methods in by_path.items():
            self._paths.add(path, methods)

    async def respond(self, cycle: Cycle) -> HttpResponse:
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

    async def _respond(self, cycle: Cycle) -> HttpResponse:
        scope = cycle.scope
        found = self._paths.find(scope["raw_path"])
        if found is None:
            return refuse(404, "there is nothing at this path")
        methods, params = found
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        bounded = methods.get(method)
        if bounded is None:
            allowed = ", ".join(sorted(methods)).encode()
            return refuse(405, "this path does not support that method", (b"allow", allowed))
        route, limit, _ = bounded
        is_whole = not cycle.more_body  # the body came with the headers, as it mostly does
        if (len(cycle.body) if is_whole else cycle.declared_bytes) > limit:
            return self._too_large(bounded)
        client, server = scope.get("client"), scope.get("server")
        peer = client[0] if client else ""
        quota = self._addresses.quota(peer, scope["headers"])
        request = HttpRequest(
            method=scope["method"],
            raw_path=scope["raw_path"],
            query_string=scope["query_string"],
            headers=tuple(scope["headers"]),
            body=bytes(cycle.body) if is_whole else b"",
            peer=peer,
            params=params,
            local=(server[0], server[1]) if server and server[1] is not None else None,
            quota=quota,
        )
        try:
            handle = route.handle
            if route.admit is not None:
                if wait := quota.wait_seconds():
                    return self._too_many(route, wait)
                admitted = await route.admit(request)
                if isinstance(admitted, HttpResponse):
                    if admitted.status == UNAUTHORIZED:
                        quota.failed()
                    return admitted
                cycle.admit()
                handle = admitted
            if not is_whole:
                body = await self._read_body(cycle, limit)
                if body is None:
                    return self._too_large(bounded)
                if isinstance(body, HttpResponse):
                    return body
                request = msgspec.structs.replace(request, body=body)
            self._received_bytes += len(request.body)
            response = await handle(request)
            if response.status == UNAUTHORIZED:
                quota.failed()
            return response
        except (QueueFull, ShuttingDown, StoreUnavailable, OutcomeUnknown) as error:
            self._metrics.refusals.labels(type(error).__name__).inc()
            code = CODES[503] if isinstance(error, QueueFull) else UNAVAILABLE
            # An engine's own text names hosts and roles, and anybody may ask.
            is_inside = isinstance(error, StoreError) and not isinstance(error, ClockSkewed)
            text = "the store does not answer" if is_inside else str(error)
            if isinstance(error, OutcomeUnknown):
                text = OUTCOME_UNKNOWN
            return refuse(503, text, _RETRY_SOON, code=code)
        except Exception:  # noqa: BLE001 - whatever a surface raises must not reach the peer
            _log.exception("%s %s failed", method, route.path)
            return refuse(500, "Internal server error")

    async def _read_body(self, cycle: Cycle, limit: int) -> bytes | HttpResponse | None:
        """The body, or why there is none; None if it is too large."""
        if cycle.is_admitted:
            waiting = asyncio.timeout(self._limits.idle_timeout_ms / 1000)
        else:
            waiting = asyncio.timeout_at(cycle.deadline)
        try:
            async with waiting:
                return await cycle.read(limit)
        except ConnectionError as error:
            return refuse(400, str(error))
        except TimeoutError:
            self._metrics.refusals.labels("body_timeout").inc()
            return refuse(
                408, "the request's body did not arrive in time", (b"connection", b"close")
            )

    def _too_many(self, route: Route, wait_seconds: int) -> HttpResponse:
        self._metrics.refusals.labels("address_failures").inc()
        if route.too_many is not None:
            return route.too_many(wait_seconds)
        return refuse(429, TOO_MANY_FAILURES, (b"retry-after", b"%d" % wait_seconds))

    def _too_large(self, bounded: "_Bounded") -> HttpResponse:
        self._metrics.refusals.labels("body_size").inc()
        if bounded.route.too_large is not None:
            return bounded.route.too_large
        error = (
            f"the body is larger than {bounded.max_body_bytes} bytes (setting {bounded.setting})"
        )
        return refuse(413, error, (b"connection", b"close"))


class _Bounded(NamedTuple):
    """A route, the largest body it takes, and the setting that says so."""

    route: Route
    max_body_bytes: int
    setting: str


def _bounded(route: Route, limits: Limits) -> _Bounded:
    limit, setting = limits.max_body_bytes, "limits.max_body_bytes"
    if route.admit is None and limits.unauthenticated_body_bytes < limit:
        limit, setting = limits.unauthenticated_body_bytes, "limits.unauthenticated_body_bytes"
    if route.max_body_bytes is not None:
        limit = min(limit, route.max_body_bytes)
    return _Bounded(route, limit, setting)
