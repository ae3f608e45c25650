"""How `tidelog top` shows what it found, and what it says when there is nothing to find."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from rich.console import Console

from support.cli.inside import invoked
from tidelog.base.errors import TidelogError
from tidelog.cli.monitoring.top_view import course, view
from tidelog.monitoring.sample import Flow, Latency, Sample

FULL = Sample(
    at="2026-01-01T00:00:00Z",
    url="http://here",
    seconds=2,
    ready=True,
    head=12345,
    tail_lag=3,
    entries=Flow(12345, 310.5),
    commits=Flow(900, 41),
    requests_per_commit=7.5,
    commit=Latency(1.25, 4.5),
    decide=Latency(None, None),
    connections={"channels": 12, "sync": 3},
    refusals={"path": Flow(5, 0.5)},
    mesh_deliveries={"pushed": Flow(70, 2)},
    resident_bytes=92_000_000,
    cpu_percent=12.4,
    uptime_seconds=3723,
)


def text_of(*samples: Sample, width: int = 80) -> str:
    """What is seen on a terminal of this width."""
    console = Console(width=width, record=True, file=None, force_terminal=False)
    with console.capture() as capture:
        console.print(view(samples))
    return capture.get()


def test_everything_is_seen_in_eighty_columns() -> None:
    """Rates, latency, lag, connections, refusals, deliveries and the process, without a cut."""
    shown = text_of(FULL, FULL)
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert max(map(len, shown.splitlines())) <= 80
    assert "…" not in shown
    for wanted in ("ready", "up 1 h 2 min", "12,345", "310.5", "1.25 / 4.50 ms", "92.0 MB"):
        assert wanted in shown, wanted
    for wanted in ("tail lag 3", "pushed 70 2.0 path 5 0.5 none"):
        assert any(line.startswith(wanted) for line in lines), wanted
    assert any("channels 12" in line for line in lines)


def test_a_server_that_is_down_is_said_to_be() -> None:
    """Instead of old numbers there is the reason."""
    shown = text_of(FULL, Sample(at="", url="http://here", up=False, error="it is gone"))
    assert "DOWN" in shown
    assert "no answer: it is gone" in shown
    assert "12,345" not in shown


@pytest.mark.parametrize(
    ("values", "bars"),
    [([], ""), ([0, 0], "  "), ([1, 4, 8], "▁▄█"), ([0, 0.01, 8], " ▁█")],
)
def test_a_course_shows_values_against_the_highest(values: list[float], bars: str) -> None:
    """Nothing is blank, anything is at least a low bar."""
    assert course(values) == bars


class _Other(BaseHTTPRequestHandler):
    """A program that is not tidelog."""

    def do_GET(self) -> None:
        """404 for the one, a page for the other."""
        self.send_response(404 if self.path.startswith("/missing") else 200)
        self.end_headers()
        self.wfile.write(b"<html>")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Silent."""


@pytest.fixture
def other() -> Iterator[str]:
    """The address of a program that is not tidelog."""
    server = HTTPServer(("127.0.0.1", 0), _Other)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join(10)
    server.server_close()


def test_wrong_addresses_are_told_apart(other: str) -> None:
    """Nobody there, another program, another path: each says what to do."""
    for url, why in (
        ("http://127.0.0.1:1", "does not answer .*tidelog serve"),
        ("nonsense", "--url nonsense is not the address of a server"),
        (other, "not a tidelog server's.* --url"),
        (f"{other}/missing", "returned 404.* --url"),
    ):
        with pytest.raises(TidelogError, match=f"(?s){why}"):
            invoked(["top", "--url", url, "--once"], catch_exceptions=False)
