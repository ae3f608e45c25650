"""How full the outbox is, what that forbids, and what has to go (mesh 4.5)."""

import os
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from tidelog.daemon.settings import DiskSettings, OutboxSettings

HIGH = 0.80
REFUSING = 0.95
FULL = 1.0

MOST_KEPT = 0.5
"""Of the budget: with more than this, delivered messages lose their content."""

_ROOM = 0.9
"""Of what is allowed is left when something had to go, so that not every message makes it go."""

_LOOK_EVERY_MS = 1000
"""How often the file system is asked; rows and pages are known without asking."""


class Level(IntEnum):
    """Each level forbids what the one below it does, and more."""

    NORMAL = 0
    HIGH = 1
    """An event says so; sends are accepted."""
    REFUSING = 2
    """New sends are answered 507; what is stored goes on being delivered."""
    DEGRADED = 3
    """Neither sends nor new event streams; only what arrives is stored."""


class Stock(NamedTuple):
    """What an outbox holds."""

    waiting_rows: int = 0
    """Rows that the broker does not have yet."""
    open_bytes: int = 0
    """Of messages that wait for the broker or for an operator."""
    final_bytes: int = 0
    """Of messages that are delivered or given up, and can lose their content."""
    free_bytes: int = 0
    """Of the file, which are used before it grows."""


class Pressure:
    """The three things that can run out: rows that wait, the budget for content, the disk."""

    def __init__(
        self,
        outbox: OutboxSettings,
        disk: DiskSettings,
        folder: Path,
        now_ms: Callable[[], int],
        free_bytes: Callable[[Path], int] | None = None,
    ) -> None:
        self._outbox = outbox
        self._disk = disk
        self._folder = folder
        self._now_ms = now_ms
        self._free_bytes = free_bytes or _free_bytes
        self._looked_at_ms: int | None = None
        self._disk_free = 0

    @property
    def keep_final_ms(self) -> int:
        """How long the content of rows that are final is kept."""
        return self._outbox.keep_delivered_hours * 3_600_000

    def shares(self, stock: Stock) -> dict[str, float]:
        """How much of each is used up; 1.0 is all of it.

        What is final is in none of them but the disk's: it can always be emptied.
        """
        return {
            "rows": stock.waiting_rows / self._outbox.max_queue_size,
            "outbox": stock.open_bytes / self._outbox.budget_bytes,
            "disk": self._disk.reserved_bytes / max(1, self._available(stock)),
        }

    def level(self, stock: Stock) -> Level:
        """The worst of the three."""
        worst = max(self.shares(stock).values())
        if worst >= FULL:
            return Level.DEGRADED
        if worst >= REFUSING:
            return Level.REFUSING
        return Level.HIGH if worst >= HIGH else Level.NORMAL

    def excess_bytes(self, stock: Stock) -> int:
        """How much content of final rows has to go; 0 while there is room for it."""
        most = self._outbox.budget_bytes * MOST_KEPT
        kept = stock.open_bytes + stock.final_bytes
        excess = kept - most * _ROOM if kept > most else 0
        least = self._disk.reserved_bytes / HIGH
        available = self._available(stock)
        missing = least / _ROOM - available if available < least else 0
        return min(stock.final_bytes, int(max(excess, missing)))

    def _available(self, stock: Stock) -> int:
        """Bytes that the file may still take: those of the disk, and its own free ones."""
        now = self._now_ms()
        if self._looked_at_ms is None or abs(now - self._looked_at_ms) >= _LOOK_EVERY_MS:
            self._looked_at_ms = now
            self._disk_free = self._free_bytes(self._folder)
        return self._disk_free + stock.free_bytes


def _free_bytes(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize
