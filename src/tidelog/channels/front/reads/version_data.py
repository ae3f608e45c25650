"""All the data of messages, where a version does not say it: an append, or one that keeps it."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from msgspec import Raw, UnsetType

from tidelog.channels.protocol.verbs import APPEND
from tidelog.channels.protocol.version import Version, join_text
from tidelog.channels.upkeep.stored import read_data, versions_of
from tidelog.store.engine import Store

KNOWN_BYTES = 4_194_304
"""Data that one reader keeps at hand of the messages it has passed."""

PAGE_BYTES = 4_194_304
"""Data after which a page of versions ends, however many were asked for: each may show the whole of
a large message, and a page is held in memory until it is sent."""

VERSIONS_PER_READ = 25
"""Versions read at once for a page: each may have a megabyte of its own."""

TRIES = 3
"""How often a page is read of which versions went while it was."""

Read = Callable[[Version], Awaitable[bytes | None]]
"""Reads all the data after a version; None if its message is gone."""


class DataFollower:
    """What messages say, for a reader that passes every version of them in order.

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


class VersionPage(NamedTuple):
    """Some versions of a message, with the data that they keep."""

    versions: Sequence[Version]
    has_more: bool


async def read_version_page(
    store: Store, message: int, at: int, limit: int, *, is_oldest_first: bool
) -> VersionPage | None:
    """The versions of a message after or before one of them; None if it is gone by now.

    An append shows what it added. The page ends early for its size, but has one version at least.
    """
    for _ in range(TRIES):
        page = await _read_stored(store, message, at, limit, is_oldest_first=is_oldest_first)
        if await _read_kept(store, page.versions if is_oldest_first else page.versions[::-1]):
            return page
    return None


async def _read_stored(
    store: Store, message: int, at: int, limit: int, *, is_oldest_first: bool
) -> VersionPage:
    """The page as it is stored: without the data that versions keep."""
    found: list[Version] = []
    size, has_more = 0, False
    while not has_more:
        count = min(limit + 1 - len(found), VERSIONS_PER_READ)
        if is_oldest_first:
            rows = await store.rows("channels_versions_after", (message, at, 2**62, count))
        else:
            rows = await store.rows("channels_versions_before", (message, at, count))
        for version in versions_of(rows):
            data = b"" if isinstance(version.data, UnsetType) else bytes(version.data)
            size += version.data_bytes if version.keeps_data else len(data)
            if len(found) == limit or (found and size > PAGE_BYTES):
                has_more = True
                break
            found.append(version)
        if len(rows) < count:
            break
        at = found[-1].committed_id
    return VersionPage(found, has_more)


async def _read_kept(store: Store, versions: Sequence[Version]) -> bool:
    """Give versions the data that they keep, the oldest first; False if one of them is gone."""
    follower = DataFollower(lambda version: read_data(store, version))
    for version in versions:
        follower.follow(version)
        if version.keeps_data:
            data_kept = await follower.whole(version)
            if data_kept is None:
                return False
            version.data = Raw(data_kept)
    return True
