"""What a session asks its service to do, in the order it has to be done."""

from typing import Any

from msgspec import Struct

from tidelog.sync.protocol.items import PreparedItem


class Send(Struct, frozen=True):
    """Send a message of this type; the service adds the envelope."""

    kind: str
    payload: bytes
    reply_to: str | None = None
    """Id of the message that this replies to, in a dialect whose replies carry it."""


class Ping(Struct, frozen=True):
    """Ask a silent peer whether it is there."""


class Close(Struct, frozen=True):
    """Close the connection; what was sent before leaves first."""

    code: int


class Connected(Struct, frozen=True):
    """The handshake succeeded: register, send `connected`, then call `done`."""

    capabilities: dict[str, Any]
    incarnation: str | None = None
    """The history that the client has followed so far; None if it did not say."""
    reply_to: str | None = None


class Submit(Struct, frozen=True):
    """Commit these; send the result, then call `done`."""

    items: tuple[PreparedItem, ...]
    size_bytes: int
    stops_at_rejection: bool = False
    """Whether what comes after a rejected item is not processed (sync D68)."""
    left_over: tuple[str, ...] = ()
    """Ids of items beyond what one request may have, where those are told so one by one."""
    reply_to: str | None = None


class SnapshotWish(Struct, frozen=True):
    """The client accepts a state instead of the events that led to it (sync 10.1)."""

    committed_id: int | None = None
    """The state whose next part is wanted; None for the first part of whichever there is."""
    start: int = 0
    """The offset at which that part starts."""


class Sync(Struct, frozen=True):
    """Send a page; call `paged`, then `done`."""

    partitions: tuple[str, ...]
    subscriptions: tuple[str, ...] | None
    """None leaves them as they are."""
    since: int
    limit: int
    max_bytes: int
    """The most that its events add up to, unless a single one is larger."""
    watermark: int | None
    """Of the cycle that this continues; None opens a new one."""
    snapshot: SnapshotWish | None = None
    """None: events only."""
    project: str = ""
    """All partitions of this project instead of `partitions`; empty for those (sync 21.2)."""
    reply_to: str | None = None


Action = Send | Ping | Close | Connected | Submit | Sync
