"""Data of a message that grows without being copied, as it was after each of its last versions."""

from msgspec import Raw, UnsetType

from tidelog.channels.protocol.version import join_text

COLLAPSE_AT = 2048
COLLAPSE_TO = 1024
"""Fragments kept apart after a collapse: more than one batch can append and take back."""

FRAGMENT_BYTES = 120
"""What a fragment weighs in memory besides its text."""


class GrowingText:
    """What a version said, and the fragments that were appended since."""

    __slots__ = ("_base", "_base_id", "_fragments")

    def __init__(self, data: Raw | UnsetType, committed_id: int) -> None:
        self._base = None if isinstance(data, UnsetType) else bytes(data)
        self._base_id = committed_id
        self._fragments: list[tuple[int, bytes]] = []

    def say(self, data: Raw | UnsetType, committed_id: int) -> None:
        """A version says all of the data, or that there is none."""
        self._base = None if isinstance(data, UnsetType) else bytes(data)
        self._base_id = committed_id
        self._fragments = []

    def append(self, data: bytes, committed_id: int) -> None:
        """A version appends to it."""
        self._fragments.append((committed_id, data))
        if len(self._fragments) >= COLLAPSE_AT:
            old, kept = self._fragments[:-COLLAPSE_TO], self._fragments[-COLLAPSE_TO:]
            self._base = self.data_at(old[-1][0])
            self._base_id = old[-1][0]
            self._fragments = kept

    @property
    def is_text(self) -> bool:
        """Whether the data is a string."""
        return bool(self._fragments) or (self._base is not None and self._base[:1] == b'"')

    @property
    def has_data(self) -> bool:
        """Whether there is any data; a message may have been cleared."""
        return bool(self._fragments) or self._base is not None

    def data_at(self, committed_id: int) -> bytes | None:
        """All the data after that version as JSON; None if there is none, or it is not known."""
        if committed_id < self._base_id:
            return None
        fragments = [text for at, text in self._fragments if at <= committed_id]
        if not fragments:
            return self._base
        return join_text(fragments if self._base is None else [self._base, *fragments])
