"""Metrics of several processes, added up."""

from tidelog.base.metric_totals import decoded, encoded, growing, rendered, totals
from tidelog.base.metrics import Metrics


def process(requests: int, connections: int, commits: tuple[float, ...] = ()) -> Metrics:
    """What one process has counted."""
    metrics = Metrics()
    metrics.http_requests.labels("200").inc(requests)
    metrics.connections.labels("sync").set(connections)
    for seconds in commits:
        metrics.commit_seconds.observe(seconds)
    return metrics


def lines(text: bytes, name: str) -> list[str]:
    """What is rendered of a metric."""
    return [line for line in text.decode().splitlines() if line.startswith(name)]


def test_the_total_of_one_is_what_it_renders_itself() -> None:
    """But for what differs between two looks at a process, which has its name."""
    metrics = process(3, 2, (0.003, 0.2))
    total = rendered(totals([("owner", decoded(encoded(metrics.collected())))]))
    own = [line for line in total.splitlines() if b"process_" not in line]
    assert own == [line for line in metrics.render().splitlines() if b"process_" not in line]
    assert lines(total, "process_open_fds")[0].startswith('process_open_fds{process="owner"} ')


def test_counters_gauges_and_buckets_are_added() -> None:
    """By their labels."""
    parts = {"owner": process(0, 0, (0.003,)), "front 1": process(3, 2), "front 2": process(4, 5)}
    total = rendered(totals((name, each.collected()) for name, each in parts.items()))
    assert lines(total, "tidelog_http_requests_total") == [
        'tidelog_http_requests_total{status="200"} 7.0'
    ]
    assert lines(total, "tidelog_connections") == ['tidelog_connections{surface="sync"} 7.0']
    assert lines(total, "tidelog_commit_seconds_count") == ["tidelog_commit_seconds_count 1.0"]
    assert len(lines(total, "process_open_fds")) == len(parts)


def test_what_is_gone_has_counted_and_holds_nothing() -> None:
    """A connection of a process that is no more is none."""
    gone = growing(process(3, 2).collected())
    total = rendered(totals([("owner", process(1, 1).collected()), ("gone", gone)]))
    assert lines(total, "tidelog_http_requests_total") == [
        'tidelog_http_requests_total{status="200"} 4.0'
    ]
    assert lines(total, "tidelog_connections") == ['tidelog_connections{surface="sync"} 1.0']
    assert len(lines(total, "process_open_fds")) == 1
