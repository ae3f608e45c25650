"""What a server did between two looks at its metrics."""

from typing import Any

from msgspec import Struct

from tidelog.base.quantile import quantile
from tidelog.monitoring.scrape import Scrape


class Flow(Struct, frozen=True):
    """A counter: its value, and how fast it grew."""

    total: float
    per_second: float


class Latency(Struct, frozen=True):
    """How long something took; None if nothing of the kind happened."""

    p50_ms: float | None
    p99_ms: float | None


class Process(Struct, frozen=True):
    """What one process of a server takes."""

    resident_bytes: int
    cpu_percent: float
    """Of one core."""
    open_files: int


class Sample(Struct, frozen=True, kw_only=True):
    """One interval of one server, as `tidelog top` shows it."""

    at: str
    """When it ended: UTC, ISO 8601."""
    url: str
    up: bool = True
    error: str = ""
    """Why there are no numbers, if the server did not answer."""
    seconds: float = 0.0
    """How long the interval was."""
    restarted: bool = False
    """Whether the process that owns the log was another one at its beginning; rates count from zero
    then."""
    ready: bool = False
    log_id: str = ""
    head: int = 0
    """`committed_id` that the log ends with."""
    tail_lag: int = 0
    """Entries that are committed and not yet delivered by this node."""
    entries: Flow | None = None
    commits: Flow | None = None
    """Transactions."""
    requests_per_commit: float | None = None
    commit: Latency | None = None
    decide: Latency | None = None
    queue_depth: int = 0
    """Requests waiting for the committer."""
    connections: dict[str, int] = {}
    """By surface."""
    refusals: dict[str, Flow] = {}
    """By reason."""
    slow_consumers: Flow | None = None
    http: dict[str, Flow] = {}
    """Requests answered, by status."""
    received_bytes: Flow | None = None
    sent_bytes: Flow | None = None
    mesh_deliveries: dict[str, Flow] = {}
    """By what was done: pushed, claimed, acknowledged, and the webhooks' outcomes."""
    mesh_orphans: int = 0
    """Rows without their counterpart, by the last check."""
    plugin: Latency | None = None
    """Calls of the sync plug-in."""
    resident_bytes: int | None = None
    """Of all processes together, as the next two are; pages that they share count in each."""
    cpu_percent: float | None = None
    """Of one core; None where the platform does not tell."""
    open_files: int | None = None
    processes: dict[str, Process] = {}
    """By name, if there are several."""
    uptime_seconds: float | None = None


def measured(
    before: Scrape, after: Scrape, health: dict[str, Any], *, at: float, iso: str, url: str
) -> Sample:
    """The sample of an interval.

    Args:
        before: the earlier look; with `after` itself there are totals and no rates.
        after: the later one.
        health: what `/healthz` said.
        at: seconds since 1970, for the process's age.
        iso: the same for people.
        url: of the server.
    """
    began = _began(after)
    is_other = began != _began(before)
    pair = _Pair(before.after_restart() if is_other else before, after)
    batches = pair.increase("tidelog_commit_batch_requests_count")
    requests = pair.increase("tidelog_commit_batch_requests_sum")
    has_process = bool(after.total("process_resident_memory_bytes"))
    names = tuple(after.by("process_resident_memory_bytes", "process"))
    return Sample(
        at=iso,
        url=url,
        seconds=round(after.at - before.at, 3),
        restarted=is_other,
        ready=bool(health.get("ready")),
        log_id=str(health.get("log_id", "")),
        head=int(health.get("head", after.total("tidelog_tail_position"))),
        tail_lag=int(after.total("tidelog_tail_lag_entries")),
        entries=pair.flow("tidelog_entries_committed_total"),
        commits=pair.flow("tidelog_commit_seconds_count"),
        requests_per_commit=round(requests / batches, 2) if batches else None,
        commit=pair.latency("tidelog_commit_seconds"),
        decide=pair.latency("tidelog_decide_seconds"),
        queue_depth=int(after.total("tidelog_commit_queue_depth")),
        connections={
            surface: int(count)
            for surface, count in after.by("tidelog_connections", "surface").items()
        },
        refusals=pair.flows("tidelog_refusals_total", "reason"),
        slow_consumers=pair.flow("tidelog_slow_consumers_total"),
        http=pair.flows("tidelog_http_requests_total", "status"),
        received_bytes=pair.flow("tidelog_received_bytes_total"),
        sent_bytes=pair.flow("tidelog_sent_bytes_total"),
        mesh_deliveries=pair.flows("tidelog_broker_deliveries_total", "step"),
        mesh_orphans=int(after.total("tidelog_broker_dedupe_orphan_found")),
        plugin=pair.latency("tidelog_sync_plugin_seconds"),
        resident_bytes=int(after.total("process_resident_memory_bytes")) if has_process else None,
        cpu_percent=round(sum(map(pair.cpu_percent, names)), 1) if has_process else None,
        open_files=int(after.total("process_open_fds")) if has_process else None,
        processes={
            name: Process(
                int(after.total("process_resident_memory_bytes", process=name)),
                pair.cpu_percent(name),
                int(after.total("process_open_fds", process=name)),
            )
            for name in names
            if name
        },
        uptime_seconds=round(at - began, 1) if has_process else None,
    )


def _began(scrape: Scrape) -> float:
    """When the server's counters began: with the process, or with the owner if there are more."""
    by_name = scrape.by("process_start_time_seconds", "process")
    return by_name.get("owner", by_name.get("", 0.0))


class _Pair:
    """Two looks at one server."""

    def __init__(self, before: Scrape, after: Scrape) -> None:
        self._before = before
        self._after = after
        self._seconds = after.at - before.at

    def increase(self, name: str, **labels: str) -> float:
        """How much a counter grew; one that is smaller than before was restarted."""
        after = self._after.total(name, **labels)
        before = self._before.total(name, **labels)
        return after - before if after >= before else after

    def per_second(self, name: str, **labels: str) -> float:
        if self._seconds <= 0:
            return 0.0
        return round(self.increase(name, **labels) / self._seconds, 3)

    def cpu_percent(self, process: str) -> float:
        """Of one core, by one of several processes, or by the only one, which has no name."""
        labels = {"process": process} if process else {}
        return round(self.per_second("process_cpu_seconds_total", **labels) * 100, 1)

    def flow(self, name: str, **labels: str) -> Flow:
        return Flow(self._after.total(name, **labels), self.per_second(name, **labels))

    def flows(self, name: str, label: str) -> dict[str, Flow]:
        return {value: self.flow(name, **{label: value}) for value in self._after.by(name, label)}

    def latency(self, name: str) -> Latency:
        before, after = self._before.buckets(name), self._after.buckets(name)
        grown = {end: count - before.get(end, 0.0) for end, count in after.items()}
        if any(count < 0 for count in grown.values()):
            grown = after
        return Latency(_quantile_ms(grown, 0.5), _quantile_ms(grown, 0.99))


def _quantile_ms(counts: dict[float, float], share: float) -> float | None:
    seconds = quantile(tuple(counts), tuple(counts.values()), share)
    return None if seconds is None else round(seconds * 1000, 3)
