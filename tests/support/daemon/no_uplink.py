"""An uplink that never reached a broker."""

from tidelog.daemon.uplink.interface import BrokerUnreachable, Reply


class NoUplink:
    """Stands for a broker that was never reached."""

    connected = False
    trouble: str | None = None
    broker_version: str | None = None
    member_name: str | None = None

    async def resolve(self, name: str) -> str | None:
        """Nobody is known."""
        del name
        return None

    async def peers(self) -> dict[str, str]:
        """They cannot be asked for."""
        raise BrokerUnreachable("cannot list the members: the broker is not connected")

    async def subscribe(self, topic: str) -> Reply:
        """It cannot be asked."""
        raise BrokerUnreachable(f"cannot subscribe to {topic!r}: the broker is not connected")

    async def unsubscribe(self, topic: str) -> Reply:
        """It cannot be asked."""
        raise BrokerUnreachable(f"cannot unsubscribe from {topic!r}: the broker is not connected")

    async def topics(self) -> Reply:
        """It cannot be asked."""
        raise BrokerUnreachable("cannot list topics: the broker is not connected")
