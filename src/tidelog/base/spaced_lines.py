"""A log line that may be due very often, and is written now and then."""

import math


class SpacedLines:
    """Lets one through after a pause; the next one can say how many were left out."""

    def __init__(self) -> None:
        self._written_at = -math.inf
        self._left_out = 0

    def written(self, now: float, pause_seconds: float) -> str | None:
        """None to leave this one out; else what to add to it about those that were."""
        if now - self._written_at < pause_seconds:
            self._left_out += 1
            return None
        self._written_at = now
        left_out, self._left_out = self._left_out, 0
        times = "time" if left_out == 1 else "times"
        return f" ({left_out} more {times} since the last such line)" if left_out else ""
