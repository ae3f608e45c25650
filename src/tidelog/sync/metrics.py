"""What sync counts and times, beside what every surface does."""

from prometheus_client import CollectorRegistry, Counter, Histogram

from tidelog.base.metrics import SECONDS


class SyncMetrics:
    """Made once for each `Metrics`: `metrics.part(SyncMetrics)`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.plugin_seconds = Histogram(
            "tidelog_sync_plugin_seconds",
            "One call of the application's plug-in",
            ["method"],
            buckets=SECONDS,
            registry=registry,
        )
        self.plugin_failures = Counter(
            "tidelog_sync_plugin_failures",
            "Calls of the plug-in that raised, returned a wrong type or took too long",
            ["method", "reason"],
            registry=registry,
        )
