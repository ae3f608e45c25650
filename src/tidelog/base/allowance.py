"""So many in a minute: as many at once, then evenly as time passes."""

from math import ceil


class Allowance:
    """What is left of it; times are in milliseconds, of whatever clock."""

    __slots__ = ("_at_ms", "_left", "_per_minute")

    def __init__(self, per_minute: int, now_ms: int) -> None:
        self._per_minute = per_minute
        self._left = float(per_minute)
        self._at_ms = now_ms

    def take(self, now_ms: int) -> int:
        """Take one; 0 if it was there, else the seconds until there is one."""
        seconds = self.wait_seconds(now_ms)
        if not seconds:
            self._left = self._left_at(now_ms) - 1
            self._at_ms = now_ms
        return seconds

    def wait_seconds(self, now_ms: int) -> int:
        """The seconds until there is one; 0 if there is."""
        left = self._left_at(now_ms)
        return 0 if left >= 1 else max(1, ceil((1 - left) * 60 / self._per_minute))

    def is_whole(self, now_ms: int) -> bool:
        """Whether nothing is missing of it."""
        return self._left_at(now_ms) >= self._per_minute

    def _left_at(self, now_ms: int) -> float:
        gained = (now_ms - self._at_ms) * self._per_minute / 60_000
        return min(float(self._per_minute), self._left + gained)
