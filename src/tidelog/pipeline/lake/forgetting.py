"""The note that something is being forgotten: a file in the lake, there until it is everywhere."""

from tidelog.pipeline.lake.lake import Lake

_NOTE = "_forgetting"


def is_unfinished(lake: Lake) -> bool:
    """Whether a process died while it was forgetting; `forget` without arguments finishes it."""
    return lake.place.has_note(_NOTE)


def begin_forgetting(lake: Lake) -> None:
    """Note it, before the first table changes."""
    lake.place.put_note(_NOTE)


def end_forgetting(lake: Lake) -> None:
    """It is in no file any more."""
    lake.place.remove_note(_NOTE)
