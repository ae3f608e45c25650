"""Every metric of the server, by name, in one registry per server.

One registry per `Metrics` object, not the library's global one, so that several servers can live in
one test process.
"""

from collections.abc import Callable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


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
            buckets=_SECONDS,
            registry=r,
        )
        self.decide_seconds = Histogram(
            "tidelog_decide_seconds", "All decisions of one batch", buckets=_SECONDS, registry=r
        )
        self.entries_committed = Counter(
            "tidelog_entries_committed", "Entries this node appended to the log", registry=r
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
            "Held of requests of which it is not known yet who sends them",
            registry=r,
        )
        self.slow_consumers = Counter(
            "tidelog_slow_consumers", "Connections closed for not reading fast enough", registry=r
        )
        self.http_requests = Counter(
            "tidelog_http_requests", "HTTP requests answered", ["status"], registry=r
        )

        self.channels_streams_closed = Counter(
            "tidelog_channels_streams_closed",
            "Streaming messages that the server ended: their writer was gone, or an operator asked",
            ["reason"],
            registry=r,
        )

        self.retention_lag = Gauge(
            "tidelog_retention_lag_seconds",
            "For how much longer than its window the oldest content is kept",
            ["surface"],
            registry=r,
        )
        self.retention_removed = Counter(
            "tidelog_retention_removed",
            "Versions of channels and messages of meshes whose content retention has removed",
            ["surface"],
            registry=r,
        )

        self.plugin_seconds = Histogram(
            "tidelog_sync_plugin_seconds",
            "One call of the application's plug-in",
            ["method"],
            buckets=_SECONDS,
            registry=r,
        )
        self.plugin_failures = Counter(
            "tidelog_sync_plugin_failures",
            "Calls of the plug-in that raised, gave no answer or took too long",
            ["method", "reason"],
            registry=r,
        )

        self.mesh_deliveries = Counter(
            "tidelog_broker_deliveries",
            "Messages pushed to members, claimed from queues, posted to webhooks, acknowledged",
            ["step"],
            registry=r,
        )
        self.mesh_fingerprint_mismatches = Counter(
            "tidelog_broker_dedupe_fingerprint_mismatch",
            "Sends whose fingerprint on arrival is not the one their daemon computed",
            ["client_id", "mesh_id"],
            registry=r,
        )
        self.mesh_rate_refusals = Counter(
            "tidelog_broker_rate_limit_rejection",
            "Sends refused because the window of their mesh was full",
            ["mesh_id"],
            registry=r,
        )
        self.mesh_concurrent_connections = Counter(
            "tidelog_broker_member_concurrent_connection",
            "Times that two daemons were connected with one member's key",
            ["mesh_id", "policy"],
            registry=r,
        )
        self.mesh_units_without_message = Counter(
            "tidelog_broker_rate_limit_consumed_then_b2_rejected",
            "Sends that were counted by the rate limiter and had no destination",
            ["mesh_id"],
            registry=r,
        )

        self.mesh_misconfigurations = Counter(
            "tidelog_broker_dedupe_misconfig",
            "Meshes found that keep messages for longer than their ids",
            ["mesh_id"],
            registry=r,
        )
        self.mesh_orphan_checks = Counter(
            "tidelog_broker_dedupe_orphan_check",
            "Comparisons of the stored relations that came to an end",
            registry=r,
        )
        self.mesh_orphans = Gauge(
            "tidelog_broker_dedupe_orphan_found",
            "Rows without their counterpart in the last comparison",
            registry=r,
        )
        self.mesh_atomicity_violations = Gauge(
            "tidelog_broker_atomicity_violation_found",
            "The same by the rule that is broken (mesh 6.5)",
            ["rule"],
            registry=r,
        )

        self._late: list[Callable[[], None]] = []

    def before_render(self, move: Callable[[], None]) -> None:
        """Call `move` before the metrics are shown.

        For counters on hot paths: the library takes a lock for every increment, so they are counted
        in plain numbers and moved when somebody looks.
        """
        self._late.append(move)

    def render(self) -> bytes:
        """The registry in Prometheus' text format."""
        for move in self._late:
            move()
        return generate_latest(self.registry)
