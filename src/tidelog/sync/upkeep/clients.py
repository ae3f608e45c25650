"""Who is connected: one connection for each client, over all fronts and all nodes (sync 3.3)."""

from typing import NamedTuple

from tidelog.link.ends import OwnerEnd
from tidelog.sync.messages import Evict
from tidelog.sync.upkeep.other_nodes import OtherNodes


class _Place(NamedTuple):
    """Where a client is connected."""

    front: OwnerEnd
    connection: int
    claim: int
    """Tells which of a client's connections is the latest; see `OtherNodes`."""


class Clients:
    """The clients of this node, and what other nodes say of theirs."""

    def __init__(self, others: OtherNodes) -> None:
        self._others = others
        self._clients: dict[str, _Place] = {}
        self._here: dict[tuple[OwnerEnd, int], str] = {}
        """The client of every connection from its handshake to its end."""

    def arrived(self, front: OwnerEnd, connection: int, client_id: str) -> None:
        """A handshake has begun."""
        self._here[front, connection] = client_id

    async def register(self, front: OwnerEnd, connection: int, client_id: str) -> bool:
        """Make it the client's connection in place of the one before.

        Returns:
            False if the client has connected elsewhere meanwhile, or is gone: who has hung up by
            now supersedes nobody.
        """
        if (front, connection) not in self._here:
            return False
        claim = await self._others.claim(client_id)
        if (front, connection) not in self._here or self._others.has_later_claim(client_id, claim):
            return False
        older = self._clients.get(client_id)
        if older is not None:
            if older.claim > claim:
                return False
            older.front.tell(Evict(older.connection))
        self._clients[client_id] = _Place(front, connection, claim)
        return True

    def left(self, front: OwnerEnd, connection: int) -> None:
        """A connection has ended; it may be one that never shook hands."""
        client_id = self._here.pop((front, connection), None)
        if client_id is not None:
            place = self._clients.get(client_id)
            if place is not None and place[:2] == (front, connection):
                del self._clients[client_id]

    def lost(self, front: OwnerEnd) -> None:
        """All connections of a front have ended."""
        for each, connection in tuple(self._here):
            if each is front:
                self.left(each, connection)

    def connected_elsewhere(self, client_id: str, claim: int) -> None:
        """Another node has the client now."""
        place = self._clients.get(client_id)
        if place is not None and place.claim < claim:
            del self._clients[client_id]
            place.front.tell(Evict(place.connection))
