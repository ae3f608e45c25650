"""Messages that can change, read by their serials: how one looks now, and how it looked before.

Everything here reads what is committed; the store decides, not the states that decisions use.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw, UnsetType

from tidelog.channels.front.reads.version_data import DataFollower
from tidelog.channels.protocol import fault
from tidelog.channels.protocol.names import stream_name
from tidelog.channels.protocol.query import MAX_INTEGER
from tidelog.channels.protocol.requests import VersionsQuery
from tidelog.channels.protocol.version import Projector, Version, position_of
from tidelog.channels.settings import App
from tidelog.channels.stored import read_data, read_message, versions_of
from tidelog.store.engine import Store

PAGE_BYTES = 4_194_304
"""Data after which a page of versions ends, however many were asked for: each may show the whole of
a large message, and a page is held in memory until it is sent."""

VERSIONS_PER_READ = 25
"""Versions read at once for a page: each may have a megabyte of its own."""

TRIES = 3
"""How often a page is read of which versions went while it was."""

_encode = msgspec.json.Encoder().encode


class MessageReader:
    """The messages of all channels, each by its serial; returned as JSON."""

    def __init__(self, store: Store, projector: Projector, log_tag: str) -> None:
        self._store = store
        self._projector = projector
        self._tag = log_tag

    async def latest(self, app: App, channel: str, message_serial: str) -> Version:
        """The latest version of a message, folded.

        Raises:
            Fault: The channel has no such message, or it is one that cannot change.
        """
        number = position_of(message_serial, self._tag)
        found = None
        if number is not None:
            found = await read_message(self._store, stream_name(app.id, channel), number)
        if found is not None:
            latest = found[0]
            if latest.message_serial == message_serial and latest.is_versioned:
                return latest
        raise fault.not_found(message_serial, channel)

    async def item(self, app: App, channel: str, message_serial: str) -> bytes:
        """The latest state of a message."""
        latest = await self.latest(app, channel, message_serial)
        return _encode({"channel": channel, "item": self._projector.item(latest, channel)})

    async def summary(self, app: App, channel: str, message_serial: str) -> bytes:
        """The reduced projection of a message."""
        return self._projector.summary(await self.latest(app, channel, message_serial))

    async def versions(
        self, app: App, channel: str, message_serial: str, page: VersionsQuery
    ) -> bytes:
        """A page of the versions of a message."""
        number = position_of(message_serial, self._tag)
        stream = stream_name(app.id, channel)
        if number is None or not await self._store.rows("channels_message", (stream, number)):
            raise fault.not_found(message_serial, channel)
        is_oldest_first = page.direction == "oldest_first"
        at: int | None = 0 if is_oldest_first else MAX_INTEGER
        if page.cursor is not None:
            at = position_of(page.cursor, self._tag)
        if at is None:
            raise fault.invalid_input("the cursor is not a version serial of this server")
        found = await read_version_page(
            self._store, number, at, page.limit, is_oldest_first=is_oldest_first
        )
        versions, has_more = found or ((), False)
        is_other = bool(versions) and versions[0].message_serial != message_serial
        if found is None or is_other or (page.cursor is None and not versions):
            raise fault.not_found(message_serial, channel)
        answer: dict[str, Any] = {
            "channel": channel,
            "direction": page.direction,
            "limit": page.limit,
            "has_more": has_more,
        }
        if has_more:
            answer["next_cursor"] = self._projector.serial(versions[-1])
        answer["items"] = [self._projector.item(version, channel) for version in versions]
        return _encode(answer)


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
