"""A message that is written token by token while its subscribers read it."""

import asyncio
import logging
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol, Self

from tidelog.client.channels import token_buffer
from tidelog.client.channels.token_buffer import (
    FIRST_CHARACTERS,
    Published,
    Status,
    StreamEnded,
    TokenBuffer,
    serial_of,
    with_status,
    with_transport,
)

_log = logging.getLogger("tidelog.client.channels.client")


class Publisher(Protocol):
    """What a stream needs of a `ChannelPublisher`."""

    async def publish(
        self,
        channel: str,
        event: str,
        data: Any,
        *,
        message_id: str | None = None,
        extras: Mapping[str, Any] | None = None,
    ) -> Published:
        """Publish the message."""

    async def append(
        self,
        channel: str,
        message_serial: str,
        text: str,
        *,
        extras: Mapping[str, Any] | None = None,
    ) -> Published:
        """Add text."""

    async def update(self, channel: str, message_serial: str) -> Published:
        """Change nothing, and so keep the stream open."""


class MessageStream:
    """One growing message.

    The first text that is written publishes it, with `extras.ai.transport.status` `streaming`: a
    model that fails before its first token leaves nothing. Tokens written while a request is under
    way go out together with the next one, in order, so a slow network makes larger pieces and not
    a slower writer, until `max_buffered` characters wait. Leaving the block sends the rest and the
    status `complete`; leaving it by an exception, also by cancellation, sends what was written and
    the status `cancelled`. A server that refuses something (a channel whose messages cannot change,
    a message that grew too large) ends the stream: the refusal is raised by that first `write`, by
    the next one or at the end of the block.
    """

    def __init__(
        self,
        publisher: Publisher,
        channel: str,
        event: str,
        *,
        extras: Mapping[str, Any] | None,
        message_id: str | None,
        max_buffered: int,
    ) -> None:
        self._publisher = publisher
        self._channel = channel
        self._event = event
        self._extras = extras
        self._message_id = message_id
        self._buffer = TokenBuffer(max_buffered)
        self._serial: str | None = None
        self._status: Status | None = None
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        """Not set while a writer waits."""
        self._room.set()
        self._begun = asyncio.Event()
        """Set when the message is published, or never will be."""
        self._task: asyncio.Task[None] | None = None

    @property
    def message_serial(self) -> str:
        """Names the message from the first `write` on, also after the block."""
        if self._serial is None:
            raise StreamEnded("nothing is published yet: the first `write` does that")
        return self._serial

    async def __aenter__(self) -> Self:
        """Begin; nothing is published yet."""
        if self._task is not None:
            raise StreamEnded("a stream is entered once; call `stream` again")
        self._task = asyncio.create_task(self._send())
        return self

    async def write(self, token: str) -> None:
        """Add text.

        The first call returns when the message is published; the others wait only while more than
        `max_buffered` characters wait to be sent.

        Raises:
            PublishRefused, PublishFailed: the message could not be published, or an earlier append
                failed; nothing can be added any more.
            StreamEnded: the block has not begun or is over.
        """
        token.encode()  # what no server could read is the caller's mistake now, not a later one
        while True:
            if self._task is None or self._status is not None:
                raise StreamEnded("the stream is not open")
            if self._task.done():
                self._task.result()
            if self._buffer.has_room(token):
                break
            self._room.clear()
            self._news.set()
            await self._room.wait()
        if token:
            self._buffer.add(token)
            self._news.set()
        if token and self._serial is None:
            await self._begun.wait()
            if self._task.done():
                self._task.result()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._task is None or self._status is not None:
            return
        if error is None:
            await self.end("complete")
            return
        self._status = "cancelled"
        self._news.set()
        try:
            await self._give_up(self._task)
        finally:
            await self._stop(self._task)

    async def end(self, status: Status, transport: Mapping[str, str] | None = None) -> None:
        """Send the rest and say how it ended; `transport` are headers that say why.

        Raises:
            PublishRefused, PublishFailed: that could not be said, or something before it.
        """
        if self._task is None or self._status is not None:
            return
        self._status = status
        self._extras = with_transport(self._extras, transport or {})
        self._news.set()
        try:
            await self._task
        finally:
            await self._stop(self._task)

    async def _stop(self, task: asyncio.Task[None]) -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def _give_up(self, task: asyncio.Task[None]) -> None:
        """Say that it was cancelled, if that can be said; the reason for it is what is raised."""
        await asyncio.wait((task,), timeout=token_buffer.CLOSE_TIMEOUT_S)
        failure = None if not task.done() or task.cancelled() else task.exception()
        if self._serial is not None and (failure is not None or not task.done()):
            _log.warning("channels: a stream could not be marked as cancelled: %s", failure)

    # The sender.

    async def _send(self) -> None:
        """Send what waits, one request after the other, until the end was said."""
        try:
            while self._status is None:
                if self._buffer.is_due(is_writer_waiting=not self._room.is_set()):
                    await self._put(self._take(), None)
                else:
                    await self._wait()
            text = self._take()
            if text or self._serial is not None or self._status == "complete":
                await self._put(text, self._status)
        finally:
            self._room.set()
            self._begun.set()

    async def _wait(self) -> None:
        """Until there is news; a silent stream is kept open."""
        self._news.clear()
        try:
            async with asyncio.timeout(None if self._serial is None else token_buffer.KEEP_OPEN_S):
                await self._news.wait()
        except TimeoutError:
            await self._publisher.update(self._channel, self.message_serial)

    def _take(self) -> str:
        text = self._buffer.take()
        self._room.set()
        return text

    async def _put(self, text: str, status: Status | None) -> None:
        """Publish the message, or append to it; `status` is that of its end, None before it."""
        if self._serial is None:
            first, text = text[:FIRST_CHARACTERS], text[FIRST_CHARACTERS:]
            await self._publish(first, "streaming" if text or status is None else status)
            if not text:
                return
        extras = None if status is None else with_status(self._extras, status)
        await self._publisher.append(self._channel, self.message_serial, text, extras=extras)
        self._buffer.appends += 1

    async def _publish(self, text: str, status: str) -> None:
        receipt = await self._publisher.publish(
            self._channel,
            self._event,
            text,
            message_id=self._message_id,
            extras=with_status(self._extras, status),
        )
        self._serial = serial_of(receipt, self._channel)
        self._begun.set()
