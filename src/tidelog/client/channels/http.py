"""Signed requests to the channels API over connections that are kept (channels 4.1).

HTTP/1.1 on asyncio's streams with the parser the server uses as well: a few requests to one host
need no more, and the package no further dependency.
"""

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Callable, Mapping
from typing import Any, Self
from urllib.parse import quote, urlencode, urlsplit

import httptools
import msgspec
from msgspec import Struct

from tidelog.base.errors import TidelogError
from tidelog.base.net.tls import context_for
from tidelog.channels.protocol.signatures import sign
from tidelog.client.backoff import Backoff

MAX_CONNECTIONS = 16
"""Requests at the same time; further ones wait."""

MAX_ANSWER_BYTES = 4 * 1024**2
"""Responses to publishes are far smaller; a peer must not fill our memory."""

READ_BYTES = 65_536

MAX_RETRY_AFTER_S = 30.0

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class PublishRefused(TidelogError):  # noqa: N818 - the failure is the noun
    """The server understood the request and refused it; nothing was published."""

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


class Answer(Struct):
    """A response."""

    status: int
    retry_after: str | None
    body: bytes
    is_reusable: bool


class _Reader:
    """What the parser calls while a response comes in."""

    def __init__(self) -> None:
        self.headers: dict[bytes, bytes] = {}
        self.body = bytearray()
        self.is_complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self.body += body
        if len(self.body) > MAX_ANSWER_BYTES:
            raise OSError("the response is too large")

    def on_message_complete(self) -> None:
        self.is_complete = True


class _Connection:
    """One connection; one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def exchange(self, request: bytes) -> Answer:
        self._writer.write(request)
        await self._writer.drain()
        got = _Reader()
        parser = httptools.HttpResponseParser(got)
        while not got.is_complete:
            chunk = await self._reader.read(READ_BYTES)
            if not chunk:
                raise ConnectionResetError("the server closed the connection without a response")
            try:
                parser.feed_data(chunk)
            except httptools.HttpParserError as error:
                raise OSError(f"the response is not HTTP: {error}") from error
        retry_after = got.headers.get(b"retry-after")
        return Answer(
            parser.get_status_code(),
            None if retry_after is None else retry_after.decode("latin-1"),
            bytes(got.body),
            parser.should_keep_alive(),
        )

    @property
    def is_usable(self) -> bool:
        """Whether the server has not closed it meanwhile."""
        return not (self._reader.at_eof() or self._writer.is_closing())

    def close(self) -> None:
        self._writer.close()

    async def wait_closed(self) -> None:
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


class ChannelApi:
    """The signed API of one app; use it as `async with`."""

    def __init__(
        self,
        url: str,
        app_id: str,
        app_key: str,
        app_secret: str,
        *,
        attempts: int,
        timeout_s: float,
        backoff: Backoff,
        now: Callable[[], float] = time.time,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
            raise ValueError("url must be http://host or https://host, without a path")
        self._host = parts.hostname
        self._url = url
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._netloc = parts.netloc.rpartition("@")[2]
        self._app_id = app_id
        self._key = app_key
        self._secret = app_secret
        self._attempts = attempts
        self._timeout_s = timeout_s
        self._backoff = backoff
        self._now = now
        self._idle: list[_Connection] = []
        self._slots = asyncio.Semaphore(MAX_CONNECTIONS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
            await connection.wait_closed()

    async def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """POST until there is a response; every attempt carries the same body.

        Raises:
            PublishRefused: it was refused, and would be again.
            PublishFailed: there was no response, or only errors of the server.
        """
        encoded = _encode(body)
        failure = ""
        for attempt in range(self._attempts):
            wait = self._backoff.delay(attempt)
            try:
                async with self._slots, asyncio.timeout(self._timeout_s):
                    answer = await self._send(self._request(path, encoded))
            except (OSError, TimeoutError) as error:
                failure = f"{type(error).__name__}: {error}"
            else:
                if answer.status == 200:
                    return _object(answer.body)
                refused = _refusal(answer)
                if answer.status < 500 and answer.status not in (408, 429):
                    raise refused
                failure = str(refused)
                wait = max(wait, _seconds(answer.retry_after))
            if attempt + 1 < self._attempts:
                await asyncio.sleep(wait)
        raise PublishFailed(f"no response in {self._attempts} attempts; the last: {failure}")

    def _request(self, path: str, body: bytes) -> bytes:
        path = f"/apps/{quote(self._app_id, safe='')}{path}"
        query = {
            "auth_key": self._key,
            "auth_timestamp": str(int(self._now())),
            "auth_version": "1.0",
            "body_md5": hashlib.md5(body).hexdigest(),  # noqa: S324 - the protocol's; the HMAC counts
        }
        signed = "&".join(f"{name}={value}" for name, value in query.items())
        query["auth_signature"] = sign(self._secret, f"POST\n{path}\n{signed}")
        head = (
            f"POST {path}?{urlencode(query)} HTTP/1.1\r\nHost: {self._netloc}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode("ascii") + body

    async def _send(self, request: bytes) -> Answer:
        connection = self._take_idle() or await self._connect()
        try:
            answer = await connection.exchange(request)
        except BaseException:
            connection.close()
            raise
        if answer.is_reusable and len(self._idle) < MAX_CONNECTIONS:
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    def _take_idle(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable:
                return connection
            connection.close()
        return None

    async def _connect(self) -> _Connection:
        context = await context_for(self._url)
        return _Connection(
            *await asyncio.open_connection(
                self._host,
                self._port,
                ssl=context,
                server_hostname=self._host if context else None,
            )
        )


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
