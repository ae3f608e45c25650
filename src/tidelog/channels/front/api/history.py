"""The histories of channels as an app's server sees them: it reads, resets and purges them.

A history is found here by the name of its channel; `HistoryReader` reads it, and the owner of the
log decides how far back it goes.
"""

from typing import Any

import msgspec

from tidelog.base.clock import Clock
from tidelog.channels.front.reads.history_reader import ChannelRef, HistoryReader
from tidelog.channels.front.sockets.continuity import StreamIds
from tidelog.channels.front.sockets.standing import Standing
from tidelog.channels.messages import Attached, EraseHistory, HistoryErased, Look
from tidelog.channels.protocol.bodies import PurgeMode
from tidelog.channels.protocol.names import stream_name
from tidelog.channels.protocol.query import MAX_INTEGER, HistoryQuery
from tidelog.channels.protocol.requests import Asked
from tidelog.channels.settings import App
from tidelog.link.ends import FrontEnd
from tidelog.store.engine import Store

_encode = msgspec.json.Encoder().encode


class HistoryApi:
    """The histories of all channels; everything returns JSON."""

    def __init__(
        self,
        *,
        link: FrontEnd,
        store: Store,
        clock: Clock,
        stream_ids: StreamIds,
        reader: HistoryReader,
    ) -> None:
        self._link = link
        self._store = store
        self._clock = clock
        self._stream_ids = stream_ids
        self._reader = reader

    async def page(self, app: App, channel: str, query: HistoryQuery) -> bytes:
        """A page of history."""
        ref, state = await self._open(app, channel)
        return await self._reader.page(ref, state, query, self._clock.now_ms())

    async def state(self, app: App, channel: str) -> bytes:
        """What the history of a channel holds."""
        ref, state = await self._open(app, channel)
        return await self._reader.state(ref, state, self._clock.now_ms())

    async def reset(self, app: App, channel: str, reason: str, requested_by: str | None) -> bytes:
        """Begin a new history under a new `stream_id`, and erase what there was."""
        return await self._raise_floor(
            app, channel, None, {"reason": reason, "requested_by": requested_by}
        )

    async def purge(
        self,
        app: App,
        channel: str,
        mode: PurgeMode,
        bound: int | None,
        reason: str,
        requested_by: str | None,
    ) -> bytes:
        """Erase the history before a bound: the serial or time that `mode` names."""
        floor = MAX_INTEGER
        if mode == "before_serial" and bound is not None:
            floor = bound - 1
        elif mode == "before_time_ms" and bound is not None:
            stream = stream_name(app.id, channel)
            [(floor,)] = await self._store.rows("channels_serial_before", (stream, bound))
        told = {"mode": mode, "reason": reason, "requested_by": requested_by}
        return await self._raise_floor(app, channel, floor, told)

    async def _open(self, app: App, channel: str) -> tuple[ChannelRef, Standing]:
        stream = stream_name(app.id, channel)
        state = Standing(await self._link.reply(Look(stream), Attached))
        stream_id = self._stream_ids.of(stream, state.epoch)
        return ChannelRef(app.id, channel, stream, stream_id), state

    async def _raise_floor(
        self, app: App, channel: str, floor: int | None, told: dict[str, Any]
    ) -> bytes:
        ref, state = await self._open(app, channel)
        before = await self._reader.continuity(ref, state, self._clock.now_ms())
        asked = Asked(told["reason"], told["requested_by"])
        erased = await self._link.reply(EraseHistory(ref.stream, floor, asked), HistoryErased)
        _, state = await self._open(app, channel)
        after = await self._reader.continuity(ref, state, self._clock.now_ms())
        answer = {
            "ok": True,
            "operation": "reset" if floor is None else "purge",
            "channel": channel,
            "purged_messages": before["retained_messages"] - after["retained_messages"],
            "purged_bytes": before["retained_bytes"] - after["retained_bytes"],
            "complete": erased.is_complete,
            **told,
        }
        if floor is None:
            answer["previous_stream_id"] = self._stream_ids.of(ref.stream, erased.old_epoch)
            answer["new_stream_id"] = self._stream_ids.of(ref.stream, erased.new_epoch)
        return _encode(answer)
