"""How long clients wait before they try again."""

import random
from collections.abc import Callable

from msgspec import Struct


class Backoff(Struct, frozen=True):
    """How long to wait before connecting again, in seconds (sync 17.7)."""

    first: float = 0.5
    factor: float = 2.0
    most: float = 30.0
    jitter: float = 0.2
    """Part of the wait by which it varies either way, so that clients do not return in step."""
    random: Callable[[], float] = random.random

    def delay(self, attempt: int) -> float:
        """The wait after `attempt` failures in a row before this one."""
        wait = min(self.most, self.first * self.factor ** min(attempt, 64))
        return wait * (1 + self.jitter * (2 * self.random() - 1))
