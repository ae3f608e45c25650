"""HTTP/1.1 to the mesh daemon of this machine: over its Unix socket, or its loopback port.

One request per connection: the daemon is a file away, and a connection that does not outlive its
request cannot be in an unknown state when the next one starts.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tidelog.base.errors import TidelogError

REQUEST_TIMEOUT_S = 30.0

MAX_ANSWER_BYTES = 16 * 1024**2
"""The daemon's own limit is 10 MB; this is what a broken one could make us hold."""

MAX_EVENT_BYTES = 50 * 1024**2
"""One event: the largest message a broker can be set to take, each byte of it written as six."""

STREAM_SILENCE_S = 60.0
"""The daemon sends a comment every 15 s; a stream that is silent for so long is dead."""

_LOST = (OSError, EOFError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError)


class DaemonUnavailable(TidelogError):  # noqa: N818 - the failure is the noun
    """No daemon answers; whether it stored the request is unknown unless the text says so."""


class Reply(NamedTuple):
    """The response of the daemon."""

    status: int
    headers: dict[str, str]
    """Lower-case names."""
    body: Any


class Event(NamedTuple):
    """One event of `/v1/events`."""

    kind: str
    cursor: str | None
    """Its position in the inbox; only messages have one."""
    data: Any


class Endpoint(NamedTuple):
    """Where a daemon listens."""

    socket: Path | None = None
    port: int | None = None
    token: str | None = None
    """Needed for the port."""

    async def ask(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """Send one request; returns the response."""
        data = b"" if body is None else json.dumps(body).encode()
        head = self._head(method, path, len(data), headers or {})
        reader, writer = await self._open()
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                writer.write(head + data)
                await writer.drain()
                status, answered = await _read_head(reader)
                content = await _read_body(reader, answered)
            return Reply(status, answered, json.loads(content) if content else None)
        except (*_LOST, TimeoutError) as error:
            raise DaemonUnavailable(f"{self} did not answer: {type(error).__name__}") from error
        finally:
            writer.transport.abort()

    async def events(self, after: str | None = None) -> AsyncGenerator[Event, None]:
        """Events until the stream ends; `after` replays the messages after a cursor."""
        headers = {} if after is None else {"last-event-id": after}
        head = self._head("GET", "/v1/events", 0, headers)
        reader, writer = await self._open(MAX_EVENT_BYTES)
        try:
            writer.write(head)
            await writer.drain()
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                status, answered = await _read_head(reader)
            if status != 200:
                content = await _read_body(reader, answered)
                raise DaemonUnavailable(f"{self} refuses a stream: {status} {content[:200]!r}")
            while (event := await _read_event(reader)) is not None:
                if event.kind:
                    yield event
        except (*_LOST, TimeoutError) as error:
            raise DaemonUnavailable(f"{self}: the stream was lost") from error
        finally:
            writer.transport.abort()

    async def _open(
        self, limit: int = MAX_ANSWER_BYTES
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                if self.socket is not None:
                    return await asyncio.open_unix_connection(str(self.socket), limit=limit)
                return await asyncio.open_connection("127.0.0.1", self.port, limit=limit)
        except (OSError, TimeoutError) as error:
            where = "" if self.socket is None else f" --data-dir {self.socket.parent}"
            raise DaemonUnavailable(
                f"no daemon answers at {self}. Start it with: tidelog daemon up{where}"
            ) from error

    def _head(self, method: str, path: str, size: int, headers: Mapping[str, str]) -> bytes:
        lines = [f"{method} {path} HTTP/1.1", "host: localhost", f"content-length: {size}"]
        lines += ["connection: close", "content-type: application/json"]
        if self.token is not None:
            lines.append(f"authorization: Bearer {self.token}")
        for name, value in headers.items():
            if "\r" in value or "\n" in value:
                raise ValueError(f"a line break in {name}")
            lines.append(f"{name}: {value}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    def __str__(self) -> str:
        return str(self.socket) if self.socket is not None else f"127.0.0.1:{self.port}"


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {}
    for line in head[1:]:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip().lower()] = value.strip()
    return int(head[0].split(" ", 2)[1]), headers


async def _read_body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    size = int(headers.get("content-length", "0"))
    if size > MAX_ANSWER_BYTES:
        raise ValueError("the response is too large")
    return await reader.readexactly(size)


async def _read_event(reader: asyncio.StreamReader) -> Event | None:
    """The next event; None at the end; one without a kind for a comment."""
    kind, cursor, data = "", None, None
    while True:
        async with asyncio.timeout(STREAM_SILENCE_S):
            line = await reader.readline()
        if not line.endswith(b"\n"):
            return None
        text = line.rstrip(b"\r\n").decode()
        if not text:
            return Event(kind, cursor, data)
        name, _, value = text.partition(": ")
        if name == "event":
            kind = value
        elif name == "id":
            cursor = value
        elif name == "data":
            data = json.loads(value)
