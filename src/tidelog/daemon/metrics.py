"""What the daemon counts (mesh 13), and its text for Prometheus.

The counts are plain numbers; the Prometheus library is loaded when somebody first asks for the
text, because it is a fifth of the daemon's start time.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any


class DaemonMetrics:
    """The daemon's counters, and where its gauges are read from."""

    def __init__(self) -> None:
        self.dedupe: Counter[str] = Counter({"in": 0, "out": 0})
        """Duplicates by direction: deliveries already stored, sends the broker already had."""
        self.sent: Counter[str] = Counter()
        """Settled attempts by the row's new status."""
        self.received = 0
        """New messages stored in the inbox."""
        self.ipc_requests: Counter[tuple[str, str]] = Counter()
        """Responses by path and status."""
        self.dedupe_history_pruned = 0
        """Duplicates whose message the broker has pruned."""
        self.retry_after_dedupe_expired = 0
        """Attempts answered 201 although an earlier attempt may have been accepted long ago."""
        self.hooks: Counter[tuple[str, str]] = Counter()
        """Runs by hook and what became of them."""
        self.invalid_inbound = 0
        """Frames of the broker that could not be read."""
        self.connected: Callable[[], bool] = lambda: False
        self.outbox_depth: Callable[[], Mapping[str, int]] = dict
        self.outbox_lost: Callable[[], int] = lambda: 0
        self.outbox_age_ms: Callable[[], int] = lambda: 0
        self.disk_shares: Callable[[], Mapping[str, float]] = dict
        self._registry: Any = None

    def render(self) -> bytes:
        """Everything in Prometheus' text format."""
        from prometheus_client import CollectorRegistry, generate_latest

        if self._registry is None:
            self._registry = CollectorRegistry()
            self._registry.register(_Collector(self))
        return generate_latest(self._registry)


class _Collector:
    def __init__(self, metrics: DaemonMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Any]:
        """Every metric, with its value of this moment."""
        from prometheus_client.core import CounterMetricFamily as Count
        from prometheus_client.core import GaugeMetricFamily as Gauge

        m = self._metrics
        prefix = "tidelog_daemon_"
        connected = float(m.connected())
        yield Gauge(
            f"{prefix}connected",
            "Whether the daemon is connected, so that sends can leave",
            connected,
        )
        depth = Gauge(f"{prefix}outbox_depth", "Rows of the outbox", labels=["status"])
        for status, rows in m.outbox_depth().items():
            depth.add_metric([status], rows)
        yield depth
        yield Gauge(
            f"{prefix}outbox_possibly_lost",
            "Rows that the broker had and may have lost",
            m.outbox_lost(),
        )
        age_seconds = m.outbox_age_ms() / 1000
        yield Gauge(f"{prefix}outbox_age_seconds", "Age of the oldest waiting row", age_seconds)
        disk = Gauge(f"{prefix}disk_pct", "Percentage used", labels=["kind"])
        for kind, share in m.disk_shares().items():
            disk.add_metric([kind], share * 100)
        yield disk
        dedupe = Count(f"{prefix}dedupe", "Duplicates recognised", labels=["direction"])
        for direction, count in m.dedupe.items():
            dedupe.add_metric([direction], count)
        yield dedupe
        sent = Count(f"{prefix}send", "Attempts by what became of their row", labels=["status"])
        for status, count in m.sent.items():
            sent.add_metric([status], count)
        yield sent
        yield Count(f"{prefix}recv", "New messages received", m.received)
        requests = Count(f"{prefix}ipc_request", "IPC requests served", labels=["path", "status"])
        for labels, count in m.ipc_requests.items():
            requests.add_metric(list(labels), count)
        yield requests
        hooks = Count(f"{prefix}hook", "Runs of hooks", labels=["hook", "status"])
        for labels, count in m.hooks.items():
            hooks.add_metric(list(labels), count)
        yield hooks
        yield Count(
            f"{prefix}dedupe_history_pruned",
            "Duplicates whose message the broker has pruned",
            m.dedupe_history_pruned,
        )
        yield Count(
            f"{prefix}retry_after_dedupe_expired",
            "Retries that the broker no longer recognised",
            m.retry_after_dedupe_expired,
        )
        yield Count(f"{prefix}invalid_inbound", "Unreadable frames", m.invalid_inbound)
