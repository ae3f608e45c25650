"""Who is connected: presence is told and forgotten, revocations end connections, on every node.

Two daemons with one key meet here (mesh 9.6). On one node that is decided before the newer one is
ready. Nodes tell each other of every connection that became ready; the order of these announcements
is the same for all, so that of two connections made at once exactly one counts as the older.
"""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, Literal, Protocol

import msgspec
from msgspec import Struct

from tidelog.log.announcements import Announcements
from tidelog.mesh.protocol import wire
from tidelog.mesh.protocol.concurrent_connections import Resolution, resolve
from tidelog.mesh.protocol.model import Member, Mesh
from tidelog.store.rows import Announcement

TOPIC: Final = "mesh"

ANNOUNCED_SECONDS = 5.0
"""How long a connection waits until the other nodes are told of it."""

SETTINGS_CHANGED: Final = "settings_changed"
"""Why a connection is closed whose daemon has to negotiate anew."""


class Peer(Protocol):
    """A connection, as far as it matters here."""

    @property
    def mesh(self) -> Mesh:
        """The mesh and its settings, as the connection knows them."""

    @property
    def member(self) -> Member:
        """Who it is; there is one when it is present."""

    @property
    def instance(self) -> str:
        """Which process of its member it is, or nothing."""

    def send(self, json: bytes) -> None:
        """Queue a frame."""

    def end(self, code: int, reason: str = "") -> None:
        """Close it; it has `left` when this returns."""


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


class Peers:
    """The connections of this node by mesh and key."""

    def __init__(
        self,
        announcements: Announcements,
        missed: Callable[[], None],
        forget: Callable[[str], None],
        note_concurrent: Callable[[Mesh, Member], None],
    ) -> None:
        """Listen to the other nodes.

        Args:
            announcements: what nodes tell each other.
            missed: called when some of that was missed.
            forget: called with the slug of a mesh whose settings another node has changed.
            note_concurrent: called when two daemons have connected with one member's key.
        """
        self._announcements = announcements
        self._forget = forget
        self._note_concurrent = note_concurrent
        self._by_mesh: dict[str, dict[str, set[Peer]]] = {}
        self._of: dict[Peer, tuple[str, str]] = {}
        self._present: dict[Peer, Member] = {}
        """Those that have negotiated; the others are not told of and not told anything."""
        self._announced: dict[Peer, asyncio.Future[int]] = {}
        """The announcement of each that has negotiated; its id says who came first."""
        self._noted = 0
        """The last announcement of another node that told of a concurrent connection."""
        announcements.subscribe(TOPIC, self._heard, missed)

    def __iter__(self) -> Iterator[tuple[Peer, str, str]]:
        """Every connection that has proved a key, with its mesh and that key."""
        return ((peer, mesh_id, key) for peer, (mesh_id, key) in tuple(self._of.items()))

    def proved(self, peer: Peer, mesh: Mesh, public_hex: str) -> None:
        """A connection has proved a key; whether it is a member's is not known yet."""
        self._of[peer] = (mesh.id, public_hex)
        self._by_mesh.setdefault(mesh.id, {}).setdefault(public_hex, set()).add(peer)

    async def ready(self, peer: Peer) -> None:
        """It is present, and the others are told if its member was not.

        It is closed instead if another daemon with its key stays. Whoever waits for this before it
        replies to its daemon can be sure that a daemon that comes later is told of later.
        """
        mesh_id, key = self._of[peer]
        older = {each: _resolve(each, peer.instance) for each in self._of_key(mesh_id, key)}
        if any(resolution is not Resolution.SAME_DAEMON for resolution in older.values()):
            self._note_concurrent(peer.mesh, peer.member)
        if Resolution.OLDER_STAYS in older.values():
            peer.end(wire.ALREADY_CONNECTED, "member_already_connected")
            return
        self._present[peer] = peer.member
        told = Told("ready", mesh_id, key, instance=peer.instance)
        announced = self._announcements.announce(TOPIC, _encode(told))
        self._announced[peer] = announced
        for each, resolution in older.items():
            _end_older(each, resolution)
        if not older:  # otherwise the member was present already
            self._tell_all(Told("join", mesh_id, key, peer.member.name))
        if not announced.done():
            await asyncio.wait([announced], timeout=ANNOUNCED_SECONDS)

    def left(self, peer: Peer) -> bool:
        """It is gone; True if it was present."""
        if peer not in self._of:
            return False
        mesh_id, key = self._of.pop(peer)
        keys = self._by_mesh[mesh_id]
        keys[key].discard(peer)
        if not keys[key]:
            del keys[key]
        if not keys:
            del self._by_mesh[mesh_id]
        self._announced.pop(peer, None)
        member = self._present.pop(peer, None)
        if member is not None and not self._of_key(mesh_id, key):
            self._tell_all(Told("leave", mesh_id, key, member.name))
        return member is not None

    def revoked(self, mesh_id: str, public_hex: str) -> None:
        """End a member's connections, on every node."""
        told = Told("revoke", mesh_id, public_hex)
        self._end(told)
        self._announcements.announce(TOPIC, _encode(told))

    def changed(self, mesh: Mesh) -> None:
        """A mesh has other settings: end its connections on every node, so that they negotiate."""
        told = Told("settings", mesh.id, name=mesh.slug)
        self._renew(told)
        self._announcements.announce(TOPIC, _encode(told))

    def _of_key(self, mesh_id: str, key: str) -> list[Peer]:
        """A member's connections that have negotiated."""
        peers = self._by_mesh.get(mesh_id, {}).get(key, ())
        return [peer for peer in peers if peer in self._present]

    def _tell_all(self, told: Told) -> None:
        self._show(told)
        self._announcements.announce(TOPIC, _encode(told))

    def _heard(self, announcement: Announcement) -> None:
        told = _told(announcement.payload)
        if told.kind in ("ready", "taken"):
            for peer in self._of_key(told.mesh_id, told.member_pubkey):
                met = partial(self._meet, peer, told, announcement.id)
                self._announced[peer].add_done_callback(met)
        elif told.kind == "revoke":
            self._end(told)
        elif told.kind == "settings":
            self._forget(told.name)
            self._renew(told)
        else:
            self._show(told)

    def _meet(self, peer: Peer, told: Told, announcement: int, own: asyncio.Future[int]) -> None:
        """Another node has a connection with the key of one here, or has refused the one here.

        A connection that could not be announced counts as the older: the other node does not know
        of it and keeps its own.
        """
        if peer not in self._present:
            return
        # Ids of announcements are one order for all nodes, so both sides come to the same result.
        own_id = -1 if own.cancelled() or own.exception() is not None else own.result()
        if told.kind == "taken":
            if own_id == told.announcement:
                peer.end(wire.ALREADY_CONNECTED, "member_already_connected")
        elif own_id < announcement:
            resolution = _resolve(peer, told.instance)
            # Several connections here may meet the same one of another node: it is noted once.
            if resolution is not Resolution.SAME_DAEMON and announcement != self._noted:
                self._noted = announcement
                self._note_concurrent(peer.mesh, peer.member)
            _end_older(peer, resolution)
            if resolution is Resolution.OLDER_STAYS:
                refused = Told("taken", told.mesh_id, told.member_pubkey, announcement=announcement)
                self._announcements.announce(TOPIC, _encode(refused))

    def _end(self, told: Told) -> None:
        for peer in tuple(self._by_mesh.get(told.mesh_id, {}).get(told.member_pubkey, ())):
            peer.end(wire.NOT_A_MEMBER, "revoked")

    def _renew(self, told: Told) -> None:
        for peers in tuple(self._by_mesh.get(told.mesh_id, {}).values()):
            for peer in tuple(peers):
                peer.end(wire.TRY_AGAIN_LATER, SETTINGS_CHANGED)

    def _show(self, told: Told) -> None:
        make = wire.PeerJoin if told.kind == "join" else wire.PeerLeave
        frame = wire.encode(make(member_pubkey=told.member_pubkey, name=told.name))
        for key, peers in self._by_mesh.get(told.mesh_id, {}).items():
            if key != told.member_pubkey:
                for peer in peers:
                    if peer in self._present:
                        peer.send(frame)


def _resolve(older: Peer, newer_instance: str) -> Resolution:
    """What becomes of a connection and a newer one with its key."""
    return resolve(older.mesh.clone_concurrency_policy, newer_instance, older.instance)


def _end_older(older: Peer, resolution: Resolution) -> None:
    """End the older of two connections if it may not stay.

    A leftover of the same process is told to come again, should it still listen: that
    process must not take itself for replaced.
    """
    if resolution is Resolution.SAME_DAEMON:
        older.end(wire.TRY_AGAIN_LATER, "reconnected")
    elif resolution is Resolution.NEWER_STAYS:
        older.end(wire.REPLACED, "replaced_by_newer_connection")
