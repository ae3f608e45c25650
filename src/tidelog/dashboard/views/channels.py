"""Channels for the page: which there are, their messages as they look now, and what led there."""

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UnsetType

from tidelog.channels.front.reads.history_reader import HistoryReader, Window, pages_of
from tidelog.channels.front.reads.message_reader import read_version_page
from tidelog.channels.protocol.names import split_stream, stream_name
from tidelog.channels.protocol.query import MAX_INTEGER
from tidelog.channels.protocol.version import Projector, Version, position_of
from tidelog.config.settings import Settings
from tidelog.store.engine import Store

if TYPE_CHECKING:
    from tidelog.channels.surface import ChannelsFront

LOOKED_AT = 2000
"""Newest messages whose channels are listed."""

MAX_CHANNELS = 200
PAGE_MESSAGES = 30
PAGE_VERSIONS = 100

MAX_TEXT = 65_536
"""Characters of a message's text that are sent; of a longer one the end, where it grows."""

LAST_NAME = "\U0010ffff"
"""Sorts after everything that can follow in a name."""


class ChannelView:
    """Reads what is committed."""

    def __init__(
        self, store: Store, settings: Settings, log_id: str, surface: "ChannelsFront | None"
    ) -> None:
        """`surface` knows who is subscribed; None if channels are not served here."""
        self._store = store
        self._apps = [app.id for app in settings.served_apps]
        self._tag = log_id.lower()
        self._surface = surface
        self._history = HistoryReader(store, Projector(self._tag), settings.channels.history)

    def signature(self, position: int) -> Hashable:
        """Changes with the log and with subscriptions."""
        counts = () if self._surface is None else tuple(self._surface.service.hub.counts())
        return position, counts

    async def channels(self, prefix: str) -> dict[str, Any]:
        """Channels with the newest messages, or those whose names begin so."""
        if prefix:
            keys = [
                (stream_name(app, prefix), stream_name(app, prefix) + LAST_NAME, MAX_CHANNELS)
                for app in self._apps
            ]
            found = await self._store.rows_of("dashboard_channels_named", keys)
            rows = [row for of_app in found for row in of_app][:MAX_CHANNELS]
        else:
            rows = list(await self._store.rows("dashboard_channels", (LOOKED_AT, MAX_CHANNELS)))
        surface, subscribers = self._surface, dict[str, int]()
        if surface is not None:
            subscribers = await surface.service.occupancy.subscriptions(row[0] for row in rows)
        return {"channels": [_channel(row, subscribers.get(row[0], 0)) for row in rows]}

    async def messages(self, stream: str, before: int | None) -> dict[str, Any]:
        """The newest messages of a channel before a place in its history, newest first."""
        [channel] = await self._store.rows("channels_channel", (stream, MAX_INTEGER))
        floor = channel[2]
        high = MAX_INTEGER if before is None else before - 1
        window = Window(
            low=floor + 1,
            high=high,
            since=0,
            until=MAX_INTEGER,
            limit=PAGE_MESSAGES + 1,
            direction="newest_first",
        )
        places = await self._history.sizes(stream, window)
        pages = pages_of(places[:PAGE_MESSAGES])
        rows = await self._history.between(stream, pages[0], window) if pages else []
        messages = [
            _content(row.version)
            | {
                "history_serial": row.serial,
                "published_at": row.published_at,
                "versions": row.version.versions,
                "appends": row.version.appends,
                "is_open": row.version.is_open,
            }
            for row in reversed(rows)
        ]
        return {"messages": messages, "has_more": len(places) > len(rows)}

    async def versions(self, message_serial: str, before: int | None) -> dict[str, Any]:
        """What happened to a message, newest first; an append shows only what it added."""
        number = position_of(message_serial, self._tag)
        page = None
        if number is not None:
            bound = MAX_INTEGER if before is None else before
            page = await read_version_page(
                self._store, number, bound, PAGE_VERSIONS, is_oldest_first=False
            )
        versions, has_more = page or ((), False)
        if any(version.message_serial != message_serial for version in versions):
            versions, has_more = (), False
        return {"versions": [_content(version) for version in versions], "has_more": has_more}


def _channel(row: Sequence[Any], subscribers: int) -> dict[str, Any]:
    stream, messages, newest_at, open_streams = row[:4]
    app_id, channel = split_stream(stream)
    return {
        "stream": stream,
        "app": app_id,
        "channel": channel,
        "messages": messages,
        "newest_at": newest_at,
        "open": open_streams,
        "subscribers": subscribers,
    }


def _content(version: Version) -> dict[str, Any]:
    """A version with its text, or the JSON text of what else it holds."""
    data = None if isinstance(version.data, UnsetType) else bytes(version.data)
    text = None
    if data is not None:
        text = msgspec.json.decode(data, type=str) if data[:1] == b'"' else data.decode()
    return {
        "message": version.message_serial,
        "id": version.committed_id,
        "at": version.committed_at,
        "kind": version.kind,
        "name": version.name,
        "client": version.client_id,
        "description": version.description,
        "text": None if text is None else text[-MAX_TEXT:],
        "is_cut": text is not None and len(text) > MAX_TEXT,
        "is_text": version.is_text,
        "bytes": version.data_bytes,
        "is_open": version.is_open,
    }
