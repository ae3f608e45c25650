"""Tokens that were revoked, for as long as they could be valid."""

from collections import OrderedDict
from collections.abc import Iterator

from tidelog.channels.elsewhere import Revocation
from tidelog.channels.tokens import MAX_LIFETIME_SECONDS, SKEW_SECONDS, Claims

MAX_REVOKED = 100_000
"""Revoked tokens and clients kept in mind."""

REVOKED_SECONDS = MAX_LIFETIME_SECONDS + 2 * SKEW_SECONDS


class Revocations:
    """What is revoked, on whichever node that was said."""

    def __init__(self) -> None:
        self._at: OrderedDict[tuple[str, str, str], float] = OrderedDict()
        """(app id, `jti` or `client_id`, its value) to when it was revoked."""

    def __iter__(self) -> Iterator[Revocation]:
        return (Revocation(*key, at) for key, at in self._at.items())

    def add(self, revocation: Revocation, now: float) -> None:
        """Remember it; `now` in Unix seconds."""
        key = (revocation.app_id, revocation.kind, revocation.value)
        self._at[key] = max(revocation.at, self._at.get(key, 0.0))
        self._at.move_to_end(key)
        while self._at and (
            len(self._at) > MAX_REVOKED or next(iter(self._at.values())) < now - REVOKED_SECONDS
        ):
            self._at.popitem(last=False)

    def covers(self, app_id: str, claims: Claims) -> bool:
        """Whether a token was revoked: itself, or its client since it was issued."""
        if (app_id, "jti", claims.jti) in self._at:
            return True
        at = self._at.get((app_id, "client_id", claims.client_id))
        return at is not None and claims.issued_at <= at
