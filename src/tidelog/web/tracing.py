"""OpenTelemetry traces of what the server is asked, for those who set `tracing.endpoint`.

Nothing imports this module otherwise. Routes and endpoints are wrapped when the server is made, so
a server without tracing runs none of it. A span has the route's template, never the path that was
asked for, its query, a header or a body: those hold signatures, tokens and people's words.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from urllib.parse import urlsplit

from msgspec.structs import replace
from opentelemetry import trace
from opentelemetry.context import attach, detach
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tidelog import __version__
from tidelog.base.quiet_span import quiet_span
from tidelog.base.serving.surface import (
    Conversation,
    Endpoint,
    Handle,
    HttpRequest,
    HttpResponse,
    Outlet,
    Route,
    Upgrade,
)
from tidelog.config.settings import Tracing as TracingSettings

EXPORT_SECONDS = 5.0
"""How long one export may take; also about how long the end of a server waits for a dead
collector."""

_PATH = "/v1/traces"
_propagator = TraceContextTextMapPropagator()


class Tracing:
    """The tracer of one process, and how routes and endpoints get their spans."""

    def __init__(self, settings: TracingSettings) -> None:
        resource = Resource.create({"service.name": "tidelog", "service.version": __version__})
        self._provider = TracerProvider(
            resource=resource,
            sampler=ParentBased(TraceIdRatioBased(settings.sample_ratio)),
            shutdown_on_exit=False,
        )
        exporter = OTLPSpanExporter(
            endpoint=_traces_url(settings.endpoint), timeout=int(EXPORT_SECONDS)
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("tidelog")

    def current(self) -> str | None:
        """What another process needs to go on in the trace that this one is in just now."""
        carrier: dict[str, str] = {}
        _propagator.inject(carrier)
        return carrier.get("traceparent")

    @contextmanager
    def within(self, traceparent: str) -> Iterator[None]:
        """Go on in the trace of another process."""
        token = attach(_propagator.extract({"traceparent": traceparent}))
        try:
            yield
        finally:
            detach(token)

    def share(self) -> None:
        """Let the committer of this process tell of itself in the same way; once in a process."""
        trace.set_tracer_provider(self._provider)

    async def close(self) -> None:
        """Send what has not been sent."""
        await asyncio.to_thread(self._provider.shutdown)

    def routes(self, routes: Sequence[Route]) -> list[Route]:
        """The same routes; each request is a span, in the caller's trace if it names one."""
        return [self._traced(route) for route in routes]

    def endpoints(self, endpoints: Sequence[Endpoint]) -> list[Endpoint]:
        """The same endpoints; each message of a peer is a span."""
        return [self._listened(endpoint) for endpoint in endpoints]

    def _traced(self, route: Route) -> Route:
        attributes = {"http.request.method": route.method, "http.route": route.path}
        name = f"{route.method} {route.path}"

        async def spanned(inner: Handle, request: HttpRequest) -> HttpResponse:
            carrier = {
                key.decode(): value.decode("latin-1")
                for key, value in request.headers
                if key in (b"traceparent", b"tracestate")
            }
            with quiet_span(
                self._tracer,
                name,
                context=_propagator.extract(carrier),
                kind=SpanKind.SERVER,
                attributes=attributes,
            ) as span:
                response = await inner(request)
                span.set_attribute("http.response.status_code", response.status)
                if response.status >= 500:
                    span.set_status(StatusCode.ERROR)
                return response

        handle = partial(spanned, route.handle)
        judge = route.admit
        if judge is None:
            return replace(route, handle=handle, answer=None)

        async def admit(request: HttpRequest) -> Handle | HttpResponse:
            admitted = await judge(request)
            if not isinstance(admitted, HttpResponse):
                return partial(spanned, admitted)

            async def refused(_: HttpRequest) -> HttpResponse:
                return admitted

            return await spanned(refused, request)

        return replace(route, handle=handle, admit=admit, answer=None)

    def _listened(self, endpoint: Endpoint) -> Endpoint:
        def accept(upgrade: Upgrade) -> Conversation | HttpResponse:
            answer = endpoint.accept(upgrade)
            if isinstance(answer, HttpResponse):
                return answer
            return _Heard(answer, endpoint, self._tracer)

        return replace(endpoint, accept=accept)


class _Heard:
    """A `Conversation` whose messages are spans."""

    def __init__(self, inner: Conversation, endpoint: Endpoint, tracer: trace.Tracer) -> None:
        self._inner = inner
        self._tracer = tracer
        self._name = f"WebSocket {endpoint.path}"
        self._surface = endpoint.surface

    def opened(self, outlet: Outlet) -> None:
        self._inner.opened(outlet)

    def received(self, payload: bytes, *, is_text: bool) -> None:
        attributes = {"tidelog.surface": self._surface, "tidelog.bytes": len(payload)}
        with quiet_span(self._tracer, self._name, kind=SpanKind.SERVER, attributes=attributes):
            self._inner.received(payload, is_text=is_text)

    def closed(self, code: int) -> None:
        self._inner.closed(code)


def _traces_url(endpoint: str) -> str:
    """Where spans go: collectors take them at a fixed path unless another one is given."""
    return endpoint if urlsplit(endpoint).path.strip("/") else endpoint.rstrip("/") + _PATH
