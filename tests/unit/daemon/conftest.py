"""A clock for all of the daemon's parts, and an outbox on it that can be opened again."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tidelog.daemon.outbox.outbox_db import Outbox
from tidelog.daemon.outbox.pressure import Pressure
from tidelog.daemon.settings import DiskSettings, OutboxSettings
from tidelog.testing.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    """Stands still until a test moves it, and may jump."""
    return FakeClock()


@pytest.fixture
def outbox_limits() -> dict[str, int]:
    """What the outbox of a module may take, unless a test says otherwise."""
    return {"max_queue_size": 100}


@pytest.fixture
def reopen(
    tmp_path: Path, clock: FakeClock, outbox_limits: dict[str, int]
) -> Iterator[Callable[..., Outbox]]:
    """Opens the same file again and again, as restarts do, on a disk that has so much left."""
    opened: list[Outbox] = []

    def open_(free_bytes: int = 10**12, **limits: int) -> Outbox:
        for earlier in opened:
            earlier.close()
        wanted = OutboxSettings(**outbox_limits | limits)
        disk = DiskSettings(reserved_bytes=1_000_000)
        pressure = Pressure(wanted, disk, tmp_path, clock.now_ms, lambda _: free_bytes)
        opened.append(Outbox(tmp_path / "outbox.db", pressure, clock))
        return opened[-1]

    yield open_
    for outbox in opened:
        outbox.close()


@pytest.fixture
def outbox(reopen: Callable[..., Outbox]) -> Outbox:
    """An empty outbox."""
    return reopen()
