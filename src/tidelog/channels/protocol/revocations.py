"""Tokens that were revoked, for as long as they could be valid."""

from collections import Counter, OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from tidelog.channels.protocol.tokens import MAX_LIFETIME_SECONDS, SKEW_SECONDS, Claims

MAX_REVOKED = 100_000
"""Revocations of one app that are in force: every node holds them all, some hundred bytes each."""

REVOKED_MS = (MAX_LIFETIME_SECONDS + 2 * SKEW_SECONDS) * 1000
"""No token issued before a revocation is valid for longer, however wrong its issuer's clock."""


class Revocation(NamedTuple):
    """A token, or all tokens of a client up to a moment, are no longer valid."""

    app_id: str
    kind: str
    """`jti` or `client_id`."""
    value: str
    at: int
    """Unix time in ms."""


class Revocations:
    """What is revoked, on whichever node it was revoked; a copy of what is stored."""

    def __init__(self) -> None:
        self._at: OrderedDict[tuple[str, str, str], int] = OrderedDict()
        """(app id, `jti` or `client_id`, its value) to when it was revoked; the oldest first."""
        self._counts: Counter[str] = Counter()
        """By app."""

    def __len__(self) -> int:
        return len(self._at)

    def __iter__(self) -> Iterator[Revocation]:
        for key, at in self._at.items():
            yield Revocation(*key, at)

    def add(self, revocation: Revocation) -> bool:
        """Remember it; whether it was not known."""
        key = (revocation.app_id, revocation.kind, revocation.value)
        known = self._at.get(key)
        if known is not None and known >= revocation.at:
            return False
        self._counts[revocation.app_id] += known is None
        self._at[key] = revocation.at
        self._at.move_to_end(key)
        return True

    def prune(self, now_ms: int) -> None:
        """Forget what no token can need any more."""
        while self._at and next(iter(self._at.values())) < now_ms - REVOKED_MS:
            (app_id, _, _), _ = self._at.popitem(last=False)
            self._counts[app_id] -= 1

    def is_full(self, app_id: str) -> bool:
        """Whether an app may revoke no more."""
        return self._counts[app_id] >= MAX_REVOKED

    def covers(self, app_id: str, claims: Claims) -> bool:
        """Whether a token was revoked: itself, or its client since it was issued."""
        if (app_id, "jti", claims.jti) in self._at:
            return True
        at = self._at.get((app_id, "client_id", claims.client_id))
        return at is not None and claims.issued_at * 1000 <= at
