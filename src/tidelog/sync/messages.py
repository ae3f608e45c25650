"""What the front and the owner's half of sync say to each other over the link.

Everything here is data. An answer has the number of its question, and comes before the entries that
the question has appended; those come before anything later.
"""

from collections.abc import Sequence

from msgspec import Struct

from tidelog.base.data.incarnation import Incarnation
from tidelog.link.message import Failed, Message, Vocabulary
from tidelog.sync.protocol.items import PreparedItem
from tidelog.sync.protocol.wire import Result

# From a front.


class Hello(Message, frozen=True):
    """The first message of a front. Answered by `Welcome`, and followed by all `Events`.

    With what its verdicts about items are made: that must be what the owner has. Neither changes
    while a process lives, so nobody asks again.
    """

    model: bytes
    """`Model.digest`."""
    plugin: str
    """The setting `sync.plugin`."""


class Submit(Message, frozen=True):
    """Commit these. Answered by `Submitted`, `NotTaken`, or `Failed` if the store failed.

    Submits of one connection are taken in their order. If one is not taken, those after it are not
    either, until the front has heard of it; after a `Failed` none is.
    """

    items: tuple[PreparedItem, ...]
    size_bytes: int
    stops_at_rejection: bool
    connection: int = 0
    """Number that the front gave the connection; 0 if there is none whose order matters."""
    round: int = 0
    """How often the front has heard, for this connection, that one was not taken."""
    follows: bool = False
    """Whether the connection gets events: then those before its own come before the answer, because
    its client takes a result for a sign that it has all up to there. Answers to others may overtake
    events, which fronts are told many at a time."""

    @property
    def may_repeat(self) -> bool:
        """See `Message.may_repeat`: drafts have ids.

        The client of a connection must come back instead. It may have missed events of others that
        are before its own, and a result would let it believe that it has all up to there.
        """
        return not self.connection


class Attach(Message, frozen=True):
    """Follow these too, from now on. Answered by `Attached` when the tail is where the log ends.

    With nothing to follow it asks how far the log has come.
    """

    partitions: tuple[str, ...] = ()
    projects: tuple[str, ...] = ()
    """All partitions of each (sync 21.2)."""


class Detach(Message, frozen=True):
    """Follow these no more."""

    partitions: tuple[str, ...] = ()
    projects: tuple[str, ...] = ()


class Join(Message, frozen=True):
    """A client has connected. Answered by `Joined`, as `Attach` is."""

    connection: int
    client_id: str


class Left(Message, frozen=True):
    """A connection has ended."""

    connection: int


class ChangeModelVersion(Message, frozen=True):
    """Store another model version and tell everybody. Answered by `ModelVersionStored`."""

    version: int


class TakeSnapshot(Message, frozen=True):
    """Answered by `Snapshot`, the state that a partition has now, or `SnapshotRefused`."""

    partition: str
    is_stored: bool


class PutSnapshot(Message, frozen=True):
    """Store a state that was checked. Answered by `Snapshot` or `SnapshotRefused`."""

    partition: str
    state: bytes
    committed_id: int
    model_version: int


class Retain(Message, frozen=True):
    """Archive what lies at or before a position. Answered by `Retained`."""

    through: int


ToOwner = (
    Hello
    | Submit
    | Attach
    | Detach
    | Join
    | Left
    | ChangeModelVersion
    | TakeSnapshot
    | PutSnapshot
    | Retain
)

# To a front.


class Welcome(Message, frozen=True):
    """Where everything is when a front begins."""

    position: int
    """Of the tail."""
    last_event: int
    """The last event of sync up to there."""
    model_version: int
    incarnations: tuple[Incarnation, ...]
    """They do not change while the owner lives."""


class Submitted(Message, frozen=True):
    """What became of each item. What they appended follows at once, as `Events`."""

    results: Sequence[Result]


class NotTaken(Failed, frozen=True):
    """There was no room for a submit, or nothing is taken any more: nothing of it was committed."""


class Attached(Message, frozen=True):
    """What is up to `position` is in the store, or came before this; what is later comes live."""

    position: int


class Joined(Message, frozen=True):
    """The connection is registered, unless its client has a later one: then it must be closed."""

    position: int
    """As of `Attached`."""
    is_latest: bool


class Event(Struct, frozen=True, array_like=True):
    """A committed event."""

    committed_id: int
    committed_at: int
    id: str
    client_id: str
    partitions: Sequence[str]
    body: bytes


class Events(Message, frozen=True):
    """What was committed next of what the front follows; there may be none."""

    position: int
    """The last event of sync so far, followed or not."""
    events: Sequence[Event]


class Evict(Message, frozen=True):
    """The client of this connection has a later one elsewhere: it must be closed (sync 3.3)."""

    connection: int


class ModelVersionChanged(Message, frozen=True):
    """From now on clients are told another model version."""

    old: int
    new: int


class ModelVersionStored(Message, frozen=True):
    """It is in use."""

    old: int


class Snapshot(Message, frozen=True):
    """The state of a partition."""

    committed_id: int
    """It includes the events up to here."""
    model_version: int
    state: bytes
    """JSON; empty if it was only stored."""


TOO_DEEP = "the state is nested too deeply for a snapshot"


class SnapshotRefused(Message, frozen=True):
    """Nothing was stored."""

    reason: str
    is_newer: bool
    """Whether that is because the partition has a newer one."""


class Retained(Message, frozen=True):
    """So many events were archived."""

    archived: int


ToFront = (
    Failed
    | Welcome
    | Submitted
    | NotTaken
    | Attached
    | Joined
    | Events
    | Evict
    | ModelVersionChanged
    | ModelVersionStored
    | Snapshot
    | SnapshotRefused
    | Retained
)

VOCABULARY = Vocabulary(ToOwner, ToFront)
