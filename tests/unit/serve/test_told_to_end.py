"""The signals that end a front."""

import asyncio
import signal
from collections.abc import Iterator

import pytest

from tidelog.serve.told_to_end import ToldToEnd

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@pytest.fixture
def told() -> Iterator[ToldToEnd]:
    """Of this process, until the test is over."""
    kept = [signal.getsignal(number) for number in SIGNALS]
    try:
        yield ToldToEnd()
    finally:
        for number, handler in zip(SIGNALS, kept, strict=True):
            signal.signal(number, handler)


async def test_only_sigint_hurries_a_front_that_was_told(told: ToldToEnd) -> None:
    """A service manager tells all processes, and the supervisor tells the fronts again."""
    stops = 0

    def stop() -> None:
        nonlocal stops
        stops += 1

    with told.calls(stop):
        for number, expected in ((signal.SIGTERM, 1), (signal.SIGTERM, 1), (signal.SIGINT, 2)):
            signal.raise_signal(number)
            await asyncio.sleep(0)
            assert (stops, told.is_told) == (expected, True)
