"""Somebody who is sent a channel as server-sent events, written from the contract."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import urlencode

from support.channels.peer import APP, WAIT_SECONDS, channel_path
from support.channels.raw import signed_target
from tidelog.channels.settings import App

Json = dict[str, Any]


class Event(NamedTuple):
    """One event, or a comment, of which everything is empty."""

    id: str | None
    data: Json | None


class Listener:
    """One response that is read event by event."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self.status = 0
        self.headers: dict[str, str] = {}
        self.retry_ms = 0
        self.last_id = ""
        """What a browser sends when it connects again."""

    async def read_head(self) -> None:
        """Status and headers."""
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        self.status = int(head[0].split(" ")[1])
        for line in filter(None, head[1:]):
            name, _, value = line.partition(": ")
            self.headers[name] = value

    async def body(self) -> Json:
        """What a refusal says."""
        data = await self._reader.readexactly(int(self.headers["content-length"]))
        found: Json = json.loads(data)
        return found

    async def receive(self) -> Event:
        """The next event or comment.

        Raises:
            EOFError: the response has ended.
        """
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                fields: dict[str, list[str]] = {}
                text = (await self._reader.readuntil(b"\n\n")).decode()
                for line in text.removesuffix("\n\n").split("\n"):
                    name, _, value = line.partition(":")
                    fields.setdefault(name, []).append(value.removeprefix(" "))
                if "retry" in fields:
                    self.retry_ms = int(fields["retry"][0])
                    continue
                event_id = fields["id"][0] if "id" in fields else None
                self.last_id = self.last_id if event_id is None else event_id
                data = json.loads("\n".join(fields["data"])) if "data" in fields else None
                return Event(event_id, data)

    async def frame(self) -> Json:
        """The next frame."""
        while (event := await self.receive()).data is None:
            pass
        return event.data

    async def expect(self, event: str) -> Json:
        """The next frame, which is called so."""
        frame = await self.frame()
        assert frame["event"] == event, frame
        return frame

    async def subscribed(self) -> Json:
        """Up to and with the frame that says so."""
        while (frame := await self.frame())["event"] != "sockudo_internal:subscription_succeeded":
            pass
        return frame

    async def ended(self) -> list[Json]:
        """The frames up to the end of the response."""
        frames = []
        while True:
            try:
                frames.append(await self.frame())
            except (EOFError, OSError):
                return frames


def target(channel: str, app: App = APP, **params: Any) -> str:
    """Path and query: with a token, or signed."""
    path = f"/apps/{app.id}{channel_path(channel)}/stream"
    if "token" in params:
        return f"{path}?{urlencode(params)}"
    return signed_target("GET", path, None, params, now=time.time(), app=app)


@asynccontextmanager
async def listening(
    port: int, channel: str, *, last_id: str = "", **params: Any
) -> AsyncIterator[Listener]:
    """A listener whose head was read; `last_id` is the header that browsers send."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
    try:
        header = f"Last-Event-ID: {last_id}\r\n" if last_id else ""
        request = f"GET {target(channel, **params)} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{header}"
        writer.write(f"{request}\r\n".encode())
        listener = Listener(reader, writer)
        await listener.read_head()
        listener.last_id = last_id
        yield listener
    finally:
        writer.transport.abort()


@asynccontextmanager
async def heard(port: int, channel: str, **options: Any) -> AsyncIterator[Listener]:
    """A listener that was not refused."""
    async with listening(port, channel, **options) as listener:
        if listener.status != 200:
            raise AssertionError((listener.status, await listener.body()))
        yield listener


async def refusal(port: int, channel: str, **options: Any) -> tuple[int, str, str]:
    """Status, code and text of a refusal, which a page may read."""
    async with listening(port, channel, **options) as listener:
        assert listener.headers["access-control-allow-origin"] == "*"
        body = await listener.body()
        assert body["status"] == listener.status
        return listener.status, body["code"], body["error"]
