"""From the link to the subscribers: every version becomes a frame once per wire form."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from tidelog.base.errors import StoreError
from tidelog.base.net.frame import text_frame
from tidelog.channels.front.reads.version_data import DataFollower
from tidelog.channels.front.sockets.connection import Sending
from tidelog.channels.front.sockets.continuity import StreamIds
from tidelog.channels.front.sockets.hot_buffer import HotBuffer
from tidelog.channels.front.sockets.hub import Channel, HeldFrame, Hub, Subscription
from tidelog.channels.front.sockets.rolling import Receivers, Rolling
from tidelog.channels.front.sockets.texts import Texts
from tidelog.channels.messages import Entry, Erased, Live
from tidelog.channels.protocol import wire
from tidelog.channels.protocol.event_stream import forget_events
from tidelog.channels.protocol.names import ChannelKind, is_cache, split_stream
from tidelog.channels.protocol.verbs import APPEND, CREATE
from tidelog.channels.protocol.version import EVENT, Projector, Version, number_of

_log = logging.getLogger(__name__)

PACED_BYTES = 65_536
"""Data beyond which a message that is sent as a whole for a small change waits until the socket has
taken what was sent before: otherwise a few small requests would overrun every healthy reader."""

MADE_BYTES = 16_777_216
"""Of the last such frames: those that wait mostly wait for the same ones, and share them."""

MAX_LIVE_CACHED = 1000
"""Cache channels without a history whose last event is kept in memory, 100 KiB at most each."""


class Delivery:
    """Takes the entries of channels and gives frames to subscriptions."""

    def __init__(
        self,
        hub: Hub,
        texts: Texts,
        projector: Projector,
        stream_ids: StreamIds,
        hot: HotBuffer | None,
    ) -> None:
        self._hub = hub
        self._texts = texts
        self._projector = projector
        self._stream_ids = stream_ids
        self._hot = hot
        self._last_live: OrderedDict[str, Version] = OrderedDict()
        """The last event of cache channels that keep no history, by stream."""
        self._made: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        """Large frames by `stream_id` and position."""
        self._made_bytes = 0
        self._senders: dict[Subscription, asyncio.Task[None]] = {}
        """Who sends what subscriptions hold, where that is not a subscribe or a resume."""
        self.rolling = hub.rolling = Rolling(self._give)

    def deliver(self, entries: Sequence[Entry]) -> None:
        """Deliver what was committed next."""
        for entry in entries:
            try:
                self._deliver(entry)
            except Exception:  # noqa: BLE001 - a mistake of ours must not leave a silent gap
                _log.exception("entry %d could not be delivered", entry.committed_id)
                self._lost(entry)

    def _deliver(self, entry: Entry) -> None:
        stream = entry.stream
        if entry.body is None:
            self._lost(entry)
            return
        if self._hot is not None:
            self._hot.add(entry)
        number = int(entry.entity[-20:])
        channel = self._hub.channel(stream)
        if channel is None and not self._texts.has(number):
            return  # nobody is here for it, so it is not even read
        version = entry.version()
        if channel is not None and channel.rollups:
            self.rolling.make_way(channel, version)  # while the text is as it was
        self._texts.follow(stream, version, number, is_wanted=channel is not None)
        if channel is not None:
            if channel.state is not None:
                channel.state.delivered(version)
            receivers: Receivers = channel.subscriptions.items()
            if channel.rollups:
                receivers = self.rolling.receivers(channel, version)
            self._give(channel, version, receivers)

    def _lost(self, entry: Entry) -> None:
        """A version cannot be delivered, as when it was emptied: its subscribers must resume."""
        self._texts.drop((number_of(entry.entity),))
        channel = self._hub.channel(entry.stream)
        if channel is not None:
            for connection in tuple(channel.subscriptions):
                connection.end(wire.RECONNECT)

    def _give(self, channel: Channel, version: Version, receivers: Receivers) -> None:
        """Give a version to subscribers, encoded once for each form that somebody needs.

        Nothing here waits: who cannot be sent the whole data at once holds the version instead, and
        whatever follows for that subscription queues up after it.
        """
        plain = delta = whole = b""
        is_append = version.kind == APPEND
        is_large = version.data_bytes > PACED_BYTES
        is_event = version.kind in (CREATE, EVENT)
        keeps_data, origin = version.keeps_data, version.socket_id
        for connection, subscription in receivers:
            if origin is not None and connection.socket_id == origin:
                continue
            if connection.version == wire.V1:
                if is_event:
                    plain = plain or text_frame(self.plain_frame(channel, version))
                    subscription.deliver(plain, version)
            elif keeps_data or (is_append and connection.append_mode == "full"):
                if is_large and subscription.held is not None:
                    # Not even encoded: a slow reader must not keep one large frame per append.
                    self._hold(subscription, version)
                    continue
                if not whole:
                    data = self._texts.at(version, int(version.message_serial[-20:]))
                    if data is None:
                        self._hold(subscription, version)
                        continue
                    whole = text_frame(self.frame(channel, version, data))
                    if is_large and not version.rolled:
                        self._keep_made((self.stream_id(channel), version.committed_id), whole)
                subscription.deliver(whole, version)
                if is_large and subscription.held is None:
                    # The next one waits until the socket has taken this one.
                    subscription.wait()
                    self._send_held(subscription)
            else:
                delta = delta or text_frame(self.frame(channel, version))
                if subscription.held is None:  # mostly: a call less for each subscriber
                    connection.push(delta)
                else:
                    subscription.deliver(delta, version)

    def _hold(self, subscription: Subscription, version: Version) -> None:
        is_first = subscription.held is None
        subscription.hold(HeldFrame(None, version))
        if is_first:
            self._send_held(subscription)

    # Held frames.

    def _send_held(self, subscription: Subscription) -> None:
        """Send what it holds, or will, as soon as its socket has taken what was sent."""
        task = asyncio.create_task(self._send_safely(subscription))
        self._senders[subscription] = task

        def is_done(task: asyncio.Task[None]) -> None:
            if self._senders.get(subscription) is task:  # it may have begun to wait again
                del self._senders[subscription]

        task.add_done_callback(is_done)

    def sender_of(self, subscription: Subscription) -> "asyncio.Task[None] | None":
        """Whoever sends what a subscription holds, if it is not the subscribe or resume itself."""
        return self._senders.get(subscription)

    async def _send_safely(self, subscription: Subscription) -> None:
        try:
            await subscription.connection.drained()
            await self.release(subscription)
        except StoreError as error:
            _log.warning("a whole text could not be read: %s", error)
            subscription.connection.end(wire.RECONNECT)

    async def release(self, subscription: Subscription) -> int:
        """Send what is held, then deliver live again; returns how many versions that were."""
        sent = 0
        channel, connection = subscription.channel, subscription.connection
        sending = Sending(connection)
        passed, follower = subscription.held, self.follow_data(channel.stream)
        while subscription.held and subscription.is_there:
            if subscription.held is not passed:  # some were dropped: not every version is passed
                passed, follower = subscription.held, self.follow_data(channel.stream)
            held = subscription.held.popleft()
            frame, version = held.frame, held.version
            connection.held_bytes -= held.size
            if frame is not None:
                if version is not None:
                    follower.follow(version)
            elif version is not None:
                frame = await self.replayed_frame(
                    channel.name, self.stream_id(channel), version, follower, is_full=True
                )
            if frame is None:
                connection.end(wire.RECONNECT)  # its message is gone: a resume will say so
                break
            await sending.push(frame)
            sent += version is not None
        subscription.release()
        return sent

    # Frames.

    def stream_id(self, channel: Channel) -> str:
        """The channel's continuity token."""
        return self._stream_ids.of(channel.stream, channel.state.epoch if channel.state else 0)

    def frame(self, channel: Channel, version: Version, data: bytes | None = None) -> bytes:
        """The live V2 frame of a version."""
        return self._projector.frame(version, channel.name, self.stream_id(channel), data=data)

    def plain_frame(self, channel: Channel, version: Version) -> bytes:
        """What V1 subscribers get."""
        is_presence = channel.kind is ChannelKind.PRESENCE and version.is_client_event
        return self._projector.plain_frame(version, channel.name, with_user=is_presence)

    def follow_data(self, stream: str) -> DataFollower:
        """For whoever goes through versions of a channel."""
        return DataFollower(lambda version: self._texts.read(stream, version))

    async def replayed_frame(
        self, name: str, stream_id: str, version: Version, follower: DataFollower, *, is_full: bool
    ) -> bytes | None:
        """The frame of an operation that is sent again, as it was sent live.

        None if it cannot be made any more: its message is gone, and nothing that `follower` has
        passed tells. All operations of the channel are passed to `follower` by this.
        """
        follower.follow(version)
        if not (version.keeps_data or (is_full and version.kind == APPEND)):
            return text_frame(self._projector.frame(version, name, stream_id))
        key = (stream_id, version.committed_id)
        made = None if version.rolled else self._made.get(key)
        if made is None:
            data = await follower.whole(version)
            if data is None:
                return None
            made = text_frame(self._projector.frame(version, name, stream_id, data=data))
            if version.data_bytes > PACED_BYTES and not version.rolled:
                self._keep_made(key, made)
        return made

    def _keep_made(self, key: tuple[str, int], frame: bytes) -> None:
        if key not in self._made:
            self._made[key] = frame
            self._made_bytes += len(frame)
        while self._made_bytes > MADE_BYTES:
            _, forgotten = self._made.popitem(last=False)
            self._made_bytes -= len(forgotten)

    def _remember_live(self, stream: str, version: Version) -> None:
        self._last_live[stream] = version
        self._last_live.move_to_end(stream)
        if len(self._last_live) > MAX_LIVE_CACHED:
            self._last_live.popitem(last=False)

    def forget(self, erased: Erased) -> None:
        """Some content of channels is erased: keep none of it."""
        self.rolling.flush_all()
        self._forget_frames()
        self._texts.forget(erased)
        for stream in erased.streams:
            if self._hot is not None:
                self._hot.forget(stream)
            self._last_live.pop(stream, None)
        if erased.client_id:
            self._forget_live(erased.prefix, erased.client_id)

    def leave(self, stream: str) -> None:
        """The last who wanted a channel has left it."""
        self._texts.leave(stream)

    def distrust(self) -> None:
        """Something may have been erased without a word: keep nothing that may not be stored."""
        self.rolling.flush_all()
        self._forget_frames()
        self._texts.clear()
        if self._hot is not None:
            self._hot.clear()
        self._forget_live()

    def _forget_frames(self) -> None:
        self._made.clear()
        self._made_bytes = 0
        forget_events()

    def _forget_live(self, prefix: str = "", client_id: str | None = None) -> None:
        """Keep no last event that nothing else is kept of, of a client or of any."""
        for stream, version in tuple(self._last_live.items()):
            is_theirs = client_id is None or version.client_id == client_id
            if is_theirs and stream.startswith(prefix):
                del self._last_live[stream]

    def last_live(self, stream: str, since_ms: int) -> Version | None:
        """The last event that nothing else is kept of, if it is not older than that."""
        found = self._last_live.get(stream)
        return found if found is not None and found.committed_at >= since_ms else None

    def live(self, stream: str, version: Version) -> None:
        """Deliver an event that nothing is kept of, whichever node it was published on."""
        _, name = split_stream(stream)
        if is_cache(name) and not version.is_client_event:
            self._remember_live(stream, version)
        channel = self._hub.channel(stream)
        if channel is None:
            return
        channel.before_frame()
        plain = rich = b""
        for connection, subscription in channel.subscriptions.items():
            if version.socket_id is not None and connection.socket_id == version.socket_id:
                continue
            if connection.version == wire.V1:
                plain = plain or text_frame(self.plain_frame(channel, version))
                subscription.deliver(plain)
            else:
                rich = rich or text_frame(self._projector.live_frame(version, channel.name))
                subscription.deliver(rich)

    def summary(self, stream: str, summary: bytes) -> None:
        """Send the V2 subscribers of a channel a message's summary."""
        channel = self._hub.channel(stream)
        if channel is None:
            return
        channel.before_frame()
        frame = text_frame(
            self._hub.frames.event(
                wire.V2, "sockudo:message.summary", channel=channel.name, data=summary
            )
        )
        for connection, subscription in channel.subscriptions.items():
            if connection.version == wire.V2:
                subscription.deliver(frame)


def live_version(live: Live) -> Version:
    """An event that nothing is kept of, as a version without a position."""
    return Version(
        kind=EVENT,
        message_id=live.message_id,
        history_serial=0,
        name=live.name,
        data=msgspec.Raw(live.data),
        extras=msgspec.UNSET if live.extras is None else msgspec.Raw(live.extras),
        tags=msgspec.UNSET if live.tags is None else msgspec.Raw(live.tags),
        client_id=live.client_id,
        socket_id=live.socket_id,
        is_client_event=live.is_client_event,
        committed_at=live.at,
    )
