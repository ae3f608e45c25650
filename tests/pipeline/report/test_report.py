"""The page of `tidelog pipeline report`: whatever the log holds, and nothing from elsewhere."""

import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.pipeline.table_rows import message_row, table_rows
from tidelog.pipeline.frames import frame_of_rows
from tidelog.pipeline.lake.errors import LakeError
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.report import write_report
from tidelog.pipeline.report.figures import BUCKETS, STEPS, bucket_width, gather, shown_bytes
from tidelog.pipeline.report.message_states import message_states
from tidelog.pipeline.source.store_address import StoreAddress
from tidelog.pipeline.tables import ACTION_COUNTS, BY_NAME

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOSTILE = (
    "channels/a/</td><script>alert(1)</script><img src=x onerror=alert(2)>$\\frac{1}{0}$\0\x1b[2J"
)
BEGIN = datetime(2026, 5, 1, 12, tzinfo=UTC)
NOWHERE = StoreAddress("/nowhere/tidelog.db")


class Page(HTMLParser):
    """What a browser would make of a page: its elements, what they would load, its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.handlers: list[str] = []
        self.loads: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        self.elements.add(tag)
        for name, value in attrs:
            if name.startswith("on"):
                self.handlers.append(name)
            is_inside = (value or "").startswith("#")
            if name in ("src", "href", "xlink:href", "data", "srcset") and not is_inside:
                self.loads.append(value or "")

    def handle_data(self, data: str) -> None:
        """Note a text."""
        self.text += data


def put(spark: "SparkSession", lake: Lake, name: str, rows: list[tuple[Any, ...]]) -> None:
    """Write a table of a lake."""
    lake.overwrite(name, frame_of_rows(spark, rows, BY_NAME[name].ddl), 1)


def entry(stream: str) -> tuple[Any, ...]:
    """The first row of a log."""
    at = int(BEGIN.timestamp() * 1000)
    return (1, stream, 1, "channels", "event", "e", "", "a", at, b"{}", None, b"\0", b"\0")


def minute(
    stream: str, surface: str, begin: datetime, writes: int = 5, size: int = 50, **actions: int
) -> tuple[Any, ...]:
    """A row of `activity` with the writes of one actor; `actions` are columns that are not 0."""
    counts = (actions.get(name, 0) for name in ACTION_COUNTS)
    return (stream, surface, begin, writes, size, 1, *counts)


def test_no_text_of_the_log_becomes_part_of_the_page(spark: "SparkSession", tmp_path: Path) -> None:
    """Names of streams and words of findings are shown as they are, and nothing is loaded."""
    lake, path = Lake(tmp_path / "lake"), tmp_path / "out" / "page.html"
    put(spark, lake, "log", [entry(HOSTILE)])
    minutes = [
        minute(HOSTILE, "channels", BEGIN + timedelta(minutes=n), creates=2) for n in range(3)
    ]
    put(spark, lake, "activity", [*minutes, minute("sync", "odd<i>", BEGIN)])
    said = ("digest", BEGIN, 1, 9, 1, [f"content: {HOSTILE}: <b>bad"])
    put(spark, lake, "verdict", [(*said, ["1 to 1"], [], 0, 0, 0, "", "", "")])
    assert write_report(lake, NOWHERE, path) == path.stat().st_size
    page = Page(path.read_text(encoding="utf-8"))
    assert page.elements.isdisjoint({"script", "img", "link", "iframe", "object"})
    assert page.handlers == []
    assert page.loads == []
    assert "</td><script>alert(1)</script><img src=x" in page.text
    assert "\x1b" not in page.text
    assert "odd<i>" in page.text
    assert "1 finding" in page.text
    assert "The store could not be read" in page.text


def test_colours_are_the_pages(spark: "SparkSession", tmp_path: Path) -> None:
    """Plots have no colour of their own, so that they are right in light and in dark."""
    lake, path = Lake(tmp_path / "lake"), tmp_path / "page.html"
    put(spark, lake, "log", [entry("channels/a/b")])
    put(spark, lake, "activity", [minute("sync", "sync", BEGIN)])
    put(spark, lake, "latency", [("mesh", "push", BEGIN, 1, 2000.0, 2000.0, 2000.0, 2000.0)])
    write_report(lake, NOWHERE, path)
    text = path.read_text(encoding="utf-8")
    plots = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(plots) == 4
    for plot in plots:
        assert "var(--" in plot
        assert not re.findall(r"(?:fill|stroke): ?#", plot)
    assert "acknowledgement, 1 deliveries" in text


def test_the_page_is_made_of_aggregates(spark: "SparkSession", tmp_path: Path) -> None:
    """Sums over streams and minutes, and messages by state, each file of which is read once."""
    lake, later = Lake(tmp_path / "lake"), BEGIN + timedelta(days=1)
    put(spark, lake, "log", [entry("channels/a/b")])
    rows = [
        minute("channels/a/b", "channels", BEGIN, 10, 100, creates=4, appends=3, updates=2),
        minute("channels/a/c", "channels", BEGIN, 1, 9, deletes=1),
        minute("channels/a/b", "channels", later, 7, 1000, creates=7),
        minute("sync", "sync", later, 6, 60),
    ]
    put(spark, lake, "activity", rows)
    took = ((3, 10.0, 20.0, 30.0, 30.0), (1, 50.0, 60.0, 70.0, 70.0))
    put(
        spark,
        lake,
        "latency",
        [("mesh", channel, BEGIN, *each) for channel, each in zip("ab", took, strict=True)],
    )
    states = ["visible", "visible", "deleted"]
    messages = [message_row(f"m{n}", "1", n, state=state) for n, state in enumerate(states, 1)]
    lake.append("message", table_rows(spark, "message", *messages).coalesce(1), 3)
    steps: list[str] = []
    figures = gather(lake, NOWHERE, steps.append)
    assert tuple(steps) == STEPS
    assert {bar.name: bar.number for bar in figures.actions if bar.number} == {
        "create": 11,
        "append": 3,
        "update": 2,
        "delete": 1,
        "event": 1,
    }
    assert figures.activity.sum().to_dict() == {"channels": 18, "sync": 6, "mesh": 0}
    assert len(figures.activity) == len(figures.changes) == 97, "a quarter of an hour each"
    assert figures.changes.sum(axis=1).iloc[[0, -1]].to_list() == [11, 7]
    assert [bar[:2] for bar in figures.streams] == [
        ("channels/a/b", 17),
        ("sync", 6),
        ("channels/a/c", 1),
    ]
    assert (figures.stream_count, figures.deliveries) == (3, 4)
    assert figures.latency.to_dict("records") == [{"p50": 20.0, "p95": 30.0, "p99": 40.0}]
    assert [bar.number for bar in figures.states] == [2, 1, 0]

    [old] = lake.files("message")
    gone = message_row("m4", "1", 4, state="purged")
    lake.append("message", table_rows(spark, "message", gone), 4)
    Path(old).write_bytes(b"nobody reads this")
    assert message_states(lake) == {"visible": 2, "deleted": 1, "purged": 1}


def test_without_a_log_there_is_no_page(tmp_path: Path) -> None:
    """Nothing was ingested: the report says what to do and leaves no file."""
    with pytest.raises(LakeError, match="tidelog pipeline run"):
        write_report(Lake(tmp_path / "lake"), NOWHERE, tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("span", "width"),
    [
        (timedelta(0), "1min"),
        (timedelta(hours=1), "1min"),
        (timedelta(hours=3), "5min"),
        (timedelta(days=4), "1h"),
        (timedelta(days=100), "1D"),
        (timedelta(days=40_000), "365D"),
    ],
)
def test_a_plot_has_a_bounded_number_of_points(span: timedelta, width: str) -> None:
    """The longer the log, the longer a bucket."""
    import pandas as pd

    assert bucket_width(BEGIN, BEGIN + span) == width
    assert span / pd.Timedelta(width) < BUCKETS


def test_sizes_are_told_as_people_write_them() -> None:
    """With a unit that leaves few digits."""
    sizes = [0, 1023, 1024, 5 * 1024**2, 2**40, 2**60]
    assert [shown_bytes(size) for size in sizes] == [
        "0 bytes",
        "1023 bytes",
        "1.0 KiB",
        "5.0 MiB",
        "1.0 TiB",
        "1048576.0 TiB",
    ]
