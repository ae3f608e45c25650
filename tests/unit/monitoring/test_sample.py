"""Rates and quantiles of an interval, from two looks at `/metrics`."""

import pytest

from tidelog.config.metrics import all_metrics
from tidelog.mesh.metrics import MeshMetrics
from tidelog.monitoring.sample import Flow, Latency, Process, Sample, measured
from tidelog.monitoring.scrape import NotMetrics, Scrape
from tidelog.sync.metrics import SyncMetrics


class Watched:
    """The metrics of a server that a test moves."""

    def __init__(self) -> None:
        self.metrics = all_metrics()
        self.at = 100.0

    def look(self, after_seconds: float = 0.0, *, began: float | None = None) -> Scrape:
        """What `/metrics` would say so many seconds later."""
        self.at += after_seconds
        text = self.metrics.render().decode()
        if began is not None:
            kept = [
                line
                for line in text.splitlines()
                if not line.startswith("process_start_time_seconds")
            ]
            text = "\n".join([*kept, f"process_start_time_seconds {began}", ""])
        return Scrape.parse(text, self.at)


def sample(before: Scrape, after: Scrape, **health: object) -> Sample:
    """The sample of two looks."""
    return measured(before, after, health, at=1000.0, iso="now", url="http://here")


def test_rates_are_what_was_added_per_second() -> None:
    """Counters become rates over the interval; gauges are those of its end."""
    watched = Watched()
    m = watched.metrics
    m.entries_committed.inc(1000)
    m.refusals.labels("path").inc(7)
    before = watched.look()
    m.entries_committed.inc(50)
    m.refusals.labels("path").inc(1)
    m.refusals.labels("body_size").inc(4)
    m.part(MeshMetrics).deliveries.labels("pushed").inc(6)
    m.connections.labels("sync").inc(2)
    m.connections.labels("mesh").inc()
    m.queue_depth.set(3)
    m.tail_lag.set(9)
    got = sample(before, watched.look(2), ready=True, log_id="L", head=1050)
    assert got.seconds == 2
    assert (got.ready, got.log_id, got.head) == (True, "L", 1050)
    assert got.entries == Flow(1050, 25)
    assert got.refusals == {"body_size": Flow(4, 2), "path": Flow(8, 0.5)}
    assert got.mesh_deliveries == {"pushed": Flow(6, 3)}
    assert got.connections == {"mesh": 1, "sync": 2}
    assert (got.queue_depth, got.tail_lag, got.restarted) == (3, 9, False)


def test_latency_is_that_of_the_interval() -> None:
    """What happened before the first look does not count; without a commit there is no latency."""
    watched = Watched()
    m = watched.metrics
    for _ in range(1000):
        m.commit_seconds.observe(2.0)
    before = watched.look()
    for _ in range(100):
        m.commit_seconds.observe(0.004)
        m.commit_batch_requests.observe(3)
    got = sample(before, watched.look(10))
    assert got.commits == Flow(1100, 10)
    assert got.requests_per_commit == 3
    assert got.commit is not None
    assert got.commit.p50_ms == pytest.approx(3.75)
    assert got.commit.p99_ms == pytest.approx(4.975)
    assert got.decide == Latency(None, None)


def test_labels_of_a_histogram_are_taken_together() -> None:
    """The plug-in's methods make one latency."""
    watched = Watched()
    before = watched.look()
    watched.metrics.part(SyncMetrics).plugin_seconds.labels("check").observe(0.0004)
    watched.metrics.part(SyncMetrics).plugin_seconds.labels("authorize").observe(0.04)
    got = sample(before, watched.look(1))
    assert got.plugin is not None
    assert got.plugin.p50_ms == pytest.approx(0.5)
    assert got.plugin.p99_ms == pytest.approx(49.5)


def test_a_restart_counts_from_zero() -> None:
    """After a restart the whole of the new process's counters is the increase, and it is said."""
    old, new = Watched(), Watched()
    old.metrics.entries_committed.inc(10)
    for _ in range(5):
        old.metrics.commit_seconds.observe(2.0)
        new.metrics.commit_seconds.observe(0.0001)
    new.metrics.entries_committed.inc(30)
    got = sample(old.look(began=1), new.look(5, began=2))
    assert got.restarted
    assert got.entries == Flow(30, 6)
    assert got.commit is not None
    assert (got.commit.p99_ms or 9) < 0.5


def test_counters_that_fell_began_anew() -> None:
    """Where the platform tells no start time, a smaller counter is the sign of a restart."""
    old, new = Watched(), Watched()
    old.metrics.entries_committed.inc(10)
    for _ in range(3):
        old.metrics.commit_seconds.observe(0.0001)
    new.metrics.entries_committed.inc(4)
    new.metrics.commit_seconds.observe(0.0001)
    got = sample(old.look(began=1), new.look(2, began=1))
    assert got.entries == Flow(4, 2)
    assert got.commit is not None
    assert got.commit.p50_ms == pytest.approx(0.25)


def test_the_process_is_shown_where_the_platform_tells() -> None:
    """Memory, files and processor time come from the process's own metrics."""
    watched = Watched()
    before = watched.look()
    got = sample(before, watched.look(1))
    assert (got.resident_bytes or 0) > 1_000_000
    assert (got.open_files or 0) > 0
    assert got.cpu_percent is not None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("<html>hello</html>", "not in Prometheus' text format"),
        ("", "no tidelog_tail_position"),
        ("# TYPE up gauge\nup 1\n", "no tidelog_tail_position"),
    ],
)
def test_what_is_no_tidelog_server_is_told_apart(text: str, why: str) -> None:
    """Another program's answer is refused with the reason."""
    with pytest.raises(NotMetrics, match=why):
        Scrape.parse(text, 0)


class OfProcesses(Watched):
    """A server of an owner and a front, each with what a test says it took."""

    def look_at(self, after_seconds: float, **cpu_seconds: float) -> Scrape:
        """So many seconds later; who comes later in the order began later."""
        self.at += after_seconds
        lines = ["tidelog_tail_position 1"]
        for number, (name, seconds) in enumerate(cpu_seconds.items(), start=1):
            label = f'{{process="{name}"}}'
            lines += [
                f"process_cpu_seconds_total{label} {seconds}",
                f"process_resident_memory_bytes{label} {number * 1000}",
                f"process_open_fds{label} {number * 10}",
                f"process_start_time_seconds{label} {900 + number}",
            ]
        return Scrape.parse("\n".join([*lines, ""]), self.at)


def test_processes_are_told_apart_and_added() -> None:
    """A front that was started again is not a server that was."""
    watched = OfProcesses()
    before = watched.look_at(0, owner=5.0, front=100.0)
    got = sample(before, watched.look_at(10, owner=7.0, front=0.5))
    assert got.processes == {"front": Process(2000, 5.0, 20), "owner": Process(1000, 20.0, 10)}
    assert (got.resident_bytes, got.cpu_percent, got.open_files) == (3000, 25.0, 30)
    assert not got.restarted
    assert got.uptime_seconds == 99.0
    assert sample(before, watched.look_at(10, front=0.5, owner=7.0)).restarted, "another owner"
