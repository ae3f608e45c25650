"""One request to the signed HTTP API and its attempts, without I/O (channels 4.1).

A transport sends what `request` returns and tells the exchange what came of it; whether and when to
try again, and what a response means, is decided here, for every transport alike.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import httptools
import msgspec
from msgspec import Struct

from tidelog.base.errors import TidelogError
from tidelog.channels.protocol.signatures import sign
from tidelog.client.backoff import Backoff

T = TypeVar("T")

MAX_ANSWER_BYTES = 64 * 1024**2
"""A page of a history ends after 4 MiB of data, each byte of which can be written as six; a peer
must not fill our memory."""

MAX_HEAD_BYTES = 65_536
"""Before the body of a response; the parser copies a header again with each piece of it."""

MAX_RETRY_AFTER_S = 30.0

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class PublishRefused(TidelogError):  # noqa: N818 - the failure is the noun
    """The server understood the request and refused it; nothing was changed."""

    def __init__(self, status: int, code: str, error: str, ai_code: int | None = None) -> None:
        super().__init__(f"{status} {code}: {error}")
        self.status = status
        self.code = code
        """Stable name of the class of failure: `code` of channels 8.2."""
        self.error = error
        self.ai_code = ai_code


class PublishFailed(TidelogError):  # noqa: N818 - the failure is the noun
    """No response in any attempt: whether it was published is unknown.

    Trying again under the same `message_id` or `op_id` cannot do it twice.
    """


class Server(Struct, frozen=True):
    """Where an app is served, and what proves that we are its server."""

    url: str
    app_id: str
    key: str
    secret: str

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
            raise ValueError("url must be http://host or https://host, without a path")

    def __repr__(self) -> str:
        return f"Server({self.url!r}, {self.app_id!r})"

    @property
    def host(self) -> str:
        """Name or address to connect to."""
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        """Port to connect to."""
        parts = urlsplit(self.url)
        return parts.port or (443 if parts.scheme == "https" else 80)

    def request(self, call: "Call[Any]", now_s: float) -> bytes:
        """A signed HTTP/1.1 request."""
        path = f"/apps/{quote(self.app_id, safe='')}{call.path}"
        query = {
            **call.query,
            "auth_key": self.key,
            "auth_timestamp": str(int(now_s)),
            "auth_version": "1.0",
        }
        body = b""
        if call.body is not None:
            body = _encode(call.body)
            query["body_md5"] = hashlib.md5(body).hexdigest()  # noqa: S324 - the protocol's; the HMAC counts
        signed = "&".join(f"{name}={query[name]}" for name in sorted(query))
        query["auth_signature"] = sign(self.secret, f"{call.method}\n{path}\n{signed}")
        netloc = urlsplit(self.url).netloc.rpartition("@")[2]
        head = f"{call.method} {path}?{urlencode(query)} HTTP/1.1\r\nHost: {netloc}\r\n"
        if call.body is not None:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        return f"{head}\r\n".encode("ascii") + body


class Call(Struct, Generic[T], frozen=True, kw_only=True):
    """What is asked of the API, and how its result is read."""

    path: str
    """After `/apps/{id}`, percent-encoded."""
    read: Callable[[dict[str, Any]], T]
    """The result in the response; raises what a malformed one makes it raise."""
    query: Mapping[str, str] = {}
    body: Mapping[str, Any] | None = None
    """None for a GET."""

    @property
    def method(self) -> str:
        """The HTTP method."""
        return "GET" if self.body is None else "POST"


class Retry(Struct, frozen=True):
    """Repeating a request."""

    attempts: int
    """How often it is sent before `PublishFailed`."""
    timeout_s: float
    """Of one attempt."""
    backoff: Backoff
    """Waits between attempts."""

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError("attempts must be at least 1")


class Answer(Struct):
    """A response."""

    status: int
    retry_after: str | None
    body: bytes
    is_reusable: bool
    """Whether the connection takes another request."""


class AnswerReader:
    """Puts a response together out of the bytes that come in."""

    def __init__(self) -> None:
        self._headers: dict[bytes, bytes] = {}
        self._body = bytearray()
        self._head_bytes = 0
        self._is_in_head = True
        self._is_complete = False
        self._is_reusable = False
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, chunk: bytes) -> Answer | None:
        """The response, once it is whole.

        Raises:
            OSError: it is none, or too large, or the connection ended before it did.
        """
        if not chunk:
            raise ConnectionResetError("the server closed the connection without a response")
        try:
            self._parser.feed_data(chunk)
        except httptools.HttpParserError as error:
            raise OSError(f"the response is not HTTP: {error}") from error
        if self._is_in_head:
            self._head_bytes += len(chunk)
        if len(self._body) > MAX_ANSWER_BYTES or self._head_bytes > MAX_HEAD_BYTES:
            raise OSError("the response is too large")
        if not self._is_complete:
            return None
        retry_after = self._headers.get(b"retry-after")
        return Answer(
            self._parser.get_status_code(),
            None if retry_after is None else retry_after.decode("latin-1"),
            bytes(self._body),
            self._is_reusable,
        )

    # The parser calls these.

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """The head is over."""
        self._is_in_head = False

    def on_body(self, body: bytes) -> None:
        """Part of the body."""
        self._body += body

    def on_message_complete(self) -> None:
        """The end; the parser has forgotten soon after whether the connection is kept."""
        self._is_complete = True
        self._is_reusable = self._parser.should_keep_alive()


class Exchange(Generic[T]):
    """One call until there is a result; every attempt carries the same body."""

    result: T

    def __init__(self, server: Server, call: Call[T], retry: Retry) -> None:
        self._server = server
        self._call = call
        self._retry = retry
        self._failures = 0

    def request(self, now_s: float) -> bytes:
        """What to send; its signature tells the time."""
        return self._server.request(self._call, now_s)

    def answered(self, answer: Answer) -> float | None:
        """How long to wait before the next attempt; None if `result` is there.

        Raises:
            PublishRefused: it was refused, and would be again.
            PublishFailed: that was the last attempt, or the response cannot be understood.
        """
        if answer.status == 200:
            try:
                self.result = self._call.read(_object(answer.body))
            except (KeyError, TypeError, ValueError, TidelogError) as error:
                raise PublishFailed(
                    f"the server's response to {self._call.method} {self._call.path} cannot be "
                    "understood; is this the address of a tidelog server?"
                ) from error
            return None
        refused = _refusal(answer)
        if answer.status < 500 and answer.status not in (408, 429):
            raise refused
        return max(self._wait(str(refused)), _seconds(answer.retry_after))

    def failed(self, error: Exception) -> float:
        """How long to wait before the next attempt, because there was no response.

        Raises:
            PublishFailed: that was the last attempt.
        """
        return self._wait(f"{type(error).__name__}: {error}")

    def _wait(self, failure: str) -> float:
        self._failures += 1
        if self._failures >= self._retry.attempts:
            raise PublishFailed(
                f"no response in {self._retry.attempts} attempts; the last: {failure}"
            )
        return self._retry.backoff.delay(self._failures - 1)


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = _decode(body)
    except msgspec.DecodeError:
        value = None
    return value if isinstance(value, dict) else {}


def _refusal(answer: Answer) -> PublishRefused:
    fields = _object(answer.body)
    code, error, ai_code = fields.get("code"), fields.get("error"), fields.get("ai_code")
    return PublishRefused(
        answer.status,
        code if isinstance(code, str) else "unknown",
        error if isinstance(error, str) else "",
        ai_code if isinstance(ai_code, int) else None,
    )


def _seconds(retry_after: str | None) -> float:
    if retry_after is None or not retry_after.isdecimal():
        return 0.0
    return min(float(retry_after), MAX_RETRY_AFTER_S)
