"""The opening handshake: from the bytes of an upgrade request to the bytes of its answer."""

import binascii
from base64 import b64encode
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha1
from http.client import responses

import httptools
import msgspec
from msgspec import Struct

from tidelog.base.serving.surface import HttpResponse, Streamed

_CLOSE = (b"connection", b"close")
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Opening(Struct, frozen=True):
    """An upgrade request, taken apart."""

    method: bytes
    raw_path: bytes
    query_string: bytes
    headers: tuple[tuple[bytes, bytes], ...]

    def values(self, name: bytes) -> list[bytes]:
        """Every value of that lower-case header name."""
        return [value for key, value in self.headers if key == name]


def parse(request: bytes) -> Opening | None:
    """Take apart the request that `LimitedHttp` parsed, checked and put together again.

    Returns None if its target is not a URL.
    """
    line, *fields = request.removesuffix(b"\r\n\r\n").split(b"\r\n")
    method, target, _ = line.split(b" ", 2)
    try:
        url = httptools.parse_url(target)
    except httptools.HttpParserInvalidURLError:
        return None
    headers = []
    for field in fields:
        name, _, value = field.partition(b": ")
        headers.append((name.lower(), value))
    return Opening(
        method=method,
        raw_path=url.path or b"/",
        query_string=url.query or b"",
        headers=tuple(headers),
    )


CODES = {
    400: "invalid_input",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "payload_too_large",
    426: "upgrade_required",
    429: "rate_limited",
    431: "headers_too_large",
    500: "internal_error",
    503: "backpressure",
}
"""Stable names of the refusals of the web room; the envelope is that of channels 8.2."""

UNAVAILABLE = "service_unavailable"
"""The other name of a 503: not the queue is full, the store does not work."""

OUTCOME_UNKNOWN = (
    "the outcome is unknown: this may have been done or not. Repeat it under the same key, or look "
    "before you repeat it"
)
"""With that name: the owner of the log, or its database, was lost before it said."""


TOO_MANY_FAILURES = (
    "too many failed authentications from your address (setting "
    "per_address.max_failed_authentications_per_minute)"
)

TOO_MANY_CONNECTIONS = (
    "too many connections from your address (setting per_address.max_connections)"
)


def refuse(
    status: int, error: str, *headers: tuple[bytes, bytes], code: str | None = None
) -> HttpResponse:
    """A refusal with a JSON body."""
    body = {"error": error, "code": code or CODES[status], "status": status}
    return HttpResponse(status=status, body=msgspec.json.encode(body), headers=headers)


def accept(opening: Opening, extension: bytes | None = None) -> bytes | HttpResponse:
    """The `101` answer to a correct request, or the refusal of an incorrect one (RFC 6455, 4.2).

    `extension` is what was agreed on. No subprotocol is ever negotiated.
    """
    if opening.method != b"GET":
        return refuse(405, "a WebSocket is opened with GET", (b"allow", b"GET"))
    if opening.values(b"sec-websocket-version") != [b"13"]:
        return refuse(
            426,
            "only WebSocket version 13 is supported",
            (b"upgrade", b"websocket"),
            (b"sec-websocket-version", b"13"),
        )
    keys = opening.values(b"sec-websocket-key")
    if len(keys) != 1 or not _is_key(keys[0]):
        return refuse(400, "Sec-WebSocket-Key must be 16 bytes in base64, once")
    # RFC 6455 prescribes SHA-1; it proves that the server speaks WebSocket and protects nothing.
    digest = sha1(keys[0] + _GUID, usedforsecurity=False).digest()
    return (
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
        b"sec-websocket-accept: "
        + b64encode(digest)
        + b"\r\n"
        + (b"sec-websocket-extensions: %s\r\n" % extension if extension else b"")
        + b"\r\n"
    )


def _is_key(value: bytes) -> bool:
    try:
        return len(binascii.a2b_base64(value, strict_mode=True)) == 16
    except binascii.Error:
        return False


_STATUS_LINES = {
    status: f"HTTP/1.1 {status} {responses.get(status, '')}\r\n".encode()
    for status in range(100, 600)
}
_REMEMBERED_BEGINNINGS = 64


def encode(
    response: HttpResponse,
    *,
    keep_alive: bool = False,
    common: Sequence[tuple[bytes, bytes]] = (),
) -> bytes:
    """An HTTP response as bytes; the connection ends with it unless it is kept alive.

    `common` are headers that every response of the server has. One that is streamed has no length:
    it ends with the connection.
    """
    parts = [_beginning(response.status, response.content_type, tuple(common))]
    if not isinstance(response, Streamed):
        parts.append(b"content-length: %d\r\n" % len(response.body))
    if response.headers:
        parts += [b"%s: %s\r\n" % header for header in response.headers if header != _CLOSE]
    parts.append(b"\r\n" if keep_alive else b"connection: close\r\n\r\n")
    parts.append(response.body)
    return b"".join(parts)


@lru_cache(_REMEMBERED_BEGINNINGS)
def _beginning(status: int, content_type: str, common: tuple[tuple[bytes, bytes], ...]) -> bytes:
    """What responses have in common; once a second they have another date."""
    fields = [b"%s: %s\r\n" % header for header in common]
    line = _STATUS_LINES[status]
    return b"%scontent-type: %s\r\n%s" % (line, content_type.encode(), b"".join(fields))
