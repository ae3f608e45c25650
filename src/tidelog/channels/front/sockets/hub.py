"""Who is there: connections, their subscriptions, and who is present on which channel.

All of it lives on the event loop of one front and is gone with it; nothing here is durable. The
owner has the registry of all fronts and nodes: what changes here is told to it, and it says who is
a member of the channels that have members here, wherever those are connected.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from tidelog.base.net.frame import text_frame
from tidelog.channels.messages import Leave, Recount, SocketFacts, UpdateMember
from tidelog.channels.protocol import wire
from tidelog.channels.protocol.actions import Member
from tidelog.channels.protocol.frames import Frames
from tidelog.channels.protocol.names import ChannelKind, kind_of, split_stream
from tidelog.channels.protocol.revocations import Revocations
from tidelog.channels.protocol.rollup import Rollup
from tidelog.channels.protocol.version import Version
from tidelog.link.message import Message

if TYPE_CHECKING:
    from tidelog.channels.front.sockets.connection import Connection
    from tidelog.channels.front.sockets.rolling import Rolling
    from tidelog.channels.front.sockets.standing import Standing


MAX_HELD_FRAMES = 10_000
MAX_HELD_BYTES = 16_777_216
"""Kept for one subscription, and for one connection, while a past is replayed or a large message is
sent; beyond it the peer reads too slowly, as with `limits.send_buffer_bytes`."""

VERSION_BYTES = 1000
"""What a version weighs in memory besides its content."""


class HeldFrame(Struct, frozen=True):
    """A frame that waits until what came before it was replayed."""

    frame: bytes | None
    """Encoded; None if it is made when its turn comes: the whole text was not in memory, or is too
    large to be kept once for each frame that says it."""
    version: Version | None
    """What it says; None of a frame that is no version."""

    @property
    def size(self) -> int:
        """About the bytes it holds."""
        return VERSION_BYTES if self.frame is None else len(self.frame)


class Subscription:
    """One connection on one channel."""

    __slots__ = (
        "attach_serial",
        "attached_at",
        "channel",
        "connection",
        "held",
        "is_counted",
        "member",
        "skipped",
    )

    def __init__(self, connection: "Connection", channel: "Channel", member: Member | None) -> None:
        self.connection = connection
        self.channel = channel
        self.member = member
        self.is_counted = False
        """Whether it is one of those that its connection's address may have."""
        self.attach_serial: int | None = None
        """Newest history serial when it was subscribed; None without a history."""
        self.attached_at = 0
        """Delivery serial that the channel had reached then; what follows comes live."""
        self.held: deque[HeldFrame] | None = None
        """Live frames while the past is being replayed, or what was sent is more than the socket
        takes at once; None when there is nothing to wait for."""
        self.skipped = 0
        """Number of the rollup whose appends it gets one by one: it came while that was held."""

    def deliver(self, frame: bytes, version: Version | None = None) -> None:
        """Give it an encoded frame, now or when it is its turn."""
        if self.held is None:
            self.connection.push(frame)
        else:
            self.hold(HeldFrame(frame, version))

    @property
    def is_there(self) -> bool:
        """Whether it has not ended."""
        connection = self.connection
        is_current = connection.subscriptions.get(self.channel.name) is self
        return is_current and not connection.is_closed

    def wait(self) -> None:
        """Hold what is delivered from now on."""
        self.held = deque()

    def release(self) -> None:
        """Hold nothing any more."""
        if self.held is not None:
            self.skip_rollup()
        self.connection.held_bytes -= sum(held.size for held in self.held or ())
        self.held = None

    def skip_rollup(self) -> None:
        """What is held of its channel for others is not for it: it has it, or comes after it."""
        rollup = self.channel.rollups.get(self.connection.rollup_window)
        if rollup is not None:
            self.skipped = rollup.number

    def drop_held(self, is_shown: Callable[[Version], bool]) -> None:
        """Forget the held frames of versions that the peer has seen in another form."""
        kept: deque[HeldFrame] = deque()
        for held in self.held or ():
            if held.version is not None and is_shown(held.version):
                self.connection.held_bytes -= held.size
            else:
                kept.append(held)
        self.held = kept

    def hold(self, frame: HeldFrame) -> None:
        """Keep a frame for later; a peer that makes us keep too many is too slow."""
        self.held = deque() if self.held is None else self.held
        self.held.append(frame)
        self.connection.held_bytes += frame.size
        if len(self.held) > MAX_HELD_FRAMES or self.connection.held_bytes > MAX_HELD_BYTES:
            self.connection.end(wire.OVER_CAPACITY)


class Channel:
    """The subscribers of one channel on this front."""

    __slots__ = ("_hub", "kind", "members", "name", "rollups", "state", "stream", "subscriptions")

    def __init__(self, hub: "Hub", name: str, stream: str) -> None:
        self._hub = hub
        self.name = name
        self.stream = stream
        self.kind = kind_of(name)
        self.subscriptions: dict[Connection, Subscription] = {}
        self.members: dict[str, bytes | None] = {}
        """User id to `user_info` over all fronts and nodes, as the owner has told; of presence
        channels only."""
        self.state: Standing | None = None
        """Where it is; None if nothing of the channel is stored."""
        self.rollups: dict[int, Rollup] = {}
        """Appends that are held, by the window that some of the subscribers asked for."""

    @property
    def is_presence(self) -> bool:
        """Whether members are told of each other."""
        return self.kind is ChannelKind.PRESENCE

    def join(self, subscription: Subscription, members: Mapping[str, bytes | None]) -> None:
        """Add a subscriber, who was admitted to these members if it is one of them."""
        connection = subscription.connection
        for user_id, user_info in members.items():
            self.added(user_id, user_info, besides=connection)
        self.subscriptions[connection] = subscription
        if connection.rollup_window:
            window = connection.rollup_window
            rollup = self.rollups.setdefault(window, Rollup(window))
            rollup.subscribers += 1
            subscription.skip_rollup()
        if subscription.member is None:
            self._hub.tell(Recount(self.stream, len(self.subscriptions)))

    def leave(self, connection: "Connection") -> Subscription | None:
        """Take a subscriber out; the owner tells the others when it was a user's last socket."""
        subscription = self.subscriptions.pop(connection, None)
        if subscription is None:
            return None
        rollup = self.rollups.get(connection.rollup_window)
        if rollup is not None:
            rollup.subscribers -= 1
            if not rollup.subscribers:
                del self.rollups[connection.rollup_window]
        if subscription.member is None:
            self._hub.tell(Recount(self.stream, len(self.subscriptions)))
        else:
            self._hub.tell(Leave(self.stream, subscription.member.user_id))
        return subscription

    def update(self, connection: "Connection", user_id: str, user_info: bytes) -> None:
        """A member's info is to be changed by one of its sockets."""
        subscription = self.subscriptions.get(connection)
        member = None if subscription is None else subscription.member
        if member is not None and member.user_id == user_id:
            self._hub.tell(UpdateMember(self.stream, user_id, user_info))

    # What the owner says; what is known already is not told again.

    def added(
        self, user_id: str, user_info: bytes | None, *, besides: "Connection | None" = None
    ) -> None:
        """A user is there, on whichever front."""
        if self.members.get(user_id, user_info) != user_info:
            self.removed(user_id)  # it is back before anybody was told that it had left
        if user_id not in self.members:
            self.members[user_id] = user_info
            self.tell(
                lambda version: self._hub.frames.member_added(
                    version, self.name, user_id, user_info
                ),
                besides=besides,
            )

    def removed(self, user_id: str) -> None:
        """A user is there no more, on no front."""
        if user_id in self.members:
            del self.members[user_id]
            self.tell(lambda version: self._hub.frames.member_removed(version, self.name, user_id))

    def updated(self, user_id: str, user_info: bytes) -> None:
        """A member's info changed: V2 subscribers are told."""
        if user_id not in self.members:
            return
        self.members[user_id] = user_info
        self.before_frame()
        frame = text_frame(self._hub.frames.presence_update(self.name, user_id, user_info))
        for subscription in self.subscriptions.values():
            if subscription.connection.version == wire.V2:
                subscription.deliver(frame)

    def before_frame(self) -> None:
        """A frame is about to be sent to its subscribers: what is held goes first."""
        if self.rollups:
            self._hub.rolling.flush(self)

    def tell(
        self,
        frame_of: Callable[[wire.ProtocolVersion], bytes],
        *,
        besides: "Connection | None" = None,
    ) -> None:
        """Send every subscriber a frame of its protocol version, encoded once for each."""
        self.before_frame()
        encoded: dict[wire.ProtocolVersion, bytes] = {}
        for connection, subscription in self.subscriptions.items():
            if connection is besides:
                continue
            version = connection.version
            if version not in encoded:
                encoded[version] = text_frame(frame_of(version))
            subscription.deliver(encoded[version])


class Hub:
    """All connections and channels of one front."""

    def __init__(self, frames: Frames, tell: Callable[[Message], None]) -> None:
        """`tell` lets the owner know what changes."""
        self.frames = frames
        self.tell = tell
        self.rolling: Rolling
        """Sends what is held of the channels; set by whoever delivers."""
        self._channels: dict[str, Channel] = {}
        """By stream; only those with subscribers."""
        self._sockets: dict[tuple[str, str], Connection] = {}
        """By app id and socket id."""
        self._connections: Counter[str] = Counter()
        """How many of them, by app id."""
        self._channel_counts: Counter[str] = Counter()
        """How many channels, by app id."""
        self._users: dict[tuple[str, str], set[Connection]] = {}
        """By app id and signed-in user."""

    def __iter__(self) -> "Iterator[Connection]":
        return iter(tuple(self._sockets.values()))

    # Connections.

    def add(self, connection: "Connection") -> None:
        """Count a connection in."""
        self._sockets[connection.app.id, connection.socket_id] = connection
        self._connections[connection.app.id] += 1

    def remove(self, connection: "Connection") -> None:
        """Count a connection out; `leaving` ends its subscriptions."""
        if self._sockets.pop((connection.app.id, connection.socket_id), None) is not None:
            self._connections[connection.app.id] -= 1
        user_id = connection.session.user_id
        if user_id is not None:
            sockets = self._users.get((connection.app.id, user_id), set())
            sockets.discard(connection)
            if not sockets:
                self._users.pop((connection.app.id, user_id), None)

    def count(self, app_id: str) -> int:
        """Connections of an app."""
        return self._connections[app_id]

    def socket(self, app_id: str, socket_id: str) -> "Connection | None":
        """The connection with that socket id."""
        return self._sockets.get((app_id, socket_id))

    def signed_in(self, connection: "Connection", user_id: str) -> None:
        """A connection is a user's from now on."""
        self._users.setdefault((connection.app.id, user_id), set()).add(connection)

    def facts(self, app_id: str, socket_id: str) -> SocketFacts | None:
        """What is known of a socket of this node."""
        connection = self._sockets.get((app_id, socket_id))
        if connection is None:
            return None
        return SocketFacts(connection.version, connection.session.actor)

    def clients(self, app_id: str) -> "list[Connection]":
        """All connections of an app."""
        return [c for (owner, _), c in self._sockets.items() if owner == app_id]

    def end_user(self, app_id: str, user_id: str, code: int) -> None:
        """Close the connections that are signed in as a user."""
        for connection in tuple(self._users.get((app_id, user_id), ())):
            connection.end(code)

    def end_revoked(self, app_id: str, revocations: Revocations) -> int:
        """Close the connections whose token is revoked; returns how many that were."""
        closed = 0
        for connection in self.clients(app_id):
            claims = connection.session.claims
            if claims is not None and revocations.covers(app_id, claims):
                connection.revoke()
                closed += 1
        return closed

    # Channels.

    def channel(self, stream: str) -> Channel | None:
        """A channel that has subscribers."""
        return self._channels.get(stream)

    def open_channel(self, name: str, stream: str) -> Channel:
        """A channel that is about to have one."""
        channel = self._channels.get(stream)
        if channel is None:
            channel = self._channels[stream] = Channel(self, name, stream)
            self._channel_counts[split_stream(stream)[0]] += 1
        return channel

    def close_channel(self, channel: Channel) -> None:
        """Forget a channel whose last subscriber has gone."""
        if not channel.subscriptions and self._channels.get(channel.stream) is channel:
            del self._channels[channel.stream]
            self._channel_counts[split_stream(channel.stream)[0]] -= 1

    def channel_count(self, app_id: str) -> int:
        """Channels of an app that have subscribers on this node."""
        return self._channel_counts[app_id]

    def counts(self) -> list[tuple[str, int]]:
        """Every channel and its subscriptions on this front."""
        return [(stream, len(channel.subscriptions)) for stream, channel in self._channels.items()]
