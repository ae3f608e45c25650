"""Every Python process with this folder on its path has a mistake.

Its owner leaves out a frame of entries now and then, and its front takes the next one for it.
"""

from itertools import count
from typing import Any

from tidelog.channels.messages import Entries
from tidelog.link.frames import FrameWriter

LOST = 5
"""The frame with entries that is left out, of so many."""

_add = FrameWriter.add
_frames = count(1)


def _add_most(self: FrameWriter, surface: int, number: int, message: Any) -> bool:
    if isinstance(message, Entries) and message.entries and next(_frames) % LOST == 0:
        message = Entries(message.position, ())
    return _add(self, surface, number, message)


FrameWriter.add = _add_most  # type: ignore[method-assign]
