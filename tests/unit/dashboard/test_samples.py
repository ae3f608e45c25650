"""What a second was like, reckoned from counters."""

import pytest

from tidelog.base.metrics import Metrics
from tidelog.dashboard.samples import KEPT, Samples
from tidelog.log.tail import Tail


def test_a_sample_is_the_difference() -> None:
    """Rates are what was added since the last sample, per second."""
    metrics, tail = Metrics(), Tail(100)
    samples = Samples(metrics, tail, now_ms=0)
    tail.position = 140
    for _ in range(10):
        metrics.commit_seconds.observe(0.004)
    metrics.connections.labels("sync").inc(3)
    metrics.refusals.labels("full").inc(2)
    metrics.refusals.labels("size").inc(1)
    sample, is_new = samples.take(2000)
    assert is_new
    assert (sample.head, sample.entries, sample.commits) == (140, 20.0, 5.0)
    assert (sample.connections, sample.refusals) == (3, 3)
    assert sample.p50_ms == pytest.approx(3.75)
    assert 2.5 < (sample.p99_ms or 0) <= 5
    sample, is_new = samples.take(3000)
    assert is_new, "nothing happened, which is another rate than before"
    assert (sample.entries, sample.p50_ms) == (0.0, None)
    assert not samples.take(4000)[1]


def test_samples_are_bounded() -> None:
    """Only what a chart shows is kept."""
    samples = Samples(Metrics(), Tail(0), now_ms=0)
    for second in range(KEPT + 5):
        samples.take(second * 1000)
    assert len(samples.kept) == KEPT
