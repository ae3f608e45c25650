"""What runs out first decides (mesh 4.5)."""

from pathlib import Path

import pytest

from tidelog.daemon.outbox.pressure import Level, Pressure, Stock
from tidelog.daemon.settings import DiskSettings, OutboxSettings


@pytest.mark.parametrize(
    ("rows", "used", "free", "level"),
    [
        (0, 0, 10_000, Level.NORMAL),
        (79, 799, 1260, Level.NORMAL),
        (80, 0, 10_000, Level.HIGH),
        (0, 800, 10_000, Level.HIGH),
        (0, 0, 1250, Level.HIGH),
        (95, 0, 10_000, Level.REFUSING),
        (0, 950, 10_000, Level.REFUSING),
        (0, 0, 1050, Level.REFUSING),
        (100, 0, 10_000, Level.DEGRADED),
        (0, 1000, 10_000, Level.DEGRADED),
        (0, 0, 1000, Level.DEGRADED),
        (0, 0, 0, Level.DEGRADED),
    ],
)
def test_levels(rows: int, used: int, free: int, level: Level, tmp_path: Path) -> None:
    """80, 95 and 100 % of the queue, of the budget or of the reserve."""
    pressure = Pressure(
        OutboxSettings(max_queue_size=100, budget_bytes=1000),
        DiskSettings(reserved_bytes=1000),
        tmp_path,
        lambda: 0,
        lambda _: free,
    )
    assert pressure.level(Stock(waiting_rows=rows, open_bytes=used)) is level


def test_the_disk_is_asked_once_a_second(tmp_path: Path) -> None:
    """Each send would be a system call otherwise."""
    now, asked = 0, 0

    def free(_: Path) -> int:
        nonlocal asked
        asked += 1
        return 10**9

    pressure = Pressure(OutboxSettings(), DiskSettings(), tmp_path, lambda: now, free)
    for now in (0, 500, 999, 1000, 1001):  # noqa: B007 - the clock reads it
        pressure.level(Stock())
    assert asked == 2


def test_the_real_disk_has_space(tmp_path: Path) -> None:
    """The default asks the file system."""
    pressure = Pressure(OutboxSettings(), DiskSettings(reserved_bytes=1), tmp_path, lambda: 0)
    assert 0 < pressure.shares(Stock())["disk"] < 0.5
