"""An application's plug-in for tests: small rules of every kind, and every way to go wrong."""

import time
from collections.abc import Iterator
from typing import Any

from tidelog.sync.plugin import Access, Event, Fault, Identity, Plugin, State

SLOW_SECONDS = 0.03
"""Longer than the budget of 5 ms, also on a machine that has other things to do."""

MOST_ITEMS = 3


def compute(seconds: float) -> None:
    """Use so much processor time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Rules(Plugin):
    """The events themselves say which rule they are about."""

    def authorize(self, identity: Identity, partition: str, access: Access) -> bool:
        """`closed` is for nobody, `archive` is written by archivists; `odd` gets odd answers."""
        if partition.startswith("archive"):
            return access == "read" or identity.claims.get("role") == "archivist"
        if partition.startswith("raises"):
            raise RuntimeError("no idea")
        if partition.startswith("odd"):
            return "yes"  # type: ignore[return-value] # the mistake under test
        return not partition.startswith("closed")

    def validate(self, event: Event) -> Iterator[Fault]:
        """Two faults for `rude` data, out of order."""
        match event.payload.get("data"):
            case "rude":
                yield Fault("event.payload.data", "is rude")
                yield Fault("event.payload.data", "is not kind")
            case "raises":
                raise RuntimeError("no idea")
            case "surrogate":
                yield Fault("event.payload.data", "\ud800")
            case {"greedy": _}:
                event.payload["data"].clear()

    def check(self, state: State, event: Event) -> list[Fault]:
        """At most `MOST_ITEMS` in `t`, of whoever pushed the first; `v.mode` may forbid more."""
        if event.type == "treePush":
            if state.count("t") >= MOST_ITEMS:
                return [Fault("event.payload.value", f"{state.partition} is full")]
            if state.value("v.mode") == "frozen":
                return [Fault("event.payload.target", f"{state.partition} is frozen")]
        match event.payload.get("data"):
            case "slow":
                compute(SLOW_SECONDS)
            case "raises late":
                raise RuntimeError("no idea")
            case "no answer":
                wrong: Any = None
                return wrong  # type: ignore[no-any-return]
            case "after first" if state.item("t", "first") is None:
                return [Fault("event.payload.data", "there is no first item")]
        return []


NOT_A_PLUGIN = object()


class NeedsArguments(Plugin):
    """Cannot be made without being told something."""

    def __init__(self, limit: int) -> None:
        self.limit = limit


class Waits(Plugin):
    """Is not pure, and says so."""

    async def check(self, state: State, event: Event) -> list[Fault]:  # type: ignore[override]
        """Would ask somebody."""
        del state, event
        return []
