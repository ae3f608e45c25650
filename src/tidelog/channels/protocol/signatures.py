"""What only the holder of an application's secret can have written (channels 2.2, 4.1).

Signatures are compared in constant time, and no text here ever repeats one or the secret.
"""

import hashlib
import hmac
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import unquote_plus

from tidelog.channels.protocol import fault
from tidelog.channels.settings import App, set_by

MAX_AGE_SECONDS = 600
"""How far a request's timestamp may be from our clock, both ways."""

_BODILESS = frozenset({"GET", "HEAD", "DELETE"})
EMPTY_MD5 = "d41d8cd98f00b204e9800998ecf8427e"
"""Of a body without a byte: some libraries send it where there is no body at all."""


def sign(secret: str, text: str) -> str:
    """HMAC-SHA256 of a text, in lower-case hex."""
    return hmac.digest(secret.encode(), text.encode(), "sha256").hex()


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
    expected = f"{app.key}:{sign(app.secret, signed)}"
    return hmac.compare_digest(auth.encode(), expected.encode())


class Signed(NamedTuple):
    """A request whose head its app has signed; of its body only the hash is known."""

    app: App
    query: dict[str, str]
    """Decoded."""
    body_md5: str | None
    """What the body must have; None if it has none and nothing was said of it."""

    def check_body(self, body: bytes) -> None:
        """Refuse another body than the one that was signed.

        Raises:
            Fault: it is another one.
        """
        if self.body_md5 is None:
            return
        # The protocol says MD5; what is trusted is the signature, which covers this parameter.
        found = hashlib.md5(body).hexdigest()  # noqa: S324
        if not hmac.compare_digest(found.encode(), self.body_md5.encode()):
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
    query = read_query(query_string)
    key = query.get("auth_key")
    if key is None:
        raise fault.auth_failed("auth_key is missing")
    app = app_lookup(key)
    if app is None:
        raise fault.app_not_found(key)
    if app_id not in (app.id, app.alias):
        raise fault.auth_failed("auth_key belongs to another app")
    if query.get("auth_version") != "1.0":
        raise fault.auth_failed("auth_version must be 1.0")
    _check_time(query.get("auth_timestamp", ""), now_s)
    body_md5 = _body_md5(method, query.get("body_md5"))
    given = query.get("auth_signature", "")
    if not hmac.compare_digest(given.encode(), _expected(app, method, raw_path, query)):
        raise fault.auth_failed("auth_signature is wrong")
    if not app.enabled:
        raise fault.auth_failed("the app is disabled" + set_by("apps.enabled"))
    return Signed(app, query, body_md5)


def _expected(app: App, method: str, raw_path: bytes, query: dict[str, str]) -> bytes:
    pairs = sorted(
        [(name.lower(), value) for name, value in query.items() if name != "auth_signature"]
    )
    parameters = "&".join([f"{name}={value}" for name, value in pairs])
    signed = b"%s\n%s\n%s" % (method.encode(), raw_path, parameters.encode())
    return hmac.digest(app.secret.encode(), signed, "sha256").hex().encode()


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
