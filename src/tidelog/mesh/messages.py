"""What the front and the owner's half of the mesh say to each other over the link.

Everything here is data. An answer has the number of its question. What a decision has to tell its
caller is a `Reply`, the same that goes out to a daemon.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from tidelog.base.data.incarnation import Incarnation
from tidelog.link.message import Failed, Message, Vocabulary
from tidelog.mesh.protocol.fingerprint import SendEnvelope
from tidelog.mesh.protocol.model import Member, Mesh
from tidelog.mesh.protocol.replies import Reply

RecipientKey = tuple[str, str]
"""A mesh and a recipient in it."""

# From a front.


class Hello(Message, frozen=True):
    """The first message of a front. Answered by `Welcome`."""


class Budget(Struct, frozen=True, array_like=True):
    """A mesh, as far as the rate limiter needs to know it."""

    id: str
    rate_limit: int
    rate_window_ms: int


class Accept(Message, frozen=True):
    """Commit a send that is sound in itself. Answered by `Replied`, or `Failed`.

    Those of one front are committed in the order in which they came.
    """

    mesh: Budget
    sender: Member
    client_message_id: str
    envelope: SendEnvelope
    fingerprint: bytes
    mentions: tuple[str, ...] = ()
    supersedes: str | None = None
    """The id that an operator retired for this one; outside the fingerprint."""

    @property
    def may_repeat(self) -> bool:
        """See `Message.may_repeat`: a send has its `client_message_id`."""
        return True


class Claim(Message, frozen=True):
    """Lease what is due to a member. Answered by `Leased`, or by `Replied` if it may not have it.

    Claims for one recipient are decided one after the other.
    """

    mesh_id: str
    member: Member
    limit: int
    lease_ms: int
    queue_id: str | None = None
    """Lease from a queue instead of what is addressed to the member itself."""


class Acknowledgement(NamedTuple):
    """A receiver has a message for good."""

    mesh_id: str
    recipient: str
    broker_message_id: str
    claim_id: str


class Acknowledge(Message, frozen=True):
    """These have arrived. Not answered: what was not kept is delivered and acknowledged again."""

    arrived: Sequence[Acknowledgement]


class Release(Message, frozen=True):
    """A receiver is gone: what it did not acknowledge waits again, and others are woken for it."""

    mesh_id: str
    recipient: str
    leases: Sequence[tuple[str, str]]
    """`broker_message_id` and `claim_id` of each."""


class Complete(Message, frozen=True):
    """A consumer of a queue is done with messages. Answered by `Completed`."""

    mesh_id: str
    member_id: str
    queue_id: str
    claim_id: str
    broker_message_ids: Sequence[str]


class UseToken(Message, frozen=True):
    """Note the use of a member token (mesh 9.5). Answered by `TokenUsed`."""

    token: str
    expires_at: int


class Attempted(Message, frozen=True):
    """What became of one post (mesh 7.4). Answered by `Noted` when that is kept."""

    endpoint_id: str
    broker_message_id: str
    claim_id: str
    status: int | None
    """None if there was no response."""
    error: str = ""


class PostsEnded(Message, frozen=True):
    """All of a `Post` were tried, or no more of them are."""

    claim_id: str


class Arrive(Message, frozen=True):
    """A connection has negotiated. Answered by `Arrived` when other nodes have been told of it.

    If another connection with its key stays instead (mesh 9.6), an `End` comes before that.
    """

    connection: int
    """Number that the front gave it."""
    mesh: Mesh
    member: Member
    instance: str
    """Which process of its member it is, or nothing."""


class Left(Message, frozen=True):
    """A connection that had negotiated is gone."""

    connection: int


class CreateMesh(Message, frozen=True):
    """Begin a mesh. Answered by `Replied`, as all that follow here."""

    mesh: Mesh


class ChangeMesh(Message, frozen=True):
    """Change settings; every front is told before the answer comes."""

    mesh: Mesh
    """As the front knows it; what is stored counts."""
    fields: Mapping[str, Any]
    """Only settings, and only values that can be."""


class Invite(Message, frozen=True):
    """Let somebody join."""

    mesh_id: str
    invite_hash: bytes
    lifetime_ms: int


class RemoveInvite(Message, frozen=True):
    """Withdraw an invite."""

    mesh_id: str
    invite_hash: bytes


class Join(Message, frozen=True):
    """Make the owner of a key a member; its signature was checked."""

    mesh_id: str
    invite_hash: bytes
    public_hex: str
    name: str


class EndMembership(Message, frozen=True):
    """End a membership; every front is told before the answer comes."""

    mesh_id: str
    public_hex: str
    is_revoked: bool
    """By an administrator; otherwise the member itself leaves."""


class CreateTopic(Message, frozen=True):
    """Begin a topic."""

    mesh_id: str
    member: Member
    topic: str


class SetSubscription(Message, frozen=True):
    """Receive a topic from now on, or no longer."""

    mesh_id: str
    member: Member
    topic: str
    is_wanted: bool


class RemoveTopic(Message, frozen=True):
    """End a topic."""

    mesh_id: str
    member: Member | None
    """Who asks; None for an administrator."""
    topic: str


class CreateQueue(Message, frozen=True):
    """Begin a queue."""

    mesh_id: str
    member: Member
    queue_id: str


class RemoveQueue(Message, frozen=True):
    """End a queue."""

    mesh_id: str
    member: Member | None
    """Who asks; None for an administrator."""
    queue_id: str


class AddWebhook(Message, frozen=True):
    """Send messages to an endpoint: those of one topic, or with an empty topic all of a mesh."""

    mesh_id: str
    topic: str
    url: str
    secret: str

    def __repr__(self) -> str:
        return f"AddWebhook({self.mesh_id!r}, {self.topic!r})"


class RemoveWebhook(Message, frozen=True):
    """Send nothing more to an endpoint."""

    mesh_id: str
    endpoint_id: str


Change = (
    CreateMesh
    | ChangeMesh
    | Invite
    | RemoveInvite
    | Join
    | EndMembership
    | CreateTopic
    | SetSubscription
    | RemoveTopic
    | CreateQueue
    | RemoveQueue
    | AddWebhook
    | RemoveWebhook
)
"""Who and what there is in a mesh (mesh 9.4)."""

ToOwner = (
    Hello
    | Accept
    | Claim
    | Acknowledge
    | Release
    | Complete
    | UseToken
    | Attempted
    | PostsEnded
    | Arrive
    | Left
    | Change
)

# To a front.


class Welcome(Message, frozen=True):
    """What a front has to know when it begins."""

    incarnations: tuple[Incarnation, ...]
    """They do not change while the owner lives."""


class Replied(Message, frozen=True):
    """What was decided."""

    reply: Reply


class Leased(Message, frozen=True):
    """What a claim got, oldest first; nothing if nothing was due."""

    claim_id: str
    expires_at: int
    messages: tuple[tuple[str, int], ...] = ()
    """`broker_message_id` and `history_id` of each."""


class Completed(Message, frozen=True):
    """These are done; of the others the lease was lost."""

    broker_message_ids: Sequence[str]


class TokenUsed(Message, frozen=True):
    """A token was used now, or had been before, as far as anybody knows."""

    is_new: bool


class Arrived(Message, frozen=True):
    """A connection is known, here and on other nodes."""


class Wake(Message, frozen=True):
    """There may be something to deliver to connections of this front."""

    recipients: Sequence[RecipientKey] = ()
    posts: Sequence[tuple[str, str]] = ()
    """Mesh and `broker_message_id` of messages to topics: the store knows for whom they are."""


class LookAgain(Message, frozen=True):
    """Leases have ended, or it is time to look: whoever has something to get is to be woken."""


class Target(NamedTuple):
    """An endpoint, as `mesh_webhook_target` returns it."""

    mesh_id: str
    slug: str
    url: str
    secret: str

    def __repr__(self) -> str:
        return f"Target({self.mesh_id!r})"


class Post(Message, frozen=True):
    """Post these to an endpoint, one after the other. Each is `Attempted`; then `PostsEnded`."""

    endpoint_id: str
    target: Target
    leased: Leased


class Noted(Message, frozen=True):
    """An attempt is kept."""

    goes_on: bool
    """Whether the endpoint wants anything more."""


class StopPosting(Message, frozen=True):
    """The owner ends: posts that are under way are given up, their leases end by themselves."""


class End(Message, frozen=True):
    """A connection must be closed: two with its key may not stay (mesh 9.6)."""

    connection: int
    code: int
    reason: str


class PeerSeen(Message, frozen=True):
    """A member is present now, or no longer; those of its mesh are to be told."""

    mesh_id: str
    member_pubkey: str
    name: str
    is_present: bool


class Revoked(Message, frozen=True):
    """A key is no member's any more: its connections must be closed."""

    mesh_id: str
    public_hex: str


class MeshChanged(Message, frozen=True):
    """A mesh has other settings: its connections must be closed, so that they negotiate anew."""

    mesh_id: str
    slug: str


class Missed(Message, frozen=True):
    """Revocations and changes of other nodes may have been missed: the store must be asked."""


ToFront = (
    Failed
    | Welcome
    | Replied
    | Leased
    | Completed
    | TokenUsed
    | Arrived
    | Wake
    | LookAgain
    | Post
    | Noted
    | StopPosting
    | End
    | PeerSeen
    | Revoked
    | MeshChanged
    | Missed
)

VOCABULARY = Vocabulary(ToOwner, ToFront)
