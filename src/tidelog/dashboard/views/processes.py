"""The processes of the server for the page: what each of them takes."""

from collections.abc import Iterable
from typing import Any

from tidelog.base.metric_totals import Families, decoded, encoded
from tidelog.base.metrics import Metrics

CONNECTIONS = "tidelog_connections"
_SHOWN = {
    "memory": "process_resident_memory_bytes",
    "cpu_seconds": "process_cpu_seconds",
    "open_files": "process_open_fds",
    "began": "process_start_time_seconds",
    "connections": CONNECTIONS,
}


class ProcessView:
    """Reads the metrics that processes have of themselves."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def own(self) -> bytes:
        """Those of this process."""
        return encoded(self._metrics.collected())

    def processes(self, figures: Iterable[tuple[str, bytes]]) -> dict[str, Any]:
        """What each process takes that runs, by its name; `figures` is of all of them."""
        rows = [_row(name, decoded(part)) for name, part in figures]
        return {"processes": [row for row in rows if row["began"]]}


def _row(name: str, families: Families) -> dict[str, Any]:
    sums = {
        each.name: sum(value for sample, _, value in each.samples if sample.endswith(_ENDINGS))
        for each in families
        if each.name in _SHOWN.values()
    }
    return {"name": name, **{shown: sums.get(name) for shown, name in _SHOWN.items()}}


_ENDINGS = ("bytes", "_total", "_fds", "_time_seconds", CONNECTIONS)
"""Of the samples that are values, not times at which a counter began."""
