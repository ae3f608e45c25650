"""The clock of a node against the clock of the store that it shares with others.

All nodes of a PostgreSQL go by the database's clock: what one of them dates or lets expire, the
others find so. A node whose own clock is far from it cannot judge what it is told with a time of
day, such as tokens and signatures, and is about to be noticed by somebody; until it is right again,
it writes nothing and says so.
"""

import logging

from tidelog.base.clock import ServerClock
from tidelog.base.errors import ClockSkewed
from tidelog.base.metrics import Metrics
from tidelog.store.engine import Store

_log = logging.getLogger(__name__)

MAX_SKEW_MS = 5000


class ClockSkew:
    """How far the two clocks are apart, as of the last comparison."""

    def __init__(self, clock: ServerClock, metrics: Metrics) -> None:
        self._clock = clock
        self._metrics = metrics
        self.problem: str | None = None
        """Why nothing is written, if it is for this reason."""

    def wall_ms(self) -> int:
        """This node's own time, to be taken before the store is asked for its."""
        return self._clock.wall_ms()

    async def look(self, store: Store) -> None:
        """Compare, without a write that would need it.

        Raises:
            StoreError: the store could not be asked.
        """
        asked_ms = self.wall_ms()
        self.note(asked_ms, await store.clock_ms())

    def remembered_ms(self) -> int | None:
        """The time that a write goes by, if the store need not be asked for it."""
        return self._clock.remembered_ms() if self.problem is None else None

    def note(self, asked_ms: int, store_ms: int | None) -> None:
        """Compare with what the store told by the way."""
        if store_ms is not None:
            self._compare(asked_ms, store_ms)

    def require(self, asked_ms: int, store_ms: int | None) -> int:
        """Compare for a write; returns the time that it goes by.

        Args:
            asked_ms: of the wall clock, before the store was asked.
            store_ms: what its clock showed; None if it has none.

        Raises:
            ClockSkewed: nothing may be written.
        """
        if store_ms is None:
            return self._clock.now_ms()
        now_ms = self._compare(asked_ms, store_ms)
        if self.problem is not None:
            raise ClockSkewed(self.problem)
        return now_ms

    def _compare(self, asked_ms: int, store_ms: int) -> int:
        skew_ms, now_ms = self._clock.compare(asked_ms, store_ms)
        self._metrics.clock_skew.set(skew_ms / 1000)
        if abs(skew_ms) > MAX_SKEW_MS:
            way = "ahead of" if skew_ms > 0 else "behind"
            problem = (
                f"this node's clock is {abs(skew_ms) / 1000:.1f} s {way} the database's; it writes "
                f"nothing while they differ by more than {MAX_SKEW_MS // 1000} s. Correct "
                "whichever clock is wrong, this machine's or the database's"
            )
            if self.problem is None:
                _log.error("%s", problem)
            self.problem = problem
        elif self.problem is not None:
            self.problem = None
            _log.info("this node's clock agrees with the database's again; writes are accepted")
        return now_ms
