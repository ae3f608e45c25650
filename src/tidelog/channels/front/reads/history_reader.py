"""The history of a channel: one row per message in their order, as each looks now (channels 6.1).

Everything here reads what is committed; the store decides, not the states that decisions use.
"""

import asyncio
import base64
import binascii
import itertools
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from tidelog.channels.front.sockets.standing import Standing
from tidelog.channels.protocol import fault
from tidelog.channels.protocol.query import MAX_CURSOR_BYTES, MAX_INTEGER, Direction, HistoryQuery
from tidelog.channels.protocol.version import Projector, Version, decode_version, fold
from tidelog.channels.settings import History as HistorySettings
from tidelog.channels.stored import versions_of
from tidelog.store.engine import Store

CURSOR_VERSION = 1

PAGES_AT_ONCE = 2
"""Pages that are read and written as JSON at the same time; whoever asks meanwhile waits in line.
The store reads as many at once. A page is milliseconds of work for the event loop, and without this
bound publishing would wait for as many of them as there are readers."""

PAGE_BYTES = 4_194_304
"""Data after which a page ends, however many messages were asked for: messages may have a megabyte
each, and a page is held in memory until it is sent."""

_encode = msgspec.json.Encoder().encode


class ChannelRef(Struct, frozen=True):
    """Which channel is read, and in which epoch."""

    app_id: str
    channel: str
    stream: str
    stream_id: str


class HistoryRow(Struct, frozen=True):
    """A message and its serial in the history."""

    serial: int
    published_at: int
    version: Version
    """Its latest version, folded."""


class Window(Struct, frozen=True):
    """What is asked for, after all bounds; inclusive."""

    low: int
    high: int
    since: int
    until: int
    limit: int
    direction: Direction


class _Bounds(Struct, frozen=True):
    start_serial: int | None
    end_serial: int | None
    start_time_ms: int | None
    end_time_ms: int | None


class _Cursor(Struct, frozen=True):
    v: int
    app: str
    channel: str
    stream_id: str
    serial: int
    direction: str
    bounds: _Bounds


_decode_cursor = msgspec.json.Decoder(_Cursor).decode


class HistoryReader:
    """Reads the history of any channel."""

    def __init__(self, store: Store, projector: Projector, settings: HistorySettings) -> None:
        self._store = store
        self._projector = projector
        self._settings = settings
        self._turns = asyncio.Semaphore(PAGES_AT_ONCE)

    def oldest_time(self, now_ms: int) -> int:
        """Rows published before this are hidden by retention."""
        kept = self._settings.retention_seconds
        return now_ms - kept * 1000 if kept else 0

    async def sizes(self, stream: str, window: Window) -> list[tuple[int, int]]:
        """Serials and sizes of the messages in a window, in its direction."""
        query = (
            "channels_history_up" if window.direction == "oldest_first" else "channels_history_down"
        )
        key = (stream, window.low, window.high, window.since, window.until, window.limit)
        return [(serial, size) for serial, size in await self._store.rows(query, key)]

    async def between(
        self, stream: str, serials: Sequence[int], window: Window
    ) -> list[HistoryRow]:
        """The messages at these neighbouring serials, the oldest first.

        A message may be folded while it is read: where the two reads disagree, they are repeated.
        """
        async with self._turns:
            return await self._between(stream, serials, window)

    async def _between(
        self, stream: str, serials: Sequence[int], window: Window
    ) -> list[HistoryRow]:
        low, high = min(serials), max(serials)
        while True:
            key = (stream, low, high, window.since, window.until)
            found = await self._store.rows("channels_history_rows", key)
            later = await self._store.rows("channels_unfolded", (stream, low, high))
            unfolded = {
                (message, through): [row[2:] for row in run if row[2] is not None]
                for (message, through), run in itertools.groupby(later, key=lambda row: row[:2])
            }
            rows = []
            for message, serial, published_at, through, state in found:
                rest = unfolded.get((message, through))
                if rest is None:
                    break
                base = None if state is None else decode_version(state)
                version = fold(base, versions_of(rest))
                if version is None:
                    break
                rows.append(HistoryRow(serial, published_at, version))
            else:
                return rows

    def item(self, ref: ChannelRef, row: HistoryRow) -> dict[str, Any]:
        """A row as history shows it."""
        version = row.version
        if version.is_versioned:
            message = _encode(self._projector.item(version, ref.channel))
            name, kind = f"sockudo:{version.kind}", version.kind
        else:
            message = self._projector.frame(version, ref.channel, ref.stream_id)
            name, kind = version.name or "", "append"
        return {
            "stream_id": ref.stream_id,
            "serial": row.serial,
            "published_at_ms": row.published_at,
            "message_id": version.message_id,
            "event_name": name,
            "operation_kind": kind,
            "payload_size_bytes": len(message),
            "message": msgspec.Raw(message),
        }

    async def page(
        self,
        ref: ChannelRef,
        state: Standing,
        query: HistoryQuery,
        now_ms: int,
        *,
        attach_serial: int | None = None,
    ) -> bytes:
        """One page as JSON.

        Args:
            ref: Which channel.
            state: Its floors.
            query: What is asked.
            now_ms: For retention.
            attach_serial: Of the subscription, for a query over a socket.

        Raises:
            Fault: The cursor is not one for this query.
        """
        async with self._turns:
            return await self._page(ref, state, query, now_ms, attach_serial)

    async def _page(
        self,
        ref: ChannelRef,
        state: Standing,
        query: HistoryQuery,
        now_ms: int,
        attach_serial: int | None,
    ) -> bytes:
        bounds = _Bounds(
            query.start_serial, query.end_serial, query.start_time_ms, query.end_time_ms
        )
        floor = state.history_floor
        oldest = self.oldest_time(now_ms)
        low = max(query.start_serial or 0, floor + 1)
        high = MAX_INTEGER if query.end_serial is None else query.end_serial
        if query.until_attach and attach_serial is not None:
            high = min(high, attach_serial)
        if query.cursor is not None:
            at = self._cursor(ref, query, bounds)
            if at <= floor:
                raise fault.invalid_input("the cursor points to history that is no longer kept")
            if query.direction == "oldest_first":
                low = max(low, at + 1)
            else:
                high = min(high, at - 1)
        window = Window(
            low=low,
            high=high,
            since=max(query.start_time_ms or 0, oldest),
            until=MAX_INTEGER if query.end_time_ms is None else query.end_time_ms,
            limit=query.limit + 1,
            direction=query.direction,
        )
        listed = await self.sizes(ref.stream, window)
        has_more = len(listed) > query.limit
        pages = pages_of(listed[: query.limit])
        rows = await self._between(ref.stream, pages[0], window) if pages else []
        has_more = has_more or len(pages) > 1
        if query.direction == "newest_first":
            rows.reverse()
        shown: dict[str, Any] = msgspec.to_builtins(bounds)
        if attach_serial is not None:
            shown |= {"until_attach": query.until_attach, "attach_serial": attach_serial}
        next_cursor = None
        if has_more and rows:
            next_cursor = _cursor(
                _Cursor(
                    CURSOR_VERSION,
                    ref.app_id,
                    ref.channel,
                    ref.stream_id,
                    rows[-1].serial,
                    query.direction,
                    bounds,
                )
            )
        return _encode(
            {
                "items": [self.item(ref, row) for row in rows],
                "direction": query.direction,
                "limit": query.limit,
                "has_more": next_cursor is not None,
                "next_cursor": next_cursor,
                "bounds": shown,
                "continuity": await self.continuity(ref, state, now_ms),
                "stream_state": stream_state(ref),
            }
        )

    def _cursor(self, ref: ChannelRef, query: HistoryQuery, bounds: _Bounds) -> int:
        text = query.cursor or ""
        refused = fault.invalid_input("the cursor does not belong to this query")
        if len(text) > MAX_CURSOR_BYTES:
            raise refused
        try:
            padded = text.encode("ascii") + b"=" * (-len(text) % 4)
            cursor = _decode_cursor(base64.b64decode(padded, altchars=b"-_", validate=True))
        except (ValueError, binascii.Error):
            raise fault.invalid_input("the cursor is not one that this server made") from None
        expected = (CURSOR_VERSION, ref.app_id, ref.channel, ref.stream_id)
        if (cursor.v, cursor.app, cursor.channel, cursor.stream_id) != expected:
            raise refused
        if cursor.direction != query.direction or cursor.bounds != bounds:
            raise refused
        if not 0 < cursor.serial < MAX_INTEGER:
            raise refused
        return cursor.serial

    async def continuity(self, ref: ChannelRef, state: Standing, now_ms: int) -> dict[str, Any]:
        """What of the history is there."""
        key = (ref.stream, state.history_floor, self.oldest_time(now_ms))
        [row] = await self._store.rows("channels_retained", key)
        count, oldest, newest, oldest_at, newest_at, size = row
        first = oldest or state.history_serial + 1
        return {
            "stream_id": ref.stream_id,
            "oldest_available_serial": oldest,
            "newest_available_serial": newest,
            "oldest_available_published_at_ms": oldest_at,
            "newest_available_published_at_ms": newest_at,
            "retained_messages": count,
            "retained_bytes": size,
            "complete": first <= 1,
            "truncated_by_retention": first > 1,
        }

    async def state(self, ref: ChannelRef, state: Standing, now_ms: int) -> bytes:
        """The state of a channel's history as JSON."""
        retained = await self.continuity(ref, state, now_ms)
        return _encode(
            {
                "channel": ref.channel,
                "stream": {
                    "stream_id": ref.stream_id,
                    "next_serial": state.history_serial + 1,
                    "retained": retained,
                    "state": stream_state(ref),
                },
            }
        )


def pages_of(sizes: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Serials of messages, in pages of about `PAGE_BYTES`; at least one message each."""
    pages: list[list[int]] = []
    size = 0
    for serial, data_bytes in sizes:
        if not pages or size + data_bytes > PAGE_BYTES:
            pages.append([])
            size = 0
        pages[-1].append(serial)
        size += data_bytes
    return pages


def _cursor(cursor: _Cursor) -> str:
    return base64.urlsafe_b64encode(_encode(cursor)).rstrip(b"=").decode()


def stream_state(ref: ChannelRef) -> dict[str, Any]:
    """Always healthy: if the log cannot be read, there is no response at all."""
    return {
        "stream_id": ref.stream_id,
        "durable_state": "healthy",
        "recovery_allowed": True,
        "reset_required": False,
        "reason": None,
        "node_id": None,
        "last_transition_at_ms": None,
        "authoritative_source": "log",
        "observed_source": "log",
    }
