"""Who is present: over all fronts of this node, and what the nodes of a log tell each other of it.

Two daemons with one key meet here (mesh 9.6). On one node that is decided before the newer one is
ready. Nodes tell each other of every connection that became ready; the order of these announcements
is the same for all, so that of two connections made at once exactly one counts as the older.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Literal

import msgspec
from msgspec import Struct

from tidelog.link.ends import OwnerEnd
from tidelog.link.message import Message
from tidelog.log.announcements import Announcements
from tidelog.mesh.messages import (
    Arrive,
    End,
    MeshChanged,
    Missed,
    PeerSeen,
    RecipientKey,
    Revoked,
)
from tidelog.mesh.protocol import wire
from tidelog.mesh.protocol.concurrent_connections import Resolution, resolve
from tidelog.mesh.protocol.model import Member, Mesh
from tidelog.store.rows import Announcement

TOPIC: Final = "mesh"


class Told(Struct, frozen=True):
    """What nodes tell each other."""

    kind: Literal["join", "leave", "revoke", "settings", "ready", "taken"]
    """`ready`: a connection has negotiated. `taken`: one that has must end, an older one stays."""
    mesh_id: str
    member_pubkey: str = ""
    name: str = ""
    """Of the member; with `settings` the slug of the mesh."""
    instance: str = ""
    """With `ready`: which process it is."""
    announcement: int = 0
    """With `taken`: the id of the announcement that told of the connection."""


_told = msgspec.json.Decoder(Told).decode
_encode = msgspec.json.Encoder().encode


class Peer:
    """A connection that has negotiated, and the front that has it."""

    __slots__ = ("announced", "connection", "front", "instance", "member", "mesh")

    def __init__(
        self, front: OwnerEnd, connection: int, mesh: Mesh, member: Member, instance: str
    ) -> None:
        self.front = front
        self.connection = connection
        self.mesh = mesh
        self.member = member
        self.instance = instance
        self.announced: asyncio.Future[int]
        """The announcement of it; its id says who came first."""

    @property
    def key(self) -> RecipientKey:
        """What it receives as."""
        return self.mesh.id, self.member.public_hex


class Peers:
    """The connections of this node that have negotiated."""

    def __init__(
        self,
        announcements: Announcements,
        tell_fronts: Callable[[Message], None],
        note_concurrent: Callable[[Mesh, Member], None],
    ) -> None:
        """Listen to the other nodes.

        Args:
            announcements: what nodes tell each other.
            tell_fronts: tells all fronts of this node.
            note_concurrent: called when two daemons have connected with one member's key.
        """
        self._announcements = announcements
        self._tell_fronts = tell_fronts
        self._note_concurrent = note_concurrent
        self._by_key: dict[RecipientKey, tuple[Peer, ...]] = {}
        """Each replaced, never changed: a connection may end while they are gone through."""
        self._by_front: dict[OwnerEnd, dict[int, Peer]] = {}
        self._noted = 0
        """The last announcement of another node that told of a concurrent connection."""
        announcements.subscribe(TOPIC, self._heard, partial(tell_fronts, Missed()))

    def of(self, key: RecipientKey) -> Sequence[Peer]:
        """The connections of a member."""
        return self._by_key.get(key, ())

    def fronts(self) -> Sequence[OwnerEnd]:
        """Those that have any."""
        return tuple(self._by_front)

    def arrived(self, front: OwnerEnd, arrive: Arrive) -> asyncio.Future[int] | None:
        """It is present, and the others are told if its member was not.

        Returns:
            None if it must end instead, because another daemon with its key stays. Else its
            announcement: whoever waits for that before its daemon is told can be sure that a daemon
            that comes later is told of later.
        """
        peer = Peer(front, arrive.connection, arrive.mesh, arrive.member, arrive.instance)
        older = {each: _resolve(each, peer.instance) for each in self.of(peer.key)}
        if any(resolution is not Resolution.SAME_DAEMON for resolution in older.values()):
            self._note_concurrent(peer.mesh, peer.member)
        if Resolution.OLDER_STAYS in older.values():
            front.tell(End(peer.connection, wire.ALREADY_CONNECTED, "member_already_connected"))
            return None
        self._by_key[peer.key] = (*self.of(peer.key), peer)
        self._by_front.setdefault(front, {})[peer.connection] = peer
        mesh_id, key = peer.key
        told = Told("ready", mesh_id, key, instance=peer.instance)
        peer.announced = self._announcements.announce(TOPIC, _encode(told))
        for each, resolution in older.items():
            self._end_older(each, resolution)
        if not older:  # otherwise the member was present already
            self._tell_all(Told("join", mesh_id, key, peer.member.name))
        return peer.announced

    def left(self, front: OwnerEnd, connection: int) -> None:
        """It is gone; again, nothing."""
        here = self._by_front.get(front, {})
        peer = here.pop(connection, None)
        if peer is None:
            return
        if not here:
            del self._by_front[front]
        mesh_id, key = peer.key
        others = tuple(each for each in self._by_key[peer.key] if each is not peer)
        if others:
            self._by_key[peer.key] = others
        else:
            del self._by_key[peer.key]
            self._tell_all(Told("leave", mesh_id, key, peer.member.name))

    def lost(self, front: OwnerEnd) -> None:
        """All of a front are gone."""
        for connection in tuple(self._by_front.get(front, ())):
            self.left(front, connection)

    def revoked(self, mesh_id: str, public_hex: str) -> None:
        """End a member's connections, on every node."""
        self._tell_fronts(Revoked(mesh_id, public_hex))
        self._announcements.announce(TOPIC, _encode(Told("revoke", mesh_id, public_hex)))

    def changed(self, mesh: Mesh) -> None:
        """A mesh has other settings: end its connections on every node, so that they negotiate."""
        self._tell_fronts(MeshChanged(mesh.id, mesh.slug))
        self._announcements.announce(TOPIC, _encode(Told("settings", mesh.id, name=mesh.slug)))

    def _tell_all(self, told: Told) -> None:
        self._show(told)
        self._announcements.announce(TOPIC, _encode(told))

    def _heard(self, announcement: Announcement) -> None:
        told = _told(announcement.payload)
        if told.kind in ("ready", "taken"):
            for peer in self.of((told.mesh_id, told.member_pubkey)):
                peer.announced.add_done_callback(partial(self._meet, peer, told, announcement.id))
        elif told.kind == "revoke":
            self._tell_fronts(Revoked(told.mesh_id, told.member_pubkey))
        elif told.kind == "settings":
            self._tell_fronts(MeshChanged(told.mesh_id, told.name))
        else:
            self._show(told)

    def _meet(self, peer: Peer, told: Told, announcement: int, own: asyncio.Future[int]) -> None:
        """Another node has a connection with the key of one here, or has refused the one here.

        A connection that could not be announced counts as the older: the other node does not know
        of it and keeps its own.
        """
        if peer not in self.of(peer.key):
            return
        # Ids of announcements are one order for all nodes, so both sides come to the same result.
        own_id = -1 if own.cancelled() or own.exception() is not None else own.result()
        if told.kind == "taken":
            if own_id == told.announcement:
                self._end(peer, wire.ALREADY_CONNECTED, "member_already_connected")
        elif own_id < announcement:
            resolution = _resolve(peer, told.instance)
            # Several connections here may meet the same one of another node: it is noted once.
            if resolution is not Resolution.SAME_DAEMON and announcement != self._noted:
                self._noted = announcement
                self._note_concurrent(peer.mesh, peer.member)
            self._end_older(peer, resolution)
            if resolution is Resolution.OLDER_STAYS:
                refused = Told("taken", told.mesh_id, told.member_pubkey, announcement=announcement)
                self._announcements.announce(TOPIC, _encode(refused))

    def _end(self, peer: Peer, code: int, reason: str) -> None:
        """Close it; it is gone at once, however long that takes its front."""
        self.left(peer.front, peer.connection)
        peer.front.tell(End(peer.connection, code, reason))

    def _end_older(self, older: Peer, resolution: Resolution) -> None:
        """End the older of two connections if it may not stay.

        A leftover of the same process is told to come again, should it still listen: that
        process must not take itself for replaced.
        """
        if resolution is Resolution.SAME_DAEMON:
            self._end(older, wire.TRY_AGAIN_LATER, "reconnected")
        elif resolution is Resolution.NEWER_STAYS:
            self._end(older, wire.REPLACED, "replaced_by_newer_connection")

    def _show(self, told: Told) -> None:
        is_present = told.kind == "join"
        self._tell_fronts(PeerSeen(told.mesh_id, told.member_pubkey, told.name, is_present))


def _resolve(older: Peer, newer_instance: str) -> Resolution:
    """What becomes of a connection and a newer one with its key."""
    return resolve(older.mesh.clone_concurrency_policy, newer_instance, older.instance)
