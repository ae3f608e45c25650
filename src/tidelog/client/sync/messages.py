"""What a sync server says, typed; what does not fit these types is not of the protocol."""

from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct

from tidelog.base.errors import TidelogError

Json = dict[str, Any]


class BadMessage(TidelogError):  # noqa: N818 - the failure is the noun
    """The server said something the protocol does not know; the connection cannot be trusted."""


class Commit(Struct, frozen=True):
    """A committed event: the payload of `event_broadcast` and an element of a sync page."""

    id: str
    client_id: str
    partitions: tuple[str, ...]
    committed_id: int
    status_updated_at: int | float
    event: Json

    def __post_init__(self) -> None:
        if not isinstance(self.event.get("type"), str):
            raise TypeError("event.type must be a string")
        if not isinstance(self.event.get("payload"), dict):
            raise TypeError("event.payload must be an object")


class SyncPage(Struct, frozen=True):
    """Payload of `sync_response`."""

    partitions: tuple[str, ...]
    events: tuple[Commit, ...]
    next_since_committed_id: int
    sync_to_committed_id: int
    has_more: bool
    effective_subscriptions: tuple[str, ...] = ()
    model_version: int | None = None
    snapshot: str | None = None
    """JSON text of the partition's state, or a part of it."""
    snapshot_committed_id: int = 0
    """Up to where that includes the events."""
    snapshot_next: int | None = None
    """Where the next part starts; None in the last."""

    def __post_init__(self) -> None:
        if self.snapshot is not None and self.snapshot_committed_id < 1:
            raise ValueError("a snapshot needs a snapshot_committed_id")


class Decision(Struct, frozen=True):
    """One entry of `submit_events_result`: what became of a draft."""

    id: str
    status: Literal["committed", "rejected"]
    status_updated_at: int | float
    committed_id: int | None = None
    reason: str = ""
    errors: tuple[Json, ...] = ()

    def __post_init__(self) -> None:
        if self.status == "committed" and self.committed_id is None:
            raise ValueError("a committed entry needs a committed_id")


class Results(Struct, frozen=True):
    """Payload of `submit_events_result`."""

    results: tuple[Decision, ...]


class Limits(Struct, frozen=True):
    """What the server advertises; the defaults are what a client assumes without (sync 15)."""

    max_batch_size: int = 100
    max_in_flight_drafts: int | None = None
    max_message_bytes: int | None = None
    sync_limit_min: int = 50
    sync_limit_max: int = 1000
    heartbeat_timeout_ms: int = 30_000

    @property
    def batch_size(self) -> int:
        """Drafts in one submit; earlier servers advertise more than they accept."""
        in_flight = self.max_in_flight_drafts
        size = self.max_batch_size if in_flight is None else min(self.max_batch_size, in_flight)
        return max(1, size)


class Capabilities(Struct, frozen=True):
    """What the server negotiated for this connection."""

    profile: str | None = None
    tree_policy: str | None = None
    snapshots: bool = False
    """Whether a cold start may be given a state."""


class Connected(Struct, frozen=True):
    """Payload of `connected`."""

    capabilities: Capabilities = Capabilities()
    limits: Limits = Limits()
    model_version: int | None = None
    incarnation: str | None = None
    """Names the history of the log; None if the server is older than that."""
    began: int = 0
    """Up to where it is the history that this client named."""


class VersionChanged(Struct, frozen=True):
    """Payload of `version_changed`."""

    new_model_version: int


class ServerError(Struct, frozen=True):
    """Payload of `error`."""

    code: str
    message: str = ""
    details: Json = {}


T = TypeVar("T")


def parse(payload: object, kind: type[T]) -> T:
    """The payload as `kind`; `BadMessage` says what does not fit."""
    try:
        return msgspec.convert(payload, kind)
    except msgspec.ValidationError as error:
        raise BadMessage(f"{kind.__name__}: {error}") from None
