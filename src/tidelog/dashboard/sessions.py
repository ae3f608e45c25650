"""Who has logged in, and how often somebody may guess; all of it in memory, all of it bounded."""

import hashlib
import hmac
import math
import secrets
from collections.abc import Callable

SESSION_SECONDS = 12 * 3600
"""A working day; whoever forgets an open browser is logged out by the next morning."""

MAX_SESSIONS = 64
"""Logins remembered; one more ends the oldest. Only those who know the token can make any."""

TRIES = 5
"""Wrong tokens that an address may send at once ..."""

SECONDS_PER_TRY = 10.0
"""... and how long it then waits for each further one. That keeps the log of failed logins short.
What makes the token safe is its length, for the right one never waits; see
`tidelog.base.credentials`."""

MAX_ADDRESSES = 1024
"""Addresses whose tries are remembered; one more forgets the one that tried longest ago."""


class Sessions:
    """The logins of this process; they end with it."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._ends: dict[bytes, float] = {}
        """When each ends, by the hash of its id, the oldest first: comparing hashes tells a guesser
        nothing about the id."""

    def begin(self) -> str:
        """A new login; answers the secret that names it."""
        while len(self._ends) >= MAX_SESSIONS:
            del self._ends[next(iter(self._ends))]
        session = secrets.token_urlsafe(32)
        self._ends[_hash(session)] = self._now() + SESSION_SECONDS
        return session

    def is_open(self, session: str) -> bool:
        """Whether it was begun here and is not over."""
        ends = self._ends.get(_hash(session))
        return ends is not None and self._now() < ends

    def end(self, session: str) -> None:
        """Log out."""
        self._ends.pop(_hash(session), None)


class Tries:
    """How many wrong tokens each address has left."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._left: dict[str, tuple[float, float]] = {}
        """Tries left, and when that was so."""

    def wait_seconds(self, address: str) -> int:
        """0 if the address may try now, else how long it waits."""
        left = self._tries_left(address)
        return 0 if left >= 1 else max(1, math.ceil((1 - left) * SECONDS_PER_TRY))

    def failed(self, address: str) -> None:
        """It tried and was wrong."""
        left = self._tries_left(address)
        self._left.pop(address, None)  # to the end of the order
        while len(self._left) >= MAX_ADDRESSES:
            del self._left[next(iter(self._left))]
        self._left[address] = (left - 1, self._now())

    def _tries_left(self, address: str) -> float:
        left, since = self._left.get(address, (float(TRIES), 0.0))
        return min(float(TRIES), left + (self._now() - since) / SECONDS_PER_TRY)


def is_same(given: str, token: str) -> bool:
    """Whether a token is the right one; how long this takes says nothing about where it differs."""
    return hmac.compare_digest(_hash(given), _hash(token))


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
