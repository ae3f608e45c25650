"""What a type checker knows of `tidelog.read`: the form decides the type; checked, never run."""

from pathlib import Path
from typing import assert_type

import polars as pl

import tidelog


def notebook() -> list[str]:
    """A table of the lake with what Polars offers."""
    frame = tidelog.read(
        "message", lake=Path("lake"), as_="polars", where=[("channel", "=", "room")]
    )
    assert_type(frame, pl.DataFrame)
    assert_type(tidelog.__version__, str)
    return frame.columns
