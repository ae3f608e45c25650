"""`BlockingMessageStream`: a message that grows while a `with` lasts, for threads."""

import logging
import threading
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
)

_log = logging.getLogger("tidelog.client.channels.client")


class BlockingPublisher(Protocol):
    """What a stream needs of a `BlockingChannelPublisher`."""

    def publish(
        self,
        channel: str,
        event: str,
        data: Any,
        *,
        message_id: str | None = None,
        extras: Mapping[str, Any] | None = None,
    ) -> Published:
        """Publish the message."""

    def append(
        self,
        channel: str,
        message_serial: str,
        text: str,
        *,
        extras: Mapping[str, Any] | None = None,
    ) -> Published:
        """Add text."""

    def update(self, channel: str, message_serial: str) -> Published:
        """Change nothing, and so keep the stream open."""


class BlockingMessageStream:
    """One growing message; see `MessageStream`, which this is for `with`.

    A thread of its own sends what is written. One thread at a time may write.
    """

    def __init__(
        self,
        publisher: BlockingPublisher,
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
        self._is_writer_waiting = False
        self._changed = threading.Condition()
        """Guards all of these; notified whenever one of them changes."""
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    @property
    def message_serial(self) -> str:
        """Names the message from the first `write` on, also after the block."""
        if self._serial is None:
            raise StreamEnded("nothing is published yet: the first `write` does that")
        return self._serial

    def __enter__(self) -> Self:
        """Begin; nothing is published yet."""
        if self._thread is not None:
            raise StreamEnded("a stream is entered once; call `stream` again")
        self._thread = threading.Thread(
            target=self._send, name="tidelog-message-stream", daemon=True
        )
        self._thread.start()
        return self

    def write(self, token: str) -> None:
        """Add text; see `MessageStream.write`."""
        token.encode()  # what no server could read is the caller's mistake now, not a later one
        with self._changed:
            self._is_writer_waiting = not self._buffer.has_room(token)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_over or self._buffer.has_room(token))
            self._is_writer_waiting = False
            self._check_open()
            if not token:
                return
            self._buffer.add(token)
            self._changed.notify_all()
            if self._serial is None:
                self._changed.wait_for(lambda: self._is_over or self._serial is not None)
                self._check_open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._thread is None:
            return
        with self._changed:
            self._status = "complete" if error is None else "cancelled"
            self._changed.notify_all()
        # The reason for the end is what is raised; whether it could be told is only logged.
        self._thread.join(None if error is None else token_buffer.CLOSE_TIMEOUT_S)
        if error is None:
            if self._failure is not None:
                raise self._failure
        elif self._serial is not None and (self._failure is not None or self._thread.is_alive()):
            _log.warning("channels: a stream could not be marked as cancelled: %s", self._failure)

    @property
    def _is_over(self) -> bool:
        return self._thread is None or self._status is not None or self._failure is not None

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._is_over:
            raise StreamEnded("the stream is not open")

    # The sender.

    def _send(self) -> None:
        """Send what waits, one request after the other, until the end was said."""
        try:
            while True:
                with self._changed:
                    timeout = None if self._serial is None else token_buffer.KEEP_OPEN_S
                    has_news = self._changed.wait_for(self._is_work, timeout)
                    status, text = self._status, self._buffer.take() if has_news else ""
                    self._changed.notify_all()
                if not has_news:
                    self._publisher.update(self._channel, self.message_serial)
                elif status is None:
                    self._put(text, None)
                else:
                    if text or self._serial is not None or status == "complete":
                        self._put(text, status)
                    return
        except BaseException as error:  # noqa: BLE001 - raised where the writer is
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _is_work(self) -> bool:
        is_due = self._buffer.is_due(is_writer_waiting=self._is_writer_waiting)
        return self._status is not None or is_due

    def _put(self, text: str, status: Status | None) -> None:
        """Publish the message, or append to it; `status` is that of its end, None before it."""
        if self._serial is None:
            first, text = text[:FIRST_CHARACTERS], text[FIRST_CHARACTERS:]
            receipt = self._publisher.publish(
                self._channel,
                self._event,
                first,
                message_id=self._message_id,
                extras=with_status(self._extras, "streaming" if text or status is None else status),
            )
            with self._changed:
                self._serial = serial_of(receipt, self._channel)
                self._changed.notify_all()
            if not text:
                return
        extras = None if status is None else with_status(self._extras, status)
        self._publisher.append(self._channel, self.message_serial, text, extras=extras)
        self._buffer.appends += 1
