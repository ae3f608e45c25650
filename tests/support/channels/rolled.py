"""Frames of appends that came together, taken apart as the contract says (channels 5.13)."""

from collections.abc import Iterable
from typing import Any

Json = dict[str, Any]


def taken_apart(frames: Iterable[Json]) -> list[tuple[str, int | None, Any]]:
    """Event, serial and data of each operation in frames of a socket with `append_mode=delta`."""
    said: list[tuple[str, int | None, Any]] = []
    for frame in frames:
        lengths = frame.get("rolled")
        if lengths is None:
            said.append((frame["event"], frame.get("serial"), frame.get("data")))
            continue
        text, first = frame["data"], frame["serial"] - len(lengths) + 1
        assert frame["event"] == "sockudo:message.append"
        assert len(lengths) > 1
        assert sum(lengths) == len(text)
        for at, length in enumerate(lengths):
            said.append((frame["event"], first + at, text[:length]))
            text = text[length:]
    return said
