"""Who a member is: an ed25519 key pair whose public half is the address (mesh 9.5, 9.7).

Three things are signed: the broker's hello challenge, a join with an invite, and member tokens for
HTTP. Each has its own prefix or form, so that a signature for one is worth nothing for another.
"""

import base64
import binascii
from typing import Any, Final

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from msgspec import Struct

from tidelog.base.data import strictjson
from tidelog.base.errors import InvalidJson, TidelogError
from tidelog.mesh.protocol.fingerprint import PUBLIC_KEY

CHALLENGE_BYTES = 32
MAX_TOKEN_BYTES = 2048
MAX_TOKEN_SECONDS = 300
"""A token cannot be taken back, and each `jti` is remembered until it would have expired."""

MAX_JTI_BYTES = 64
SKEW_SECONDS = 30
"""How far a member's clock may be ahead of the broker's."""

_HELLO: Final = b"tidelog-mesh-hello"
_HELLO_2: Final = b"tidelog-mesh-hello-2"
_JOIN: Final = b"tidelog-mesh-join"
_TOKEN_HEADER: Final = b'{"alg":"EdDSA","typ":"JWT"}'


class TokenRefused(TidelogError):  # noqa: N818 - the failure is the noun
    """A member token that proves nothing; the text says why and never quotes it."""


class MemberKey:
    """A member's key pair."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.public_hex = private.public_key().public_bytes_raw().hex()
        """The member's address."""

    @classmethod
    def from_seed(cls, seed: bytes) -> "MemberKey":
        """The pair of a 32-byte private seed."""
        return cls(Ed25519PrivateKey.from_private_bytes(seed))

    @property
    def seed(self) -> bytes:
        """The private half; it belongs into the key file and nowhere else."""
        return self._private.private_bytes_raw()

    def sign(self, message: bytes) -> str:
        """The signature in hex."""
        return self._private.sign(message).hex()

    def sign_hello(self, slug: str, challenge: bytes, host: str | None = None) -> str:
        """The broker's challenge, signed: version 2 with a host, version 1 without."""
        return self.sign(hello_message(slug, challenge, host))

    def sign_join(self, slug: str, invite: str, name: str) -> str:
        """Proof, in a join, that the joining member has this key."""
        return self.sign(join_message(slug, invite, name))

    def token(
        self,
        slug: str,
        *,
        unix_now: float,
        jti: str,
        lifetime_s: int = MAX_TOKEN_SECONDS,
        host: str | None = None,
    ) -> str:
        """A member token for one HTTP request; with a host, at the broker dialled there only."""
        claims: dict[str, Any] = {
            "sub": self.public_hex,
            "aud": slug,
            "exp": int(unix_now) + min(lifetime_s, MAX_TOKEN_SECONDS),
            "jti": jti,
        }
        if host is not None:
            claims["host"] = host
        signed = f"{_to_base64(_TOKEN_HEADER)}.{_to_base64(msgspec.json.encode(claims))}"
        return f"{signed}.{_to_base64(self._private.sign(signed.encode()))}"


class MemberClaims(Struct, frozen=True):
    """What a genuine member token says."""

    public_hex: str
    jti: str
    """Used once: the broker remembers it until `expires_at`."""
    expires_at: int
    """Unix seconds."""
    host: str | None = None
    """Where the member dialled; None if the token does not say."""


def hello_message(slug: str, challenge: bytes, host: str | None = None) -> bytes:
    """What a member signs to open a connection (mesh 9.7).

    With the `host:port` that it dialled, which is version 2, nobody can pass the signature on to
    the broker of another address.
    """
    if host is None:
        return b"\0".join((_HELLO, slug.encode(), challenge))
    return b"\0".join((_HELLO_2, host.encode(), slug.encode(), challenge))


def join_message(slug: str, invite: str, name: str) -> bytes:
    """What a member signs to join."""
    return b"\0".join((_JOIN, slug.encode(), invite.encode(), name.encode()))


def is_signed(public_hex: str, message: bytes, signature_hex: str) -> bool:
    """Whether the owner of the key signed the message."""
    if not PUBLIC_KEY.fullmatch(public_hex):
        return False
    try:
        public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_hex))
        public.verify(bytes.fromhex(signature_hex), message)
    except (InvalidSignature, ValueError):
        return False
    return True


def verify_token(token: str, slug: str, unix_now: float) -> MemberClaims:
    """The claims of a token that is genuine, in time and for this mesh.

    Whether the key is a member's, whether the `jti` is new, and whether the host is this broker's,
    is for the caller to look up.
    """
    parts = token.split(".")
    if len(token) > MAX_TOKEN_BYTES or len(parts) != 3 or not token.isascii():
        raise TokenRefused("not a JWT")
    header, claims = _claims(parts[0]), _claims(parts[1])
    if header.get("alg") != "EdDSA" or "crit" in header:
        raise TokenRefused("alg is not EdDSA, or crit names an extension")
    subject, jti, expires_at = claims.get("sub"), claims.get("jti"), claims.get("exp")
    signature = _from_base64(parts[2]).hex()
    if not isinstance(subject, str) or not is_signed(
        subject, f"{parts[0]}.{parts[1]}".encode(), signature
    ):
        raise TokenRefused("it is not signed by the key it names")
    if claims.get("aud") != slug:
        raise TokenRefused("it is for another mesh")
    if type(expires_at) is not int or expires_at <= unix_now:
        raise TokenRefused("it has expired")
    if expires_at > unix_now + MAX_TOKEN_SECONDS + SKEW_SECONDS:
        raise TokenRefused(f"it is valid for more than {MAX_TOKEN_SECONDS} s")
    if not isinstance(jti, str) or not 0 < len(jti.encode()) <= MAX_JTI_BYTES:
        raise TokenRefused("it has no jti")
    host = claims.get("host")
    if host is not None and not isinstance(host, str):
        raise TokenRefused("its host is not text")
    return MemberClaims(subject, jti, expires_at, host)


def to_base64url(data: bytes) -> str:
    """Without padding, as challenges and tokens are written."""
    return _to_base64(data)


def from_base64url(text: str) -> bytes:
    """Raises `TokenRefused` if it is not base64url."""
    return _from_base64(text)


def _to_base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise TokenRefused("not base64url") from None


def _claims(part: str) -> dict[str, Any]:
    try:
        value = strictjson.read(_from_base64(part))
    except InvalidJson:
        raise TokenRefused("a part of it is not JSON") from None
    if not isinstance(value, dict):
        raise TokenRefused("a part of it is not an object")
    return value
