"""Messages of a peer that wait while one before them is worked on: few, and few bytes."""

from collections import deque

MAX_MESSAGES = 64
MAX_BYTES = 65_536
"""Together. Large messages count by their bytes, or anybody could have 64 of the largest kept by
asking for something and not reading the reply."""


class MessageQueue:
    """The messages, first come first served. Whoever fills it reads no more until some are gone."""

    __slots__ = ("_bytes", "_messages")

    def __init__(self) -> None:
        self._messages: deque[tuple[bytes, bool]] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def is_full(self) -> bool:
        """Whether the peer should be made to wait."""
        return len(self._messages) >= MAX_MESSAGES or self._bytes >= MAX_BYTES

    def add(self, payload: bytes, *, is_text: bool) -> None:
        """One more, even if it is full: it has been read already."""
        self._messages.append((payload, is_text))
        self._bytes += len(payload)

    def take(self) -> tuple[bytes, bool]:
        """The first, and whether it is text."""
        payload, is_text = self._messages.popleft()
        self._bytes -= len(payload)
        return payload, is_text

    def clear(self) -> None:
        """None of them matters any more."""
        self._messages.clear()
        self._bytes = 0
