"""What a second was like, reckoned from counters."""

import pytest

from tidelog.base.metrics import Metrics
from tidelog.dashboard.samples import KEPT, NOTHING, Counts, Samples, counts_of


def test_a_sample_is_the_difference() -> None:
    """Rates are what was added since the last sample, per second."""
    metrics = Metrics()
    samples = Samples(metrics, 100, now_ms=0)
    for _ in range(10):
        metrics.commit_seconds.observe(0.004)
    metrics.connections.labels("sync").inc(3)
    metrics.refusals.labels("full").inc(2)
    metrics.refusals.labels("size").inc(1)
    counts = counts_of(metrics)
    sample, is_new = samples.take(2000, 140, counts)
    assert is_new
    assert (sample.head, sample.entries, sample.commits) == (140, 20.0, 5.0)
    assert (sample.connections, sample.refusals) == (3, 3)
    assert sample.p50_ms == pytest.approx(3.75)
    assert 2.5 < (sample.p99_ms or 0) <= 5
    sample, is_new = samples.take(3000, 140, counts)
    assert is_new, "nothing happened, which is another rate than before"
    assert (sample.entries, sample.p50_ms) == (0.0, None)
    assert not samples.take(4000, 140, counts)[1]


def test_what_is_gone_has_no_connection_and_has_refused_what_it_has() -> None:
    """Sums since the start do not go back."""
    metrics = Metrics()
    metrics.connections.labels("sync").inc(3)
    metrics.refusals.labels("full").inc(2)
    left = counts_of(metrics).left()
    assert left + counts_of(metrics) == Counts(3, 4, 0)


def test_samples_are_bounded() -> None:
    """Only what a chart shows is kept."""
    samples = Samples(Metrics(), 0, now_ms=0)
    for second in range(KEPT + 5):
        samples.take(second * 1000, 0, NOTHING)
    assert len(samples.kept) == KEPT
