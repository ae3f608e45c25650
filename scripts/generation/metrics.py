"""Every metric with its kind, labels and meaning, from the registries that `/metrics` shows."""

from collections.abc import Iterator
from typing import Any

from scripts.generation.markdown import NOTE, code, joined, table

from tidelog.config.metrics import all_metrics
from tidelog.daemon.metrics import DaemonMetrics

INTRODUCTION = """\
In the text format of Prometheus. What to watch and when to be woken:
[observability](../operations/observability.md). A counter's name ends in `_total` when it is
scraped; a histogram has `_bucket`, `_sum` and `_count`."""


def page() -> str:
    """The page of all metrics."""
    daemon = DaemonMetrics()
    daemon.render()
    return joined(
        [
            NOTE,
            "# Metrics",
            INTRODUCTION,
            "## The server: `GET /metrics`",
            _table(all_metrics().registry),
            "## A mesh daemon: `GET /v1/metrics` on its socket",
            _table(daemon._registry),  # noqa: SLF001 - nothing else has their labels
        ]
    )


def _table(registry: Any) -> str:
    rows = [
        (code(name), kind, ", ".join(map(code, labels)), f"{meaning}.")
        for name, kind, labels, meaning in sorted(_described(registry))
    ]
    return table(("metric", "kind", "labels", "meaning"), rows)


def _described(registry: Any) -> Iterator[tuple[str, str, tuple[str, ...], str]]:
    for collector in list(registry._collector_to_names):  # noqa: SLF001 - has the labels
        labels = tuple(getattr(collector, "_labelnames", ()))
        for family in collector.collect():
            own = labels or tuple(getattr(family, "_labelnames", ()))
            yield family.name, family.type, own, family.documentation.rstrip(".")
