"""All the data of a message where a version does not hold it: an append, or one that keeps it."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable

from msgspec import UnsetType

from tidelog.channels.protocol.verbs import APPEND
from tidelog.channels.protocol.version import Version, join_text

KNOWN_BYTES = 4_194_304
"""Data that one reader keeps of the messages it has passed."""

Read = Callable[[Version], Awaitable[bytes | None]]
"""Reads all the data after a version; None if its message is gone."""


class DataFollower:
    """The data of messages, for a reader that goes through every version of them in order.

    Many versions in a row keep the same data, or append to it: it is read for the first of them.
    """

    def __init__(self, read: Read) -> None:
        self._read = read
        self._known: OrderedDict[str, list[bytes]] = OrderedDict()
        """By message: what was said last, and what was appended to it since."""
        self._bytes = 0

    def follow(self, version: Version) -> None:
        """Pass the next version."""
        message = version.message_serial
        if version.says_all:
            self._bytes -= sum(map(len, self._known.pop(message, ())))
        known = self._known.get(message)
        if isinstance(version.data, UnsetType):
            return
        data = bytes(version.data)
        if version.says_all:
            self._keep(message, data)
        elif version.kind == APPEND and known is not None:
            known.append(data)
            self._bytes += len(data)

    async def whole(self, version: Version) -> bytes | None:
        """All the data after the version that was passed last."""
        known = self._known.get(version.message_serial)
        if known is None:
            data = await self._read(version)
            if data is not None:
                self._keep(version.message_serial, data)
            return data
        if len(known) > 1:
            known[:] = [join_text(known)]
        return known[0]

    def _keep(self, message: str, data: bytes) -> None:
        self._known[message] = [data]
        self._bytes += len(data)
        while self._bytes > KNOWN_BYTES and len(self._known) > 1:
            _, forgotten = self._known.popitem(last=False)
            self._bytes -= sum(map(len, forgotten))
