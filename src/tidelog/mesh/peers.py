"""Who is connected: presence is told and forgotten, revocations end connections, on every node."""

from collections.abc import Callable, Collection, Iterator
from typing import Final, Literal, Protocol

import msgspec
from msgspec import Struct

from tidelog.log.announcements import Announcements
from tidelog.mesh import wire
from tidelog.mesh.rules import Member, Mesh
from tidelog.store.rows import Announcement

TOPIC: Final = "mesh"


class Peer(Protocol):
    """A connection, as far as it matters here."""

    @property
    def member(self) -> Member:
        """Who it is; there is one when it is present."""

    def send(self, json: bytes) -> None:
        """Queue a frame."""

    def end(self, code: int, reason: str = "") -> None:
        """Close it."""


class Told(Struct, frozen=True):
    """What nodes tell each other."""

    kind: Literal["join", "leave", "revoke"]
    mesh_id: str
    member_pubkey: str
    name: str = ""


_told = msgspec.json.Decoder(Told).decode
_encode = msgspec.json.Encoder().encode


class Peers:
    """The connections of this node by mesh and key."""

    def __init__(self, announcements: Announcements, missed: Callable[[], None]) -> None:
        self._announcements = announcements
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

    def present(self, mesh_id: str) -> Collection[str]:
        """Keys of the members of a mesh that are present on this node."""
        keys = self._by_mesh.get(mesh_id, {})
        return [key for key in keys if self._is_present(mesh_id, key)]

    def revoked(self, mesh_id: str, public_hex: str) -> None:
        """End a member's connections, on every node."""
        told = Told("revoke", mesh_id, public_hex)
        self._end(told)
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
        else:
            self._show(told)

    def _end(self, told: Told) -> None:
        for peer in tuple(self._by_mesh.get(told.mesh_id, {}).get(told.member_pubkey, ())):
            peer.end(wire.NOT_A_MEMBER, "revoked")

    def _show(self, told: Told) -> None:
        make = wire.PeerJoin if told.kind == "join" else wire.PeerLeave
        frame = wire.encode(make(member_pubkey=told.member_pubkey, name=told.name))
        for key, peers in self._by_mesh.get(told.mesh_id, {}).items():
            if key != told.member_pubkey:
                for peer in peers:
                    if peer in self._present:
                        peer.send(frame)
