"""What a client of the dialect is told (sync 21.4)."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Raw

from tidelog.sync.protocol.actions import Submit, Sync
from tidelog.sync.protocol.fault import Fault
from tidelog.sync.protocol.insieme.events import delivered
from tidelog.sync.protocol.insieme.messages import raw_payloads
from tidelog.sync.protocol.problem import Problem
from tidelog.sync.protocol.profiles import EVENT
from tidelog.sync.protocol.wire import (
    INTERNAL,
    VERSION_UNSUPPORTED,
    Committed,
    NotProcessed,
    Page,
    Rejected,
    Result,
    encode,
)

BATCH_LIMIT = "batch_limit"
"""Why an item was not processed that came after as many as one request may have."""


class InsiemeForm:
    """The `WireForm` of a connection that speaks the dialect."""

    def __init__(self, project: str = "") -> None:
        self.project = project

    def raw_drafts(self, frame: bytes, most: int) -> list[Raw]:
        """The first of them; whatever comes after those is not looked at."""
        return raw_payloads(frame)[:most]

    def envelope(self, kind: str, msg_id: str, timestamp: int, payload: bytes) -> bytes:
        """See `WireForm.envelope`."""
        return b'{"type":"%s","protocolVersion":"1.0","msgId":%s,"timestamp":%d,"payload":%s}' % (
            kind.encode(),
            encode(msg_id),
            timestamp,
            payload,
        )

    def refusal(self, problem: Problem) -> Problem:
        """Whatever the client should try again is `server_error`.

        It is the one code on which the package connects anew; after any other it waits for an
        answer to what it has sent, for ever.
        """
        said = problem
        if problem.code == "rate_limited":
            said = Problem("server_error", str(problem), reason="rate_limited", **problem.details)
            said.close_code = INTERNAL
        elif problem.code == "protocol_version_unsupported":
            said = Problem("protocolVersion_unsupported", str(problem), **problem.details)
            said.close_code = VERSION_UNSUPPORTED
        said.reply_to = problem.reply_to
        return said

    def error(self, problem: Problem) -> bytes:
        """See `WireForm.error`."""
        details = {_camel(name): value for name, value in problem.details.items()}
        return encode({"code": problem.code, "message": str(problem), "details": details})

    def connected(self, client_id: str, last_event: int) -> bytes:
        """Payload of `connected`."""
        return encode(
            {
                "clientId": client_id,
                "projectId": self.project,
                "projectLastCommittedId": last_event,
            }
        )

    def results(self, request: Submit, results: Sequence[Result], now_ms: int) -> bytes:
        """See `WireForm.results`."""
        said = [
            _result(result, is_event=item.event.get("type") == EVENT)
            for item, result in zip(request.items, results, strict=True)
        ]
        last = request.items[-1].id
        said += [
            _result(NotProcessed(each, BATCH_LIMIT, last, now_ms), is_event=False)
            for each in request.left_over
        ]
        return encode({"results": said})

    def delivered(self, body: bytes, committed_id: int, committed_at: int) -> bytes:
        """See `WireForm.delivered`."""
        return delivered(body, committed_id, committed_at, self.project)

    def page(self, request: Sync, page: Page) -> bytes:
        """See `WireForm.page`."""
        return b'{"projectId":%s,"events":[%s],%s' % (
            encode(request.project),
            b",".join(page.events),
            encode(
                {
                    "nextSinceCommittedId": page.next_since,
                    "hasMore": page.has_more,
                    "syncToCommittedId": page.watermark,
                }
            )[1:],
        )

    def beyond_the_log(self, request: Sync) -> Problem:
        """The package believes its cursor, so the application has to be told."""
        problem = Problem(
            "history_reset",
            "sinceCommittedId: after the end of this log, which was restored from a backup or is "
            "another one; delete the client's database and submit its drafts again",
            since_committed_id=request.since,
        )
        problem.reply_to = request.reply_to
        return problem


def _result(result: Result, *, is_event: bool) -> Mapping[str, Any]:
    match result:
        case Committed():
            return {
                "id": result.id,
                "status": "committed",
                "committedId": result.committed_id,
                "serverTs": result.status_updated_at,
            }
        case NotProcessed():
            return {
                "id": result.id,
                "status": "not_processed",
                "reason": result.reason,
                "blockedById": result.blocked_by,
                "created": result.status_updated_at,
            }
        case Rejected():
            return {
                "id": result.id,
                "status": "rejected",
                "reason": result.reason,
                "errors": [_error(fault, is_event=is_event) for fault in result.errors],
                "created": result.status_updated_at,
            }


def _error(fault: Fault, *, is_event: bool) -> dict[str, str]:
    field = field_name(fault.field, is_event=is_event)
    return {"field": field, "message": f"{field}: {fault.message}"}


def field_name(field: str, *, is_event: bool) -> str:
    """Where the dialect has what the protocol calls so; `is_event`: in the event profile."""
    if field.startswith("partitions"):
        return "partition"
    if field in ("event.type", "event.payload.schema"):
        return "type"
    inner = "event.payload.data" if is_event else "event.payload"
    if field == inner or field.startswith(f"{inner}."):
        return f"payload{field.removeprefix(inner)}"
    return field.removeprefix("event.")


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(other.capitalize() for other in others)
