"""The front's half of the broker: what daemons and callers ask for, checked as far as it can be.

It decides nothing and writes nothing: what the log is asked for, and what it says, crosses the link
(`tidelog.mesh.messages`). What is stored is read from the store.
"""

import asyncio
import hashlib
import logging
import re
import secrets
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from tidelog import __version__
from tidelog.base.clock import ServerClock
from tidelog.base.data.incarnation import Incarnations
from tidelog.base.errors import (
    QueueFull,
    StoreError,
)
from tidelog.base.net import authority
from tidelog.base.serving.surface import Conversation, Endpoint, HttpResponse, Upgrade
from tidelog.link.ends import FrontEnd
from tidelog.link.message import Message
from tidelog.mesh import messages
from tidelog.mesh.front.connection import Connection
from tidelog.mesh.front.delivery import PushDelivery
from tidelog.mesh.front.history import HistoryReader, Page
from tidelog.mesh.front.peers import SETTINGS_CHANGED, Peers
from tidelog.mesh.front.posting import Posting
from tidelog.mesh.front.public_hosts import PublicHosts
from tidelog.mesh.front.sends import Replier, Sends, reply_to
from tidelog.mesh.messages import Change
from tidelog.mesh.metrics import MeshMetrics
from tidelog.mesh.protocol import replies, wire
from tidelog.mesh.protocol.fingerprint import (
    MAX_REFERENCE_BYTES,
    RequestRefused,
)
from tidelog.mesh.protocol.identity import MemberClaims, is_signed, join_message
from tidelog.mesh.protocol.model import Member, Mesh, member_of
from tidelog.mesh.protocol.per_mesh_settings import NAMES as SETTING_NAMES
from tidelog.mesh.protocol.per_mesh_settings import changed
from tidelog.mesh.protocol.replies import Reply, refusal
from tidelog.mesh.protocol.slug import PATTERN as SLUG_PATTERN
from tidelog.mesh.protocol.slug import is_slug
from tidelog.mesh.settings import MeshSettings
from tidelog.store.batched_reads import BatchedReads
from tidelog.store.engine import Store

REMEMBERED_MESHES = 10_000
"""Meshes kept in memory by slug; one whose settings change is read again."""

RECHECK_SECONDS = 1.0
"""Pause after the store could not say who is still a member."""

MAX_NAME_BYTES = 128
"""Of a member's name; it is stored with every message."""

INVITE_BYTES = 32
MEMBERS_PAGE = 500
MAX_URL_BYTES = 2048

_FINGERPRINT = re.compile(r"[0-9a-f]{64}")

_log = logging.getLogger(__name__)


class MeshService:
    """Connections, routes and reads of the broker, on a link to the owner of the log."""

    version = __version__

    def __init__(
        self,
        link: FrontEnd,
        store: Store,
        settings: MeshSettings,
        clock: ServerClock,
        metrics: MeshMetrics,
        public_hosts: PublicHosts,
    ) -> None:
        self.link = link
        self.public_hosts = public_hosts
        self.store = store
        self.settings = settings
        self.clock = clock
        self._reads = BatchedReads(store)
        self._history = HistoryReader(store)
        self._incarnations: Incarnations
        """Of the log; they do not change while this lives."""
        self._meshes: dict[str, Mesh] = {}
        self._forgotten = 0
        """How often a mesh had to be forgotten: what was read before is not remembered."""
        self._is_recheck_due = False
        self._recheck: asyncio.Task[None] | None = None
        self.peers = Peers()
        self._sends = Sends(link, store, metrics, settings.max_inline_bytes)
        self.delivery = PushDelivery(link, store, settings, clock, metrics)
        self._posting = Posting(link, store, settings, clock)
        link.hear = self._heard

    @classmethod
    async def open(
        cls,
        link: FrontEnd,
        store: Store,
        settings: MeshSettings,
        clock: ServerClock,
        metrics: MeshMetrics,
        public_hosts: PublicHosts,
    ) -> "MeshService":
        """A service that the owner of the log knows."""
        service = cls(link, store, settings, clock, metrics, public_hosts)
        welcome = await link.reply(messages.Hello(), messages.Welcome)
        service._incarnations = Incarnations(welcome.incarnations)
        return service

    def _heard(self, message: Message) -> None:
        """What the owner says without being asked."""
        match message:
            case messages.Wake():
                self.delivery.wake(message)
            case messages.Post():
                self._posting.post(message)
            case messages.StopPosting():
                self._posting.stop()
            case messages.PeerSeen():
                self.peers.seen(message)
            case messages.End():
                self.peers.end(message)
            case messages.Revoked():
                self.peers.revoked(message)
            case messages.MeshChanged(_, slug):
                self._forget(slug)
                self.peers.changed(message)
            case messages.LookAgain():
                self.delivery.look_again()
            case messages.Missed():
                self._announcements_missed()

    # Connections.

    def endpoints(self) -> Sequence[Endpoint]:
        """See `Surface.endpoints`; a frame up to twice too large is answered with 4400."""
        largest = wire.max_frame_bytes(self.settings.max_inline_bytes)
        return (
            Endpoint(
                "/mesh/{slug}/ws",
                self._open_connection,
                max_message_bytes=2 * largest,
                slow_consumer_code=wire.TRY_AGAIN_LATER,
                unauthenticated_codes=frozenset({wire.UNAUTHENTICATED, wire.NOT_A_MEMBER}),
            ),
        )

    def _open_connection(self, upgrade: Upgrade) -> Conversation | HttpResponse:
        return Connection(self, upgrade.params["slug"], self.public_hosts.at(upgrade.local))

    def note_misdirected(self, member: Member, mesh: Mesh, dialled: str) -> None:
        """A member's signature is for another address: an address to be listed, or a relay."""
        _log.warning(
            "%r of mesh %s dialled %r, which is not an address of this broker, and was refused. If "
            "daemons reach this broker there, add it to mesh.public_hosts. If not, somebody passes "
            "on what that daemon signed.",
            member.name,
            mesh.slug,
            dialled[: authority.MAX_CHARACTERS],
        )

    def proved(self, connection: Connection, mesh: Mesh, public_hex: str) -> None:
        """A connection has proved a key."""
        self.peers.proved(connection, mesh, public_hex)

    async def ready(self, connection: Connection) -> None:
        """A connection has negotiated; it is closed if another one with its key stays instead."""
        number = self.peers.arrives(connection)
        await self.link.reply(
            messages.Arrive(number, connection.mesh, connection.member, connection.instance),
            messages.Arrived,
        )
        if not connection.is_closed:
            self.delivery.attached(connection)

    def left(self, connection: Connection) -> None:
        """A connection is gone."""
        if number := self.peers.left(connection):
            self.link.tell(messages.Left(number))
            self.delivery.detached(connection)

    def _forget(self, slug: str) -> None:
        """A mesh has other settings now."""
        self._forgotten += 1
        self._meshes.pop(slug, None)

    def _announcements_missed(self) -> None:
        """A revocation or a change of settings may have been among them: look at everybody."""
        self._forgotten += 1
        self._meshes.clear()
        self._is_recheck_due = True
        if self._recheck is None:
            self._recheck = asyncio.create_task(self._recheck_members())

    async def _recheck_members(self) -> None:
        """Until everybody was looked at: nobody else notices a key that was revoked."""
        try:
            while self._is_recheck_due:
                self._is_recheck_due = False
                try:
                    await self._look_at_members()
                except (StoreError, QueueFull) as error:
                    _log.warning("connected members will be looked up again: %s", error)
                    self._is_recheck_due = True
                    await asyncio.sleep(RECHECK_SECONDS)
        finally:
            self._recheck = None

    async def _look_at_members(self) -> None:
        for peer, mesh_id, public_hex in self.peers:
            rows = await self._reads.rows("mesh_member", (mesh_id, public_hex))
            if member_of(rows, public_hex) is None:
                peer.end(wire.NOT_A_MEMBER, "revoked")
            elif await self.mesh(peer.mesh.slug) != peer.mesh:
                peer.end(wire.TRY_AGAIN_LATER, SETTINGS_CHANGED)

    # Who and where.

    async def mesh(self, slug: str) -> Mesh | None:
        """The mesh of a slug."""
        known = self._meshes.get(slug)
        if known is None and is_slug(slug):
            forgotten = self._forgotten
            rows = await self._reads.rows("mesh_by_slug", (slug,))
            if rows:
                known = Mesh(*rows[0])
                if len(self._meshes) >= REMEMBERED_MESHES:
                    self._meshes.clear()
                if forgotten == self._forgotten:
                    self._meshes[slug] = known
        return known

    async def member(self, mesh: Mesh, public_hex: str) -> Member | None:
        """The member that a key belongs to now."""
        return member_of(await self._reads.rows("mesh_member", (mesh.id, public_hex)), public_hex)

    # Sends.

    def accept_frame(
        self, mesh: Mesh, member: Member, frame: wire.SendRequest, replied: Replier
    ) -> None:
        """Accept a `send` frame; whatever happens, there is a reply."""
        fields = frame.fields
        if frame.fault is not None:
            replied(replies.of_request(frame.fault))
        elif "request_fingerprint" not in fields:
            replied(refusal(400, "schema_invalid", "request_fingerprint is missing"))
        else:
            self._sends.accept(mesh, member, fields.get("client_message_id"), fields, replied)

    async def accept(
        self, mesh: Mesh, member: Member, client_message_id: object, fields: Mapping[str, Any]
    ) -> Reply:
        """As `accept_frame`, for a caller that waits; it may go away, and withdraws nothing."""
        done: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

        def replied(reply: Reply) -> None:
            if not done.done():
                done.set_result(reply)

        self._sends.accept(mesh, member, client_message_id, fields, replied)
        return await done

    async def _decided(self, question: Change) -> Reply:
        """What the owner makes of it."""
        return reply_to(type(question), await self.link.answer(question))

    async def use_token(self, mesh: Mesh, claims: MemberClaims) -> bool:
        """Use a member's token; False if it was used before.

        Raises:
            QueueFull: too much waits for the store.
            StoreError: nobody can say.
        """
        token = f"{mesh.id}/{claims.public_hex}/{claims.jti}"
        use = messages.UseToken(token, claims.expires_at)
        return (await self.link.reply(use, messages.TokenUsed)).is_new

    # Topics and queues.

    async def create_topic(self, mesh: Mesh, member: Member, topic: object) -> Reply:
        """Begin a topic."""
        return await self._decided(messages.CreateTopic(mesh.id, member, _reference(topic)))

    async def remove_topic(self, mesh: Mesh, member: Member | None, topic: str) -> Reply:
        """End a topic, for its creator or for an administrator, who is None."""
        return await self._decided(messages.RemoveTopic(mesh.id, member, _reference(topic)))

    async def subscribe(
        self, mesh: Mesh, member: Member, topic: object, *, is_wanted: bool
    ) -> Reply:
        """Subscribe a member, or end its subscription."""
        try:
            name = _reference(topic)
        except RequestRefused as error:
            return replies.of_request(error)
        return await self._decided(messages.SetSubscription(mesh.id, member, name, is_wanted))

    async def topics(self, mesh: Mesh, member: Member) -> list[dict[str, Any]]:
        """All topics, and which of them the member receives."""
        rows = await self.store.rows("mesh_topics", (mesh.id, member.public_hex))
        return [{"name": name, "subscribed": bool(subscribed)} for name, subscribed in rows]

    async def create_queue(self, mesh: Mesh, member: Member, queue_id: object) -> Reply:
        """Begin a queue."""
        return await self._decided(messages.CreateQueue(mesh.id, member, _reference(queue_id)))

    async def remove_queue(self, mesh: Mesh, member: Member | None, queue_id: str) -> Reply:
        """End a queue, for its creator or for an administrator, who is None."""
        return await self._decided(messages.RemoveQueue(mesh.id, member, _reference(queue_id)))

    async def queues(self, mesh: Mesh) -> list[str]:
        """All queues."""
        return [queue_id for (queue_id,) in await self.store.rows("mesh_queues", (mesh.id,))]

    # History.

    async def history(self, mesh: Mesh, member: Member, after: int, limit: int) -> Page:
        """What a member may see after a `history_id`."""
        return await self._history.after(mesh, member, after, limit)

    async def mentions(
        self, mesh: Mesh, member: Member, mentioned: str, before: int, limit: int
    ) -> Page:
        """Mentions of somebody that a member may see."""
        return await self._history.mentions(mesh, member, mentioned, before, limit)

    async def history_known(self, mesh: Mesh, incarnation: str | None) -> tuple[int, str, int]:
        """What a daemon that knew an incarnation is told of the history.

        Returns:
            The newest `history_id`; the incarnation that the log has now; and the last `history_id`
            that is the same in both, which is 0 when the daemon named none or an unknown one.
        """
        newest = await self._history.last(mesh)
        incarnations = self._incarnations
        shared = incarnations.shared_with(incarnation)
        began = 0 if incarnation is None else newest
        if shared is not None:
            began = await self._history.last_until(mesh, shared, newest)
        return newest, incarnations.current.id, began

    # Meshes and members.

    async def create_mesh(self, fields: Mapping[str, Any]) -> Reply:
        """Begin a mesh with these settings and the configured ones for the rest."""
        slug = fields.get("slug")
        if not isinstance(slug, str) or not is_slug(slug):
            raise RequestRefused(400, "schema_invalid", f"slug does not match {SLUG_PATTERN}")
        defaults = Mesh(
            id=str(uuid.uuid4()),
            slug=slug,
            dedupe_retention_mode="retention_scoped",
            dedupe_retention_days=self.settings.dedupe_retention_days,
            message_retention_days=None,
            echo_to_sender=0,
            rate_limit=self.settings.rate_limit,
            rate_window_ms=self.settings.rate_window_ms,
        )
        return await self._decided(messages.CreateMesh(changed(defaults, fields)))

    async def change_mesh(self, mesh: Mesh, fields: Mapping[str, Any]) -> Reply:
        """Change settings; whoever is connected negotiates anew."""
        settings = {name: fields[name] for name in SETTING_NAMES if name in fields}
        if not settings:
            raise RequestRefused(400, "schema_invalid", f"give one of {', '.join(SETTING_NAMES)}")
        changed(mesh, settings)  # refuses what cannot be
        return await self._decided(messages.ChangeMesh(mesh, settings))

    async def invite(self, mesh: Mesh, fields: Mapping[str, Any]) -> Reply:
        """An invite; it is in this reply and nowhere else."""
        longest = int(self.settings.invite_lifetime_seconds)
        lifetime_s = _whole(fields, "expires_in", 1, 86_400, max(1, longest))
        invite = secrets.token_urlsafe(INVITE_BYTES)
        invite_hash = _hash(invite)
        reply = await self._decided(messages.Invite(mesh.id, invite_hash, lifetime_s * 1000))
        if reply.status == 201:
            return Reply(201, {"invite": invite, "id": invite_hash.hex(), **reply.body})
        return reply

    async def invites(self, mesh: Mesh) -> list[dict[str, Any]]:
        """Those that can still be used; what they are nobody knows but who was given them."""
        rows = await self.store.rows("mesh_invites", (mesh.id, self.clock.now_ms()))
        return [
            {
                "id": bytes(invite_hash).hex(),
                "created_at": replies.rfc3339(created_at),
                "expires_at": replies.rfc3339(expires_at),
            }
            for invite_hash, created_at, expires_at in rows
        ]

    async def remove_invite(self, mesh: Mesh, invite_id: str) -> Reply:
        """Withdraw an invite."""
        if not _FINGERPRINT.fullmatch(invite_id):
            return refusal(404, "invite_not_found")
        return await self._decided(messages.RemoveInvite(mesh.id, bytes.fromhex(invite_id)))

    async def join(self, mesh: Mesh, fields: Mapping[str, Any]) -> Reply:
        """Make the owner of a key a member."""
        invite, public_hex = fields.get("invite"), fields.get("member_pubkey")
        name, signature = fields.get("name"), fields.get("signature")
        if not (
            isinstance(invite, str)
            and isinstance(public_hex, str)
            and isinstance(name, str)
            and isinstance(signature, str)
        ):
            raise RequestRefused(400, "schema_invalid", "a field is missing or not text")
        if not 0 < len(name.encode()) <= MAX_NAME_BYTES or not name.isprintable():
            raise RequestRefused(
                400, "schema_invalid", f"name has 1 to {MAX_NAME_BYTES} bytes of printable text"
            )
        if not is_signed(public_hex, join_message(mesh.slug, invite, name), signature):
            return replies.unauthenticated("the signature is not right")
        return await self._decided(messages.Join(mesh.id, _hash(invite), public_hex, name))

    async def members(self, mesh: Mesh, after: str) -> Reply:
        """A page of the members after a key."""
        rows = await self.store.rows("mesh_members", (mesh.id, after, MEMBERS_PAGE + 1))
        items = [{"member_pubkey": key, "name": name} for key, name in rows[:MEMBERS_PAGE]]
        return _members_page(items, after, has_more=len(rows) > MEMBERS_PAGE)

    async def member_named(self, mesh: Mesh, name: str) -> Reply:
        """A page with the member that has a name, or with nobody."""
        rows = () if "\0" in name else await self.store.rows("mesh_member_named", (mesh.id, name))
        return _members_page([{"member_pubkey": key, "name": name} for (key,) in rows])

    async def leave(self, mesh: Mesh, member: Member) -> Reply:
        """End a membership, as the member asked."""
        end = messages.EndMembership(mesh.id, member.public_hex, is_revoked=False)
        return await self._decided(end)

    async def revoke(self, mesh: Mesh, public_hex: str) -> Reply:
        """End a membership, as an administrator asked."""
        return await self._decided(messages.EndMembership(mesh.id, public_hex, is_revoked=True))

    # Webhooks.

    async def add_webhook(self, mesh: Mesh, fields: Mapping[str, Any]) -> Reply:
        """Send messages to a URL."""
        url, topic = fields.get("url"), fields.get("topic")
        if (
            not isinstance(url, str)
            or not url.startswith(("http://", "https://"))
            or len(url.encode()) > MAX_URL_BYTES
            or not url.isprintable()
        ):
            raise RequestRefused(400, "schema_invalid", "url is not an http or https URL")
        secret = fields.get("secret")
        if secret is None:
            secret = secrets.token_urlsafe(INVITE_BYTES)
        if not isinstance(secret, str) or not 16 <= len(secret) <= 256:
            raise RequestRefused(
                400, "schema_invalid", "secret is not text of 16 to 256 characters"
            )
        chosen = "" if topic is None else _reference(topic)
        return await self._decided(messages.AddWebhook(mesh.id, chosen, url, secret))

    async def webhooks(self, mesh: Mesh) -> list[dict[str, Any]]:
        """All endpoints, without their secrets."""
        return [
            {
                "id": endpoint_id,
                "topic": topic or None,
                "url": url,
                "created_at": replies.rfc3339(created_at),
                "disabled": disabled_at is not None,
            }
            for endpoint_id, topic, url, created_at, disabled_at in await self.store.rows(
                "mesh_all_webhooks", (mesh.id,)
            )
        ]

    async def remove_webhook(self, mesh: Mesh, endpoint_id: str) -> Reply:
        """Send nothing more to an endpoint."""
        return await self._decided(messages.RemoveWebhook(mesh.id, endpoint_id))


def _members_page(
    items: Sequence[Mapping[str, str]], after: str = "", *, has_more: bool = False
) -> Reply:
    next_after = items[-1]["member_pubkey"] if items else after
    return Reply(200, {"items": items, "next_after": next_after, "has_more": has_more})


def _reference(value: object) -> str:
    """The name of a topic or queue."""
    if not isinstance(value, str):
        raise RequestRefused(400, "schema_invalid", "the name is missing or not text")
    if not 0 < len(value.encode()) <= MAX_REFERENCE_BYTES or "\0" in value:
        raise RequestRefused(
            400, "destination_invalid", f"a name has 1 to {MAX_REFERENCE_BYTES} bytes and no NUL"
        )
    return value


def _whole(fields: Mapping[str, Any], name: str, least: int, most: int, default: int) -> int:
    value = fields.get(name, default)
    if type(value) is not int or not least <= value <= most:
        raise RequestRefused(
            400, "schema_invalid", f"{name} is not an integer from {least} to {most}"
        )
    return value


def _hash(invite: str) -> bytes:
    return hashlib.sha256(invite.encode()).digest()
