"""Server-sent events: what happens in the daemon, live and replayed from the inbox (mesh 11.2).

Only messages have an `id:`, their cursor in the inbox. A reader that comes back with the last one
it saw gets every message behind it, then what happens next, without a gap and without a copy.
"""

from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from tidelog.base.faultpoint import FaultPoint, reach
from tidelog.daemon.inbox import Inbox, Message, Place

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
_encode = msgspec.json.Encoder().encode


class Port(Protocol):
    """One reader's connection."""

    @property
    def is_open(self) -> bool:
        """Whether anything can still be sent."""

    def send(self, data: bytes) -> None:
        """Send, or cut the reader off if too much waits already."""

    async def drain(self) -> None:
        """Wait until the reader has taken most of it, or is gone."""

    async def wait_closed(self, timeout_s: float) -> bool:
        """Wait for the reader's end; False if the time is up first."""


class Events:
    """All readers of one daemon."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._ports: set[Port] = set()
        self.listeners: list[Callable[[str, Any], None]] = []
        """Called with each event's kind and data, in this process."""

    @property
    def readers(self) -> int:
        """Streams that get live events."""
        return len(self._ports)

    def publish_message(self, message: Message) -> None:
        """Tell of a message whose inbox row is committed."""
        reach(FaultPoint.PUBLISHING)
        self._publish("message", message, message.cursor)

    def publish(self, kind: str, data: Any) -> None:
        """Tell of anything else; it is not kept, and a replay does not have it."""
        self._publish(kind, data, None)

    def _publish(self, kind: str, data: Any, cursor: str | None) -> None:
        if kind not in KINDS:
            raise ValueError(f"{kind!r} is no event")
        text = encode(kind, data, cursor)
        for port in list(self._ports):
            port.send(text)
        for listener in self.listeners:
            listener(kind, data)

    async def serve(self, port: Port, after: Place | None) -> None:
        """Feed one reader until it is gone; `after` is the last message it has seen."""
        port.send(b": tidelog\n\n")
        if after is not None:
            await self._replay(port, after)
        # No await since the last page was read: nothing can have come in between.
        self._ports.add(port)
        try:
            while not await port.wait_closed(HEARTBEAT_SECONDS):
                port.send(b": \n\n")
        finally:
            self._ports.discard(port)

    async def _replay(self, port: Port, after: Place) -> None:
        while port.is_open:
            page = self._inbox.page(after, limit=_REPLAY_PAGE)
            for message in page:
                port.send(encode("message", message, message.cursor))
            if len(page) < _REPLAY_PAGE:
                return
            after = page[-1].place
            await port.drain()


def encode(kind: str, data: Any, cursor: str | None) -> bytes:
    """One event as a stream has it; JSON has no line breaks of its own."""
    head = f"event: {kind}\n" if cursor is None else f"id: {cursor}\nevent: {kind}\n"
    return head.encode() + b"data: " + _encode(data) + b"\n\n"
