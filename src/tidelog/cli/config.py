"""`tidelog config`: look at the settings without starting anything."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from tidelog.base.errors import ConfigError
from tidelog.base.settings.reading import Shown, describe
from tidelog.base.terminal import printable
from tidelog.cli.shared.given_settings import show_warnings
from tidelog.config.credentials import credential_problems
from tidelog.config.settings import load

app = typer.Typer(no_args_is_help=True)

COLUMNS = 80
"""Of the narrowest terminal that people use."""
ORIGIN_COLUMN = 44
"""Where comments begin, unless a value is longer."""


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
        bool, typer.Option("--json", help="Print one JSON object instead of lines.")
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
        typer.echo("\n".join(_lines(rows)))


def _lines(rows: list[Shown]) -> Iterator[str]:
    """The settings as they stand in a file, by section, each with where it comes from."""
    yield "# What has no comment has its default."
    sections: dict[str, list[Shown]] = {"": []}
    for row in rows:
        sections.setdefault(row.key.rpartition(".")[0], []).append(row)
    for section, members in sections.items():
        if section:
            yield "\n" + re.sub(r"(.+)\[\d+\]$", r"[\1]", section).join("[]")  # one of [[apps]]
        for row in members:
            name = row.key.rpartition(".")[2]
            line = printable(f"{name} = {json.dumps(row.value, ensure_ascii=False)}")
            if row.origin == "default":
                yield line
                continue
            comment = f"# {printable(row.origin)}"
            beside = f"{line:{ORIGIN_COLUMN}} {comment}"
            if len(beside) <= COLUMNS:
                yield beside
            else:
                yield from (comment, line)
