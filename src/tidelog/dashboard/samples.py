"""One sample a second of how the committer is doing, from the metrics it keeps anyway."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct
from prometheus_client.metrics import MetricWrapperBase

from tidelog.base.metrics import Metrics
from tidelog.base.quantile import quantile

KEPT = 300
"""Samples kept: the five minutes that a chart shows."""


class Sample(Struct, frozen=True):
    """What one second was like."""

    at: int
    """When it ended, in ms."""
    head: int
    """Position of the tail."""
    entries: float
    """Entries delivered by the tail, per second."""
    commits: float
    """Transactions per second."""
    p50_ms: float | None
    p99_ms: float | None
    """How long a transaction took, from buckets; None if there was none."""
    queue: int
    """Requests waiting for the committer."""
    lag: int
    """Entries that are committed and not yet delivered."""
    connections: int
    refusals: float
    """Requests and connections refused since the start."""
    slow: float
    """Connections dropped since the start because they did not read fast enough."""


class Counts(Struct, frozen=True, array_like=True):
    """What each process has of its own."""

    connections: float
    refusals: float
    slow: float

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            self.connections + other.connections,
            self.refusals + other.refusals,
            self.slow + other.slow,
        )

    def left(self) -> "Counts":
        """What stays of a process that is gone: it has no connection."""
        return Counts(0, self.refusals, self.slow)


NOTHING = Counts(0, 0, 0)


def counts_of(metrics: Metrics) -> Counts:
    """Those of a process."""
    return Counts(*map(_sum, (metrics.connections, metrics.refusals, metrics.slow_consumers)))


class _Counts(NamedTuple):
    at: int
    head: int
    commits: float
    buckets: tuple[float, ...]


class Samples:
    """The last five minutes."""

    def __init__(self, metrics: Metrics, position: int, now_ms: int) -> None:
        """`metrics` are the committer's, `position` is the tail's."""
        self._metrics = metrics
        self._bounds = [bound for bound, _ in _buckets(metrics)]
        self.kept: deque[Sample] = deque(maxlen=KEPT)
        self._before = self._counts(now_ms, position)

    @property
    def commits(self) -> float:
        """Transactions since the start; it grows with everything that is written."""
        return self._before.commits

    def take(self, now_ms: int, position: int, counts: Counts) -> tuple[Sample, bool]:
        """A sample of the time since the last one, and whether it says anything new.

        `counts` are those of all processes together.
        """
        before, after = self._before, self._counts(now_ms, position)
        self._before = after
        seconds = max(0.001, (after.at - before.at) / 1000)
        in_buckets = [b - a for a, b in zip(before.buckets, after.buckets, strict=True)]
        metrics = self._metrics
        sample = Sample(
            at=now_ms,
            head=after.head,
            entries=round((after.head - before.head) / seconds, 1),
            commits=round((after.commits - before.commits) / seconds, 1),
            p50_ms=_quantile_ms(self._bounds, in_buckets, 0.5),
            p99_ms=_quantile_ms(self._bounds, in_buckets, 0.99),
            queue=int(_sum(metrics.queue_depth)),
            lag=int(_sum(metrics.tail_lag)),
            connections=int(counts.connections),
            refusals=counts.refusals,
            slow=counts.slow,
        )
        is_new = not self.kept or _without_time(sample) != _without_time(self.kept[-1])
        self.kept.append(sample)
        return sample, is_new

    def _counts(self, now_ms: int, position: int) -> _Counts:
        cumulative = [value for _, value in _buckets(self._metrics)]
        buckets = tuple(
            value - before for before, value in zip([0.0, *cumulative], cumulative, strict=False)
        )
        return _Counts(now_ms, position, cumulative[-1], buckets)


def _buckets(metrics: Metrics) -> list[tuple[float, float]]:
    """Bounds in seconds, and how many transactions took no longer."""
    [family] = metrics.commit_seconds.collect()
    return [
        (float(sample.labels["le"]), sample.value)
        for sample in family.samples
        if sample.name.endswith("_bucket")
    ]


def _without_time(sample: Sample) -> tuple[object, ...]:
    return tuple(getattr(sample, name) for name in Sample.__struct_fields__ if name != "at")


def _sum(metric: MetricWrapperBase) -> float:
    """The value of a metric, over all its labels."""
    return sum(
        sample.value
        for family in metric.collect()
        for sample in family.samples
        if not sample.name.endswith("_created")
    )


def _quantile_ms(bounds: Sequence[float], counts: Sequence[float], share: float) -> float | None:
    seconds = quantile(bounds, counts, share)
    return None if seconds is None else round(seconds * 1000, 3)
