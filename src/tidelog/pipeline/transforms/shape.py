"""The shape of a table, put on a frame."""

from typing import TYPE_CHECKING

from pyspark.sql import functions as sql

from tidelog.pipeline.frames import quoted
from tidelog.pipeline.tables import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame


def shaped(name: str) -> "Callable[[DataFrame], DataFrame]":
    """For `DataFrame.transform`: exactly the columns of a table, in its order and types."""

    def select(frame: "DataFrame") -> "DataFrame":
        columns = ((quoted(column.name), column.kind) for column in BY_NAME[name].columns)
        return frame.selectExpr(
            *(f"CAST({column} AS {kind}) AS {column}" for column, kind in columns)
        )

    return select


def moment(milliseconds: "Column | str") -> "Column":
    """A time of the log, milliseconds since 1970, as a timestamp."""
    return sql.timestamp_millis(milliseconds)


def minute_of(time: "Column | str") -> "Column":
    """The begin of its minute."""
    return sql.date_trunc("minute", time)
