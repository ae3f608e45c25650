"""`tidelog demo`: a guided tour through everything, on a directory of its own."""

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.base.errors import TidelogError
from tidelog.base.terminal import printable
from tidelog.cli.pipeline.workspace import require_libraries
from tidelog.cli.shared.options import JsonOption

if TYPE_CHECKING:
    from rich.live import Live
    from rich.status import Status

    from tidelog.demo.narration import Claim
    from tidelog.demo.stage import Stage
    from tidelog.demo.tour import Summary


def demo(
    *,
    exit_: Annotated[
        bool, typer.Option("--exit", help="Stop the server when everything has been shown.")
    ] = False,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir", help="Empty directory for everything; default: a new temporary one."
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port; a free one is chosen if it is taken.")
    ] = 8080,
    pipeline: Annotated[
        bool,
        typer.Option("--pipeline/--no-pipeline", help="Whether Spark reads it all at the end."),
    ] = True,
    seed: Annotated[
        int, typer.Option(help="Seed for the words and for when the broker is killed.")
    ] = 7,
    as_json: JsonOption = False,
) -> None:
    """Show everything once: channels, sync, mesh and the Spark pipeline, on a real server.

    Takes about a minute, and a quarter of that without the pipeline, which is also all that needs
    more than the core. Ends with a summary of what was counted and proved, and leaves the server,
    its dashboard, two daemons and a little traffic until Ctrl-C, unless --exit is given. Exit code
    1 if a promise did not hold.

    Example: tidelog demo --no-pipeline --exit --data-dir ./demo
    """
    if pipeline:
        _require_pipeline()
    from tidelog.demo.stage import Stage

    for name in [name for name in os.environ if name.startswith("TIDELOG_")]:
        # What the shell sets for another server is not meant for this one.
        if not name.startswith("TIDELOG_TEST_"):
            del os.environ[name]

    home = data_dir or Path(tempfile.mkdtemp(prefix="tidelog-demo-"))
    narrator = _Quiet() if as_json else _Screen()
    with Stage(home, port) as stage:
        from tidelog.demo.tour import run

        with narrator:
            narrator.say(f"a server runs at {stage.url}; everything it writes is in {stage.home}")
            narrator.say(f"watch it in a browser while it works: {stage.dashboard}")
            summary = asyncio.run(run(stage, narrator, seed, with_pipeline=pipeline))
        if as_json:
            typer.echo(json.dumps(_plain(summary)))
        else:
            _show(summary)
        if not exit_:
            asyncio.run(_stay(stage))
        stage.server.terminate()
    if not summary.holds:
        raise typer.Exit(1)


def _require_pipeline() -> None:
    try:
        require_libraries()
    except TidelogError as error:
        raise TidelogError(f"{error}, or leave it out: tidelog demo --no-pipeline") from None


async def _stay(stage: "Stage") -> None:
    """Keep a little traffic going until the user has seen enough."""
    from tidelog.demo.acts.mesh import AGENT, WORKER
    from tidelog.demo.traffic import flow

    def say(text: str) -> None:
        typer.echo(text, err=True)

    program = Path(sys.executable).with_name("tidelog")
    say(f"The server runs on at {stage.url}, with a little traffic to look at:")
    say(f"  dashboard  {stage.dashboard}")
    say(f"  outbox     {program} mesh outbox list --data-dir {stage.home / AGENT}")
    say(f"  inbox      {program} daemon inbox --data-dir {stage.home / WORKER}")
    say("Press Ctrl-C to stop everything.")
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    traffic = asyncio.create_task(flow(stage, say))
    stop = asyncio.create_task(stopped.wait())
    await asyncio.wait({traffic, stop}, return_when=asyncio.FIRST_COMPLETED)
    if traffic.done():
        traffic.result()
    await stop
    traffic.cancel()
    await asyncio.wait({traffic})


def _plain(summary: "Summary") -> dict[str, object]:
    import msgspec

    plain: dict[str, object] = msgspec.to_builtins(summary)
    plain["figures"] = [figure._asdict() for figure in summary.figures]
    plain["claims"] = [{"promise": claim.promise, "holds": claim.holds} for claim in summary.claims]
    return {**plain, "holds": summary.holds}


def _show(summary: "Summary") -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print()
    table = Table(title="What happened", title_justify="left")
    table.add_column("counted")
    table.add_column("in the log", justify="right")
    has_lake = summary.report is not None
    if has_lake:
        table.add_column("in the lake", justify="right")
    for figure in summary.figures:
        numbers = (figure.log, figure.lake) if has_lake else (figure.log,)
        table.add_row(figure.what, *(f"{number:,}" for number in numbers))
    console.print(table)
    held = sum(claim.holds for claim in summary.claims)
    console.print(f"{held} of {len(summary.claims)} promises held, in {summary.seconds:.0f} s")
    for claim in summary.claims:
        if not claim.holds:
            console.print(f"[red]✗ {claim.promise}[/]: {claim.seen!r}, not {claim.expected!r}")
    console.print()
    console.print(f"health     {summary.health}", soft_wrap=True)
    console.print(f"log head   {summary.head}")
    if has_lake:
        console.print(f"report     {summary.report}", soft_wrap=True)
    program = Path(sys.executable).with_name("tidelog")
    console.print(f"log        {program} log stats --config {summary.config}", soft_wrap=True)
    console.print()


class _Quiet:
    """Says nothing: who asked for JSON gets JSON."""

    def __enter__(self) -> None:
        """Nothing to open."""

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""

    def act(self, title: str, promise: str) -> None:
        """Not shown."""

    def say(self, text: str) -> None:
        """Not shown."""

    def show(self, panes: Mapping[str, str]) -> None:
        """Not shown."""

    def proved(self, claim: "Claim") -> None:
        """In the summary."""

    @contextmanager
    def busy(self, text: str) -> Iterator[None]:
        """Not shown."""
        del text
        yield


class _Screen:
    """Tells it on a terminal, where panes change in place; elsewhere the last panes are lines."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console: Console = Console(highlight=False)
        self._live: Live | None = None
        self._panes: Mapping[str, str] = {}
        self._status: Status | None = None
        self._acts = 0

    def __enter__(self) -> None:
        """Nothing to open."""

    def __exit__(self, *_: object) -> None:
        self._settle()

    def act(self, title: str, promise: str) -> None:
        """A heading."""
        self._settle()
        self._acts += 1
        self._console.print()
        self._console.rule(f"[bold]{self._acts}. {title}[/]: {promise}", align="left")

    def say(self, text: str) -> None:
        """A line."""
        self._settle()
        self._console.print(f"  {printable(text)}", markup=False, soft_wrap=True)

    def show(self, panes: Mapping[str, str]) -> None:
        """Panes beside each other."""
        from rich.columns import Columns
        from rich.live import Live
        from rich.panel import Panel
        from rich.text import Text

        self._panes = panes
        width = max(24, (self._console.width - 2) // max(1, len(panes)) - 2)
        drawn = Columns(
            [Panel(Text(text), title=name, width=width) for name, text in panes.items()]
        )
        if not self._console.is_terminal:
            return
        if self._live is None:
            self._live = Live(console=self._console, refresh_per_second=20)
            self._live.start()
        self._live.update(drawn)

    def proved(self, claim: "Claim") -> None:
        """A tick, or what is wrong."""
        self._settle()
        mark = "[green]✓[/]" if claim.holds else "[bold red]✗[/]"
        self._console.print(f"  {mark} {claim.promise}")

    @contextmanager
    def busy(self, text: str) -> Iterator[None]:
        """A spinner while it lasts; where there is no terminal a line, which is no silence."""
        self._settle()
        if not self._console.is_terminal:
            self.say(f"{text} ...")
        with self._console.status(text):
            yield

    def _settle(self) -> None:
        """Leave the panes as they are, and go on below them."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        elif self._panes:
            for name, text in self._panes.items():
                shown = text.replace("\n", "; ")
                self._console.print(f"  {name}: {shown}", markup=False, soft_wrap=True)
        self._panes = {}
