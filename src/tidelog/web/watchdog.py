"""The watchdog of the event loop: names what held it up.

Everything a server does takes turns on one loop; whatever keeps a turn for long delays every
connection, and leaves no trace of itself. So a thread looks whether the loop still moves, and when
it does not, writes down where its thread is just then.
"""

import asyncio
import logging
import sys
import threading
import time
import traceback
from pathlib import Path

from tidelog.base.spaced_lines import SpacedLines

_log = logging.getLogger(__name__)

HELD_SECONDS = 0.1
"""A turn of the loop that takes longer is logged."""

SIGN_SECONDS = 0.02
"""Pause between two signs of life of the loop, and so how exactly a turn is measured."""

LOG_SECONDS = 10.0
"""Pause between two log lines with a stack: a loop that is always late needs to be told once. What
is not told is counted in the next line."""

MAX_FRAMES = 8
"""Shown of a stack, the innermost."""

_LOOP_FILES = ("/asyncio/runners.py", "/asyncio/base_events.py", "/asyncio/events.py")
"""Where a loop gives out its turns; uvloop's own frames are not Python's."""

_PACKAGE = str(Path(__file__).parents[1]) + "/"


class Watchdog:
    """Watches the running loop from `start` to `stop`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._seen_at = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = threading.Event()
        self._lines = SpacedLines()

    def start(self) -> None:
        """Begin to look."""
        self._live()
        threading.Thread(target=self._watch, name="tidelog-watchdog", daemon=True).start()

    def stop(self) -> None:
        """Look no more; on the loop."""
        self._is_over.set()
        if self._timer is not None:
            self._timer.cancel()

    def _live(self) -> None:
        self._seen_at = time.monotonic()
        self._timer = self._loop.call_later(SIGN_SECONDS, self._live)

    def seconds_left(self, now: float) -> float:
        """How long the turn that may have begun with the last sign of life may still take.

        To look any later than that is to miss turns that take just longer than they may.
        """
        return self._seen_at + HELD_SECONDS - now

    def _watch(self) -> None:
        while not self._is_over.wait(max(0.0, self.seconds_left(time.monotonic()))):
            seen_at = self._seen_at
            if self.seconds_left(time.monotonic()) > 0:
                continue
            stack = self._stack()
            while self._seen_at == seen_at and not self._is_over.wait(SIGN_SECONDS / 2):
                pass
            self._tell(time.monotonic() - seen_at, stack)

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._thread_id)  # noqa: SLF001 - there is no other way
        return "" if frame is None else shown(traceback.extract_stack(frame))

    def _tell(self, seconds: float, stack: str) -> None:
        also = self._lines.written(time.monotonic(), LOG_SECONDS)
        if also is not None:
            _log.warning(
                "the event loop was held up for %.0f ms%s; it was %s",
                seconds * 1000,
                also,
                stack or "in no work of ours: the machine is short of processors or memory",
            )


def shown(stack: list[traceback.FrameSummary]) -> str:
    """The frames that tell what the loop was doing: ours since it gave out the turn, and the last.

    What lies before them is how every turn begins, and libraries in between are how ours got there.
    """
    turn = stack
    for number, frame in enumerate(stack):
        if frame.filename.endswith(_LOOP_FILES):
            turn = stack[number + 1 :]
    kept = [frame for frame in turn[:-1] if frame.filename.startswith(_PACKAGE)] + turn[-1:]
    return " > ".join(
        f"{frame.filename.removeprefix(_PACKAGE)}:{frame.lineno} in {frame.name}"
        for frame in kept[-MAX_FRAMES:]
    )
