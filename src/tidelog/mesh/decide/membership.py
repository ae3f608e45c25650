"""Who and what there is in a mesh: pure decisions that append nothing (mesh 9.4).

They go through the same queue as sends, so that a send sees exactly the members, topics and
subscriptions of the moment it commits. Counts that bound a mesh are as of the beginning of a batch:
a limit may be exceeded by what one batch adds.
"""

from msgspec import Struct, structs

from tidelog.log.decision import Accept, Names, Refuse, RowChange, View
from tidelog.mesh.decide.gone_recipients import FOR_EVER, QUEUE_REMOVED, GoneRecipient
from tidelog.mesh.protocol import replies
from tidelog.mesh.protocol.model import Member, Mesh, member_of, queue_recipient, stream_name
from tidelog.mesh.protocol.replies import Reply, refusal
from tidelog.store.rows import Becomes


class Limits(Struct, frozen=True):
    """How much one mesh may hold, and of it what one member has made."""

    members: int
    topics: int
    topics_per_member: int
    subscribers: int
    queues: int
    queues_per_member: int
    webhooks: int
    invites: int


class CreateMesh(Struct, frozen=True):
    """Begin a mesh."""

    mesh: Mesh

    def names(self) -> Names:
        """What `decide` reads."""
        return Names(rows=(("mesh_by_slug", (self.mesh.slug,)),))

    def decide(self, view: View) -> Accept | Refuse:
        """Slugs are unique and are never given again."""
        mesh = self.mesh
        if view.rows("mesh_by_slug", (mesh.slug,)):
            return Refuse(refusal(409, "mesh_exists"))
        row = structs.astuple(mesh)
        change = RowChange(
            "mesh_add",
            (*row, view.now_ms),
            Becomes("mesh_by_slug", (mesh.slug,), (row,)),
        )
        return Accept(Reply(201, {"mesh_id": mesh.id, "slug": mesh.slug}), rows=(change,))


class Invite(Struct, frozen=True):
    """Let somebody join; who knows the invite is told apart by its hash."""

    mesh_id: str
    invite_hash: bytes
    lifetime_ms: int
    asked_at: int
    """Only to count what is still open; the decision's own time counts for everything else."""
    limits: Limits

    def names(self) -> Names:
        """What `decide` reads."""
        return Names(rows=(("mesh_counts", (self.mesh_id, self.asked_at)),))

    def decide(self, view: View) -> Accept | Refuse:
        """What can no longer be used goes when something new comes."""
        [(_, _, _, _, invites)] = view.rows("mesh_counts", (self.mesh_id, self.asked_at))
        if invites >= self.limits.invites:
            return Refuse(refusal(409, "too_many_invites"))
        now = view.now_ms
        expires_at = now + self.lifetime_ms
        return Accept(
            Reply(201, {"expires_at": replies.rfc3339(expires_at)}),
            rows=(
                RowChange("mesh_remove_invites", (self.mesh_id, now)),
                RowChange("mesh_add_invite", (self.invite_hash, self.mesh_id, now, expires_at)),
            ),
        )


class RemoveInvite(Struct, frozen=True):
    """Withdraw an invite."""

    mesh_id: str
    invite_hash: bytes

    def names(self) -> Names:
        """What `decide` reads."""
        return Names(rows=(("mesh_invite", (self.invite_hash,)),))

    def decide(self, view: View) -> Accept | Refuse:
        """One that was used cannot be taken back."""
        key = (self.invite_hash,)
        found = view.rows("mesh_invite", key)
        if not found or found[0][0] != self.mesh_id:
            return Refuse(refusal(404, "invite_not_found"))
        if found[0][2] is not None:
            detail = "it was used; the member it made can be revoked"
            return Refuse(refusal(404, "invite_not_found", detail))
        change = RowChange("mesh_remove_invite", key, Becomes("mesh_invite", key, ()))
        return Accept(Reply(200, {"id": self.invite_hash.hex(), "removed": True}), rows=(change,))


class Join(Struct, frozen=True):
    """Become a member with an invite; the signature was checked before."""

    mesh_id: str
    invite_hash: bytes
    member_id: str
    public_hex: str
    name: str
    asked_at: int
    limits: Limits

    def names(self) -> Names:
        """What `decide` reads."""
        return Names(
            rows=(
                ("mesh_invite", (self.invite_hash,)),
                ("mesh_member", (self.mesh_id, self.public_hex)),
                ("mesh_member_named", (self.mesh_id, self.name)),
                ("mesh_counts", (self.mesh_id, self.asked_at)),
            )
        )

    def decide(self, view: View) -> Accept | Refuse:
        """An invite is used once; a retry by the member it made is answered like the first time.

        A key that was revoked stays revoked, whoever invites it.
        """
        found = view.rows("mesh_member", (self.mesh_id, self.public_hex))
        member = member_of(found, self.public_hex)
        if member is not None:
            if member.name != self.name:
                return Refuse(refusal(409, "already_a_member"))
            return Refuse(self._reply(200, member.id))
        if found:
            return Refuse(refusal(403, "member_revoked"))
        invites = view.rows("mesh_invite", (self.invite_hash,))
        if not invites or invites[0][0] != self.mesh_id:
            return Refuse(refusal(403, "invite_invalid"))
        mesh_id, expires_at, used_at = invites[0]
        if used_at is not None:
            return Refuse(refusal(403, "invite_used"))
        if expires_at <= view.now_ms:
            return Refuse(refusal(403, "invite_expired"))
        if view.rows("mesh_member_named", (self.mesh_id, self.name)):
            return Refuse(refusal(409, "name_taken"))
        [(members, *_)] = view.rows("mesh_counts", (self.mesh_id, self.asked_at))
        if members >= self.limits.members:
            return Refuse(refusal(409, "too_many_members"))
        now = view.now_ms
        return Accept(
            self._reply(201, self.member_id),
            rows=(
                RowChange(
                    "mesh_use_invite",
                    (self.invite_hash, now, self.member_id),
                    Becomes("mesh_invite", (self.invite_hash,), ((mesh_id, expires_at, now),)),
                ),
                RowChange(
                    "mesh_add_member",
                    (self.member_id, self.mesh_id, self.public_hex, self.name, now),
                    Becomes(
                        "mesh_member",
                        (self.mesh_id, self.public_hex),
                        ((self.member_id, self.name, None),),
                    ),
                ),
            ),
        )

    def _reply(self, status: int, member_id: str) -> Reply:
        return Reply(
            status,
            {
                "mesh_id": self.mesh_id,
                "member_id": member_id,
                "member_pubkey": self.public_hex,
                "name": self.name,
            },
        )


class Revoke(Struct, frozen=True):
    """End a membership; what still waits for the key is closed afterwards."""

    mesh_id: str
    public_hex: str
    reason: str

    def names(self) -> Names:
        """What `decide` reads."""
        return Names(rows=(("mesh_member", (self.mesh_id, self.public_hex)),))

    def decide(self, view: View) -> Accept | Refuse:
        """Idempotent."""
        key = (self.mesh_id, self.public_hex)
        found = view.rows("mesh_member", key)
        if not found:
            return Refuse(refusal(404, "member_not_found"))
        reply = Reply(200, {"member_pubkey": self.public_hex, "revoked": True})
        member_id, name, revoked_at = found[0]
        if revoked_at is not None:
            return Refuse(reply)
        now = view.now_ms
        return Accept(
            reply,
            rows=(
                RowChange(
                    "mesh_revoke_member",
                    (*key, now),
                    Becomes("mesh_member", key, ((member_id, name, now),)),
                ),
                RowChange("mesh_remove_subscriptions", key),
                GoneRecipient(*key, self.reason, FOR_EVER).noted(),
            ),
        )


class CreateTopic(Struct, frozen=True):
    """Begin a topic; its creator is not subscribed by that."""

    mesh_id: str
    member: Member
    topic: str
    asked_at: int
    limits: Limits

    def names(self) -> Names:
        """What `decide` reads."""
        return Names(
            rows=(
                ("mesh_member", (self.mesh_id, self.member.public_hex)),
                ("mesh_topic", (self.mesh_id, self.topic)),
                ("mesh_counts", (self.mesh_id, self.asked_at)),
                ("mesh_made_by", (self.mesh_id, self.member.id)),
            )
        )

    def decide(self, view: View) -> Accept | Refuse:
        """Idempotent."""
        if not _is_member(view, self.mesh_id, self.member):
            return Refuse(replies.not_a_member())
        key = (self.mesh_id, self.topic)
        if view.rows("mesh_topic", key):
            return Refuse(Reply(200, {"topic": self.topic, "created": False}))
        [(_, topics, *_)] = view.rows("mesh_counts", (self.mesh_id, self.asked_at))
        if topics >= self.limits.topics:
            return Refuse(refusal(409, "too_many_topics"))
        [(mine, _)] = view.rows("mesh_made_by", (self.mesh_id, self.member.id))
        if mine >= self.limits.topics_per_member:
            return Refuse(_too_many_made("topics", self.limits.topics_per_member))
        creator = self.member.id
        change = RowChange(
            "mesh_add_topic",
            (*key, view.now_ms, creator),
            Becomes("mesh_topic", key, ((None, creator),)),
        )
        return Accept(Reply(201, {"topic": self.topic, "created": True}), rows=(change,))


class SetSubscription(Struct, frozen=True):
    """Receive a topic from now on, or no longer."""

    mesh_id: str
    member: Member
    topic: str
    is_wanted: bool
    limits: Limits

    def names(self) -> Names:
        """What `decide` reads."""
        return Names(
            rows=(
                ("mesh_member", (self.mesh_id, self.member.public_hex)),
                ("mesh_topic", (self.mesh_id, self.topic)),
            )
        )

    def decide(self, view: View) -> Accept | Refuse:
        """Idempotent both ways; rows already written for a subscriber stay."""
        if not _is_member(view, self.mesh_id, self.member):
            return Refuse(replies.not_a_member())
        key, public_hex = (self.mesh_id, self.topic), self.member.public_hex
        rows = view.rows("mesh_topic", key)
        if not rows:
            return Refuse(refusal(404, "topic_not_found"))
        reply = Reply(200, {"topic": self.topic, "subscribed": self.is_wanted})
        subscribers = tuple(row for row in rows if row[0] is not None)
        creator = rows[0][1]
        is_subscribed = (public_hex, creator) in subscribers
        if is_subscribed == self.is_wanted:
            return Refuse(reply)
        if self.is_wanted:
            if len(subscribers) >= self.limits.subscribers:
                return Refuse(refusal(409, "too_many_subscribers"))
            change = RowChange(
                "mesh_subscribe",
                (*key, public_hex, view.now_ms),
                Becomes("mesh_topic", key, (*subscribers, (public_hex, creator))),
            )
        else:
            left = tuple(row for row in subscribers if row[0] != public_hex)
            change = RowChange(
                "mesh_unsubscribe",
                (*key, public_hex),
                Becomes("mesh_topic", key, left or ((None, creator),)),
            )
        return Accept(reply, rows=(change,))


class RemoveTopic(Struct, frozen=True):
    """End a topic; what was written for its subscribers is still delivered."""

    mesh_id: str
    member: Member | None
    """Who asks; None for an administrator."""
    topic: str

    def names(self) -> Names:
        """What `decide` reads."""
        key = ("mesh_topic", (self.mesh_id, self.topic))
        return Names(rows=(*_asking(self.mesh_id, self.member), key))

    def decide(self, view: View) -> Accept | Refuse:
        """Whoever made it may; the name can be used again."""
        key = (self.mesh_id, self.topic)
        found = view.rows("mesh_topic", key)
        if self.member is not None and not _is_member(view, self.mesh_id, self.member):
            return Refuse(replies.not_a_member())
        if not found:
            return Refuse(refusal(404, "topic_not_found"))
        if self.member is not None and found[0][1] != self.member.id:
            return Refuse(_not_the_creator())
        return Accept(
            Reply(200, {"topic": self.topic, "removed": True}),
            rows=(
                RowChange("mesh_remove_topic", key, Becomes("mesh_topic", key, ())),
                RowChange("mesh_remove_topic_subscriptions", key),
            ),
        )


class CreateQueue(Struct, frozen=True):
    """Begin a queue; every member may send to it and claim from it."""

    mesh_id: str
    member: Member
    queue_id: str
    asked_at: int
    limits: Limits

    def names(self) -> Names:
        """What `decide` reads."""
        return Names(
            rows=(
                ("mesh_member", (self.mesh_id, self.member.public_hex)),
                ("mesh_queue", (self.mesh_id, self.queue_id)),
                ("mesh_counts", (self.mesh_id, self.asked_at)),
                ("mesh_made_by", (self.mesh_id, self.member.id)),
            )
        )

    def decide(self, view: View) -> Accept | Refuse:
        """Idempotent."""
        if not _is_member(view, self.mesh_id, self.member):
            return Refuse(replies.not_a_member())
        key = (self.mesh_id, self.queue_id)
        if view.rows("mesh_queue", key):
            return Refuse(Reply(200, {"queue": self.queue_id, "created": False}))
        [(_, _, queues, *_)] = view.rows("mesh_counts", (self.mesh_id, self.asked_at))
        if queues >= self.limits.queues:
            return Refuse(refusal(409, "too_many_queues"))
        [(_, mine)] = view.rows("mesh_made_by", (self.mesh_id, self.member.id))
        if mine >= self.limits.queues_per_member:
            return Refuse(_too_many_made("queues", self.limits.queues_per_member))
        creator = self.member.id
        change = RowChange(
            "mesh_add_queue",
            (*key, view.now_ms, creator),
            Becomes("mesh_queue", key, ((self.queue_id, creator),)),
        )
        return Accept(Reply(201, {"queue": self.queue_id, "created": True}), rows=(change,))


class RemoveQueue(Struct, frozen=True):
    """End a queue; what waits in it is closed afterwards."""

    mesh_id: str
    member: Member | None
    """Who asks; None for an administrator."""
    queue_id: str

    def names(self) -> Names:
        """What `decide` reads."""
        key = ("mesh_queue", (self.mesh_id, self.queue_id))
        return Names(
            rows=(*_asking(self.mesh_id, self.member), key), streams=(stream_name(self.mesh_id),)
        )

    def decide(self, view: View) -> Accept | Refuse:
        """Whoever made it may. A queue that is made again under its name has only what is new."""
        key = (self.mesh_id, self.queue_id)
        found = view.rows("mesh_queue", key)
        if self.member is not None and not _is_member(view, self.mesh_id, self.member):
            return Refuse(replies.not_a_member())
        if not found:
            return Refuse(refusal(404, "queue_not_found"))
        if self.member is not None and found[0][1] != self.member.id:
            return Refuse(_not_the_creator())
        through = view.serial(stream_name(self.mesh_id))
        recipient = queue_recipient(self.queue_id)
        return Accept(
            Reply(200, {"queue": self.queue_id, "removed": True}),
            rows=(
                RowChange("mesh_remove_queue", key, Becomes("mesh_queue", key, ())),
                GoneRecipient(self.mesh_id, recipient, QUEUE_REMOVED, through).noted(),
            ),
        )


class AddWebhook(Struct, frozen=True):
    """Send messages to an endpoint: those of one topic, or with an empty topic all of a mesh."""

    mesh_id: str
    endpoint_id: str
    topic: str
    url: str
    secret: str
    asked_at: int
    limits: Limits

    def __repr__(self) -> str:
        return f"AddWebhook({self.endpoint_id!r})"

    def names(self) -> Names:
        """What `decide` reads."""
        return Names(
            rows=(
                ("mesh_counts", (self.mesh_id, self.asked_at)),
                ("mesh_webhooks", (self.mesh_id, self.topic)),
            )
        )

    def decide(self, view: View) -> Accept | Refuse:
        """The secret is in this reply and never shown again."""
        [(_, _, _, webhooks, _)] = view.rows("mesh_counts", (self.mesh_id, self.asked_at))
        if webhooks >= self.limits.webhooks:
            return Refuse(refusal(409, "too_many_webhooks"))
        key = (self.mesh_id, self.topic)
        change = RowChange(
            "mesh_add_webhook",
            (self.endpoint_id, self.mesh_id, self.topic, self.url, self.secret, view.now_ms),
            Becomes("mesh_webhooks", key, (*view.rows("mesh_webhooks", key), (self.endpoint_id,))),
        )
        reply = Reply(
            201, {"id": self.endpoint_id, "topic": self.topic or None, "secret": self.secret}
        )
        return Accept(reply, rows=(change,))


class RemoveWebhook(Struct, frozen=True):
    """Send nothing more to an endpoint."""

    mesh_id: str
    endpoint_id: str

    def names(self) -> Names:
        """What `decide` reads."""
        return Names(rows=(("mesh_webhook", (self.mesh_id, self.endpoint_id)),))

    def decide(self, view: View) -> Accept | Refuse:
        """A send of the same batch may still write a row for it; nobody claims that one."""
        key = (self.mesh_id, self.endpoint_id)
        if not view.rows("mesh_webhook", key):
            return Refuse(refusal(404, "webhook_not_found"))
        return Accept(
            Reply(200, {"id": self.endpoint_id, "removed": True}),
            rows=(
                RowChange("mesh_remove_webhook", key, Becomes("mesh_webhook", key, ())),
                RowChange("mesh_end_webhook", key),
            ),
        )


def _too_many_made(what: str, most: int) -> Reply:
    detail = f"a member has at most {most} (mesh.max_{what}_per_member); delete one"
    return refusal(409, f"too_many_{what}", detail)


def _asking(mesh_id: str, member: Member | None) -> tuple[tuple[str, tuple[str, str]], ...]:
    return () if member is None else (("mesh_member", (mesh_id, member.public_hex)),)


def _not_the_creator() -> Reply:
    return refusal(403, "not_the_creator", "whoever made it can delete it, or an administrator")


def _is_member(view: View, mesh_id: str, member: Member) -> bool:
    key = member.public_hex
    return member_of(view.rows("mesh_member", (mesh_id, key)), key) is not None
