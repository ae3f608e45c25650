"""How flags become settings."""

import os
import sys
from pathlib import Path
from typing import Any

from tidelog.base.settings.reading import Loaded
from tidelog.config.settings import Settings, load


def settings_from(config: Path | None, **flags: object) -> Settings:
    """Flags that were given, over the environment, over the file, over the defaults."""
    given = {name: value for name, value in flags.items() if value is not None}
    loaded = load(given, os.environ, config)
    show_warnings(loaded)
    return loaded.settings


def show_warnings(loaded: Loaded[Any]) -> None:
    """Say on standard error what was given and not used."""
    for warning in loaded.warnings:
        sys.stderr.write(f"tidelog: {warning}\n")
