"""Who has logged in, and how often somebody may guess; what is kept in memory is bounded."""

import hashlib
import hmac
import math
import secrets
import time
from collections.abc import Callable, Sequence

from msgspec import Struct

SESSION_SECONDS = 12 * 3600
"""A working day; whoever forgets an open browser is logged out by the next morning."""

MAX_ENDED = 1024
"""Logins remembered as logged out; one more forgets the oldest. Only those who know the token can
make any."""

MAX_SESSION_LENGTH = 200
"""Longer than any cookie of ours; whatever is longer is not looked at."""

TRIES = 5
"""Wrong tokens that an address may send at once ..."""

SECONDS_PER_TRY = 10.0
"""... and how long it then waits for each further one. That keeps the log of failed logins short.
What makes the token safe is its length (`tidelog.config.credentials`), and the limit of its
address."""

MAX_ADDRESSES = 1024
"""Addresses whose tries are remembered; one more forgets the one that tried longest ago."""


class Ended(Struct, frozen=True):
    """A login that was logged out, as one node tells the others."""

    hashed: bytes
    ends: int


class EndedLogins:
    """Those that were logged out and would not be over yet, the last `MAX_ENDED` of them.

    All processes of a server know the same, and whichever begins again is told by the others.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        """`now` in Unix seconds, which all nodes share."""
        self.now = now
        self._ends: dict[bytes, int] = {}
        """When each would have ended, by the hash of its cookie."""

    def __contains__(self, hashed: bytes) -> bool:
        return hashed in self._ends

    def note(self, ended: Ended) -> bool:
        """Remember one; returns whether that is news."""
        if ended.hashed in self._ends:
            return False
        now = self.now()
        self._ends = {each: ends for each, ends in self._ends.items() if now < ends}
        while len(self._ends) >= MAX_ENDED:
            del self._ends[next(iter(self._ends))]
        self._ends[ended.hashed] = ended.ends
        return True

    def all(self) -> Sequence[Ended]:
        """In the order in which they became known."""
        return [Ended(hashed, ends) for hashed, ends in self._ends.items()]


class Sessions:
    """Logins that every node of a log accepts: the cookie says when it ends, and is signed.

    Whoever changes the admin token ends them all.
    """

    def __init__(self, token: str, log_id: str, ended: EndedLogins) -> None:
        self._key = hmac.digest(token.encode(), f"dashboard session/{log_id}".encode(), "sha256")
        self._now = ended.now
        self._ended = ended

    def begin(self) -> str:
        """A new login; returns the secret that is its cookie."""
        claims = f"{int(self._now()) + SESSION_SECONDS}.{secrets.token_urlsafe(16)}"
        return f"{claims}.{self._sign(claims)}"

    def is_open(self, session: str) -> bool:
        """Whether a node of this log began it, and it is not over."""
        ends = self._ends(session)
        return ends is not None and self._now() < ends and _hash(session) not in self._ended

    def end(self, session: str) -> Ended | None:
        """Log out; returns what the other nodes must be told, again if telling them failed."""
        ends = self._ends(session)
        if ends is None or self._now() >= ends:
            return None
        ended = Ended(_hash(session), ends)
        self._ended.note(ended)
        return ended

    def _ends(self, session: str) -> int | None:
        claims, _, signature = session.rpartition(".")
        if len(session) > MAX_SESSION_LENGTH or not is_same(signature, self._sign(claims)):
            return None
        return int(claims.partition(".")[0])

    def _sign(self, claims: str) -> str:
        return hmac.digest(self._key, claims.encode("utf-8", "surrogatepass"), "sha256").hex()


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
