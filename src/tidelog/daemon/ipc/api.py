"""The endpoints of the IPC (mesh 3.2): from a request to an answer."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import unquote, urlencode

import msgspec

from tidelog import __version__
from tidelog.base.errors import StoreError, StoreUntrustworthy
from tidelog.daemon.database import StorageBusy, StorageFull
from tidelog.daemon.inbox import inbox_db
from tidelog.daemon.inbox.inbox_db import CursorInvalid, Inbox, Message
from tidelog.daemon.ipc.events import Events
from tidelog.daemon.ipc.http import Request, Response, Stream, answer, refuse
from tidelog.daemon.ipc.requests import Draft, read_patch, read_post, read_send
from tidelog.daemon.metrics import DaemonMetrics
from tidelog.daemon.outbox.outbox_db import (
    DEFAULT_LIST,
    MAX_LIST,
    NewSend,
    Outbox,
    OutboxRefused,
    Row,
)
from tidelog.daemon.outbox.pressure import Level
from tidelog.daemon.settings import DaemonSettings
from tidelog.daemon.times import read_timestamp, timestamp
from tidelog.daemon.uplink.interface import BrokerUnreachable, Reply, Uplink
from tidelog.mesh.protocol.fingerprint import (
    MAX_VALUES,
    RequestRefused,
    SendEnvelope,
    choose_client_message_id,
    is_client_message_id,
    read_object,
)
from tidelog.mesh.protocol.policy import STATUSES, AcceptReply, Status

_log = logging.getLogger(__name__)

IPC_API = 1
FEATURES = ("send", "topics", "peers", "profile", "inbox", "events", "outbox")

Handler = Callable[[Request], Awaitable[Response | Stream]]


class Api:
    """What each endpoint does; `respond` is given to `tidelog.daemon.ipc.server.IpcServer`."""

    def __init__(
        self,
        *,
        settings: DaemonSettings,
        outbox: Outbox,
        inbox: Inbox,
        events: Events,
        uplink: Uplink,
        metrics: DaemonMetrics,
        member_pubkey: str,
        on_fatal: Callable[[StoreError], None],
        refusal_of: Callable[[dict[str, Any]], Awaitable[str | None]] | None = None,
    ) -> None:
        """Know the parts that answer.

        Args:
            settings: what the operator set.
            outbox: what was accepted.
            inbox: what was received.
            events: what happens.
            uplink: the connection to the broker.
            metrics: what is counted.
            member_pubkey: who this daemon is.
            on_fatal: called when the outbox can no longer be trusted: end the process.
            refusal_of: why a send must not be accepted, or None; asked before it is stored.
        """
        self._settings = settings
        self._outbox = outbox
        self._inbox = inbox
        self._events = events
        self._uplink = uplink
        self._metrics = metrics
        self._member_pubkey = member_pubkey
        self._on_fatal = on_fatal
        self._refusal_of = refusal_of
        self._accepts = _Accepts(outbox)
        self._started_s = time.monotonic()
        self._level = Level.NORMAL
        self._routes: dict[str, dict[str, Handler]] = {
            "/v1/send": {"POST": self._send},
            "/v1/topic/post": {"POST": self._post},
            "/v1/topic/subscribe": {"POST": self._subscribe},
            "/v1/topic/unsubscribe": {"POST": self._unsubscribe},
            "/v1/topic/list": {"GET": self._topics},
            "/v1/peers": {"GET": self._peers},
            "/v1/profile": {"GET": self._profile},
            "/v1/inbox": {"GET": self._read_inbox},
            "/v1/inbox/search": {"GET": self._search_inbox},
            "/v1/events": {"GET": self._stream},
            "/v1/outbox": {"GET": self._list},
            "/v1/outbox/requeue": {"POST": self._requeue},
            "/v1/outbox/drop": {"POST": self._drop},
            "/v1/outbox/prune": {"POST": self._prune},
            "/v1/health": {"GET": self._health},
            "/v1/metrics": {"GET": self._render_metrics},
            "/v1/version": {"GET": self._version},
            "/v1/compat": {"GET": self._compat},
            "/v1/heartbeat": {"POST": self._heartbeat},
        }

    @property
    def paths(self) -> frozenset[str]:
        """Every path that has a fixed name."""
        return frozenset(self._routes)

    async def respond(self, request: Request) -> Response | Stream:
        """The response to any request that was let in."""
        methods = self._routes.get(request.path)
        if methods is None and request.path.startswith("/v1/outbox/"):
            methods = {"GET": self._inspect}
        if methods is None:
            return refuse(404, "not_found", "there is no such endpoint")
        handler = methods.get(request.method)
        if handler is None:
            allowed = ", ".join(methods)
            return refuse(405, "method_not_allowed", f"use {allowed}", ("allow", allowed))
        try:
            return await handler(request)
        except RequestRefused as error:
            return refuse(error.status, error.code, str(error))
        except OutboxRefused as error:
            return answer(error.status, {"error": error.code, **error.details})
        except BrokerUnreachable as error:
            return refuse(503, "broker_unreachable", str(error), ("retry-after", "1"))
        except StoreError as error:
            return self._store_failed(error)

    def _store_failed(self, error: StoreError) -> Response:
        if isinstance(error, StorageFull):
            return refuse(507, "insufficient_storage", self._why_full())
        if isinstance(error, StorageBusy):
            return refuse(503, "outbox_busy", "another program holds the file; nothing was stored")
        _log.error("the store failed: %s", error)
        if isinstance(error, StoreUntrustworthy):
            self._on_fatal(error)
        return refuse(500, "internal", "the store failed; nothing was stored")

    def _why_full(self) -> str:
        """What has run out, and what to do about it."""
        shares = self._outbox.shares()
        cause = {
            "rows": f"{self._outbox.waiting} messages wait for the broker. Is it connected? See: "
            "tidelog daemon status",
            "outbox": "messages that wait or have failed take all of [outbox] budget_bytes. See: "
            "tidelog mesh outbox --failed",
            "disk": "the disk has no more than [disk] reserved_bytes left",
        }
        return f"there is no room; nothing was stored: {cause[max(shares, key=shares.__getitem__)]}"

    # Sends.

    async def _send(self, request: Request) -> Response:
        return await self._accept(request, read_send)

    async def _post(self, request: Request) -> Response:
        return await self._accept(request, read_post)

    async def _accept(
        self,
        request: Request,
        read: Callable[[dict[str, Any], int], Draft],
    ) -> Response:
        fields = read_object(request.body, MAX_VALUES)
        keys, in_body = request.values("idempotency-key"), fields.get("client_message_id")
        client_id = choose_client_message_id(keys, in_body, self._outbox.mint)
        if keys and in_body is not None and in_body != client_id:
            _log.warning("Idempotency-Key and client_message_id differ; the header is used")
        draft = read(fields, self._outbox.parameters.inline_bytes)
        envelope = await self._addressed(draft, client_id)
        send = NewSend(
            client_id,
            envelope.fingerprint(),
            envelope.payload(),
            draft.to,
            envelope.destination_ref,
        )
        if self._refusal_of is not None:
            refusal = await self._refusal_of(
                {"client_message_id": client_id, **msgspec.json.decode(send.payload)}
            )
            if refusal is not None:
                return refuse(403, "hook_refused", refusal)
        result = await self._accepts.submit(send)
        self._watch_pressure()
        if isinstance(result, StoreError):
            return self._store_failed(result)
        return answer(result.status, result.body)

    async def _addressed(self, draft: Draft, client_id: str | None = None) -> SendEnvelope:
        """The envelope with a key for a name.

        A stored row keeps the key it has, whatever the name means now. Where nobody has the name,
        an id that is taken is still taken: the lookup of the accept refuses it, not this.
        """
        if draft.name is None:
            return draft.unnamed
        key = self._stored_key(draft, client_id) or await self._uplink.resolve(draft.name)
        if key is None:  # the same send may have been stored meanwhile
            key = self._stored_key(draft, client_id)
        if key is None and client_id is not None and self._outbox.is_taken(client_id):
            key = draft.name
        if key is None:
            raise RequestRefused(
                404,
                "destination_unresolvable",
                "no member of that name is known; give the public key",
            )
        return draft.addressed(key)

    def _stored_key(self, draft: Draft, client_id: str | None) -> str | None:
        return None if client_id is None else self._outbox.destination_of(client_id, draft.to)

    def _watch_pressure(self) -> None:
        level, before = self._outbox.level(), self._level
        self._level = level
        if before < Level.HIGH <= level:
            _log.warning("the outbox is nearly full")
            self._events.publish("outbox_pressure_high", self._outbox.shares())

    # Topics.

    async def _subscribe(self, request: Request) -> Response:
        return _replied(await self._uplink.subscribe(_text(read_object(request.body), "topic")))

    async def _unsubscribe(self, request: Request) -> Response:
        return _replied(await self._uplink.unsubscribe(_text(read_object(request.body), "topic")))

    async def _topics(self, request: Request) -> Response:
        del request
        return _replied(await self._uplink.topics())

    async def _peers(self, request: Request) -> Response:
        del request
        members = sorted((await self._uplink.peers()).items(), key=lambda item: item[::-1])
        items = [{"member_pubkey": key, "name": name} for key, name in members]
        return answer(200, {"items": items})

    # The inbox and events.

    async def _read_inbox(self, request: Request) -> Response:
        query = request.query()
        limit = _integer(query, "limit", inbox_db.DEFAULT_PAGE, inbox_db.MAX_PAGE)
        after = _position(query["cursor"]) if "cursor" in query else inbox_db.START
        since_ms = _time(query["since"]) if "since" in query else 0
        found = self._inbox.page(
            after,
            limit=limit + 1,
            since_ms=since_ms,
            topic=query.get("topic"),
            sender=query.get("from"),
        )
        return self._paged(request, found, limit)

    async def _search_inbox(self, request: Request) -> Response:
        if not self._inbox.is_searchable:
            return refuse(404, "not_found", "search is off: set [inbox] full_text_search = true")
        query = request.query()
        limit = _integer(query, "limit", inbox_db.DEFAULT_PAGE, inbox_db.MAX_PAGE)
        after = _position(query["cursor"]) if "cursor" in query else inbox_db.START
        found = self._inbox.search(query.get("q", ""), after, limit=limit + 1)
        return self._paged(request, found, limit)

    def _paged(self, request: Request, found: Sequence[Message], limit: int) -> Response:
        """A page of at most `limit` messages; one more in `found` says that there are more."""
        items, is_cut = self._that_fit(found[:limit])
        if not is_cut and len(found) <= limit:
            return _page(items, None)
        cursor = found[len(items) - 1].cursor
        following = urlencode(request.query() | {"cursor": cursor})
        return _page(items, cursor, ("link", f'<{request.path}?{following}>; rel="next"'))

    def _that_fit(self, messages: Sequence[Message]) -> tuple[list[bytes], bool]:
        """The first messages as JSON, at least one, and whether the size ended it."""
        items: list[bytes] = []
        size = 0
        for message in messages:
            item = msgspec.json.encode(message)
            size += len(item)
            if items and size > self._settings.ipc.max_response_bytes:
                return items, True
            items.append(item)
        return items, False

    async def _stream(self, request: Request) -> Response | Stream:
        if self._outbox.level() is Level.DEGRADED:
            return refuse(507, "insufficient_storage", "no new streams while storage is full")
        last = request.values("last-event-id")
        after = _position(last[-1]) if last and last[-1] else None
        return Stream(lambda port: self._events.serve(port, after))

    # The outbox.

    async def _list(self, request: Request) -> Response:
        query = request.query()
        status: Status | None = None
        if "status" in query:
            status = next((known for known in STATUSES if known == query["status"]), None)
        if status is None and "status" in query:
            raise RequestRefused(
                400, "schema_invalid", f"status is not one of {', '.join(STATUSES)}"
            )
        limit = _integer(query, "limit", DEFAULT_LIST, MAX_LIST)
        lost = query.get("possibly_lost", "false")
        if lost not in ("true", "false") or (lost == "true" and status not in (None, "done")):
            raise RequestRefused(
                400, "schema_invalid", "possibly_lost must be true or false; all its rows are done"
            )
        rows = self._outbox.lost_rows(limit) if lost == "true" else self._outbox.rows(status, limit)
        return answer(200, {"items": [_shown(row) for row in rows]})

    async def _inspect(self, request: Request) -> Response:
        row, chain = self._outbox.inspect(unquote(request.path.removeprefix("/v1/outbox/")))
        return answer(200, {**_shown(row), "chain": [_shown(link) for link in chain]})

    async def _requeue(self, request: Request) -> Response:
        fields = read_object(request.body)
        row_id, new_id = _text(fields, "id"), fields.get("new_client_id")
        if (new_id is not None) == (fields.get("auto") is True):
            raise RequestRefused(400, "schema_invalid", "give either new_client_id or auto: true")
        if new_id is not None and not is_client_message_id(new_id):
            raise RequestRefused(400, "client_message_id_invalid", "new_client_id is not an id")
        patch = to = None
        if fields.get("patch") is not None:
            payload = self._outbox.requeueable(row_id).payload
            limit = self._outbox.parameters.inline_bytes
            draft, is_redirected = read_patch(payload, fields["patch"], limit)
            patch, to = await self._addressed(draft), draft.to if is_redirected else None
        return answer(200, self._outbox.requeue(row_id, new_id, patch, to)._asdict())

    async def _drop(self, request: Request) -> Response:
        row = self._outbox.drop(_text(read_object(request.body), "id"))
        return answer(200, {"aborted_row_id": row.id, "maybe_delivered": row.maybe_delivered})

    async def _prune(self, request: Request) -> Response:
        if read_object(request.body).get("confirm") is not True:
            text = "this removes payloads for good: send confirm: true"
            raise RequestRefused(400, "schema_invalid", text)
        return answer(200, {"pruned": self._outbox.prune()})

    # About the daemon.

    async def _profile(self, request: Request) -> Response:
        """Who this member is; what only the broker knows is null while it is away."""
        del request
        subscriptions: list[str] | None = None
        with contextlib.suppress(BrokerUnreachable):
            listed = await self._uplink.topics()
            if listed.status == 200:
                subscriptions = [
                    topic["name"] for topic in listed.body["topics"] if topic.get("subscribed")
                ]
        profile = {
            "mesh": self._settings.mesh,
            "broker": self._settings.broker,
            "member_pubkey": self._member_pubkey,
            "name": self._uplink.member_name,
            "subscriptions": subscriptions,
            "connection_policy": self._outbox.parameters.connection_policy,
        }
        return answer(200, profile)

    async def _health(self, request: Request) -> Response:
        del request
        counts, level = self._outbox.counts(), self._outbox.level()
        stock = self._outbox.stock()
        health = {
            "status": "degraded" if level is Level.DEGRADED else "ok",
            "connected": self._uplink.connected,
            "connection_error": self._uplink.trouble,
            "lag_ms": self._outbox.oldest_age_ms(),
            "queue_depth": counts["pending"],
            "inflight": counts["inflight"],
            "dead": counts["dead"],
            "possibly_lost": self._outbox.possibly_lost(),
            "waiting_bytes": stock.open_bytes,
            "kept_bytes": stock.final_bytes,
            "budget_bytes": self._settings.outbox.budget_bytes,
            "pressure": level.name.lower(),
            "mesh": self._settings.mesh,
            "member_pubkey": self._member_pubkey,
            "uptime_s": int(time.monotonic() - self._started_s),
            "schema_version": self._outbox.schema_version,
            "daemon_version": __version__,
            "broker_version": self._uplink.broker_version,
        }
        return answer(200, health)

    async def _render_metrics(self, request: Request) -> Response:
        del request
        text = self._metrics.render()
        return Response(200, text, content_type="text/plain; version=0.0.4; charset=utf-8")

    async def _version(self, request: Request) -> Response:
        del request
        version = {
            "daemon_version": __version__,
            "mesh": self._settings.mesh,
            "ipc_api": IPC_API,
            "ipc_features": (*FEATURES, "inbox_fts") if self._inbox.is_searchable else FEATURES,
            "schema_version": self._outbox.schema_version,
            "broker_features_negotiated": self._outbox.parameters.features,
        }
        return answer(200, version)

    async def _compat(self, request: Request) -> Response:
        del request
        same = f"{__version__.rsplit('.', 1)[0]}.x"
        compat = {
            "daemon": __version__,
            "compatible_brokers": [same],
            "required_broker_features": self._settings.features.require,
            "compatible_clis": [same],
            "compatible_sdks": [same],
        }
        return answer(200, compat)

    async def _heartbeat(self, request: Request) -> Response:
        del request
        return answer(200, {"connected": self._uplink.connected, "time": timestamp(_wall_ms())})


class _Accepts:
    """Sends that came in the same turn of the loop share one transaction."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._waiting: list[tuple[NewSend, asyncio.Future[AcceptReply | StoreError]]] = []

    def submit(self, send: NewSend) -> "asyncio.Future[AcceptReply | StoreError]":
        """Resolved when it is committed."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._commit)
        future: asyncio.Future[AcceptReply | StoreError] = loop.create_future()
        self._waiting.append((send, future))
        return future

    def _commit(self) -> None:
        batch, self._waiting = self._waiting, []
        try:
            results = self._outbox.accept([send for send, _ in batch])
        except Exception as error:  # noqa: BLE001 - each caller raises it again, where it is logged
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), result in zip(batch, results, strict=True):
            if not future.done():  # its caller may be gone; the row is there
                future.set_result(result)


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _replied(reply: Reply) -> Response:
    return answer(reply.status, reply.body)


def _page(items: Sequence[bytes], cursor: str | None, *headers: tuple[str, str]) -> Response:
    text = b'{"items":[' + b",".join(items) + b'],"next_cursor":'
    return Response(200, text + msgspec.json.encode(cursor) + b"}", headers)


def _shown(row: Row) -> dict[str, Any]:
    """Every column but the payload's bytes."""
    shown = row._asdict()
    del shown["payload"], shown["lost_in"]
    shown["request_fingerprint"] = row.request_fingerprint.hex()
    for name in ("enqueued_at", "next_attempt_at", "delivered_at", "aborted_at"):
        if shown[name] is not None:
            shown[name] = timestamp(shown[name])
    doubts = {"maybe_delivered": row.maybe_delivered, "possibly_lost": row.is_possibly_lost}
    return {**shown, **doubts}


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise RequestRefused(400, "schema_invalid", f"{name} is missing or not text")
    return value


def _integer(query: dict[str, str], name: str, default: int, highest: int) -> int:
    text = query.get(name, str(default))
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:10]) <= highest:
        raise RequestRefused(400, "schema_invalid", f"{name} is not a number from 1 to {highest}")
    return int(text)


def _time(text: str) -> int:
    try:
        return read_timestamp(text)
    except (ValueError, OverflowError):
        raise RequestRefused(400, "schema_invalid", "since is not an RFC 3339 time") from None


def _position(cursor: str) -> inbox_db.Position:
    try:
        return inbox_db.read_cursor(cursor)
    except CursorInvalid as error:
        raise RequestRefused(400, "cursor_invalid", str(error)) from None
