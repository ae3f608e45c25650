"""Who is there: connections, their subscriptions, and who is present on which channel.

All of it lives on the event loop of one node and is gone with it; nothing here is durable.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

from tidelog.base.frame import text_frame
from tidelog.channels import wire
from tidelog.channels.actions import Member
from tidelog.channels.names import ChannelKind, kind_of
from tidelog.channels.version import Version

if TYPE_CHECKING:
    from tidelog.channels.connection import Connection
    from tidelog.channels.states import ChannelState


MAX_HELD_FRAMES = 10_000
"""Frames kept for one subscription while its past is replayed; they are shared with all others, so
this bounds a list, not their bytes."""


class HeldFrame(Struct, frozen=True):
    """A frame that waits until what came before it was replayed."""

    frame: bytes | None
    """Encoded; None if it is made when its turn comes: the whole text was not at hand."""
    version: Version | None
    """What it says; None of a frame that is no version."""


class Subscription:
    """One connection on one channel."""

    __slots__ = ("attach_serial", "channel", "connection", "held", "member")

    def __init__(self, connection: "Connection", channel: "Channel", member: Member | None) -> None:
        self.connection = connection
        self.channel = channel
        self.member = member
        self.attach_serial: int | None = None
        """Newest history serial when it was subscribed; None without a history."""
        self.held: list[HeldFrame] | None = None
        """Live frames while the past is being replayed; None when there is nothing to wait for."""

    def deliver(self, frame: bytes, version: Version | None = None) -> None:
        """Give it an encoded frame, now or when it is its turn."""
        if self.held is None:
            self.connection.push(frame)
        else:
            self.hold(HeldFrame(frame, version))

    def hold(self, frame: HeldFrame) -> None:
        """Keep a frame for later; a peer that makes us keep too many is too slow."""
        if self.held is None:
            self.held = []
        self.held.append(frame)
        if len(self.held) > MAX_HELD_FRAMES:
            self.connection.end(wire.OVER_CAPACITY)


class Present:
    """A user on a presence channel, and the sockets that are there for it."""

    __slots__ = ("sockets", "user_info")

    def __init__(self, user_info: bytes | None) -> None:
        self.user_info = user_info
        self.sockets: set[Connection] = set()


class Channel:
    """The subscribers of one channel."""

    __slots__ = ("app_id", "kind", "members", "name", "state", "stream", "subscriptions")

    def __init__(self, app_id: str, name: str, stream: str) -> None:
        self.app_id = app_id
        self.name = name
        self.stream = stream
        self.kind = kind_of(name)
        self.subscriptions: dict[Connection, Subscription] = {}
        self.members: dict[str, Present] = {}
        """By user id, in the order they joined; presence channels only."""
        self.state: ChannelState | None = None
        """Pinned while there are subscribers; None if nothing of the channel is stored."""

    @property
    def is_presence(self) -> bool:
        """Whether members are told of each other."""
        return self.kind is ChannelKind.PRESENCE

    def infos(self) -> dict[str, bytes | None]:
        """User id to `user_info`, for the snapshot."""
        return {user_id: present.user_info for user_id, present in self.members.items()}

    def join(self, subscription: Subscription) -> None:
        """Add a subscriber; the others are told of a user's first socket."""
        connection, member = subscription.connection, subscription.member
        self.subscriptions[connection] = subscription
        if member is None:
            return
        present = self.members.get(member.user_id)
        if present is None:
            present = self.members[member.user_id] = Present(member.user_info)
            self.tell(
                lambda version: wire.member_added(
                    version, self.name, member.user_id, member.user_info
                ),
                besides=connection,
            )
        present.sockets.add(connection)

    def leave(self, connection: "Connection") -> Subscription | None:
        """Take a subscriber out; the others are told when it was a user's last socket."""
        subscription = self.subscriptions.pop(connection, None)
        if subscription is not None and subscription.member is not None:
            user_id = subscription.member.user_id
            present = self.members[user_id]
            present.sockets.discard(connection)
            if not present.sockets:
                del self.members[user_id]
                self.tell(lambda version: wire.member_removed(version, self.name, user_id))
        return subscription

    def update(self, connection: "Connection", user_id: str, user_info: bytes) -> None:
        """A member's info changed: V2 subscribers are told."""
        present = self.members.get(user_id)
        if present is None or connection not in present.sockets:
            return
        present.user_info = user_info
        frame = text_frame(wire.presence_update(self.name, user_id, user_info))
        for subscription in self.subscriptions.values():
            if subscription.connection.version == wire.V2:
                subscription.deliver(frame)

    def tell(
        self,
        frame_of: Callable[[wire.Version], bytes],
        *,
        besides: "Connection | None" = None,
    ) -> None:
        """Send every subscriber a frame of its protocol version, encoded once for each."""
        encoded: dict[wire.Version, bytes] = {}
        for connection, subscription in self.subscriptions.items():
            if connection is besides:
                continue
            version = connection.version
            if version not in encoded:
                encoded[version] = text_frame(frame_of(version))
            subscription.deliver(encoded[version])


class Hub:
    """All connections and channels of one node."""

    def __init__(self) -> None:
        self._channels: dict[str, Channel] = {}
        """By stream; only those with subscribers."""
        self._sockets: dict[tuple[str, str], Connection] = {}
        """By app id and socket id."""
        self._users: dict[tuple[str, str], set[Connection]] = {}
        """By app id and signed-in user."""

    def __iter__(self) -> "Iterator[Connection]":
        return iter(tuple(self._sockets.values()))

    # Connections.

    def add(self, connection: "Connection") -> None:
        """Count a connection in."""
        self._sockets[connection.app.id, connection.socket_id] = connection

    def remove(self, connection: "Connection") -> None:
        """Count a connection out; its subscriptions were ended before."""
        self._sockets.pop((connection.app.id, connection.socket_id), None)
        user_id = connection.session.user_id
        if user_id is not None:
            sockets = self._users.get((connection.app.id, user_id), set())
            sockets.discard(connection)
            if not sockets:
                self._users.pop((connection.app.id, user_id), None)

    def count(self, app_id: str) -> int:
        """Connections of an app."""
        return sum(1 for owner, _ in self._sockets if owner == app_id)

    def socket(self, app_id: str, socket_id: str) -> "Connection | None":
        """The connection with that socket id."""
        return self._sockets.get((app_id, socket_id))

    def signed_in(self, connection: "Connection", user_id: str) -> None:
        """A connection is a user's from now on."""
        self._users.setdefault((connection.app.id, user_id), set()).add(connection)

    def user(self, app_id: str, user_id: str) -> "tuple[Connection, ...]":
        """The connections that are signed in as a user."""
        return tuple(self._users.get((app_id, user_id), ()))

    def clients(self, app_id: str) -> "list[Connection]":
        """All connections of an app."""
        return [c for (owner, _), c in self._sockets.items() if owner == app_id]

    # Channels.

    def channel(self, stream: str) -> Channel | None:
        """A channel that has subscribers."""
        return self._channels.get(stream)

    def open_channel(self, app_id: str, name: str, stream: str) -> Channel:
        """A channel that is about to have one."""
        channel = self._channels.get(stream)
        if channel is None:
            channel = self._channels[stream] = Channel(app_id, name, stream)
        return channel

    def close_channel(self, channel: Channel) -> None:
        """Forget a channel whose last subscriber has gone."""
        if not channel.subscriptions and self._channels.get(channel.stream) is channel:
            del self._channels[channel.stream]

    def channels(self, app_id: str, prefix: str) -> list[Channel]:
        """The occupied channels of an app, by name."""
        found = [
            channel
            for channel in self._channels.values()
            if channel.app_id == app_id
            and channel.subscriptions
            and channel.name.startswith(prefix)
        ]
        return sorted(found, key=lambda channel: channel.name)
