"""`tidelog top`: what a running server is doing, in the terminal."""

import json
import sys
import time
import urllib.error
import urllib.request
from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.base.errors import TidelogError
from tidelog.base.net import direct
from tidelog.cli.shared.given_settings import settings_from
from tidelog.cli.shared.options import ConfigOption
from tidelog.cli.shared.running_server import server_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidelog.monitoring.sample import Sample
    from tidelog.monitoring.scrape import Scrape

_TIMEOUT_S = 5.0
"""A server that does not answer within this is shown as down."""


def top(
    *,
    url: Annotated[
        str | None, typer.Option(help="URL of the server; default from the settings.")
    ] = None,
    config: ConfigOption = None,
    interval: Annotated[
        float, typer.Option(min=0.1, max=3600, help="Seconds between two samples.")
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Show one interval and exit.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one line of JSON for each interval.")
    ] = False,
) -> None:
    """Watch a running server: commits, latency, queue, connections, refusals, mesh deliveries.

    Reads /metrics and /healthz, which need no token; rates and quantiles are those of the interval.
    Ends with Ctrl-C. A server that goes away is shown as down until it is back.

    Example: tidelog top --url http://127.0.0.1:8080 --once
    """
    samples = _samples(_Watched(server_url(settings_from(config), url)), interval)
    try:
        if once:
            _show(next(samples), as_json=as_json)
        elif as_json:
            for sample in samples:
                _show(sample, as_json=True)
        else:
            _watch(samples)
    except KeyboardInterrupt:
        raise typer.Exit from None


class _Watched:
    """A server, from outside."""

    def __init__(self, url: str) -> None:
        self.url = url

    def scrape(self) -> "Scrape":
        """What its metrics are now."""
        from tidelog.monitoring.scrape import NotMetrics, Scrape

        text = self._get("/metrics").decode("utf-8", "replace")
        try:
            return Scrape.parse(text, time.monotonic())
        except NotMetrics as error:
            raise TidelogError(
                f"{self.url}/metrics is not a tidelog server's: {error}. Name the server's "
                "address with --url, without a path."
            ) from None

    def health(self) -> dict[str, Any]:
        """What it says of itself; also when it says that it is not ready."""
        try:
            health = json.loads(self._get("/healthz", refusal_counts=True))
        except ValueError:
            raise TidelogError(
                f"{self.url}/healthz is not a tidelog server's. Name the server's address with "
                "--url, without a path."
            ) from None
        return health if isinstance(health, dict) else {}

    def _get(self, path: str, *, refusal_counts: bool = False) -> bytes:
        try:
            request = urllib.request.Request(self.url + path)  # noqa: S310 - the operator names it
            with direct.opened(request, _TIMEOUT_S) as answer:
                body: bytes = answer.read()
                return body
        except urllib.error.HTTPError as error:
            with error:
                body = error.read()
            if refusal_counts:
                return body
            raise TidelogError(
                f"{self.url}{path} returned {error.code}. Name the address of a tidelog server "
                "with --url, without a path."
            ) from error
        except (OSError, ValueError) as error:
            raise TidelogError(
                f"{self.url} does not answer ({error}). Is the server running? Start it with "
                "`tidelog serve`, or name another with --url."
            ) from error


def _samples(watched: _Watched, interval: float) -> "Iterator[Sample]":
    """A sample after each interval, without end.

    Raises:
        TidelogError: the server is not there at the first look.
    """
    from tidelog.monitoring.sample import Sample, measured

    before = watched.scrape()
    due = time.monotonic()
    while True:
        due += interval
        time.sleep(max(0.0, due - time.monotonic()))
        now = datetime.now(UTC)
        iso = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        try:
            after, health = watched.scrape(), watched.health()
        except TidelogError as error:
            yield Sample(at=iso, url=watched.url, up=False, error=str(error))
            due = time.monotonic()
            continue
        yield measured(before, after, health, at=now.timestamp(), iso=iso, url=watched.url)
        before = after


def _show(sample: "Sample", *, as_json: bool) -> None:
    if as_json:
        import msgspec

        sys.stdout.write(msgspec.json.encode(sample).decode() + "\n")
        sys.stdout.flush()
        return
    from rich.console import Console

    from tidelog.cli.monitoring.top_view import view

    Console(file=sys.stdout).print(view([sample]))


def _watch(samples: "Iterator[Sample]") -> None:
    from rich.live import Live
    from rich.text import Text

    from tidelog.cli.monitoring.top_view import SHOWN_SAMPLES, view

    kept: deque[Sample] = deque(maxlen=SHOWN_SAMPLES)
    with Live(Text("looking ..."), screen=True, auto_refresh=False) as live:
        for sample in samples:
            kept.append(sample)
            live.update(view(list(kept)), refresh=True)
