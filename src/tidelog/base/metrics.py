"""The metrics that belong to no surface, and the one registry per server for all of them.

One registry per `Metrics` object, not the library's global one, so that several servers can live in
one test process.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

from tidelog.base.metric_totals import Families, collected

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Buckets of everything that is timed."""

_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Part(Protocol):
    """See `Metrics.part`."""

    def __init__(self, registry: CollectorRegistry) -> None: ...


P = TypeVar("P", bound=Part)


class Metrics:
    """The counters, gauges and histograms that `/metrics` shows."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        r = self.registry
        ProcessCollector(registry=r)  # memory, processor time and files of this process
        self.commit_batch_requests = Histogram(
            "tidelog_commit_batch_requests",
            "Requests in one transaction",
            buckets=_SIZES,
            registry=r,
        )
        self.commit_seconds = Histogram(
            "tidelog_commit_seconds",
            "From BEGIN to the end of COMMIT",
            buckets=SECONDS,
            registry=r,
        )
        self.decide_seconds = Histogram(
            "tidelog_decide_seconds", "All decisions of one batch", buckets=SECONDS, registry=r
        )
        self.entries_committed = Counter(
            "tidelog_entries_committed", "Entries this node appended to the log", registry=r
        )
        self.overtaken = Counter(
            "tidelog_commits_overtaken",
            "Batches that were decided again because another node wrote first",
            registry=r,
        )
        self.queue_depth = Gauge(
            "tidelog_commit_queue_depth", "Requests waiting for the committer", registry=r
        )
        self.tail_position = Gauge(
            "tidelog_tail_position", "committed_id this node has delivered up to", registry=r
        )
        self.tail_lag = Gauge(
            "tidelog_tail_lag_entries",
            "Known head of the log minus the tail's position",
            registry=r,
        )
        self.clock_skew = Gauge(
            "tidelog_clock_skew_seconds",
            "This machine's clock minus the database's; 0 on SQLite",
            registry=r,
        )
        self.wal_bytes = Gauge(
            "tidelog_store_wal_bytes",
            "Size of the file of SQLite's write-ahead log; 0 on PostgreSQL",
            registry=r,
        )
        self.connections = Gauge(
            "tidelog_connections", "Open WebSocket connections", ["surface"], registry=r
        )
        self.received_bytes = Counter(
            "tidelog_received_bytes", "Bytes received in bodies and frames", registry=r
        )
        self.sent_bytes = Counter(
            "tidelog_sent_bytes", "Bytes given to sockets in bodies and frames", registry=r
        )
        self.refusals = Counter(
            "tidelog_refusals", "Requests and connections refused", ["reason"], registry=r
        )
        self.unauthenticated_bytes = Gauge(
            "tidelog_unauthenticated_bytes",
            "Bytes held of requests whose sender is not authenticated yet",
            registry=r,
        )
        self.slow_consumers = Counter(
            "tidelog_slow_consumers", "Connections closed for not reading fast enough", registry=r
        )
        self.http_requests = Counter(
            "tidelog_http_requests", "HTTP requests served", ["status"], registry=r
        )

        self._parts: dict[type, object] = {}
        self._late: list[Callable[[], None]] = []

    def part(self, kind: type[P]) -> P:
        """The metrics that a surface brings, in the same registry; made when first asked for."""
        if kind not in self._parts:
            self._parts[kind] = kind(self.registry)
        found = self._parts[kind]
        assert isinstance(found, kind)  # noqa: S101 - by its key
        return found

    def before_render(self, move: Callable[[], None]) -> None:
        """Call `move` before the metrics are shown.

        For counters on hot paths: the library takes a lock for every increment, so they are counted
        in plain numbers and moved when somebody looks.
        """
        self._late.append(move)

    def render(self) -> bytes:
        """The registry in Prometheus' text format."""
        self._move()
        return generate_latest(self.registry)

    def collected(self) -> Families:
        """The same, to be added to that of other processes."""
        self._move()
        return collected(self.registry)

    def _move(self) -> None:
        for move in self._late:
            move()
