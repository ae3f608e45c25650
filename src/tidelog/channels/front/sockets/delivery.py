"""From the tail to the subscribers: every version becomes a frame once per wire form."""

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

import msgspec

from tidelog.base.net.frame import text_frame
from tidelog.channels.decide.rules import LiveEvent
from tidelog.channels.front.reads.version_data import DataFollower
from tidelog.channels.front.sockets.continuity import StreamIds
from tidelog.channels.front.sockets.hub import VERSION_BYTES, Channel, HeldFrame, Hub, Subscription
from tidelog.channels.protocol import wire
from tidelog.channels.protocol.names import ChannelKind, is_cache, split_stream
from tidelog.channels.protocol.verbs import APPEND, CREATE
from tidelog.channels.protocol.version import EVENT, Projector, Version
from tidelog.channels.upkeep.state_loader import StateLoader
from tidelog.channels.upkeep.stored import read_data, version_of
from tidelog.store.engine import Store
from tidelog.store.rows import Entry

_log = logging.getLogger(__name__)

HOT_BYTES = 33_554_432
"""Of all hot buffers together; what is beyond is read from the store, which is only slower."""

PACED_BYTES = 65_536
"""Data beyond which a message that is sent as a whole for a small change waits until the socket has
taken what was sent before: otherwise a few small requests would overrun every healthy reader."""

MADE_BYTES = 16_777_216
"""Of the last such frames: readers that wait wait for about the same ones, and share them."""

MAX_LIVE_CACHED = 1000
"""Cache channels without a history whose last event is kept in memory, 100 KiB at most each."""


class HotBuffer:
    """The last versions of channels, so that a short absence costs no read."""

    def __init__(self, max_versions: int, ttl_seconds: float) -> None:
        self._max_versions = max_versions
        self._ttl_ms = ttl_seconds * 1000
        self._channels: OrderedDict[str, deque[tuple[int, Version]]] = OrderedDict()
        """Sizes and versions, the oldest first; the channel last written to comes last."""
        self._bytes = 0

    def add(self, stream: str, version: Version, size: int) -> None:
        """Keep a version that has just been delivered; `size` is what it weighs."""
        recent = self._channels.setdefault(stream, deque())
        self._channels.move_to_end(stream)
        recent.append((size, version))
        self._bytes += size
        too_old = version.committed_at - self._ttl_ms
        while len(recent) > self._max_versions or recent[0][1].committed_at < too_old:
            self._bytes -= recent.popleft()[0]
        while (oldest := next(iter(self._channels))) != stream:
            if self._channels[oldest][-1][1].committed_at >= too_old:
                break
            self.forget(oldest)  # most channels are written to for a while and never again
        while self._bytes > HOT_BYTES:
            oldest, versions = next(iter(self._channels.items()))
            self._bytes -= versions.popleft()[0]
            if not versions:
                del self._channels[oldest]

    def forget(self, stream: str) -> None:
        """Keep nothing of a channel; what is asked for is read from the store."""
        self._bytes -= sum(size for size, _ in self._channels.pop(stream, ()))

    def after(
        self, stream: str, serial: int, through: int, now_ms: int
    ) -> Sequence[Version] | None:
        """Every version after `serial` up to `through`; None if one of them is not here."""
        if serial == through:
            return ()
        recent = self._channels.get(stream)
        newest = recent[-1][1].delivery_serial if recent else 0
        if not recent or newest < through:
            return None
        # From the end: whoever comes back has missed the last of it.
        missed = islice(reversed(recent), newest - through, newest - serial)
        found = [version for _, version in missed]
        found.reverse()
        is_whole = [version.delivery_serial for version in found] == [
            *range(serial + 1, through + 1)
        ]
        is_young = is_whole and found[0].committed_at >= now_ms - self._ttl_ms
        return found if is_young else None

    def at(self, stream: str, serial: int) -> Version | None:
        """The version with this serial, if it is here."""
        recent = self._channels.get(stream)
        if not recent:
            return None
        offset = serial - recent[0][1].delivery_serial
        found = recent[offset][1] if 0 <= offset < len(recent) else None
        return found if found is not None and found.delivery_serial == serial else None


class Delivery:
    """Takes entries from the tail and gives frames to subscriptions."""

    def __init__(
        self,
        hub: Hub,
        states: StateLoader,
        store: Store,
        projector: Projector,
        stream_ids: StreamIds,
        hot: HotBuffer | None,
    ) -> None:
        self._hub = hub
        self._states = states
        self._store = store
        self._projector = projector
        self._stream_ids = stream_ids
        self._hot = hot
        self._last_live: OrderedDict[str, Version] = OrderedDict()
        """The last event of cache channels that keep no history, by stream."""
        self._made: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        """Large frames by `stream_id` and position."""
        self._made_bytes = 0
        self.fill: Callable[[Subscription], None] = lambda _: None
        """Called for a subscription that now holds frames, or will, until its socket has taken what
        was sent."""

    def sink(self, entries: Sequence[Entry]) -> None:
        """See `tidelog.log.tail.Sink`."""
        for entry in entries:
            try:
                self._deliver(entry)
            except Exception:  # noqa: BLE001 - a mistake of ours must not leave a silent gap
                _log.exception("entry %d could not be delivered", entry.committed_id)
                self._lost(entry.stream)

    def _deliver(self, entry: Entry) -> None:
        version = version_of(entry)
        if version is None:
            self._lost(entry.stream)
        else:
            number = int(entry.entity[-20:])
            self._states.follow(entry.stream, version, number)
            if self._hot is not None:
                self._hot.add(entry.stream, version, len(entry.body or b"") + VERSION_BYTES)
            channel = self._hub.channel(entry.stream)
            if channel is not None:
                self._fan_out(channel, version, number)

    def _lost(self, stream: str) -> None:
        """A version cannot be delivered, as when it was emptied: its subscribers must resume."""
        channel = self._hub.channel(stream)
        if channel is not None:
            for connection in tuple(channel.subscriptions):
                connection.end(wire.RECONNECT)

    def _fan_out(self, channel: Channel, version: Version, number: int) -> None:
        plain = delta = whole = b""
        is_append = version.kind == APPEND
        is_large = version.data_bytes > PACED_BYTES
        is_event = version.kind in (CREATE, EVENT)
        for connection, subscription in channel.subscriptions.items():
            if version.socket_id is not None and connection.socket_id == version.socket_id:
                continue
            if connection.version == wire.V1:
                if is_event:
                    plain = plain or text_frame(self.plain_frame(channel, version))
                    subscription.deliver(plain, version)
            elif version.keeps_data or (is_append and connection.append_mode == "full"):
                if is_large and subscription.held is not None:
                    self._hold(subscription, version)
                    continue
                if not whole:
                    data = self._text_at(version, number)
                    if data is None:
                        self._hold(subscription, version)
                        continue
                    whole = text_frame(self.frame(channel, version, data))
                    if is_large:
                        self._keep_made((self.stream_id(channel), version.committed_id), whole)
                subscription.deliver(whole, version)
                if is_large and subscription.held is None:
                    subscription.wait()
                    self.fill(subscription)
            else:
                delta = delta or text_frame(self.frame(channel, version))
                subscription.deliver(delta, version)

    def _text_at(self, version: Version, number: int) -> bytes | None:
        message = self._states.peek(number)
        if message is None or not message.knows(version.committed_id):
            return None
        return message.data_at(version.committed_id)

    def _hold(self, subscription: Subscription, version: Version) -> None:
        is_first = subscription.held is None
        subscription.hold(HeldFrame(None, version))
        if is_first:
            self.fill(subscription)

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
        return DataFollower(lambda version: self._text(stream, version))

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
        made = self._made.get((stream_id, version.committed_id))
        if made is None:
            data = await follower.whole(version)
            if data is None:
                return None
            made = text_frame(self._projector.frame(version, name, stream_id, data=data))
            if version.data_bytes > PACED_BYTES:
                self._keep_made((stream_id, version.committed_id), made)
        return made

    def _keep_made(self, key: tuple[str, int], frame: bytes) -> None:
        if key not in self._made:
            self._made[key] = frame
            self._made_bytes += len(frame)
        while self._made_bytes > MADE_BYTES:
            _, forgotten = self._made.popitem(last=False)
            self._made_bytes -= len(forgotten)

    async def _text(self, stream: str, version: Version) -> bytes | None:
        """All the data after a version that does not say it, from the cache or from the store.

        The message is loaded and then follows the tail, so that the next version finds it.
        """
        number = int(version.message_serial[-20:])
        state = await self._states.load_message(stream, number)
        if state is not None:
            self._states.release_message(state)
            if state.knows(version.committed_id):
                return state.data_at(version.committed_id)
        return await read_data(self._store, version)

    def _remember_live(self, stream: str, version: Version) -> None:
        self._last_live[stream] = version
        self._last_live.move_to_end(stream)
        if len(self._last_live) > MAX_LIVE_CACHED:
            self._last_live.popitem(last=False)

    def forget(self, streams: Iterable[str]) -> None:
        """Some content of channels is erased: keep none of it."""
        self._made.clear()
        self._made_bytes = 0
        for stream in streams:
            if self._hot is not None:
                self._hot.forget(stream)
            self._last_live.pop(stream, None)

    def forget_live(self, prefix: str = "", client_id: str | None = None) -> None:
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
        frame = text_frame(
            self._hub.frames.event(
                wire.V2, "sockudo:message.summary", channel=channel.name, data=summary
            )
        )
        for connection, subscription in channel.subscriptions.items():
            if connection.version == wire.V2:
                subscription.deliver(frame)


def live_version(event: LiveEvent, now_ms: int) -> Version:
    """A publish that nothing is kept of, as a version without a position."""
    item, wanted = event.item, event.item.publication
    return Version(
        kind=EVENT,
        message_id=event.target.message_id,
        history_serial=0,
        name=wanted.name,
        data=msgspec.Raw(wanted.data),
        extras=msgspec.UNSET if wanted.extras is None else msgspec.Raw(wanted.extras),
        tags=msgspec.UNSET if wanted.tags is None else msgspec.Raw(wanted.tags),
        client_id=item.attributed_to,
        socket_id=wanted.socket_id,
        is_client_event=item.is_client_event,
        committed_at=now_ms,
    )
