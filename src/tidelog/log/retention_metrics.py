"""What the retention of every surface counts."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class RetentionMetrics:
    """Made once for each `Metrics`: `metrics.part(RetentionMetrics)`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.lag = Gauge(
            "tidelog_retention_lag_seconds",
            "For how much longer than its window the oldest content is kept",
            ["surface"],
            registry=registry,
        )
        self.removed = Counter(
            "tidelog_retention_removed",
            "Versions of channels and messages of meshes whose content retention has removed",
            ["surface"],
            registry=registry,
        )
