"""Whom a token identifies, and which partitions it gives access to."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from msgspec import Struct

from tidelog.base.errors import ConfigError
from tidelog.sync.protocol.partitions import normal_name

MIN_SECRET_BYTES = 32
"""A shorter HS256 secret can be guessed offline from one token."""

SHARED = frozenset({"HS256", "HS384", "HS512"})
PUBLIC = frozenset({"RS256", "RS384", "RS512", "ES256", "ES384", "EdDSA"})
KNOWN = SHARED | PUBLIC


class TokenRefused(Exception):  # noqa: N818 - the failure is the noun
    """The token is not accepted; the text says why and never quotes it."""


class Claims(Struct, frozen=True):
    """What a verified token says."""

    client_id: str
    expires_at: float
    """Unix seconds; at or after it nothing more is processed."""
    names: frozenset[str]
    prefixes: tuple[str, ...]
    all: Mapping[str, Any]
    """Every claim of the token, for the application's own rules."""
    encoded: bytes
    """The same as JSON of the standard library, which may have what no other form does: integers of
    any size, halves of surrogate pairs."""

    @property
    def user_id(self) -> str | None:
        """The only user its client may write as (sync D77); None if it may be any."""
        user_id = self.all.get("userId")
        return user_id if isinstance(user_id, str) and user_id else None

    def allows(self, partition: str) -> bool:
        """Exact name or plain prefix, after NFC; a token without either claim allows nothing."""
        return partition in self.names or partition.startswith(self.prefixes)

    def allows_all(self, prefix: str) -> bool:
        """Whether every partition is allowed whose name starts so."""
        return prefix.startswith(self.prefixes)


class KeyFile(NamedTuple):
    """What a key file holds, and its name for messages about it."""

    name: str
    text: str


class Tokens:
    """Verifies tokens with a shared secret, a public key, or the keys of a JWKS file."""

    def __init__(self, secret: str, key_file: KeyFile | None, algorithms: Sequence[str]) -> None:
        unknown = set(algorithms) - KNOWN
        if unknown or not algorithms:
            raise ConfigError(
                f"sync.jwt_algorithms: {sorted(unknown) or 'none given'}; known are {sorted(KNOWN)}"
            )
        self._secret = secret
        self._algorithms = tuple(algorithms)
        if not SHARED.isdisjoint(algorithms) and len(secret.encode()) < MIN_SECRET_BYTES:
            raise ConfigError(
                f"sync.jwt_secret must have at least {MIN_SECRET_BYTES} bytes for "
                f"{', '.join(algorithms)}"
            )
        self._keys: dict[str, Any] = {}
        """Public keys by `kid`; a PEM file is one key under the empty name."""
        if not SHARED.issuperset(algorithms):
            self._keys = _read_keys(key_file, [name for name in algorithms if name not in SHARED])

    def verify(self, token: str) -> Claims:
        """The claims of a token that is genuine and in time.

        Raises:
            TokenRefused: it is not.
        """
        try:
            header = jwt.get_unverified_header(token)
            claims = jwt.decode(
                token,
                self._key(header),
                algorithms=list(self._algorithms),
                options={
                    "require": ["exp"],
                    "verify_aud": False,
                    "verify_iat": False,
                    "verify_nbf": False,
                    "verify_iss": False,
                    "verify_sub": False,
                    "verify_jti": False,
                },
            )
            expires_at = claims["exp"]
            encoded = json.dumps(claims).encode()
        except (jwt.PyJWTError, RecursionError, ValueError, TypeError) as error:
            raise TokenRefused(type(error).__name__) from None
        if isinstance(expires_at, bool) or not isinstance(expires_at, int | float):
            raise TokenRefused("exp is not a number")
        client_id = claims.get("client_id")
        if not isinstance(client_id, str) or not client_id:
            raise TokenRefused("client_id is missing")
        try:
            client_id.encode()
        except UnicodeEncodeError:
            raise TokenRefused("client_id has half of a surrogate pair") from None
        return Claims(
            client_id=client_id,
            expires_at=expires_at,
            names=frozenset(_names(claims, "allowed_partitions")),
            prefixes=tuple(_names(claims, "allowed_partition_prefixes")),
            all=claims,
            encoded=encoded,
        )

    def _key(self, header: dict[str, Any]) -> Any:
        algorithm = header.get("alg")
        if algorithm not in self._algorithms:
            raise TokenRefused("algorithm not allowed")
        if algorithm in SHARED:
            return self._secret
        if len(self._keys) == 1:
            return next(iter(self._keys.values()))
        try:
            return self._keys[header.get("kid", "")]
        except KeyError:
            raise TokenRefused("unknown kid") from None


def _names(claims: dict[str, Any], claim: str) -> list[str]:
    values = claims.get(claim, [])
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise TokenRefused(f"{claim} is not a list of names")
    return [normal_name(value) for value in values]


def _read_keys(key_file: KeyFile | None, algorithms: Sequence[str]) -> dict[str, Any]:
    if key_file is None:
        raise ConfigError("sync.jwt_key_file: name a PEM public key or a JWKS file")
    name, text = key_file
    try:
        if "BEGIN" in text:
            return {"": _read_pem(name, text, algorithms)}
        found = jwt.PyJWKSet.from_dict(json.loads(text)).keys
    except (ValueError, TypeError, AttributeError, jwt.PyJWTError) as error:
        raise ConfigError(f"sync.jwt_key_file: {name} cannot be read: {error}") from error
    keys = {key.key_id or "": key.key for key in found}
    if len(keys) != len(found):
        raise ConfigError(f"sync.jwt_key_file: {name}: several keys need a kid each")
    return keys


def _read_pem(name: str, text: str, algorithms: Sequence[str]) -> Any:
    """The key, which must be a public one that an accepted algorithm can use.

    Checked at the start: otherwise every client would be told that its token is wrong.
    """
    if "PRIVATE KEY" in text:
        raise ConfigError(
            f"sync.jwt_key_file: {name} holds a private key, which belongs to whoever issues "
            "tokens. Write its public half with `openssl pkey -in KEY -pubout`."
        )
    try:
        key = load_pem_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(
            f"sync.jwt_key_file: {name} holds no PEM public key ({error}). Of a certificate "
            "take the key with `openssl x509 -in CERTIFICATE -pubkey -noout`."
        ) from error
    for algorithm in algorithms:
        with contextlib.suppress(jwt.InvalidKeyError, TypeError):
            return jwt.get_algorithm_by_name(algorithm).prepare_key(key)
    raise ConfigError(
        f"sync.jwt_key_file: {name} holds a key that does not fit sync.jwt_algorithms "
        f"({', '.join(algorithms)}). Name the algorithm your tokens are signed with."
    )
