"""Capability tokens: JWTs that an application's server signs for its clients (channels 2.5).

Only HS256 exists here, so a token is one HMAC and two JSON texts. They are read without a JWT
library: the time is the caller's, duplicate keys are refused, and the secret of an application may
be shorter than a library likes.
"""

import base64
import hmac
from typing import Any

from msgspec import Struct

from tidelog.base.data import strictjson
from tidelog.base.errors import InvalidJson
from tidelog.channels.protocol.capabilities import Capabilities
from tidelog.channels.settings import App

MAX_TOKEN_BYTES = 8192
MAX_ID_BYTES = 128
"""Of `jti` and client ids: they are kept per connection, and stored with messages."""

MAX_LIFETIME_SECONDS = 86_400
SKEW_SECONDS = 30
"""How far the clocks of whoever signs may be off."""

EXPIRED = 40142
REVOKED = 40160
"""Codes of `token_expired`."""


class TokenRefused(Exception):  # noqa: N818 - the failure is the noun
    """The token opens nothing; the text says why and never quotes it."""


class Claims(Struct, frozen=True):
    """What a verified token says."""

    client_id: str
    jti: str
    """Names the token, so that it can be revoked."""
    issued_at: int
    expires_at: int
    """Both in Unix seconds."""
    capabilities: Capabilities
    is_agent: bool = False
    """Whether it may publish what agents publish, where it may publish at all."""


def verify(app: App, token: str, unix_now: float) -> Claims:
    """The claims of a token that is genuine and in time.

    Raises:
        TokenRefused: it is not.
    """
    if len(token) > MAX_TOKEN_BYTES:
        raise TokenRefused(f"more than {MAX_TOKEN_BYTES} bytes")
    parts = token.split(".")
    if len(parts) != 3 or not token.isascii():
        raise TokenRefused("not a JWT")
    header, claims = _object(parts[0]), parts[1]
    if header.get("alg") != "HS256":
        raise TokenRefused("alg is not HS256")
    if header.get("kid") != app.key:
        raise TokenRefused("kid is not the app key")
    if "crit" in header:
        raise TokenRefused("crit names an unknown extension")
    signed = f"{parts[0]}.{claims}".encode()
    expected = hmac.digest(app.secret.encode(), signed, "sha256")
    if not hmac.compare_digest(_decoded(parts[2]), expected):
        raise TokenRefused("the signature is wrong")
    return _claims(_object(claims), unix_now)


def _claims(claims: dict[str, Any], unix_now: float) -> Claims:
    issued_at, expires_at = _time(claims, "iat"), _time(claims, "exp")
    if "nbf" in claims and _time(claims, "nbf") > unix_now + SKEW_SECONDS:
        raise TokenRefused("nbf is in the future")
    if issued_at > unix_now + SKEW_SECONDS:
        raise TokenRefused("iat is in the future")
    if expires_at + SKEW_SECONDS <= unix_now:
        raise TokenRefused("it has expired")
    if not 0 < expires_at - issued_at <= MAX_LIFETIME_SECONDS:
        raise TokenRefused(f"exp is not within {MAX_LIFETIME_SECONDS} s after iat")
    granted = claims.get("x-sockudo-capability")
    try:
        if isinstance(granted, str):
            granted = strictjson.read(granted)
        capabilities = Capabilities.from_token(granted)
    except (InvalidJson, ValueError) as error:
        raise TokenRefused(f"x-sockudo-capability: {error}") from None
    return Claims(
        client_id=_name(claims, "x-sockudo-client-id"),
        jti=_name(claims, "jti"),
        issued_at=issued_at,
        expires_at=expires_at,
        capabilities=capabilities,
        is_agent=_flag(claims, "x-tidelog-agent"),
    )


def is_id(value: Any) -> bool:
    """Whether it can name a client: text of 1 to 128 bytes."""
    return isinstance(value, str) and 0 < len(value.encode()) <= MAX_ID_BYTES


def _name(claims: dict[str, Any], claim: str) -> str:
    value = claims.get(claim)
    if not is_id(value):
        raise TokenRefused(f"{claim} is not text of 1 to {MAX_ID_BYTES} bytes")
    assert isinstance(value, str)  # noqa: S101 - is_id says so
    return value


def _flag(claims: dict[str, Any], claim: str) -> bool:
    value = claims.get(claim, False)
    if not isinstance(value, bool):
        raise TokenRefused(f"{claim} is not true or false")
    return value


def _time(claims: dict[str, Any], claim: str) -> int:
    value = claims.get(claim)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TokenRefused(f"{claim} is not a number")
    return int(value)


def _object(part: str) -> dict[str, Any]:
    try:
        value = strictjson.read(_decoded(part))
    except InvalidJson:
        raise TokenRefused("not a JWT") from None
    if not isinstance(value, dict):
        raise TokenRefused("not a JWT")
    return value


def _decoded(part: str) -> bytes:
    try:
        return base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True)
    except ValueError:
        raise TokenRefused("not a JWT") from None
