"""Who is connected: presence is told and forgotten, revocations end connections, on every node."""

from collections.abc import Callable, Iterator
from typing import Final, Literal, Protocol

import msgspec
from msgspec import Struct

from tidelog.log.announcements import Announcements
from tidelog.mesh import wire
from tidelog.mesh.rules import Member, Mesh
from tidelog.store.rows import Announcement

TOPIC: Final = "mesh"

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

    def send(self, json: bytes) -> None:
        """Queue a frame."""

    def end(self, code: int, reason: str = "") -> None:
        """Close it."""


class Told(Struct, frozen=True):
    """What nodes tell each other."""

    kind: Literal["join", "leave", "revoke", "settings"]
    mesh_id: str
    member_pubkey: str = ""
    name: str = ""
    """Of the member; with `settings` the slug of the mesh."""


_told = msgspec.json.Decoder(Told).decode
_encode = msgspec.json.Encoder().encode


class Peers:
    """The connections of this node by mesh and key."""

    def __init__(
        self,
        announcements: Announcements,
        missed: Callable[[], None],
        forget: Callable[[str], None],
    ) -> None:
        """Listen to the other nodes.

        Args:
            announcements: what nodes tell each other.
            missed: called when some of that was missed.
            forget: called with the slug of a mesh whose settings another node has changed.
        """
        self._announcements = announcements
        self._forget = forget
        self._by_mesh: dict[str, dict[str, set[Peer]]] = {}
        self._of: dict[Peer, tuple[str, str]] = {}
        self._present: dict[Peer, Member] = {}
        """Those that have negotiated; the others are not told of and not told anything."""
        announcements.subscribe(TOPIC, self._heard, missed)

    def __iter__(self) -> Iterator[tuple[Peer, str, str]]:
        """Every connection that has proved a key, with its mesh and that key."""
        return ((peer, mesh_id, key) for peer, (mesh_id, key) in tuple(self._of.items()))

    def proved(self, peer: Peer, mesh: Mesh, public_hex: str) -> None:
        """A connection has proved a key; whether it is a member's is not known yet."""
        self._of[peer] = (mesh.id, public_hex)
        self._by_mesh.setdefault(mesh.id, {}).setdefault(public_hex, set()).add(peer)

    def ready(self, peer: Peer) -> None:
        """It is present; the others are told if its member was not."""
        mesh_id, key = self._of[peer]
        is_first = not self._is_present(mesh_id, key)
        self._present[peer] = peer.member
        if is_first:
            self._tell_all(Told("join", mesh_id, key, peer.member.name))

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
        member = self._present.pop(peer, None)
        if member is not None and not self._is_present(mesh_id, key):
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

    def _is_present(self, mesh_id: str, key: str) -> bool:
        peers = self._by_mesh.get(mesh_id, {}).get(key, ())
        return any(peer in self._present for peer in peers)

    def _tell_all(self, told: Told) -> None:
        self._show(told)
        self._announcements.announce(TOPIC, _encode(told))

    def _heard(self, announcement: Announcement) -> None:
        told = _told(announcement.payload)
        if told.kind == "revoke":
            self._end(told)
        elif told.kind == "settings":
            self._forget(told.name)
            self._renew(told)
        else:
            self._show(told)

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
