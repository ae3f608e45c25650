"""The HTTP side: find the route, judge who asks, read the body, respond.

Neither a framework nor ASGI stands in between: their request objects and messages cost as much
again as the work they are for (docs/measurements.md).
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping
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
from tidelog.base.serving.address_quota import AddressQuota
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

    def begin(
        self, cycle: Cycle, reply: Callable[[HttpResponse], None]
    ) -> Coroutine[None, None, None] | None:
        """Begin to answer a request; `reply` takes the response, once, and does not raise.

        Returns what has to run for that, if something has.
        """
        found = None if cycle.more_body else self._paths.find(cycle.raw_path)
        if found is not None:
            methods, params = found
            bounded = methods.get(cycle.method)
            if bounded is not None and bounded.route.answer is not None:
                self._answer(cycle, bounded, params, reply)
                return None
        return self._respond_to(cycle, reply)

    async def _respond_to(self, cycle: Cycle, reply: Callable[[HttpResponse], None]) -> None:
        try:
            response = await self._respond(cycle)
        except Exception:  # noqa: BLE001 - a peer must not be left without an answer
            _log.exception("answering failed")
            response = refuse(500, "Internal server error", (b"connection", b"close"))
        self._replied(response)
        reply(response)

    def _answer(
        self,
        cycle: Cycle,
        bounded: "_Bounded",
        params: Mapping[str, str],
        reply: Callable[[HttpResponse], None],
    ) -> None:
        """Answer without a task what is here as a whole."""
        route, limit, _ = bounded
        quota = self._addresses.quota(cycle.connection.peer, cycle.headers)

        def told(outcome: HttpResponse | Exception) -> None:
            response = outcome
            if isinstance(response, Exception):
                response = self._failed(response, cycle.method, route)
            elif response.status == UNAUTHORIZED:
                quota.failed()
            self._replied(response)
            reply(response)

        if len(cycle.body) > limit:
            told(self._too_large(bounded))
        elif wait := quota.wait_seconds():
            told(self._too_many(route, wait))
        else:
            request = _request(cycle, params, quota)
            self._received_bytes += len(request.body)
            try:
                assert route.answer is not None  # noqa: S101 - or somebody else would answer
                route.answer(request, told)
            except Exception as error:  # noqa: BLE001 - as of `_respond`
                told(error)
            cycle.is_admitted = True  # or it is answered

    def _replied(self, response: HttpResponse) -> None:
        self._answered[response.status] += 1
        self._sent_bytes += len(response.body)

    def _count(self) -> None:
        for status, requests in self._answered.items():
            self._metrics.http_requests.labels(status).inc(requests)
        self._answered.clear()
        self._metrics.sent_bytes.inc(self._sent_bytes)
        self._metrics.received_bytes.inc(self._received_bytes)
        self._sent_bytes = self._received_bytes = 0

    async def _respond(self, cycle: Cycle) -> HttpResponse:
        found = self._paths.find(cycle.raw_path)
        if found is None:
            return refuse(404, "there is nothing at this path")
        methods, params = found
        bounded = methods.get("GET" if cycle.method == "HEAD" else cycle.method)
        if bounded is None:
            allowed = ", ".join(sorted(methods)).encode()
            return refuse(405, "this path does not support that method", (b"allow", allowed))
        route, limit, _ = bounded
        is_whole = not cycle.more_body  # the body came with the headers, as it mostly does
        if (len(cycle.body) if is_whole else cycle.declared_bytes) > limit:
            return self._too_large(bounded)
        quota = self._addresses.quota(cycle.connection.peer, cycle.headers)
        request = _request(cycle, params, quota)
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
        except Exception as error:  # noqa: BLE001 - whatever a surface raises must not reach the peer
            return self._failed(error, cycle.method, route)

    def _failed(self, error: Exception, method: str, route: Route) -> HttpResponse:
        """How the failure of a surface looks to its caller."""
        if not isinstance(error, QueueFull | ShuttingDown | StoreUnavailable | OutcomeUnknown):
            _log.error("%s %s failed", method, route.path, exc_info=error)
            return refuse(500, "Internal server error")
        self._metrics.refusals.labels(type(error).__name__).inc()
        code = CODES[503] if isinstance(error, QueueFull) else UNAVAILABLE
        # An engine's own text names hosts and roles, and anybody may ask.
        is_inside = isinstance(error, StoreError) and not isinstance(error, ClockSkewed)
        text = "the store does not answer" if is_inside else str(error)
        if isinstance(error, OutcomeUnknown):
            text = OUTCOME_UNKNOWN
        return refuse(503, text, _RETRY_SOON, code=code)

    async def _read_body(self, cycle: Cycle, limit: int) -> bytes | HttpResponse | None:
        """The body, or why there is none; None if it is too large."""
        if cycle.is_admitted:
            waiting = asyncio.timeout(self._limits.idle_timeout_ms / 1000)
        else:
            patience = self._limits.unauthenticated_timeout_ms / 1000
            waiting = asyncio.timeout_at(cycle.began_at + patience)
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


def _request(cycle: Cycle, params: Mapping[str, str], quota: AddressQuota) -> HttpRequest:
    """The request as surfaces see it; without its body as long as that is not whole."""
    connection = cycle.connection
    return HttpRequest(
        cycle.method,
        cycle.raw_path,
        cycle.query_string,
        cycle.headers,
        b"" if cycle.more_body else bytes(cycle.body),
        connection.peer,
        params,
        connection.local,
        quota,
    )


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
