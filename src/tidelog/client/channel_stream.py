"""A message that is written token by token while its subscribers read it."""

import asyncio
import logging
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from tidelog.base.errors import TidelogError

MAX_BUFFERED = 262_144
"""Characters written and not yet taken by the server; a writer beyond it waits."""

EAGER_APPENDS = 2048
"""Appends that carry whatever there is. A message takes 4096 unless the server is set otherwise, so
later ones wait for more text each: the second half then holds the megabyte a message may have."""

CLOSE_TIMEOUT_S = 10.0
"""How long a block that ends by an exception waits for the server to hear of it."""

Status = Literal["complete", "cancelled"]

_log = logging.getLogger("tidelog.client.channel")


class _Receipt(Protocol):
    @property
    def message_serial(self) -> str | None: ...


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
    ) -> _Receipt:
        """Publish the empty message."""

    async def append(
        self,
        channel: str,
        message_serial: str,
        text: str,
        *,
        extras: Mapping[str, Any] | None = None,
    ) -> _Receipt:
        """Add text."""


class StreamEnded(TidelogError):  # noqa: N818 - the failure is the noun
    """Nothing can be written: the block has not begun or is over."""


class MessageStream:
    """One growing message.

    Entering publishes it empty, with `extras.ai.transport.status` `streaming`. Tokens written while
    a request is under way go out together with the next one, in order, so a slow network makes
    larger pieces and not a slower writer, until `max_buffered` characters wait. Leaving the block
    sends the rest and the status `complete`; leaving it by an exception, also by cancellation,
    sends what was written and the status `cancelled`. A server that refuses an append (a message
    that grew too large, say) ends the stream: the refusal is raised by the next `write` or at the
    end of the block.
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
        if max_buffered < 1:
            raise ValueError("max_buffered must be at least 1")
        self._publisher = publisher
        self._channel = channel
        self._event = event
        self._extras = extras
        self._message_id = message_id
        self._max_buffered = max_buffered
        self._serial: str | None = None
        self._waiting: list[str] = []
        self._size = 0
        self._appends = 0
        self._status: Status | None = None
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        """Not set while a writer waits."""
        self._room.set()
        self._task: asyncio.Task[None] | None = None

    @property
    def message_serial(self) -> str:
        """Names the message, also after the block."""
        if self._serial is None:
            raise StreamEnded("the stream has not begun; use `async with`")
        return self._serial

    async def __aenter__(self) -> Self:
        """Publish the empty message.

        Raises:
            PublishRefused, PublishFailed: see there.
            StreamEnded: the channel keeps no versions, so nothing can be appended.
        """
        if self._task is not None:
            raise StreamEnded("a stream is entered once; call `stream` again")
        receipt = await self._publisher.publish(
            self._channel,
            self._event,
            "",
            message_id=self._message_id,
            extras=with_status(self._extras, "streaming"),
        )
        if receipt.message_serial is None:
            raise StreamEnded(f"messages of {self._channel} cannot be changed")
        self._serial = receipt.message_serial
        self._task = asyncio.create_task(self._send())
        return self

    async def write(self, token: str) -> None:
        """Add text; waits only while more than `max_buffered` characters wait to be sent.

        Raises:
            PublishRefused, PublishFailed: an earlier append failed; nothing can be added any more.
        """
        token.encode()  # what no server could read is the caller's mistake now, not a later one
        while True:
            if self._task is None or self._status is not None:
                raise StreamEnded("the stream is not open")
            if self._task.done():
                self._task.result()
            if not self._size or self._size + len(token) <= self._max_buffered:
                break
            self._room.clear()
            self._news.set()
            await self._room.wait()
        if token:
            self._waiting.append(token)
            self._size += len(token)
            self._news.set()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._task is None:
            return
        self._status = "complete" if error is None else "cancelled"
        self._news.set()
        try:
            if error is None:
                await self._task
            else:
                await self._give_up(self._task)
        finally:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _give_up(self, task: asyncio.Task[None]) -> None:
        """Say that it was cancelled, if that can be said; the reason for it is what is raised."""
        await asyncio.wait((task,), timeout=CLOSE_TIMEOUT_S)
        failure = None if not task.done() or task.cancelled() else task.exception()
        if failure is not None or not task.done():
            _log.warning("channels: a stream could not be marked as cancelled: %s", failure)

    # The sender.

    async def _send(self) -> None:
        """Append what waits, one request after the other, until the end was said."""
        try:
            while self._status is None:
                if self._is_worth_it():
                    await self._append(self._take(), None)
                else:
                    self._news.clear()
                    await self._news.wait()
            await self._append(self._take(), with_status(self._extras, self._status))
        finally:
            self._room.set()

    def _is_worth_it(self) -> bool:
        """Whether an append is due: there is text, and enough of it if there were many."""
        least = max(1, (self._appends - EAGER_APPENDS) // 2)
        is_writer_waiting = not self._room.is_set()
        return self._size >= least or (self._size > 0 and is_writer_waiting)

    def _take(self) -> str:
        text = "".join(self._waiting)
        self._waiting, self._size = [], 0
        self._room.set()
        return text

    async def _append(self, text: str, extras: Mapping[str, Any] | None) -> None:
        await self._publisher.append(self._channel, self.message_serial, text, extras=extras)
        self._appends += 1


def with_status(extras: Mapping[str, Any] | None, status: str) -> dict[str, Any]:
    """Extras with `ai.transport.status` set and everything else as it was."""
    whole = dict(extras or {})
    ai = dict(whole.get("ai") or {})
    ai["transport"] = {**(ai.get("transport") or {}), "status": status}
    whole["ai"] = ai
    return whole
