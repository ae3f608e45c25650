"""Options that several commands share, and how they become settings."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from tidelog.base.settings.kinds import SecretUrl, masked
from tidelog.base.settings.reading import Loaded
from tidelog.config.settings import Settings, load

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", help="Configuration file; default ./tidelog.toml if it exists."),
]
DataDirOption = Annotated[
    str | None,
    typer.Option(
        "--data-dir", help="Directory for all that the server writes; default tidelog-data."
    ),
]
StoreOption = Annotated[
    str | None,
    typer.Option("--store", help="Path of an SQLite file, or a postgresql:// URL."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def settings_from(config: Path | None, **flags: object) -> Settings:
    """Flags that were given, over the environment, over the file, over the defaults."""
    given = {name: value for name, value in flags.items() if value is not None}
    loaded = load(given, os.environ, config)
    show_warnings(loaded)
    return loaded.settings


def show_warnings(loaded: Loaded[Any]) -> None:
    """Say on standard error what was given and not used."""
    for warning in loaded.warnings:
        typer.echo(f"tidelog: {warning}", err=True)


def masked_location(settings: Settings) -> str:
    """Where the store is, as it may be shown."""
    shown: str = masked(SecretUrl, settings.store_location)
    return shown
