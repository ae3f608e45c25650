"""Server-sent events: what happens in the daemon, live and replayed from the inbox (mesh 8.3).

Only messages have an `id:`, their cursor in the inbox. A reader that comes back with the last one
it saw gets every message after it, then what happens next, without a gap and without a copy. So
does a reader that is too slow for what happens: it is fed from the inbox until it has caught up.
"""

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from tidelog.base.faultpoint import FaultPoint, reach
from tidelog.daemon.inbox.inbox_db import Inbox, Message, Position

if TYPE_CHECKING:
    from collections.abc import Callable

KINDS: Final = (
    "message",
    "peer_join",
    "peer_leave",
    "file_shared",
    "daemon_disconnect",
    "daemon_reconnect",
    "hook_executed",
    "feature_negotiation_failed",
    "outbox_pressure_high",
    "outbox_possibly_lost",
)

HEARTBEAT_SECONDS = 15
"""How often a stream without events gets a comment: a reader that has gone is noticed by it."""

_REPLAY_PAGE = 100
_REPLAY_BYTES = 1024 * 1024
"""Of bodies that one page of a replay reads; a page has one message at least."""

_encode = msgspec.json.Encoder().encode


class Port(Protocol):
    """One reader's connection."""

    @property
    def is_open(self) -> bool:
        """Whether anything can still be sent."""

    def has_room(self, size: int) -> bool:
        """Whether so many bytes can be sent now; whatever their number if nothing waits."""

    def send(self, data: bytes) -> None:
        """Send; look for room before."""

    async def drain(self) -> None:
        """Wait until the reader has taken everything, or is gone."""

    async def wait(self, timeout_s: float) -> bool:
        """Wait for `wake` or the reader's end; False if the time is up first."""

    def wake(self) -> None:
        """End a `wait`."""


class _Reader:
    """One stream: live, or catching up from the inbox."""

    __slots__ = ("after", "is_live", "port")

    def __init__(self, port: Port, after: Position, *, is_live: bool) -> None:
        self.port = port
        self.after = after
        """The last message it was sent; what is received from now on comes after it."""
        self.is_live = is_live

    def tell(self, text: bytes, position: Position | None) -> None:
        """Send an event if there is room for it; without, the reader has to catch up first."""
        if not self.is_live:
            return
        if self.port.has_room(len(text)):
            self.port.send(text)
            self.after = position or self.after
        else:
            self.is_live = False
            self.port.wake()


class Events:
    """All readers of one daemon."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._readers: set[_Reader] = set()
        self.listeners: list[Callable[[str, Any], None]] = []
        """Called with each event's kind and data, in this process."""

    @property
    def readers(self) -> int:
        """Streams that get live events."""
        return sum(reader.is_live for reader in self._readers)

    def publish_message(self, message: Message) -> None:
        """Tell of a message whose inbox row is committed."""
        reach(FaultPoint.PUBLISHING)
        self._publish("message", message, message.position)

    def publish(self, kind: str, data: Any) -> None:
        """Tell of anything else; it is not kept, and a replay does not have it."""
        self._publish(kind, data, None)

    def _publish(self, kind: str, data: Any, position: Position | None) -> None:
        if kind not in KINDS:
            raise ValueError(f"{kind!r} is not an event")
        text = encode(kind, data, position.cursor() if position else None)
        for reader in self._readers:
            reader.tell(text, position)
        for listener in self.listeners:
            listener(kind, data)

    async def serve(self, port: Port, after: Position | None) -> None:
        """Feed one reader until it is gone; `after` is the last message it has seen."""
        port.send(b": tidelog\n\n")
        newest = self._inbox.newest()
        reader = _Reader(port, newest if after is None else after, is_live=after is None)
        self._readers.add(reader)
        try:
            while port.is_open:
                if not reader.is_live:
                    await self._catch_up(reader)
                elif not await port.wait(HEARTBEAT_SECONDS):
                    reader.tell(b": \n\n", None)
        finally:
            self._readers.discard(reader)

    async def _catch_up(self, reader: _Reader) -> None:
        port = reader.port
        while port.is_open:
            page = self._inbox.page(reader.after, limit=_REPLAY_PAGE, max_bytes=_REPLAY_BYTES)
            if not page:
                # No await since the page was read: nothing can have come in between.
                reader.is_live = True
                return
            for message in page:
                text = encode("message", message, message.cursor)
                if not port.has_room(len(text)):
                    await port.drain()
                port.send(text)
                reader.after = message.position
            await asyncio.sleep(0)  # a reader that keeps up must not keep others from their turn


def encode(kind: str, data: Any, cursor: str | None) -> bytes:
    """One event as a stream has it; JSON has no line breaks of its own."""
    head = f"event: {kind}\n" if cursor is None else f"id: {cursor}\nevent: {kind}\n"
    return head.encode() + b"data: " + _encode(data) + b"\n\n"
