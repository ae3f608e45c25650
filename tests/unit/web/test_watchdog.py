"""What holds the loop up is named."""

import asyncio
import re
import time
import traceback
from collections.abc import AsyncIterator

import pytest

from tidelog.web import routing
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


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was said of our holding it up; on a busy machine other things do too."""
    return [text for text in caplog.text.splitlines() if text.endswith("in hold_the_loop_up")]


@pytest.mark.usefixtures("dog")
async def test_what_held_the_loop_up_is_logged_with_its_stack(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The line names the function that did not come back."""
    async with asyncio.timeout(60):
        while not lines(caplog):
            hold_the_loop_up()
            await asyncio.sleep(0.1)
    assert "the event loop was held up for" in lines(caplog)[0]


@pytest.mark.usefixtures("dog")
async def test_only_the_frames_that_tell_something_are_shown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One line: what ours did since the loop gave it the turn; not how the loop was begun."""
    async with asyncio.timeout(60):
        while not lines(caplog):
            # Any function of ours that calls somebody else's will do.
            spelled = routing.Paths[int]()
            spelled.add("/x", 1)
            spelled._find = lambda _: hold_the_loop_up()  # type: ignore[method-assign, assignment]
            spelled.find(b"/x")
            await asyncio.sleep(0.1)
    line = lines(caplog)[0]
    assert re.search(
        r"it was (\S+ in \w+ > )?web/routing.py:\d+ in find > .*hold_the_loop_up$", line
    )
    assert "asyncio" not in line
    assert "pytest" not in line.replace(__file__, "")


def test_a_loop_that_waits_was_not_held_up_by_us() -> None:
    """Where no work of ours is on the stack, the machine was late."""
    begun = [traceback.FrameSummary("/lib/asyncio/runners.py", 1, "run", lookup_line=False)]
    assert module.shown(traceback.StackSummary.from_list(begun)) == ""


async def test_a_turn_that_takes_just_too_long_is_looked_at_before_it_ends() -> None:
    """The look comes when the time is up, wherever in the turn the last sign of life was."""
    watching = Watchdog()
    watching._seen_at = 10.0
    for looked_at in (10.0, 10.03, 10.09):
        left = watching.seconds_left(looked_at)
        assert looked_at + left == pytest.approx(10.0 + module.HELD_SECONDS)
    assert watching.seconds_left(10.0 + module.HELD_SECONDS + 0.001) < 0


async def test_a_loop_that_is_always_late_is_told_once(
    dog: Watchdog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A line with a stack every turn would hold it up further; the next line says how often."""
    monkeypatch.setattr(module, "LOG_SECONDS", 3600.0)
    for stack in ("a", "b", "c"):
        dog._tell(0.2, stack)
    assert caplog.text.count("held up") == 1
    monkeypatch.setattr(module, "LOG_SECONDS", 0.0)
    dog._tell(0.2, "d")
    assert "held up for 200 ms (2 more times since the last such line); it was d" in caplog.text
