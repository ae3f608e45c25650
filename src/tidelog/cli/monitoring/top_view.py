"""How `tidelog top` shows its samples on a terminal."""

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tidelog.base.terminal import printable
from tidelog.monitoring.sample import Flow, Latency, Sample

_BARS = " ▁▂▃▄▅▆▇█"
SHOWN_SAMPLES = 40
"""Width of a course: what fits beside its name and its newest value in 80 columns."""


def view(samples: Sequence[Sample]) -> RenderableType:
    """The newest sample, and how the rates went over all of them."""
    newest = samples[-1]
    if not newest.up:
        error = Text(f"\nno answer: {printable(newest.error)}", style="bold red")
        return Group(_headline(newest), error)
    panes = Table.grid(padding=(0, 3))
    panes.add_row(_log(newest), _connections(newest), _process(newest))
    flows = Table.grid(padding=(0, 3))
    flows.add_row(
        _flows("mesh deliveries", newest.mesh_deliveries),
        _flows("refusals", newest.refusals),
        _flows("http status", newest.http),
    )
    courses = (_courses(samples), Text()) if len(samples) > 1 else ()
    processes = (_processes(newest), Text()) if newest.processes else ()
    return Group(_headline(newest), Text(), panes, Text(), *courses, *processes, flows)


def _headline(sample: Sample) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append("tidelog ", "bold")
    line.append(f"{sample.url}  ")
    if not sample.up:
        line.append("DOWN", "bold red")
    elif sample.ready:
        line.append("ready", "green")
    else:
        line.append("NOT READY", "bold red")
    if sample.uptime_seconds is not None:
        line.append(f"  up {_age(sample.uptime_seconds)}")
    if sample.restarted:
        line.append("  RESTARTED", "bold yellow")
    line.append(f"  {sample.at}", "dim")
    return line


def _log(sample: Sample) -> Table:
    table = _pane("log")
    table.add_row("head", _whole(sample.head))
    table.add_row("entries/s", _rate(sample.entries))
    table.add_row("commits/s", _rate(sample.commits))
    per_commit = sample.requests_per_commit
    table.add_row("requests/commit", "-" if per_commit is None else f"{per_commit:.1f}")
    table.add_row("commit p50 / p99", _latency(sample.commit))
    table.add_row("decide p50 / p99", _latency(sample.decide))
    table.add_row("plug-in p50 / p99", _latency(sample.plugin))
    table.add_row("queue", _whole(sample.queue_depth, alarming=sample.queue_depth > 0))
    table.add_row("tail lag", _whole(sample.tail_lag, alarming=sample.tail_lag > 0))
    return table


def _connections(sample: Sample) -> Table:
    table = _pane("connections")
    for surface, count in sample.connections.items():
        table.add_row(Text(printable(surface or "other")), _whole(count))
    table.add_row("all", _whole(sum(sample.connections.values())))
    slow = sample.slow_consumers
    table.add_row("dropped as slow", _whole(int(slow.total) if slow else 0))
    return table


def _process(sample: Sample) -> Table:
    table = _pane("all processes" if sample.processes else "process")
    table.add_row("memory", "-" if sample.resident_bytes is None else _size(sample.resident_bytes))
    table.add_row("cpu", "-" if sample.cpu_percent is None else f"{sample.cpu_percent:.0f} %")
    table.add_row("open files", "-" if sample.open_files is None else _whole(sample.open_files))
    for name, flow in (("received/s", sample.received_bytes), ("sent/s", sample.sent_bytes)):
        table.add_row(name, "-" if flow is None else _size(flow.per_second))
    if sample.mesh_orphans:
        table.add_row("mesh orphans", _whole(sample.mesh_orphans, alarming=True))
    return table


def _processes(sample: Sample) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    for _ in range(3):
        table.add_column(justify="right", no_wrap=True)
    heads = (Text(head, "dim") for head in ("memory", "cpu", "open files"))
    table.add_row(Text("processes", "bold"), *heads)
    for name, each in sample.processes.items():
        figures = (_size(each.resident_bytes), f"{each.cpu_percent:.0f} %", _whole(each.open_files))
        table.add_row(Text(printable(name)), *figures)
    return table


def _courses(samples: Sequence[Sample]) -> Table:
    table = Table.grid(padding=(0, 2))
    commits = [each.commits.per_second if each.commits else 0.0 for each in samples]
    p99 = [(each.commit.p99_ms or 0.0) if each.commit else 0.0 for each in samples]
    queue = [float(each.queue_depth) for each in samples]
    for name, values in (("commits/s", commits), ("commit p99 ms", p99), ("queue", queue)):
        shown = values[-SHOWN_SAMPLES:]
        table.add_row(name, Text(course(shown), style="cyan"), f"highest {max(shown):,.1f}")
    return table


def course(values: Sequence[float]) -> str:
    """One bar for each value, against the highest of them."""
    highest = max(values, default=0.0)
    if highest <= 0:
        return _BARS[0] * len(values)
    last = len(_BARS) - 1
    return "".join(_BARS[0 if v <= 0 else max(1, round(v / highest * last))] for v in values)


def _flows(title: str, flows: Mapping[str, Flow]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_row(Text(title, "bold"), Text("all", "dim"), Text("/s", "dim"))
    for name, flow in flows.items():
        table.add_row(Text(printable(name)), f"{flow.total:,.0f}", f"{flow.per_second:,.1f}")
    if not flows:
        table.add_row(Text("none", "dim"), "", "")
    return table


def _pane(title: str) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_row(Text(title, "bold"), "")
    return table


def _rate(flow: Flow | None) -> str:
    return "-" if flow is None else f"{flow.per_second:,.1f}"


def _latency(latency: Latency | None) -> str:
    if latency is None or latency.p50_ms is None or latency.p99_ms is None:
        return "-"
    return f"{latency.p50_ms:.2f} / {latency.p99_ms:.2f} ms"


def _whole(number: int, *, alarming: bool = False) -> Text:
    return Text(f"{number:,}", style="bold yellow" if alarming else "")


def _size(number: float) -> str:
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} GB"


def _age(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
