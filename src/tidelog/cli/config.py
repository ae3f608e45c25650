"""`tidelog config`: look at the settings without starting anything."""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.base.errors import ConfigError
from tidelog.base.settings.reading import Shown, describe
from tidelog.cli.shared.options import show_warnings
from tidelog.config.credentials import credential_problems
from tidelog.config.settings import load

if TYPE_CHECKING:
    from rich.table import Table

app = typer.Typer(no_args_is_help=True)


@app.callback()
def config() -> None:
    """Inspect the settings."""


@app.command(epilog="Example: tidelog config check --config /etc/tidelog.toml --json")
def check(
    file: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="PATH",
            help="Settings file; without it ./tidelog.toml is read if it exists.",
        ),
    ] = None,
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of a table.")
    ] = False,
) -> None:
    """Check the settings and show each value with its origin; secrets are masked.

    As in the server, TIDELOG_* variables override the file, which overrides the defaults. Imports
    the plug-in that sync.plugin names. Exits with 2 if a key is unknown or a value is not allowed.
    Unknown variables, and secrets that `tidelog serve` would not start with, are named on standard
    error.
    """
    try:
        loaded = load({}, os.environ, file)
        rows = describe(loaded)
        if loaded.settings.sync.plugin:
            from tidelog.sync.plugin import load_plugin

            load_plugin(loaded.settings.sync.plugin)
    except ConfigError as error:
        typer.echo(f"tidelog: {error}", err=True)
        raise typer.Exit(2) from None
    show_warnings(loaded)
    for problem in credential_problems(loaded.settings):
        typer.echo(f"tidelog: serve would not start without --dev: {problem}", err=True)
    if as_json:
        shown = {row.key: {"value": row.value, "origin": row.origin} for row in rows}
        typer.echo(json.dumps(shown, indent=2))
    else:
        from rich.console import Console

        Console(file=sys.stdout).print(_table(rows))


def _table(rows: list[Shown]) -> "Table":
    from rich.table import Column, Table
    from rich.text import Text

    whole_key = Column("key", no_wrap=True, min_width=max(len(row.key) for row in rows))
    table = Table(whole_key, "value", "origin", box=None, pad_edge=False)
    for row in rows:
        # A setting as it stands in a file; Text, because a value may look like Rich's markup.
        value = json.dumps(row.value, ensure_ascii=False)
        table.add_row(
            Text(row.key), Text(value, overflow="fold"), Text(row.origin, overflow="fold")
        )
    return table
