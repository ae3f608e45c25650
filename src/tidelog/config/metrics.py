"""Every metric that a server shows, whichever surfaces it serves."""

from tidelog.base.metrics import Metrics
from tidelog.channels.metrics import ChannelsMetrics
from tidelog.log.retention_metrics import RetentionMetrics
from tidelog.mesh.metrics import MeshMetrics
from tidelog.sync.metrics import SyncMetrics


def all_metrics() -> Metrics:
    """Those of the server and of every built-in surface, in the order they are shown in."""
    metrics = Metrics()
    for part in (ChannelsMetrics, RetentionMetrics, SyncMetrics, MeshMetrics):
        metrics.part(part)
    return metrics
