"""Sync over HTTP, for clients that cannot hold a socket (sync D63): same messages, same answers.

No subscriptions, no broadcasts, no heartbeat, no eviction. Paging is stateless: the client repeats
the first page's watermark.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import Raw, Struct, structs

from tidelog.base.data import strictjson
from tidelog.base.errors import QueueFull, ShuttingDown, StoreError
from tidelog.base.serving.surface import Handle, HttpRequest, HttpResponse, Route, guarded
from tidelog.sync.front.service import SyncService
from tidelog.sync.protocol.actions import Action, Send, Submit, Sync
from tidelog.sync.protocol.problem import Problem
from tidelog.sync.protocol.profiles import COMPATIBILITY
from tidelog.sync.protocol.session import RETRY_AFTER_MS, Session, read_incarnation, whole_number
from tidelog.sync.protocol.tokens import TokenRefused
from tidelog.sync.protocol.wire import envelope, error_payload, result_payload

_log = logging.getLogger(__name__)

STATUSES = {
    "bad_request": 400,
    "auth_failed": 401,
    "forbidden": 403,
    "profile_unsupported": 406,
    "protocol_version_unsupported": 426,
    "rate_limited": 429,
    "server_error": 500,
}


class _Accepted(Struct):
    """A message that the session has read and found in order."""

    type: str
    msg_id: str
    payload: dict[str, Raw]


_decode_accepted = msgspec.json.Decoder(_Accepted).decode


class Polling:
    """The two routes; each request is a connection of one message."""

    def __init__(self, service: SyncService) -> None:
        self._service = service

    def routes(self) -> Sequence[Route]:
        """See `Surface.routes`."""
        routes = (
            guarded("POST", "/sync/v1/submit", partial(self._admit, "submit_events")),
            guarded("POST", "/sync/v1/sync", partial(self._admit, "sync")),
        )
        return [structs.replace(route, too_many=self._too_many) for route in routes]

    def _too_many(self, seconds: int) -> HttpResponse:
        text = "too many failed authentications (per_address.max_failed_authentications_per_minute)"
        return self._problem(Problem("rate_limited", text, retry_after_ms=1000 * seconds))

    async def _admit(self, kind: str, request: HttpRequest) -> Handle | HttpResponse:
        try:
            return partial(self._answer, kind, self._session(request))
        except Problem as problem:
            return self._problem(problem)

    async def _answer(self, kind: str, session: Session, request: HttpRequest) -> HttpResponse:
        try:
            now = asyncio.get_running_loop().time()
            [action, *_] = session.receive(
                request.body, is_text=True, now=now, unix_now=time.time()
            )
            if isinstance(action, Send) and _refusal(action) not in (None, "forbidden"):
                return self._error(action)
            return await self._do(action, self._payload(request, kind))
        except Problem as problem:
            return self._problem(problem)
        except (QueueFull, ShuttingDown) as error:
            return self._problem(Problem("rate_limited", str(error), retry_after_ms=RETRY_AFTER_MS))
        except StoreError as error:
            _log.warning("a polling request failed: %s", error)
        except Exception:  # noqa: BLE001 - the peer gets the protocol's answer all the same
            _log.exception("a polling request failed")
        return self._problem(Problem("server_error", "internal error; retry all drafts"))

    def _session(self, request: HttpRequest) -> Session:
        service = self._service
        kind, _, token = (request.header(b"authorization") or b"").partition(b" ")
        if kind.lower() != b"bearer":
            raise Problem("auth_failed", "Authorization: Bearer <token>")
        session = service.new_session(0.0)
        try:
            session.claims = service.tokens.verify(token.decode("ascii", "replace"))
        except TokenRefused as error:
            raise Problem("auth_failed", f"the token was refused: {error}") from None
        session.profile = (request.header(b"x-sync-profile") or COMPATIBILITY.encode()).decode(
            "ascii", "replace"
        )
        offered = service.settings.profiles
        if session.profile not in offered:
            raise Problem("profile_unsupported", "not offered", supported_profiles=list(offered))
        return session

    def _payload(self, request: HttpRequest, kind: str) -> dict[str, Any]:
        """What only polling looks at in the payload of an accepted message, after its checks."""
        message = _decode_accepted(request.body)
        hint = {"request_msg_id": message.msg_id}
        if message.type != kind:
            raise Problem("bad_request", f"this route takes {kind}", **hint)
        if "subscription_partitions" in message.payload:
            raise Problem("bad_request", "there are no subscriptions over HTTP", **hint)
        return {
            name: strictjson.read(bytes(message.payload[name]))
            for name in ("incarnation", "sync_to_committed_id")
            if name in message.payload
        }

    async def _do(self, action: Action, payload: dict[str, Any]) -> HttpResponse:
        match action:
            case Send():
                return self._error(action)
            case Sync():
                return self._response(200, "sync_response", await self._page(action, payload))
            case Submit():
                return self._response(200, "submit_events_result", await self._commit(action))
            case _:
                raise Problem("bad_request", "messages of this type are not accepted over HTTP")

    async def _page(self, action: Sync, payload: dict[str, Any]) -> bytes:
        service, incarnation = self._service, read_incarnation(payload)
        repeated = None
        if "sync_to_committed_id" in payload:
            repeated = whole_number(payload, "sync_to_committed_id", least=0)
        # The page before may have come from another node that is ahead of this one.
        await service.catch_up()
        history = service.history(incarnation)
        since = action.since
        if incarnation not in (None, history["incarnation"]) and since > history["began"]:
            since, repeated = (
                history["began"],
                None,
            )  # what the client has after that position is not in this history
        last = service.last_event
        watermark = last if repeated is None else min(repeated, last)
        request = structs.replace(action, since=since, watermark=watermark)
        return await service.page(request, history=history)

    async def _commit(self, action: Submit) -> bytes:
        return result_payload(await self._service.commit(action))

    def _error(self, action: Send) -> HttpResponse:
        return self._response(STATUSES[_refusal(action) or "bad_request"], "error", action.payload)

    def _problem(self, problem: Problem) -> HttpResponse:
        payload = error_payload(problem.code, str(problem), problem.details)
        return self._response(STATUSES[problem.code], "error", payload)

    def _response(self, status: int, kind: str, payload: bytes) -> HttpResponse:
        return HttpResponse(status, envelope(kind, "s1", self._service.clock.now_ms(), payload))


def _refusal(action: Send) -> str | None:
    """The error code, if the session refused the message."""
    if action.kind != "error":
        return None
    code: str = strictjson.read(action.payload)["code"]
    return code
