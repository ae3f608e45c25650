"""What channels counts, beside what every surface does."""

from prometheus_client import CollectorRegistry, Counter


class ChannelsMetrics:
    """Made once for each `Metrics`: `metrics.part(ChannelsMetrics)`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.streams_closed = Counter(
            "tidelog_channels_streams_closed",
            "Streaming messages that the server ended: their writer was gone, or an operator asked",
            ["reason"],
            registry=registry,
        )
