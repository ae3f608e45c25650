"""How long the disk takes to confirm a COMMIT, and so whether the loop can wait for it."""

import logging
import math
import sys
import time

SLOW_SECONDS = 0.002
"""Average of a COMMIT from which on it runs in a thread. On the loop it holds everybody up for so
long; in a thread it takes longer, because the interpreter lock has to be won back. The first one
of a process runs there too: a disk that takes longer than a supervisor waits for a sign of life
would have each owner of the log killed in it, one after the other."""

LARGE_BYTES = 524_288
"""Of the entries of one batch, from which on its COMMIT runs in a thread however fast the disk is:
so much has to be written first."""

_WEIGHT = 0.1
"""Of the newest COMMIT in the moving average: about the last twenty count."""

LOG_SECONDS = 60.0
"""Pause between two log lines about a slow disk."""

_log = logging.getLogger(__name__)


class DiskSpeed:
    """The moving average of what a COMMIT waits for the disk."""

    def __init__(self) -> None:
        self.average_seconds = math.inf
        """Before the first."""
        self._logged_at = -math.inf

    @property
    def is_slow(self) -> bool:
        """Whether the next COMMIT is better not waited for on the loop."""
        return self.average_seconds > SLOW_SECONDS

    def note(self, seconds: float, *, loop_busy_seconds: float = 0.0) -> None:
        """A COMMIT took so long; while one in a thread ran, the loop was busy for so long.

        In a thread part of it is no disk but the wait for the interpreter lock, which is no longer
        than the loop was busy and than the interval after which it gives the lock up. Without that
        a busy loop would make a fast disk look slow for ever.
        """
        waited = max(0.0, seconds - min(loop_busy_seconds, sys.getswitchinterval()))
        if self.average_seconds == math.inf:
            self.average_seconds = 0.0
        was_slow = self.is_slow
        self.average_seconds += (waited - self.average_seconds) * _WEIGHT
        if self.is_slow and not was_slow and time.monotonic() - self._logged_at >= LOG_SECONDS:
            self._logged_at = time.monotonic()
            _log.warning(
                "the disk takes %.1f ms to confirm a write, on average; COMMIT runs beside the "
                "event loop until that is below %.0f ms again",
                self.average_seconds * 1000,
                SLOW_SECONDS * 1000,
            )
