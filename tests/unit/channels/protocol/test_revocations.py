"""Which tokens are revoked, and for how long that is remembered."""

import pytest

from tidelog.channels.protocol import revocations as module
from tidelog.channels.protocol.capabilities import Capabilities
from tidelog.channels.protocol.revocations import REVOKED_MS, Revocation, Revocations
from tidelog.channels.protocol.tokens import Claims

NOW = 1_760_000_000_000


def claims(client_id: str = "ana", jti: str = "t", issued_at: int = NOW // 1000) -> Claims:
    """Of a token."""
    return Claims(client_id, jti, issued_at, issued_at + 60, Capabilities.from_token({}))


def test_a_token_is_covered_by_its_id_or_by_its_client() -> None:
    """A client's tokens up to the moment, none of a later second, and none of another app."""
    revoked = Revocations()
    assert revoked.add(Revocation("tide", "jti", "t", NOW))
    assert revoked.add(Revocation("tide", "client_id", "bo", NOW))
    assert revoked.covers("tide", claims(jti="t"))
    assert not revoked.covers("tide", claims(jti="u"))
    assert not revoked.covers("plain", claims(jti="t"))
    assert revoked.covers("tide", claims("bo", "u"))
    assert not revoked.covers("tide", claims("bo", "u", NOW // 1000 + 1))


def test_what_is_heard_again_changes_nothing() -> None:
    """Nor does something older; a later revocation of the same client does."""
    revoked = Revocations()
    first = Revocation("tide", "client_id", "bo", NOW)
    assert [revoked.add(first), revoked.add(first)] == [True, False]
    assert not revoked.add(first._replace(at=NOW - 1))
    assert revoked.add(first._replace(at=NOW + 1000))
    assert (len(revoked), revoked.covers("tide", claims("bo", "u", NOW // 1000 + 1))) == (1, True)


def test_old_ones_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """When no token of before can be valid; that makes room for others of the app."""
    monkeypatch.setattr(module, "MAX_REVOKED", 2)
    revoked = Revocations()
    for number in range(2):
        revoked.add(Revocation("tide", "jti", str(number), NOW + number))
    assert (revoked.is_full("tide"), revoked.is_full("plain")) == (True, False)
    revoked.prune(NOW + REVOKED_MS)
    assert len(revoked) == 2
    revoked.prune(NOW + REVOKED_MS + 1)
    assert (len(revoked), revoked.is_full("tide")) == (1, False)
