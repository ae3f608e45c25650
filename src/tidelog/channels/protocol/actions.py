"""What a session asks its service to do, in the order it has to be done."""

from msgspec import Struct

from tidelog.channels.protocol.query import HistoryQuery
from tidelog.channels.protocol.requests import Publication
from tidelog.channels.protocol.tokens import Claims


class Member(Struct, frozen=True):
    """A user on a presence channel."""

    user_id: str
    user_info: bytes | None
    """JSON text as it was received; None if there was none."""


class Rewind(Struct, frozen=True):
    """How much of what was sent before to deliver after a subscribe; exactly one is set."""

    count: int | None
    seconds: float | None


class Position(Struct, frozen=True):
    """Up to where a client has seen a channel."""

    channel: str
    serial: int
    stream_id: str | None
    """None from a client that knows the serial only."""
    last_message_id: str | None


class Send(Struct, frozen=True):
    """Send this JSON text as a text frame."""

    frame: bytes


class Ping(Struct, frozen=True):
    """Send a WebSocket ping."""


class Close(Struct, frozen=True):
    """Close the connection; what was sent before leaves first."""

    code: int
    reason: str = ""


class Subscribe(Struct, frozen=True):
    """Subscribe, send `subscription_succeeded` and call `joined`; or, on failure, `left`.

    It may be subscribed already: then only send `subscription_succeeded` again.
    """

    channel: str
    member: Member | None
    """Set exactly on presence channels."""
    rewind: Rewind | None


class Unsubscribe(Struct, frozen=True):
    """Unsubscribe, if it is subscribed, and call `left`; nothing is sent."""

    channel: str


class ClientEvent(Struct, frozen=True):
    """Publish an event in the name of this socket."""

    channel: str
    event: str
    data: bytes
    """JSON text as it was received; `null` if there was none."""
    user_id: str | None
    """The sender's on a presence channel, else None: what the frame's `user_id` is."""


class PublishEvent(Struct, frozen=True):
    """Publish an event of a run in the name of this socket; a refusal is a `publish_refused`."""

    publication: Publication
    """To one channel."""
    user_id: str | None
    """As in `ClientEvent`."""
    own_run: str | None
    """The run that it cancels and that must be the sender's, if somebody is known to own it."""


class PresenceUpdate(Struct, frozen=True):
    """Tell the V2 subscribers that a member's info changed, and keep it."""

    channel: str
    user_id: str
    user_info: bytes
    """JSON text as it was received."""


class Resume(Struct, frozen=True):
    """Replay what was missed, then send `resume_success`.

    A channel that needs authorization is replayed after its subscribe.
    """

    positions: tuple[Position, ...]
    denied: tuple[Position, ...]
    """Channels this socket may not resume: send `resume_failed` for each, code
    `continuity_unverifiable`, reason `not_authorized`, and `current_stream_id` null."""


class ReadHistory(Struct, frozen=True):
    """Send `channel_history` (or an error), then call `history_done` in any case."""

    channel: str
    query: HistoryQuery


class SignedIn(Struct, frozen=True):
    """The socket is this user's from now on."""

    user_id: str


class TokenAccepted(Struct, frozen=True):
    """The socket has a new token; if that was revoked, do what `revoke` says and nothing else."""

    claims: Claims


Action = (
    Send
    | Ping
    | Close
    | Subscribe
    | Unsubscribe
    | ClientEvent
    | PublishEvent
    | PresenceUpdate
    | Resume
    | ReadHistory
    | SignedIn
    | TokenAccepted
)
