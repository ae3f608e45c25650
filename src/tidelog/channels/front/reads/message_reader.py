"""Messages that can change, for whoever asks for one: how it is now, and what it was before.

Everything here reads what is committed; the store decides, not the states that decisions use.
"""

from typing import Any

import msgspec

from tidelog.channels.front.reads.version_data import read_version_page
from tidelog.channels.protocol import fault
from tidelog.channels.protocol.names import stream_name
from tidelog.channels.protocol.query import MAX_INTEGER
from tidelog.channels.protocol.requests import VersionsQuery
from tidelog.channels.protocol.version import Projector, Version, position_of
from tidelog.channels.settings import App
from tidelog.channels.upkeep.stored import read_message
from tidelog.store.engine import Store

_encode = msgspec.json.Encoder().encode


class MessageReader:
    """The messages of all channels, each by its serial; answers are JSON."""

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
