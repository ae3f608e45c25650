"""The broker's HTTP routes (mesh 9.4): who asks, what is asked, and `{"error": ...}` if refused.

Every answer is made here, also that of a store which does not answer: a daemon reads codes, not the
web room's texts.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from tidelog.base.errors import TidelogError
from tidelog.base.net import authority
from tidelog.base.serving.surface import (
    Admit,
    Handle,
    HttpRequest,
    HttpResponse,
    Route,
    guarded,
    is_bearer,
)
from tidelog.mesh.front.history import MAX_HISTORY_ID
from tidelog.mesh.front.openapi import MESH, OPERATIONS
from tidelog.mesh.front.sends import reply_of
from tidelog.mesh.front.service import MeshService
from tidelog.mesh.protocol import per_mesh_settings, replies
from tidelog.mesh.protocol.fingerprint import (
    PUBLIC_KEY,
    RequestRefused,
    choose_client_message_id,
    read_object,
)
from tidelog.mesh.protocol.identity import MemberClaims, TokenRefused, verify_token
from tidelog.mesh.protocol.model import Member, Mesh
from tidelog.mesh.protocol.replies import Refused, Reply, refusal
from tidelog.mesh.protocol.wire import MAX_HISTORY_PAGE, max_frame_bytes

_log = logging.getLogger(__name__)

_encode = msgspec.json.Encoder().encode

_TOO_MANY_JOINS = (
    "too many tries to join from your address (setting per_address.max_joins_per_minute)"
)

Handler = Callable[[HttpRequest], Awaitable[Reply]]
Admission = Callable[[HttpRequest], Awaitable[Handler]]
MemberHandler = Callable[[HttpRequest, Mesh, Member], Awaitable[Reply]]
EitherHandler = Callable[[HttpRequest, Mesh, Member | None], Awaitable[Reply]]
"""Without a member it is an administrator who asks."""
MeshHandler = Callable[[HttpRequest, Mesh], Awaitable[Reply]]


class MeshHttp:
    """The routes under `/mesh`."""

    def __init__(self, service: MeshService, admin_token: str) -> None:
        self._service = service
        self._admin_token = admin_token
        self._max_body_bytes = max_frame_bytes(service.settings.max_inline_bytes)

    def routes(self) -> Sequence[Route]:
        """See `Surface.routes`."""
        member, admin, either = self._member_only, self._admin_only, self._member_or_admin
        judged: dict[tuple[str, str], Admission] = {
            ("POST", f"{MESH}/messages"): member(self._post_message),
            ("GET", f"{MESH}/history"): member(self._get_history),
            ("GET", f"{MESH}/mentions"): member(self._get_mentions),
            ("GET", f"{MESH}/topics"): member(self._get_topics),
            ("POST", f"{MESH}/topics"): member(self._post_topic),
            ("DELETE", f"{MESH}/topics/{{topic}}"): either(self._delete_topic),
            ("PUT", f"{MESH}/topics/{{topic}}/subscription"): member(self._put_subscription),
            ("DELETE", f"{MESH}/topics/{{topic}}/subscription"): member(self._delete_subscription),
            ("GET", f"{MESH}/queues"): member(self._get_queues),
            ("POST", f"{MESH}/queues"): member(self._post_queue),
            ("DELETE", f"{MESH}/queues/{{queue}}"): either(self._delete_queue),
            ("POST", f"{MESH}/queues/{{queue}}/claim"): member(self._claim),
            ("POST", f"{MESH}/queues/{{queue}}/ack"): member(self._complete),
            ("GET", f"{MESH}/members"): member(self._get_members),
            ("DELETE", f"{MESH}/membership"): member(self._leave),
            ("POST", "/mesh"): self._admin(self._create_mesh),
            ("GET", MESH): admin(self._get_mesh),
            ("PATCH", MESH): admin(self._change_mesh),
            ("GET", f"{MESH}/invites"): admin(self._get_invites),
            ("POST", f"{MESH}/invites"): admin(self._invite),
            ("DELETE", f"{MESH}/invites/{{invite}}"): admin(self._delete_invite),
            ("DELETE", f"{MESH}/members/{{pubkey}}"): admin(self._revoke),
            ("GET", f"{MESH}/webhooks"): admin(self._get_webhooks),
            ("POST", f"{MESH}/webhooks"): admin(self._post_webhook),
            ("DELETE", f"{MESH}/webhooks/{{webhook}}"): admin(self._delete_webhook),
        }
        join = ("POST", f"{MESH}/members")  # an invite opens it, and that is in the body
        routes = (
            Route(*join, self._answered(self._join), OPERATIONS[join]),
            *(
                guarded(*route, self._judged(admit), OPERATIONS[route])
                for route, admit in judged.items()
            ),
        )
        most, too_large = self._max_body_bytes, _response(refusal(413, "payload_too_large"))
        return tuple(
            msgspec.structs.replace(
                route, max_body_bytes=most, too_large=too_large, too_many=_too_many
            )
            for route in routes
        )

    # Who asks.

    def _judged(self, admit: Admission) -> Admit:
        async def judged(request: HttpRequest) -> Handle | HttpResponse:
            try:
                return self._answered(await admit(request))
            except Exception as error:  # noqa: BLE001 - as for `_answered`
                return _failed(request, error)

        return judged

    def _answered(self, handle: Handler) -> Handle:
        async def answered(request: HttpRequest) -> HttpResponse:
            try:
                return _response(await handle(request))
            except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets a code
                return _failed(request, error)

        return answered

    def _in_mesh(self, handle: MeshHandler) -> Handler:
        async def in_mesh(request: HttpRequest) -> Reply:
            return await handle(request, await self._mesh(request))

        return in_mesh

    def _admin(self, handle: Handler) -> Admission:
        async def admin(request: HttpRequest) -> Handler:
            if not is_bearer(request, self._admin_token):
                raise Refused(replies.unauthenticated())
            return handle

        return admin

    def _admin_only(self, handle: MeshHandler) -> Admission:
        return self._admin(self._in_mesh(handle))

    def _member_only(self, handle: MemberHandler) -> Admission:
        async def member_only(request: HttpRequest) -> Handler:
            unix_now = self._service.clock.wall_ms() / 1000
            mesh, member, claims = await self._authenticated(request, unix_now)

            async def once(request: HttpRequest) -> Reply:
                # With the body: a request that did not arrive in full has used nothing up.
                if not await self._service.use_token(mesh, claims):
                    detail = "the token was used before, or the body came long after it expired"
                    raise Refused(replies.unauthenticated(detail))
                return await handle(request, mesh, member)

            return once

        return member_only

    def _member_or_admin(self, handle: EitherHandler) -> Admission:
        member_only = self._member_only(handle)

        async def as_admin(request: HttpRequest, mesh: Mesh) -> Reply:
            return await handle(request, mesh, None)

        async def either(request: HttpRequest) -> Handler:
            if is_bearer(request, self._admin_token):
                return self._in_mesh(as_admin)
            return await member_only(request)

        return either

    async def _mesh(self, request: HttpRequest) -> Mesh:
        mesh = await self._service.mesh(request.params["slug"])
        if mesh is None:
            raise Refused(replies.mesh_not_found())
        return mesh

    async def _authenticated(
        self, request: HttpRequest, unix_now: float
    ) -> tuple[Mesh, Member, MemberClaims]:
        """The gate of mesh 6.1 as far as the head shows it: a genuine token, a mesh, a member."""
        scheme, _, token = (request.header(b"authorization") or b"").partition(b" ")
        if scheme.lower() != b"bearer":
            raise Refused(replies.unauthenticated("a member token is needed"))
        try:
            claims = verify_token(token.decode("latin-1"), request.params["slug"], unix_now)
        except TokenRefused as error:
            raise Refused(replies.unauthenticated(str(error))) from None
        mesh = await self._mesh(request)
        member = await self._service.member(mesh, claims.public_hex)
        if member is None:
            request.quota.failed()
            raise Refused(replies.not_a_member())
        self._check_host(request, claims, mesh, member)
        return mesh, member, claims

    def _check_host(
        self, request: HttpRequest, claims: MemberClaims, mesh: Mesh, member: Member
    ) -> None:
        """Refuse a token that was made for another broker, or may have been (mesh 9.7)."""
        dialled = claims.host
        if dialled is None:
            if self._service.settings.require_hello_2:
                detail = "mesh.require_hello_2: the token has no host, the address it is for"
                raise Refused(replies.unauthenticated(detail))
        elif not authority.is_same(dialled, self._service.public_hosts.at(request.local)):
            self._service.note_misdirected(member, mesh, dialled)
            detail = f"the token is for {dialled[:100]}, which is not in mesh.public_hosts"
            raise Refused(replies.unauthenticated(detail))

    # What is asked by members.

    async def _post_message(self, request: HttpRequest, mesh: Mesh, member: Member) -> Reply:
        fields = read_object(request.body)
        headers = [
            value.decode("latin-1") for key, value in request.headers if key == b"idempotency-key"
        ]
        # The broker mints no id for its caller: a retry would get another and be a second message.
        client_message_id = choose_client_message_id(
            headers, fields.get("client_message_id", ""), str
        )
        return await self._service.accept(mesh, member, client_message_id, fields)

    async def _get_history(self, request: HttpRequest, mesh: Mesh, member: Member) -> Reply:
        query = _query(request)
        after = _number(query, "after", 0, least=0, most=MAX_HISTORY_ID)
        limit = _number(query, "limit", 100, least=1, most=MAX_HISTORY_PAGE)
        page = await self._service.history(mesh, member, after, limit)
        return Reply(
            200,
            {"items": page.items, "next_after": page.next_history_id, "has_more": page.has_more},
        )

    async def _get_mentions(self, request: HttpRequest, mesh: Mesh, member: Member) -> Reply:
        query = _query(request)
        mentioned = query.get("member", member.public_hex)
        if not PUBLIC_KEY.fullmatch(mentioned):
            raise RequestRefused(400, "schema_invalid", "member is not a public key")
        before = _number(query, "before", MAX_HISTORY_ID, least=1, most=MAX_HISTORY_ID)
        limit = _number(query, "limit", 100, least=1, most=MAX_HISTORY_PAGE)
        page = await self._service.mentions(mesh, member, mentioned, before, limit)
        return Reply(
            200,
            {"items": page.items, "next_before": page.next_history_id, "has_more": page.has_more},
        )

    async def _get_topics(self, request: HttpRequest, mesh: Mesh, member: Member) -> Reply:
        del request
        return Reply(200, {"topics": await self._service.topics(mesh, member)})

    async def _post_topic(self, request: HttpRequest, mesh: Mesh, member: Member) -> Reply:
        fields = read_object(request.body)
        return await self._service.create_topic(mesh, member, fields.get("topic"))

    async def _delete_topic(self, request: HttpRequest, mesh: Mesh, member: Member | None) -> Reply:
        return await self._service.remove_topic(mesh, member, request.params["topic"])

    async def _put_subscription(self, request: HttpRequest, mesh: Mesh, member: Member) -> Reply:
        topic = request.params["topic"]
        return await self._service.subscribe(mesh, member, topic, is_wanted=True)

    async def _delete_subscription(self, request: HttpRequest, mesh: Mesh, member: Member) -> Reply:
        topic = request.params["topic"]
        return await self._service.subscribe(mesh, member, topic, is_wanted=False)

    async def _get_queues(self, request: HttpRequest, mesh: Mesh, member: Member) -> Reply:
        del request, member
        return Reply(200, {"queues": await self._service.queues(mesh)})

    async def _post_queue(self, request: HttpRequest, mesh: Mesh, member: Member) -> Reply:
        fields = read_object(request.body)
        return await self._service.create_queue(mesh, member, fields.get("queue"))

    async def _delete_queue(self, request: HttpRequest, mesh: Mesh, member: Member | None) -> Reply:
        return await self._service.remove_queue(mesh, member, request.params["queue"])

    async def _claim(self, request: HttpRequest, mesh: Mesh, member: Member) -> Reply:
        fields = read_object(request.body or b"{}")
        return await self._service.delivery.claim(mesh, member, request.params["queue"], fields)

    async def _complete(self, request: HttpRequest, mesh: Mesh, member: Member) -> Reply:
        fields = read_object(request.body)
        return await self._service.delivery.complete(mesh, member, request.params["queue"], fields)

    async def _get_members(self, request: HttpRequest, mesh: Mesh, member: Member) -> Reply:
        del member
        query = _query(request)
        if "name" in query:
            return await self._service.member_named(mesh, query["name"])
        return await self._service.members(mesh, query.get("after", ""))

    async def _leave(self, request: HttpRequest, mesh: Mesh, member: Member) -> Reply:
        del request
        return await self._service.leave(mesh, member)

    # What is asked by others.

    async def _join(self, request: HttpRequest) -> Reply:
        if wait := request.quota.join_wait_seconds():
            return refusal(429, "rate_limited", _TOO_MANY_JOINS, wait)
        mesh = await self._mesh(request)
        return await self._service.join(mesh, read_object(request.body))

    async def _create_mesh(self, request: HttpRequest) -> Reply:
        return await self._service.create_mesh(read_object(request.body))

    async def _get_mesh(self, request: HttpRequest, mesh: Mesh) -> Reply:
        del request
        return Reply(200, per_mesh_settings.shown(mesh))

    async def _change_mesh(self, request: HttpRequest, mesh: Mesh) -> Reply:
        return await self._service.change_mesh(mesh, read_object(request.body))

    async def _invite(self, request: HttpRequest, mesh: Mesh) -> Reply:
        return await self._service.invite(mesh, read_object(request.body or b"{}"))

    async def _get_invites(self, request: HttpRequest, mesh: Mesh) -> Reply:
        del request
        return Reply(200, {"invites": await self._service.invites(mesh)})

    async def _delete_invite(self, request: HttpRequest, mesh: Mesh) -> Reply:
        return await self._service.remove_invite(mesh, request.params["invite"])

    async def _revoke(self, request: HttpRequest, mesh: Mesh) -> Reply:
        return await self._service.revoke(mesh, request.params["pubkey"])

    async def _get_webhooks(self, request: HttpRequest, mesh: Mesh) -> Reply:
        del request
        return Reply(200, {"webhooks": await self._service.webhooks(mesh)})

    async def _post_webhook(self, request: HttpRequest, mesh: Mesh) -> Reply:
        return await self._service.add_webhook(mesh, read_object(request.body))

    async def _delete_webhook(self, request: HttpRequest, mesh: Mesh) -> Reply:
        return await self._service.remove_webhook(mesh, request.params["webhook"])


def _failed(request: HttpRequest, error: Exception) -> HttpResponse:
    """What the caller is told of an error; of one that nobody expected, nothing."""
    match error:
        case Refused():
            return _response(error.reply)
        case RequestRefused():
            return _response(replies.of_request(error))
        case TidelogError():
            _log.warning("%s failed: %s", request.method, error)
            return _response(reply_of(error))
        case _:
            _log.error("%s failed", request.method, exc_info=error)
            return _response(replies.internal())


def _too_many(seconds: int) -> HttpResponse:
    detail = "per_address.max_failed_authentications_per_minute"
    return _response(refusal(429, "rate_limited", detail, seconds))


def _response(reply: Reply) -> HttpResponse:
    headers: tuple[tuple[bytes, bytes], ...] = ()
    if reply.retry_after_s is not None:
        headers = ((b"retry-after", b"%d" % reply.retry_after_s),)
    return HttpResponse(reply.status, _encode(reply.body), headers=headers)


def _query(request: HttpRequest) -> Mapping[str, str]:
    """The parameters of the query, each once; of several of one name the last."""
    return dict(parse_qsl(request.query_string.decode("latin-1"), keep_blank_values=True))


def _number(query: Mapping[str, Any], name: str, default: int, *, least: int, most: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) < least:
        raise RequestRefused(400, "schema_invalid", f"{name} is not an integer of at least {least}")
    return min(int(text), most)
