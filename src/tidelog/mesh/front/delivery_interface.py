"""What the broker's core asks of delivery, and what delivery sees of a connection."""

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from tidelog.mesh.protocol.model import Member, Mesh
from tidelog.mesh.protocol.replies import Reply
from tidelog.mesh.protocol.wire import ClientAck


class Receiver(Protocol):
    """A connected member that has negotiated: deliveries can be pushed to it."""

    @property
    def mesh(self) -> Mesh:
        """Where it is connected."""

    @property
    def member(self) -> Member:
        """Who it is."""

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be sent any more."""

    def send(self, json: bytes) -> None:
        """Queue a frame."""

    async def drained(self) -> None:
        """Wait until the socket has taken what was sent."""


class Delivery(Protocol):
    """Brings committed rows of the delivery queue to their recipients.

    All calls come from the event loop; those that are not awaited must not block or raise.
    """

    def wake(self, mesh_id: str, recipients: Collection[str]) -> None:
        """There may be new rows for these recipients: keys, or `queue:{id}`."""

    def posted(self, mesh_id: str, broker_message_id: str) -> None:
        """A message to a topic was committed: there may be new rows for its subscribers."""

    def attached(self, receiver: Receiver) -> None:
        """A member can receive."""

    def detached(self, receiver: Receiver) -> None:
        """It no longer can; called once for each that was attached, perhaps also for others."""

    def acknowledged(self, receiver: Receiver, frame: ClientAck) -> None:
        """A receiver has a message on its disk."""

    async def claim(
        self, mesh: Mesh, member: Member, queue_id: str, fields: Mapping[str, Any]
    ) -> Reply:
        """Lease messages of a queue; `fields` is the body of the request."""

    async def complete(
        self, mesh: Mesh, member: Member, queue_id: str, fields: Mapping[str, Any]
    ) -> Reply:
        """Messages of a queue are done; `fields` is the body of the request."""
