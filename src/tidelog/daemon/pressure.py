"""How full the outbox is, and what that forbids (mesh 9.4)."""

import os
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path

from tidelog.daemon.settings import DiskSettings, OutboxSettings

HIGH = 0.80
REFUSING = 0.95
FULL = 1.0

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


class Pressure:
    """The three things that can run out: rows that wait, the file's budget, the disk."""

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
        self._disk_share = 0.0

    def shares(self, *, waiting_rows: int, used_bytes: int) -> dict[str, float]:
        """How much of each is used up; 1.0 is all of it."""
        return {
            "rows": waiting_rows / self._outbox.max_queue_size,
            "outbox": used_bytes / self._outbox.budget_bytes,
            "disk": self._disk_used(),
        }

    def level(self, *, waiting_rows: int, used_bytes: int) -> Level:
        """The worst of the three."""
        worst = max(self.shares(waiting_rows=waiting_rows, used_bytes=used_bytes).values())
        if worst >= FULL:
            return Level.DEGRADED
        if worst >= REFUSING:
            return Level.REFUSING
        return Level.HIGH if worst >= HIGH else Level.NORMAL

    def _disk_used(self) -> float:
        """The reserve as a share of what is free: 1.0 when nothing but the reserve is left."""
        now = self._now_ms()
        if self._looked_at_ms is None or abs(now - self._looked_at_ms) >= _LOOK_EVERY_MS:
            self._looked_at_ms = now
            self._disk_share = self._disk.reserved_bytes / max(1, self._free_bytes(self._folder))
        return self._disk_share


def _free_bytes(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize
