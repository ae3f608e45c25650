"""The page: everything in one file, nothing from elsewhere, right in light and in dark."""

import os
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from tidelog.base.terminal import counted
from tidelog.pipeline.report import plots
from tidelog.pipeline.report.figures import (
    Bars,
    CheckFacts,
    Figures,
    TableFacts,
    gather,
    shown_bytes,
)

if TYPE_CHECKING:
    from tidelog.pipeline.lake.lake import Lake
    from tidelog.pipeline.source.store_address import StoreAddress

_LONGEST_NAME = 80
_OTHER = 6
"""Slot in the palette of what has no colour of its own."""
_PERCENTILES = (7, 8, 9)
"""Places of the palette from faint to strong."""
_ACTION_SERIES = {"create": 1, "append": 2, "update": 3, "delete": 4}
_STATE_SERIES = {"visible": 1, "deleted": 4, "purged": 5}


def write_report(
    lake: "Lake",
    store: "StoreAddress",
    path: Path,
    told: Callable[[str], None] = lambda _step: None,
) -> int:
    """Write the page about a lake; returns its size in bytes.

    Args:
        lake: what it is about.
        store: asked where the log ends; the page says so if it does not answer.
        path: the file; replaced as a whole.
        told: called with what is being read; see `figures.STEPS`.

    Raises:
        LakeError: nothing was ingested yet.
    """
    page = render(gather(lake, store, told), lake.name).encode()
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh.write_bytes(page)
    fresh.replace(path)
    return len(page)


def render(figures: Figures, lake: str) -> str:
    """The page as text. Every text that comes from the log is escaped."""
    template = Template((files(__package__) / "page.html").read_text(encoding="utf-8"))
    return template.substitute(
        lake=_name(lake),
        made_at=_time(figures.made_at),
        freshness=_freshness(figures),
        tiles="".join(_tiles(figures)),
        checks=_checks(figures.checks),
        activity=_activity(figures),
        streams=_streams(figures),
        latency=_latency(figures),
        changes=_changes(figures),
        tables=_tables(figures),
    )


def _text(text: str) -> str:
    """Text of strangers: escaped, and without what a terminal or an editor would obey."""
    plain = (each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)
    return escape("".join(plain))


def _name(text: str) -> str:
    """A name of strangers, not endless."""
    return _text(text if len(text) <= _LONGEST_NAME else text[: _LONGEST_NAME - 1] + "…")


def _time(moment: datetime | None) -> str:
    if moment is None:
        return "never"
    return f'<time datetime="{moment.isoformat()}">{moment:%Y-%m-%d %H:%M:%S} UTC</time>'


def _freshness(figures: Figures) -> str:
    last = f"Complete to entry {figures.through:,}, committed {_time(figures.last_at)}."
    if figures.head is None:
        return f"{last} The store could not be read, so it is unknown how many entries came later."
    behind = figures.head - figures.through
    if behind == 0:
        return f"{last} That is the end of the log."
    return f"{last} The log ends at {figures.head:,}, {behind:,} entries later."


def _tiles(figures: Figures) -> Iterable[str]:
    visible = next(bar.number for bar in figures.states if bar.name == "visible")
    bad = sum(1 for check in figures.checks if check.findings)
    verdict = "none run" if not figures.checks else ("all sound" if not bad else f"{bad} failed")
    size = sum(table.size for table in figures.tables)
    yield _tile("Entries", f"{figures.through:,}")
    yield _tile("Streams", f"{figures.stream_count:,}")
    yield _tile("Visible messages", f"{visible:,}")
    yield _tile("Searchable", "no index" if figures.documents is None else f"{figures.documents:,}")
    yield _tile("Size of the tables", shown_bytes(size))
    yield _tile("Checks", verdict, "bad" if bad else "good" if figures.checks else "")


def _tile(name: str, value: str, kind: str = "") -> str:
    return f'<div class="tile {kind}"><dt>{name}</dt><dd>{value}</dd></div>'


def _legend(names: Sequence[str], series: Sequence[int]) -> str:
    items = (
        f'<li><i style="background:var(--series-{slot})"></i>{_name(name)}</li>'
        for name, slot in zip(names, series, strict=True)
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


def _nothing(what: str) -> str:
    return f'<p class="nothing">{what}</p>'


def _activity(figures: Figures) -> str:
    frame = figures.activity
    if frame.empty:
        return _nothing("The table <code>activity</code> has not been built or is empty.")
    series = [min(slot, _OTHER) for slot, _ in enumerate(frame.columns, 1)]
    label = f"Entries over time: {', '.join(f'{n} {frame[n].sum():,}' for n in frame.columns)}"
    return _legend(list(frame.columns), series) + plots.stacked(frame, label, series)


def _streams(figures: Figures) -> str:
    if not figures.streams:
        return _nothing("No streams yet.")
    rest = figures.stream_count - len(figures.streams)
    more = f'<p class="note">and {rest:,} more</p>' if rest else ""
    return _bars(figures.streams, [1] * len(figures.streams), "long") + more


def _latency(figures: Figures) -> str:
    frame = figures.latency
    if frame.empty:
        return _nothing("No delivery of a mesh has been acknowledged.")
    series = list(_PERCENTILES)
    label = f"Milliseconds from commit to acknowledgement, {figures.deliveries:,} deliveries"
    note = "A point is the mean of its minutes, weighted by their deliveries."
    return (
        _legend(list(frame.columns), series)
        + plots.lines(frame, label, series)
        + f'<p class="note">{note}</p>'
    )


def _changes(figures: Figures) -> str:
    if figures.changes.empty:
        return _nothing("No messages of channels yet.")
    names = [bar.name for bar in figures.actions]
    series = [_ACTION_SERIES.get(name, _OTHER) for name in names]
    label = "Versions of messages over time: " + ", ".join(
        f"{bar.name} {bar.number:,}" for bar in figures.actions
    )
    states = [_STATE_SERIES[bar.name] for bar in figures.states]
    return (
        _legend(names, series)
        + plots.stacked(figures.changes, label, series)
        + '<div class="pair"><div><h3>What was done</h3>'
        + _bars(figures.actions, series)
        + "</div><div><h3>What messages are now</h3>"
        + _bars(figures.states, states)
        + "</div></div>"
    )


def _bars(bars: Sequence[Bars], series: Sequence[int], kind: str = "") -> str:
    most = max((bar.number for bar in bars), default=0) or 1
    rows = (
        f'<tr><th scope="row">{_name(bar.name)}</th><td class="bar">'
        f'<i style="width:{100 * bar.number / most:.2f}%;background:var(--series-{slot})"></i>'
        f'</td><td class="number">{bar.number:,}</td>'
        + (f'<td class="number quiet">{bar.note}</td>' if bar.note else "")
        + "</tr>"
        for bar, slot in zip(bars, series, strict=True)
    )
    return f'<table class="bars {kind}">{"".join(rows)}</table>'


def _tables(figures: Figures) -> str:
    newest = figures.head if figures.head is not None else figures.through
    rows = "".join(_table(table, newest) for table in figures.tables)
    heads = ("Table", "Layer", "Rows", "Files", "Size", "Complete to", "Behind", "Written")
    cells = "".join(
        f'<th scope="col"{"" if n in (0, 1, 7) else " class=number"}>{head}</th>'
        for n, head in enumerate(heads)
    )
    return (
        f'<div class="scroll"><table class="grid"><thead><tr>{cells}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _table(table: TableFacts, newest: int) -> str:
    numbers = (
        f"{table.rows:,}",
        f"{table.files:,}",
        shown_bytes(table.size),
        f"{table.through:,}",
        f"{max(0, newest - table.through):,}",
    )
    cells = "".join(f'<td class="number">{number}</td>' for number in numbers)
    return (
        f'<tr><th scope="row" title="{escape(table.meaning)}">{table.name}</th>'
        f"<td>{table.layer}</td>{cells}<td>{_time(table.written_at)}</td></tr>"
    )


def _checks(checks: Sequence[CheckFacts]) -> str:
    if not checks:
        return _nothing("No check has been run: <code>tidelog pipeline check</code>.")
    return f'<ul class="checks">{"".join(map(_check, checks))}</ul>'


def _check(check: CheckFacts) -> str:
    is_sound = check.findings == 0
    verdict = "sound" if is_sound else counted(check.findings, "finding")
    first = "".join(f"<li>{_text(text)}</li>" for text in check.first)
    more = f"<ol>{first}</ol>" if first else ""
    return (
        f'<li class="{"good" if is_sound else "bad"}"><b>{_name(check.name)}</b> '
        f'<span class="verdict">{"✓" if is_sound else "✗"} {verdict}</span> '
        f'<span class="quiet">{check.examined:,} rows up to {check.through:,}, '
        f"{_time(check.ran_at)}</span>{more}</li>"
    )
