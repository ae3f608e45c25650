"""A table of the lake as a pandas, Polars or Arrow object, without Spark: for notebooks."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from tidelog.base.errors import TidelogError

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from tidelog.config.lake_location import LakeLocation

Condition: TypeAlias = tuple[str, str, Any]
"""Column, one of `= != < <= > >= in "not in"`, and a value."""

Form: TypeAlias = Literal["arrow", "pandas", "polars"]


@overload
def read(
    table: str,
    *,
    lake: str | Path | None = ...,
    as_: Literal["arrow"] = ...,
    columns: Sequence[str] | None = ...,
    where: Sequence[Condition] = ...,
) -> "pa.Table": ...
@overload
def read(
    table: str,
    *,
    lake: str | Path | None = ...,
    as_: Literal["pandas"],
    columns: Sequence[str] | None = ...,
    where: Sequence[Condition] = ...,
) -> "pd.DataFrame": ...
@overload
def read(
    table: str,
    *,
    lake: str | Path | None = ...,
    as_: Literal["polars"],
    columns: Sequence[str] | None = ...,
    where: Sequence[Condition] = ...,
) -> "pl.DataFrame": ...
def read(
    table: str,
    *,
    lake: str | Path | None = None,
    as_: Form = "arrow",
    columns: Sequence[str] | None = None,
    where: Sequence[Condition] = (),
) -> Any:
    """Read a table of the lake as it is now.

    Args:
        table: Its name, such as `message` or `log`; see docs/pipeline.md.
        lake: Directory of the lake, or `s3://BUCKET/FOLDER`; without it the one of the settings.
        as_: What to return. Whole numbers stay whole in pandas too, where one may be missing.
        columns: Only these, in this order. Reading fewer is faster.
        where: Only rows that meet all of these, such as `("channel", "=", "room")`.

    Raises:
        TidelogError: there is no such table or column, nothing in it yet, or a library is missing.
    """
    from tidelog.pipeline.tables import BY_NAME

    if as_ not in ("arrow", "pandas", "polars"):
        raise TidelogError(f"as_={as_!r} is none of arrow, pandas and polars")
    if table not in BY_NAME:
        raise TidelogError(f"there is no table {table!r}; there are: {', '.join(BY_NAME)}")
    known = [column.name for column in BY_NAME[table].columns]
    for name in (*(columns or ()), *(condition[0] for condition in where)):
        if name not in known:
            raise TidelogError(f"table {table} has no column {name!r}; it has: {', '.join(known)}")
    rows = _arrow(_lake_at(lake), table, columns, where)
    if as_ == "pandas":
        return _pandas(rows)
    return _polars(rows) if as_ == "polars" else rows


def _lake_at(location: str | Path | None) -> "LakeLocation":
    from tidelog.config.lake_location import lake_location
    from tidelog.config.settings import load

    if location is not None and "://" not in str(location):
        return lake_location(str(location), "lake", Path())
    settings = load({}, os.environ, None).settings
    if location is not None:
        return lake_location(str(location), "lake", settings.lake_cache)
    return settings.lake


def _arrow(
    location: "LakeLocation", table: str, columns: Sequence[str] | None, where: Sequence[Condition]
) -> "pa.Table":
    try:
        from tidelog.pipeline.lake.lake import Lake
    except ImportError as error:
        raise _missing("reading the lake", error.name, "pipeline") from error
    return Lake(location.root.absolute(), location.url).arrow(table, columns, where)


def _pandas(rows: "pa.Table") -> "pd.DataFrame":
    try:
        import pandas as pd
        import pyarrow as pa
    except ImportError as error:
        raise _missing("as_='pandas'", error.name, "pandas") from error
    whole = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}
    return rows.to_pandas(types_mapper=whole.get)


def _polars(rows: "pa.Table") -> "pl.DataFrame":
    try:
        import polars as pl
    except ImportError as error:
        raise _missing("as_='polars'", error.name, "polars") from error
    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame)  # noqa: S101 - of a table, never a series
    return frame


def _missing(what: str, module: str | None, package: str) -> TidelogError:
    install = "'tidelog[pipeline]'" if package == "pipeline" else package
    return TidelogError(f"{what} needs {module}. Install it: pip install {install}")
