"""The note that something is being forgotten: a file in the lake, there until it is everywhere."""

from tidelog.pipeline.lake.lake import Lake

_NOTE = "_forgetting"


def is_unfinished(lake: Lake) -> bool:
    """Whether a process died while it was forgetting; `forget` without arguments finishes it."""
    return (lake.root / _NOTE).exists()


def begin_forgetting(lake: Lake) -> None:
    """Note it, before the first table changes."""
    (lake.root / _NOTE).touch()


def end_forgetting(lake: Lake) -> None:
    """It is in no file any more."""
    (lake.root / _NOTE).unlink(missing_ok=True)
