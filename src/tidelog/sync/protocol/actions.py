"""What a session asks its service to do, in the order it has to be done."""

from typing import Any

from msgspec import Struct

from tidelog.sync.protocol.items import PreparedItem


class Send(Struct, frozen=True):
    """Send a message of this type; the service adds the envelope."""

    kind: str
    payload: bytes


class Close(Struct, frozen=True):
    """Close the connection; what was sent before leaves first."""

    code: int


class Connected(Struct, frozen=True):
    """The handshake succeeded: register, send `connected`, then call `done`."""

    capabilities: dict[str, Any]
    incarnation: str | None = None
    """The history that the client has followed so far; None if it did not say."""


class Submit(Struct, frozen=True):
    """Commit these; send the result, then call `done`."""

    items: tuple[PreparedItem, ...]
    size_bytes: int


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


Action = Send | Close | Connected | Submit | Sync
