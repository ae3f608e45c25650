"""A clock that stands still until a test moves it."""

from tidelog.base.clock import Compared


class FakeClock:
    """A `tidelog.base.clock.Clock` under the test's control.

    Unlike `SystemClock` it may run backwards: `set` to an earlier time shows whether the code under
    test has a guard of its own.
    """

    def __init__(self, now_ms: int = 1_760_000_000_000) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        """The time it was last given."""
        return self._now_ms

    def wall_ms(self) -> int:
        """The same: this clock has no mark."""
        return self._now_ms

    def compare(self, asked_ms: int, store_ms: int) -> Compared:
        """It is the time of the test's whole world, its database included."""
        del asked_ms, store_ms
        return Compared(0, self._now_ms)

    def remembered_ms(self) -> int | None:
        """The same again."""
        return self._now_ms

    def set(self, now_ms: int) -> None:
        """Jump to `now_ms`, forwards or backwards."""
        self._now_ms = now_ms

    def advance(self, ms: int) -> None:
        """Move forwards by `ms`; to go back, say so with `set`."""
        if ms < 0:
            raise ValueError(f"advance by {ms} ms goes back; use set() to jump backwards")
        self._now_ms += ms
