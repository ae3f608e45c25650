"""What the address of a peer may still do: the limits that count by address.

Surfaces and the web room ask it and tell it; what is counted, and for whom, is the web room's
(`tidelog.web.addresses`).
"""


class AddressQuota:
    """One without limits: of a peer that is exempt, or has no address, as in a test."""

    __slots__ = ()

    def enter(self) -> bool:
        """Count a connection in; False if it is one too many."""
        return True

    def leave(self) -> None:
        """Count a connection out."""

    def failed(self) -> None:
        """It could not prove who it is."""

    def wait_seconds(self) -> int:
        """How long it has to wait before it may try to prove who it is; 0 for not at all."""
        return 0

    def join_wait_seconds(self) -> int:
        """Count a try to become a member, or say how long to wait until there may be one."""
        return 0

    def may_subscribe(self) -> bool:
        """Whether one more subscription is not too many."""
        return True

    def subscribe(self) -> bool:
        """Count a subscription in; False if it is one too many."""
        return True

    def unsubscribe(self) -> None:
        """Count a subscription out."""


NO_QUOTA = AddressQuota()
