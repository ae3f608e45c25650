"""Who is there: connections, their subscriptions, and who is present on which channel.

All of it lives on the event loop of one node and is gone with it; nothing here is durable. What
other nodes have is in `other_nodes`; a user is a member of a channel wherever it is connected.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from tidelog.base.net.frame import text_frame
from tidelog.channels.front.cluster.other_nodes import OtherNodes, Presence
from tidelog.channels.protocol import wire
from tidelog.channels.protocol.actions import Member
from tidelog.channels.protocol.capabilities import Actor
from tidelog.channels.protocol.frames import Frames
from tidelog.channels.protocol.names import ChannelKind, kind_of, split_stream, stream_name
from tidelog.channels.protocol.revocations import Revocations
from tidelog.channels.protocol.version import Version

if TYPE_CHECKING:
    from tidelog.channels.front.sockets.connection import Connection
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
        self.connection.held_bytes -= sum(held.size for held in self.held or ())
        self.held = None

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


class Watcher(Protocol):
    """Whoever tells other nodes what changes here."""

    def joined(self, user: Presence) -> None:
        """A user's first socket on this node joined a channel."""

    def left(self, stream: str, user_id: str) -> None:
        """A user's last socket on this node left a channel."""

    def updated(self, user: Presence) -> None:
        """A user on this node changed its info."""

    def counted(self, stream: str) -> None:
        """A channel has one subscription more, or one less."""


class SocketFacts(Struct, frozen=True):
    """What a request in the name of a socket is judged by, wherever that is connected."""

    version: wire.ProtocolVersion
    actor: Actor


class Present:
    """A user on a presence channel, and the sockets of this node that are there for it."""

    __slots__ = ("sockets", "user_info")

    def __init__(self, user_info: bytes | None) -> None:
        self.user_info = user_info
        self.sockets: set[Connection] = set()


class Channel:
    """The subscribers of one channel on this node."""

    __slots__ = ("_hub", "kind", "members", "name", "state", "stream", "subscriptions")

    def __init__(self, hub: "Hub", name: str, stream: str) -> None:
        self._hub = hub
        self.name = name
        self.stream = stream
        self.kind = kind_of(name)
        self.subscriptions: dict[Connection, Subscription] = {}
        self.members: dict[str, Present] = {}
        """By user id, in the order they joined; presence channels and users of this node only."""
        self.state: Standing | None = None
        """Where it is; None if nothing of the channel is stored."""

    @property
    def is_presence(self) -> bool:
        """Whether members are told of each other."""
        return self.kind is ChannelKind.PRESENCE

    def infos(self) -> dict[str, bytes | None]:
        """User id to `user_info` over all nodes, for the snapshot."""
        here = {user_id: present.user_info for user_id, present in self.members.items()}
        return {**self._hub.other_nodes.members(self.stream), **here}

    def has_member(self, user_id: str) -> bool:
        """Whether a user is there, on any node."""
        return user_id in self.members or self._hub.other_nodes.has(self.stream, user_id)

    def join(self, subscription: Subscription) -> None:
        """Add a subscriber; the others are told of a user's first socket."""
        connection, member = subscription.connection, subscription.member
        self.subscriptions[connection] = subscription
        watcher = self._hub.watcher
        if watcher is not None:
            watcher.counted(self.stream)
        if member is None:
            return
        present = self.members.get(member.user_id)
        if present is None:
            user_info = member.user_info
            if self._hub.other_nodes.has(self.stream, member.user_id):
                user_info = self._hub.other_nodes.members(self.stream)[member.user_id]
            else:
                self._tell_added(member.user_id, user_info, besides=connection)
            present = self.members[member.user_id] = Present(user_info)
            if watcher is not None:
                watcher.joined(Presence(self.stream, member.user_id, user_info))
        present.sockets.add(connection)

    def leave(self, connection: "Connection") -> Subscription | None:
        """Take a subscriber out; the others are told when it was a user's last socket."""
        subscription = self.subscriptions.pop(connection, None)
        if subscription is None:
            return None
        watcher = self._hub.watcher
        if watcher is not None:
            watcher.counted(self.stream)
        if subscription.member is not None:
            user_id = subscription.member.user_id
            present = self.members[user_id]
            present.sockets.discard(connection)
            if not present.sockets:
                del self.members[user_id]
                if not self._hub.other_nodes.has(self.stream, user_id):
                    self._tell_removed(user_id)
                if watcher is not None:
                    watcher.left(self.stream, user_id)
        return subscription

    def update(self, connection: "Connection", user_id: str, user_info: bytes) -> None:
        """A member's info changed here: V2 subscribers are told."""
        present = self.members.get(user_id)
        if present is None or connection not in present.sockets:
            return
        user = Presence(self.stream, user_id, user_info)
        self._hub.other_nodes.updated(user)
        self.updated(user_id, user_info)
        if self._hub.watcher is not None:
            self._hub.watcher.updated(user)

    # What happens on other nodes.

    def came(self, user_id: str, user_info: bytes | None) -> None:
        """A user joined on another node, and was on no other."""
        if user_id not in self.members:
            self._tell_added(user_id, user_info)

    def went(self, user_id: str) -> None:
        """A user left another node, and is on no other."""
        if user_id not in self.members:
            self._tell_removed(user_id)

    def updated(self, user_id: str, user_info: bytes) -> None:
        """A member's info changed, on whichever node."""
        present = self.members.get(user_id)
        if present is not None:
            present.user_info = user_info
        frame = text_frame(self._hub.frames.presence_update(self.name, user_id, user_info))
        for subscription in self.subscriptions.values():
            if subscription.connection.version == wire.V2:
                subscription.deliver(frame)

    def _tell_added(
        self, user_id: str, user_info: bytes | None, *, besides: "Connection | None" = None
    ) -> None:
        self.tell(
            lambda version: self._hub.frames.member_added(version, self.name, user_id, user_info),
            besides=besides,
        )

    def _tell_removed(self, user_id: str) -> None:
        self.tell(lambda version: self._hub.frames.member_removed(version, self.name, user_id))

    def tell(
        self,
        frame_of: Callable[[wire.ProtocolVersion], bytes],
        *,
        besides: "Connection | None" = None,
    ) -> None:
        """Send every subscriber a frame of its protocol version, encoded once for each."""
        encoded: dict[wire.ProtocolVersion, bytes] = {}
        for connection, subscription in self.subscriptions.items():
            if connection is besides:
                continue
            version = connection.version
            if version not in encoded:
                encoded[version] = text_frame(frame_of(version))
            subscription.deliver(encoded[version])


class Hub:
    """All connections and channels of one node."""

    def __init__(self, other_nodes: OtherNodes, frames: Frames) -> None:
        self.frames = frames
        self.other_nodes = other_nodes
        """What the other nodes have told."""
        self.watcher: Watcher | None = None
        """Told of every change; None if there cannot be other nodes."""
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
        """Every channel and its subscriptions on this node."""
        return [(stream, len(channel.subscriptions)) for stream, channel in self._channels.items()]

    def members(self) -> Iterator[Presence]:
        """Every user on every channel of this node."""
        for stream, channel in self._channels.items():
            for user_id, present in channel.members.items():
                yield Presence(stream, user_id, present.user_info)

    # Over all nodes.

    def subscription_count(self, stream: str) -> int:
        """Subscriptions to a channel."""
        channel = self._channels.get(stream)
        here = 0 if channel is None else len(channel.subscriptions)
        return here + self.other_nodes.count(stream)

    def member_ids(self, stream: str) -> list[str]:
        """The members of a channel."""
        channel = self._channels.get(stream)
        return list(self.other_nodes.members(stream) if channel is None else channel.infos())

    def occupied(self, app_id: str, prefix: str) -> list[str]:
        """The channels of an app that have subscribers, by name."""
        start = stream_name(app_id, prefix)
        found = {
            stream
            for stream, channel in self._channels.items()
            if channel.subscriptions and stream.startswith(start)
        }
        return sorted(
            split_stream(stream)[1] for stream in found | {*self.other_nodes.streams(start)}
        )
