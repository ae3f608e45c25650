"""What holds the loop up is named."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from tidelog.web import watchdog as module
from tidelog.web.watchdog import Watchdog


@pytest.fixture
async def dog(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watchdog]:
    """One that watches the loop of the test."""
    monkeypatch.setattr(module, "LOG_SECONDS", 0.0)
    watching = Watchdog()
    watching.start()
    yield watching
    watching.stop()


def hold_the_loop_up() -> None:
    """Longer than a turn may take."""
    time.sleep(module.HELD_SECONDS * 4)


@pytest.mark.usefixtures("dog")
async def test_what_held_the_loop_up_is_logged_with_its_stack(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The line names the function that did not come back."""
    async with asyncio.timeout(60):
        while "the event loop was held up for" not in caplog.text:
            hold_the_loop_up()
            await asyncio.sleep(0.1)
    assert "in hold_the_loop_up" in caplog.text


async def test_a_loop_that_is_always_late_is_told_once(
    dog: Watchdog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A line with a stack every turn would hold it up further."""
    monkeypatch.setattr(module, "LOG_SECONDS", 3600.0)
    dog._tell(0.2, "a")
    dog._tell(0.2, "b")
    assert caplog.text.count("held up") == 1
