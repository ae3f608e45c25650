"""An OpenTelemetry collector on the loopback: takes OTLP over HTTP and keeps the spans."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Seen(NamedTuple):
    """One span."""

    name: str
    trace: str
    id: str
    parent: str
    attributes: dict[str, Any]
    links: frozenset[str]
    """Ids of the linked spans."""
    failed: str
    """Description of its error status; empty if it has none."""
    start: int
    end: int


class Collector:
    """A context manager; `spans` grows while the block lasts."""

    def __init__(self) -> None:
        self.spans: list[Seen] = []
        self.raw: list[bytes] = []
        """Every body as it was received."""
        collector = self

        class Handler(BaseHTTPRequestHandler):
            """Takes exports."""

            def do_POST(self) -> None:
                """One export."""
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.path == "/v1/traces":
                    collector.take(body)
                self.send_response(200 if self.path == "/v1/traces" else 404)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's
                """Silent."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="collector")

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def take(self, body: bytes) -> None:
        """Keep the spans of an export."""
        self.raw.append(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self.spans.append(
                        Seen(
                            span.name,
                            span.trace_id.hex(),
                            span.span_id.hex(),
                            span.parent_span_id.hex(),
                            {
                                each.key: getattr(each.value, each.value.WhichOneof("value"))
                                for each in span.attributes
                            },
                            frozenset(link.span_id.hex() for link in span.links),
                            span.status.message if span.status.code == 2 else "",
                            span.start_time_unix_nano,
                            span.end_time_unix_nano,
                        )
                    )

    def named(self, name: str) -> list[Seen]:
        """The spans of a name, in the order of their beginning."""
        return sorted((span for span in self.spans if span.name == name), key=lambda s: s.start)

    def children(self, parent: Seen) -> list[Seen]:
        """The spans right below another, in the order of their beginning."""
        found = [span for span in self.spans if span.parent == parent.id]
        return sorted(found, key=lambda span: span.start)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join(10)
        self._server.server_close()
