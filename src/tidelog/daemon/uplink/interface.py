"""What the IPC needs of the connection to the broker."""

from typing import Any, Protocol

from msgspec import Struct

from tidelog.base.errors import TidelogError


class BrokerUnreachable(TidelogError):  # noqa: N818 - the failure is the noun
    """There is no negotiated connection, or it ended before the reply came."""


class Reply(Struct, frozen=True):
    """The broker's reply to a request."""

    status: int
    """The `code` of its `ack`."""
    body: dict[str, Any]
    """The other members of it, `ref` and `type` excepted."""


class Uplink(Protocol):
    """The connection to the broker, seen from the IPC; all calls are made on the event loop."""

    @property
    def connected(self) -> bool:
        """Whether sends can leave: connected and negotiated."""

    @property
    def trouble(self) -> str | None:
        """Why there is no connection; None while there is one, or nothing was tried yet."""

    @property
    def broker_version(self) -> str | None:
        """What the broker said in its hello; None before the first."""

    @property
    def member_name(self) -> str | None:
        """What the mesh calls this member; None before the broker has said so."""

    async def resolve(self, name: str) -> str | None:
        """The public key of the one member of this name; None if there is none, or several.

        Never fails: without a connection it returns what it knew last.
        """

    async def peers(self) -> dict[str, str]:
        """Name of each member by key; `BrokerUnreachable` when that cannot be asked."""

    async def subscribe(self, topic: str) -> Reply:
        """Receive a topic; `BrokerUnreachable` when that cannot be asked."""

    async def unsubscribe(self, topic: str) -> Reply:
        """Stop receiving a topic; `BrokerUnreachable` when that cannot be asked."""

    async def topics(self) -> Reply:
        """Which topics there are; `BrokerUnreachable` when that cannot be asked."""
