"""tidelog: a realtime backend on one durable, ordered, idempotent log."""

from typing import TYPE_CHECKING, Any

__all__ = ["__version__", "read"]

__version__ = "0.1.0.dev0"

if TYPE_CHECKING:
    from tidelog.pipeline.reading import read
else:  # hidden from type checkers, or every wrong name would have a type

    def __getattr__(name: str) -> Any:
        """`tidelog.read`, found when it is first used: a server or a daemon never needs it."""
        if name == "read":
            from tidelog.pipeline.reading import read

            return read
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
