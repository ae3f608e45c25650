"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from tidelog.base.settings.kinds import SecretUrl, masked
from tidelog.config.settings import Settings

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


def masked_location(settings: Settings) -> str:
    """Where the store is, as it may be shown."""
    shown: str = masked(SecretUrl, settings.store_location)
    return shown
