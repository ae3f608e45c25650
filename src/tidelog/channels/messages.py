"""What the front and the owner's half of channels say to each other over the link.

Everything here is data. An answer has the number of its question, and comes before the entries that
the question has appended; those come before anything later.
"""

from collections.abc import Sequence

from msgspec import Struct

from tidelog.base.data.incarnation import Incarnation
from tidelog.channels.protocol.capabilities import Actor
from tidelog.channels.protocol.fault import Fault
from tidelog.channels.protocol.requests import (
    Asked,
    ForgetTarget,
    Mode,
    Mutation,
    MutationResult,
    Publication,
)
from tidelog.channels.protocol.revocations import Revocation
from tidelog.channels.protocol.version import Version, stored_version
from tidelog.channels.protocol.wire import ProtocolVersion
from tidelog.link.message import Failed, Message, Vocabulary


class Refused(Message, frozen=True):
    """A `Fault` as data: what was asked for is refused, and nothing of it was done."""

    status: int
    code: str
    error: str
    ai_code: int | None = None
    index: int | None = None
    headers: tuple[tuple[bytes, bytes], ...] = ()

    @classmethod
    def of(cls, fault: Fault) -> "Refused":
        """The same refusal."""
        return cls(fault.status, fault.code, fault.error, fault.ai_code, fault.index, fault.headers)

    def fault(self) -> Fault:
        """The refusal, for whoever asked."""
        return Fault(
            self.status,
            self.code,
            self.error,
            ai_code=self.ai_code,
            index=self.index,
            headers=self.headers,
        )


class SocketFacts(Struct, frozen=True):
    """What a request in the name of a socket is judged by, wherever that is connected."""

    version: ProtocolVersion
    actor: Actor


# From a front.


class Hello(Message, frozen=True):
    """The first message of a front, which has no connection yet.

    Answered by `Welcome`, after all that is revoked.
    """

    follows_all: bool
    """Whether it is to be told the entries of all channels, else of those that it attaches."""


class Join(Message, frozen=True):
    """One more socket of a user joins a presence channel. Answered by `Admitted` or `Full`.

    The front hears of the channel's members from then on. Whoever is admitted must `Leave`.
    """

    stream: str
    user_id: str
    user_info: bytes | None


class Attach(Message, frozen=True):
    """Follow a channel, from now on. Answered by `Attached` when the tail is where the log ends."""

    stream: str
    join: Join | None = None
    """Who joins it in the same step, if it is a presence channel."""


class Detach(Message, frozen=True):
    """Follow these no more."""

    streams: tuple[str, ...]


class Look(Message, frozen=True):
    """Where is a channel that need not be followed? Answered by `Attached`."""

    stream: str


class CatchUp(Message, frozen=True):
    """Answered by `CaughtUp` when the tail is where the log ends."""


class Target(Struct, frozen=True, array_like=True):
    """One channel of a publish, with what the front makes of it by the settings."""

    channel: str
    mode: Mode
    is_limited: bool
    """Whether the limits on streamed content apply (channels D14)."""
    versions_off: str | None = None
    """The setting by which its messages cannot change, if they cannot."""


class Event(Struct, frozen=True, array_like=True):
    """One event of a publish."""

    publication: Publication
    targets: tuple[Target, ...]
    client_id: str | None = None
    """Of the publishing socket, if it has one: the creator of the message."""
    attributed_to: str | None = None
    """The `user_id` of the frame, if that is another."""
    is_client_event: bool = False
    own_run: str | None = None
    """The run it cancels, if it may cancel its own only."""


class Publish(Message, frozen=True):
    """Publish these. Answered by `Published`, `Refused`, or `Failed` if the store failed.

    What no entry carries has come as `Live` before the answer.
    """

    app_id: str
    events: tuple[Event, ...]
    is_batch: bool = False
    key: str | None = None
    """Of a batch that may be repeated under it."""

    @property
    def may_repeat(self) -> bool:
        """See `Message.may_repeat`."""
        return self.key is not None or all(
            # What a socket sent: it is closed, and what it sent before may be what nobody knows of.
            each.publication.is_keyed and not each.is_client_event
            for each in self.events
        )


class Mutate(Message, frozen=True):
    """Make the next version of a message. Answered by `Mutated`, `Refused` or `Failed`."""

    app_id: str
    mutation: Mutation
    actor: Actor | None = None
    """None for the application's own server, which may do anything."""
    refused: Refused | None = None
    """Why nobody may do it in the name of that socket; said if there is such a message."""

    @property
    def may_repeat(self) -> bool:
        """See `Message.may_repeat`."""
        return self.mutation.op_id is not None


class Summarize(Message, frozen=True):
    """Let every front have a summary, after what is queued already. Answered by `Done`."""

    stream: str
    summary: bytes


class Forget(Message, frozen=True):
    """Erase something, or ask how far that has come. Answered by `Forgotten` or `Refused`."""

    app_id: str
    target: ForgetTarget
    asked: Asked | None
    """None for a question."""


class EraseHistory(Message, frozen=True):
    """Reset or purge the history of a channel. Answered by `HistoryErased`."""

    stream: str
    floor: int | None
    """What lies up to this history serial goes; None for a reset."""
    asked: Asked


class CloseStream(Message, frozen=True):
    """End the stream of a message for an operator. Answered by `StreamClosed` or `Refused`."""

    app_id: str
    channel: str
    message_serial: str
    silent_ms: int
    """Only if nobody has written to it for so long."""


class Revoke(Message, frozen=True):
    """Revoke tokens, by kind and value. Answered by `Revoked` or `Refused`."""

    app_id: str
    named: tuple[tuple[str, str], ...]


class Leave(Message, frozen=True):
    """A socket of a user that was admitted to a channel has left it."""

    stream: str
    user_id: str


class UpdateMember(Message, frozen=True):
    """A user who is on a channel has another `user_info`."""

    stream: str
    user_id: str
    user_info: bytes


class Recount(Message, frozen=True):
    """So many are subscribed on this front to a channel without members."""

    stream: str
    count: int


class Count(Message, frozen=True):
    """How many are there? Answered by `Counts`."""

    streams: tuple[str, ...]


class Occupied(Message, frozen=True):
    """Which channels have subscribers? Answered by `Counts`."""

    prefix: str
    """Of their streams."""
    with_users: bool


class ListMembers(Message, frozen=True):
    """Who is on a channel? Answered by `Present`."""

    stream: str


class Identify(Message, frozen=True):
    """Who is a socket that is not connected to this front? Answered by `Identified` or `Failed`."""

    app_id: str
    socket_id: str


class Known(Message, frozen=True):
    """What a front that was asked `WhoHas` knows of the socket; nothing if it has it not."""

    question: int
    socket: SocketFacts | None


class Disconnect(Message, frozen=True):
    """Close a user's connections on all other fronts. Answered by `Done` when they are told."""

    app_id: str
    user_id: str
    code: int


ToOwner = (
    Hello
    | Attach
    | Detach
    | Look
    | CatchUp
    | Publish
    | Mutate
    | Summarize
    | Forget
    | EraseHistory
    | CloseStream
    | Revoke
    | Join
    | Leave
    | UpdateMember
    | Recount
    | Count
    | Occupied
    | ListMembers
    | Identify
    | Known
    | Disconnect
)

# To a front.


class Welcome(Message, frozen=True):
    """Where everything is when a front begins."""

    position: int
    """Of the tail."""
    log_id: str
    incarnations: tuple[Incarnation, ...]
    """They do not change while the owner lives."""


class Done(Message, frozen=True):
    """What was asked for is done."""


class Admitted(Message, frozen=True):
    """A socket has joined a presence channel."""

    members: dict[str, bytes | None]
    """All users who are there, and their `user_info`; what changes later comes later."""


class Full(Message, frozen=True):
    """A presence channel has as many members as it may have."""


class Attached(Message, frozen=True):
    """A channel at a position: what is up to there is in the store, or has come before this.

    What is later comes live, if the channel is followed.
    """

    position: int
    epoch: int
    """How often its history was reset."""
    history_floor: int
    """History up to here was purged."""
    replay_floor: int
    """Versions up to this delivery serial were emptied."""
    delivered_serial: int
    delivered_history: int
    """The last serials at that position."""
    history_serial: int
    """The newest one, which may be after it."""
    joined: Admitted | Full | None = None
    """What became of the `Join`."""


class CaughtUp(Message, frozen=True):
    """What is up to `position` has come before this."""

    position: int


class Entry(Struct, frozen=True, array_like=True):
    """A committed entry of a channel: a version of a message."""

    committed_id: int
    committed_at: int
    stream: str
    stream_serial: int
    kind: str
    entity: str
    body: bytes | None
    """None if it was emptied before it came here."""

    def version(self) -> Version:
        """The version that it is, if it was not emptied."""
        assert self.body is not None  # noqa: S101 - whoever asks has looked
        return stored_version(
            self.kind,
            self.committed_id,
            self.committed_at,
            self.stream_serial,
            self.entity,
            self.body,
        )


class Entries(Message, frozen=True):
    """What was committed next of what the front follows; there may be none."""

    position: int
    """The last entry of channels so far, followed or not."""
    entries: Sequence[Entry]


class Floors(Message, frozen=True):
    """Epoch or floors of a channel that the front has attached are others now."""

    stream: str
    epoch: int
    history_floor: int
    replay_floor: int


class Published(Message, frozen=True):
    """The response to a publish. What it appended follows at once."""

    body: bytes
    position: int
    """Of the last entry that it appended; 0 if it appended none."""


class Mutated(Message, frozen=True):
    """What a mutation made. The entry follows at once, unless it had been made before."""

    result: MutationResult
    position: int
    """Of the version, if it is new."""


class Forgotten(Message, frozen=True):
    """Whether an erasure is complete; nothing of it is served in any case."""

    is_complete: bool


class HistoryErased(Message, frozen=True):
    """A history was reset or purged, and nothing of that is served any more."""

    old_epoch: int
    new_epoch: int
    is_complete: bool


class StreamClosed(Message, frozen=True):
    """Whether a stream was ended by this."""

    is_closed: bool


class Revoked(Message, frozen=True):
    """These are revoked: as an answer, and to every other front."""

    revocations: tuple[Revocation, ...]


class Live(Message, frozen=True):
    """An event that nothing is kept of."""

    stream: str
    message_id: str
    name: str
    data: bytes
    extras: bytes | None
    tags: bytes | None
    client_id: str | None
    socket_id: str | None
    is_client_event: bool
    at: int


class Summary(Message, frozen=True):
    """The summary of a message, for the subscribers of its channel."""

    stream: str
    summary: bytes


class Erased(Message, frozen=True):
    """What must not be served any more: messages of channels, all up to one, some, or a client's.

    Owners on other nodes are told the same.
    """

    streams: tuple[str, ...]
    messages: tuple[int, ...] = ()
    through: int = 0
    """The last one, if it is all of them."""
    prefix: str = ""
    client_id: str = ""
    """Of an app whose streams begin with the prefix; empty if that is not how they were found."""


class Distrust(Message, frozen=True):
    """Something may have been erased without anybody being told: keep no event in memory."""


class MemberAdded(Message, frozen=True):
    """A user is on a channel that the front has members of."""

    stream: str
    user_id: str
    user_info: bytes | None


class MemberRemoved(Message, frozen=True):
    """A user is on such a channel no more, wherever it was."""

    stream: str
    user_id: str


class MemberUpdated(Message, frozen=True):
    """A user on such a channel has another `user_info`."""

    stream: str
    user_id: str
    user_info: bytes


class Present(Message, frozen=True):
    """Who is on a channel."""

    stream: str
    members: dict[str, bytes | None]


class Counts(Message, frozen=True):
    """Streams with their subscriptions and, if that was asked for, their users."""

    counts: tuple[tuple[str, int, int], ...]


class WhoHas(Message, frozen=True):
    """Has the front this socket? It says so with `Known`."""

    question: int
    app_id: str
    socket_id: str


class CloseUser(Message, frozen=True):
    """Close the connections of a user."""

    app_id: str
    user_id: str
    code: int


class Identified(Message, frozen=True):
    """Who a socket is; nothing if nobody has it."""

    socket: SocketFacts | None


ToFront = (
    Failed
    | Refused
    | Welcome
    | Done
    | Attached
    | CaughtUp
    | Entries
    | Floors
    | Published
    | Mutated
    | Forgotten
    | HistoryErased
    | StreamClosed
    | Revoked
    | Live
    | Summary
    | Erased
    | Distrust
    | Admitted
    | Full
    | MemberAdded
    | MemberRemoved
    | MemberUpdated
    | Present
    | Counts
    | WhoHas
    | Identified
    | CloseUser
)

VOCABULARY = Vocabulary(ToOwner, ToFront)
