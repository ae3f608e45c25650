"""What is written into a growing message, and how it is cut into requests; no I/O.

`MessageStream` and `BlockingMessageStream` differ in how they wait; what they send is decided here.
"""

from collections.abc import Mapping
from typing import Any, Literal, Protocol

from tidelog.base.errors import TidelogError

MAX_BUFFERED = 262_144
"""Characters written and not yet taken by the server; a writer beyond it waits."""

EAGER_APPENDS = 2048
"""Appends that carry whatever there is. A message takes 4096 unless the server is set otherwise, so
later ones wait for more text each: the second half then holds the megabyte a message may have."""

FIRST_CHARACTERS = 16_384
"""Most that the message is published with: a publish may hold less than a message may grow to."""

KEEP_OPEN_S = 20.0
"""After this long without text an update that changes nothing says that the writer lives: the
server ends a stream that is silent for 60 s, unless it is set otherwise."""

CLOSE_TIMEOUT_S = 10.0
"""How long a block that ends by an exception waits for the server to hear of it."""

Status = Literal["complete", "cancelled"]


class StreamEnded(TidelogError):  # noqa: N818 - the failure is the noun
    """Nothing can be written: the block has not begun or is over."""


class Published(Protocol):
    """What a stream needs of a receipt."""

    @property
    def message_serial(self) -> str | None:
        """Names the message; None if it cannot be changed."""


class TokenBuffer:
    """The text of one message that waits to be sent."""

    def __init__(self, max_buffered: int) -> None:
        if max_buffered < 1:
            raise ValueError("max_buffered must be at least 1")
        self._max_buffered = max_buffered
        self._waiting: list[str] = []
        self.size = 0
        """Characters that wait."""
        self.appends = 0
        """Appends that were sent."""

    def has_room(self, token: str) -> bool:
        """Whether a token may join what waits; the first one always may."""
        return not self.size or self.size + len(token) <= self._max_buffered

    def add(self, token: str) -> None:
        """Let a token wait."""
        self._waiting.append(token)
        self.size += len(token)

    def is_due(self, *, is_writer_waiting: bool) -> bool:
        """Whether an append is due: there is text, and enough of it if there were many."""
        least = max(1, (self.appends - EAGER_APPENDS) // 2)
        return self.size >= least or (self.size > 0 and is_writer_waiting)

    def take(self) -> str:
        """Everything that waits."""
        text = "".join(self._waiting)
        self._waiting, self.size = [], 0
        return text


def serial_of(receipt: Published, channel: str) -> str:
    """The name of the message that a stream has published.

    Raises:
        StreamEnded: nothing can be appended to it.
    """
    if receipt.message_serial is None:
        raise StreamEnded(
            f"messages of {channel} cannot be changed: the server's settings "
            "channels.versioned_messages.enabled and channels.history say which can"
        )
    return receipt.message_serial


def with_status(extras: Mapping[str, Any] | None, status: str) -> dict[str, Any]:
    """Extras with `ai.transport.status` set and everything else as it was."""
    return with_transport(extras, {"status": status})


def with_transport(
    extras: Mapping[str, Any] | None, transport: Mapping[str, str]
) -> dict[str, Any]:
    """Extras with some members of `ai.transport` set and everything else as it was."""
    whole = dict(extras or {})
    ai = dict(whole.get("ai") or {})
    ai["transport"] = {**(ai.get("transport") or {}), **transport}
    whole["ai"] = ai
    return whole
