"""The connections of a front by mesh and key: whom the owner means by what it says of members."""

from collections.abc import Iterator
from typing import Final, Protocol

from tidelog.mesh.messages import End, MeshChanged, PeerSeen, Revoked
from tidelog.mesh.protocol import wire
from tidelog.mesh.protocol.model import Mesh

SETTINGS_CHANGED: Final = "settings_changed"
"""Why a connection is closed whose daemon has to negotiate anew."""


class Peer(Protocol):
    """A connection, as far as it matters here."""

    @property
    def mesh(self) -> Mesh:
        """The mesh and its settings, as the connection knows them."""

    def send(self, json: bytes) -> None:
        """Queue a frame."""

    def end(self, code: int, reason: str = "") -> None:
        """Close it; it has `left` when this returns."""


class Peers:
    """Those that have proved a key."""

    def __init__(self) -> None:
        self._by_mesh: dict[str, dict[str, set[Peer]]] = {}
        self._of: dict[Peer, tuple[str, str]] = {}
        self._numbers: dict[Peer, int] = {}
        """Those that have negotiated, with what the owner knows them by; the others are not told
        of and not told anything."""
        self._present: dict[int, Peer] = {}
        self._last_number = 0

    def __iter__(self) -> Iterator[tuple[Peer, str, str]]:
        """Every connection that has proved a key, with its mesh and that key."""
        return ((peer, mesh_id, key) for peer, (mesh_id, key) in tuple(self._of.items()))

    def proved(self, peer: Peer, mesh: Mesh, public_hex: str) -> None:
        """A connection has proved a key; whether it is a member's is not known yet."""
        self._of[peer] = (mesh.id, public_hex)
        self._by_mesh.setdefault(mesh.id, {}).setdefault(public_hex, set()).add(peer)

    def arrives(self, peer: Peer) -> int:
        """It has negotiated; returns its number. The owner says if it may not stay."""
        self._last_number += 1
        self._numbers[peer] = self._last_number
        self._present[self._last_number] = peer
        return self._last_number

    def left(self, peer: Peer) -> int:
        """It is gone; returns its number if it had negotiated, else 0."""
        if peer not in self._of:
            return 0
        mesh_id, key = self._of.pop(peer)
        keys = self._by_mesh[mesh_id]
        keys[key].discard(peer)
        if not keys[key]:
            del keys[key]
        if not keys:
            del self._by_mesh[mesh_id]
        number = self._numbers.pop(peer, 0)
        self._present.pop(number, None)
        return number

    def end(self, told: End) -> None:
        """See `End`."""
        if peer := self._present.get(told.connection):
            peer.end(told.code, told.reason)

    def revoked(self, told: Revoked) -> None:
        """See `Revoked`."""
        for peer in tuple(self._by_mesh.get(told.mesh_id, {}).get(told.public_hex, ())):
            peer.end(wire.NOT_A_MEMBER, "revoked")

    def changed(self, told: MeshChanged) -> None:
        """See `MeshChanged`."""
        for peers in tuple(self._by_mesh.get(told.mesh_id, {}).values()):
            for peer in tuple(peers):
                peer.end(wire.TRY_AGAIN_LATER, SETTINGS_CHANGED)

    def seen(self, told: PeerSeen) -> None:
        """See `PeerSeen`."""
        make = wire.PeerJoin if told.is_present else wire.PeerLeave
        frame = wire.encode(make(member_pubkey=told.member_pubkey, name=told.name))
        for key, peers in self._by_mesh.get(told.mesh_id, {}).items():
            if key != told.member_pubkey:
                for peer in peers:
                    if peer in self._numbers:
                        peer.send(frame)
