"""What only the holder of an application's secret can have written (channels 2.2, 4.1).

Signatures are compared in constant time, and no text here ever repeats one or the secret.
"""

import hashlib
import hmac
import re
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote_plus

from tidelog.channels.protocol import fault
from tidelog.channels.settings import App, set_by

MAX_AGE_SECONDS = 600
"""How far a request's timestamp may be from our clock, both ways."""

_BODILESS = frozenset({"GET", "HEAD", "DELETE"})
EMPTY_MD5 = "d41d8cd98f00b204e9800998ecf8427e"
"""Of a body without a byte: some libraries send it where there is no body at all."""


_PLAIN = re.compile(
    "auth_key=([A-Za-z0-9_-]+)"
    "(?:&auth_signature=([0-9a-f]{64}))?"
    "&auth_timestamp=([0-9]{1,20})"
    "&auth_version=1[.]0"
    "&body_md5=([0-9a-f]{32})"
    "(?:&auth_signature=([0-9a-f]{64}))?"
)
"""The query of a request as SDKs send it: in the order in which it was signed, nothing encoded."""

_REMEMBERED_KEYS = 1024
"""Secrets of applications whose HMAC is begun; there are few."""

_BLOCK_BYTES = 64
"""Of SHA-256, by which HMAC makes a key into two (RFC 2104)."""


def sign(secret: str, text: str) -> str:
    """HMAC-SHA256 of a text, in lower-case hex."""
    return _hmac(secret, text.encode())


def _hmac(secret: str, text: bytes) -> str:
    """From the middle: what depends on the key alone is done once. 2 µs instead of 7."""
    begun, ended = _halves(secret)
    inner = begun.copy()
    inner.update(text)
    outer = ended.copy()
    outer.update(inner.digest())
    return outer.hexdigest()


@lru_cache(_REMEMBERED_KEYS)
def _halves(secret: str) -> "tuple[hashlib._Hash, hashlib._Hash]":
    """Both hashes of an HMAC, each fed with its half of the key."""
    key = secret.encode()
    if len(key) > _BLOCK_BYTES:
        key = hashlib.sha256(key).digest()
    key = key.ljust(_BLOCK_BYTES, b"\0")
    inner, outer = (bytes(byte ^ pad for byte in key) for pad in (0x36, 0x5C))
    return hashlib.sha256(inner), hashlib.sha256(outer)


def is_channel_auth(
    app: App, auth: str, socket_id: str, channel: str, channel_data: str | None
) -> bool:
    """Whether `auth` lets a socket subscribe; `channel_data` exactly as it was received."""
    return _is_auth(app, auth, _subscribing(socket_id, channel, channel_data))


def channel_auth(app: App, socket_id: str, channel: str, channel_data: str | None) -> str:
    """What lets a socket subscribe, for a socket that the server speaks for itself."""
    return f"{app.key}:{sign(app.secret, _subscribing(socket_id, channel, channel_data))}"


def _subscribing(socket_id: str, channel: str, channel_data: str | None) -> str:
    signed = f"{socket_id}:{channel}"
    return signed if channel_data is None else f"{signed}:{channel_data}"


def is_signin_auth(app: App, auth: str, socket_id: str, user_data: str) -> bool:
    """Whether `auth` lets a socket sign in; `user_data` exactly as it was received."""
    return _is_auth(app, auth, f"{socket_id}::user::{user_data}")


def _is_auth(app: App, auth: str, signed: str) -> bool:
    return _is_same(auth, f"{app.key}:{sign(app.secret, signed)}")


class Signed(NamedTuple):
    """A request whose head its app has signed; of its body only the hash is known."""

    app: App
    query_string: bytes
    body_md5: str | None
    """What the body must have; None if it has none and nothing was said of it."""

    @property
    def query(self) -> dict[str, str]:
        """Decoded."""
        return read_query(self.query_string)

    def check_body(self, body: bytes) -> None:
        """Refuse another body than the one that was signed.

        Raises:
            Fault: it is another one.
        """
        if self.body_md5 is None:
            return
        # The protocol says MD5; what is trusted is the signature, which covers this parameter.
        found = hashlib.md5(body).hexdigest()  # noqa: S324
        if not _is_same(found, self.body_md5):
            raise fault.auth_failed("body_md5 is not that of the body")


def signed_by(
    app_lookup: Callable[[str], App | None],
    app_id: str,
    method: str,
    raw_path: bytes,
    query_string: bytes,
    now_s: float,
) -> Signed:
    """Who signed a request, by its head alone: a stranger's body is not worth reading.

    Args:
        app_lookup: the application of a key, such as `dict.get`.
        app_id: the one the path names.
        method: in upper case.
        raw_path: as received, still percent-encoded.
        query_string: as received.
        now_s: Unix time in seconds.

    Raises:
        Fault: the request is not genuine, or its query cannot be read.
    """
    if not query_string:
        raise fault.invalid_input("the request is not signed: it has no query string")
    given = _read_plain(query_string) or _read(query_string)
    app = app_lookup(given.key)
    if app is None:
        raise fault.app_not_found(given.key)
    if app_id not in (app.id, app.alias):
        raise fault.auth_failed("auth_key belongs to another app")
    if given.version != "1.0":
        raise fault.auth_failed("auth_version must be 1.0")
    _check_time(given.timestamp, now_s)
    body_md5 = _body_md5(method, given.body_md5)
    signed = b"%s\n%s\n%s" % (method.encode(), raw_path, given.signed)
    if not _is_same(given.signature, _hmac(app.secret, signed)):
        raise fault.auth_failed("auth_signature is wrong")
    if not app.enabled:
        raise fault.auth_failed("the app is disabled" + set_by("apps.enabled"))
    return Signed(app, query_string, body_md5)


class _Given(NamedTuple):
    """What a query says of its signature."""

    key: str
    version: str | None
    timestamp: str
    body_md5: str | None
    signature: str
    signed: bytes
    """All other parameters, as they were signed."""


def _read_plain(query_string: bytes) -> _Given | None:
    """As `_read`, of a query that needs no decoding and no sorting; None if it needs them."""
    text = query_string.decode("latin-1")
    found = _PLAIN.fullmatch(text)
    if found is None:
        return None
    key, first, timestamp, body_md5, last = found.groups()
    if (first is None) == (last is None):
        return None
    begin, end = found.span(2 if last is None else 5)
    signed = text[: begin - len("&auth_signature=")] + text[end:]
    return _Given(key, "1.0", timestamp, body_md5, first or last, signed.encode())


def _read(query_string: bytes) -> _Given:
    query = read_query(query_string)
    key = query.get("auth_key")
    if key is None:
        raise fault.auth_failed("auth_key is missing")
    pairs = sorted(
        [(name.lower(), value) for name, value in query.items() if name != "auth_signature"]
    )
    return _Given(
        key,
        query.get("auth_version"),
        query.get("auth_timestamp", ""),
        query.get("body_md5"),
        query.get("auth_signature", ""),
        "&".join([f"{name}={value}" for name, value in pairs]).encode(),
    )


def _is_same(given: str, expected: str) -> bool:
    """Whether two secrets are the same, in constant time."""
    return hmac.compare_digest(given.encode(), expected.encode())


def read_query(query_string: bytes) -> dict[str, str]:
    """The parameters; one given twice would mean one thing to us and another to the signer."""
    query: dict[str, str] = {}
    try:
        for part in query_string.decode("ascii").split("&"):
            name, _, value = part.partition("=")
            if "%" in part or "+" in part:
                name = unquote_plus(name, errors="strict")
                value = unquote_plus(value, errors="strict")
            if name in query:
                raise fault.invalid_input("a query parameter is given twice")
            if part:
                query[name] = value
    except ValueError:
        raise fault.invalid_input("the query string is not percent-encoded UTF-8") from None
    return query


def _check_time(timestamp: str, now_s: float) -> None:
    is_number = timestamp.isascii() and timestamp.isdecimal() and len(timestamp) <= 20
    if not is_number or abs(now_s - int(timestamp)) > MAX_AGE_SECONDS:
        raise fault.auth_failed(
            f"auth_timestamp must be Unix seconds within {MAX_AGE_SECONDS} s of the server's clock"
        )


def _body_md5(method: str, given: str | None) -> str | None:
    if method in _BODILESS:
        if given not in (None, EMPTY_MD5):
            raise fault.auth_failed(f"body_md5 of {method} must be that of an empty body")
        return given
    if given is None:
        raise fault.auth_failed("body_md5 is missing")
    return given
