"""The page of `tidelog pipeline report`: whatever the log holds, and nothing from elsewhere."""

import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tidelog.pipeline.frames import frame_of_rows
from tidelog.pipeline.lake.lake import Lake, LakeError
from tidelog.pipeline.report import write_report
from tidelog.pipeline.report.figures import BUCKETS, bucket_width, shown_bytes
from tidelog.pipeline.source.store_address import StoreAddress
from tidelog.pipeline.tables import BY_NAME

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


def test_no_text_of_the_log_becomes_part_of_the_page(spark: "SparkSession", tmp_path: Path) -> None:
    """Names of streams and words of findings are shown as they are, and nothing is loaded."""
    lake, path = Lake(tmp_path / "lake"), tmp_path / "out" / "page.html"
    put(spark, lake, "log", [entry(HOSTILE)])
    minutes = [(HOSTILE, "channels", BEGIN + timedelta(minutes=n), 5, 50, 1) for n in range(3)]
    put(spark, lake, "activity", [*minutes, ("sync", "odd<i>", BEGIN, 1, 1, 1)])
    put(spark, lake, "verdict", [("digest", BEGIN, 1, 9, 1, [f"content: {HOSTILE}: <b>bad"])])
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
    put(spark, lake, "activity", [("sync", "sync", BEGIN, 5, 50, 1)])
    late = BEGIN + timedelta(seconds=2)
    row = ("m1", "p", "push", "", "mesh", 1, "delivered", 1, None, BEGIN, late)
    put(spark, lake, "delivery", [row, ("m2", *row[1:-1], None)])
    write_report(lake, NOWHERE, path)
    text = path.read_text(encoding="utf-8")
    plots = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(plots) == 4
    for plot in plots:
        assert "var(--" in plot
        assert not re.findall(r"(?:fill|stroke): ?#", plot)
    assert "acknowledgement, 1 deliveries" in text


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
