"""What `/openapi.json` says about the sync routes; the protocol itself is docs/protocol/sync.md."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from tidelog.base.serving.openapi import (
    FLAG,
    TEXT,
    WHOLE,
    Operation,
    Parameter,
    Schema,
    bearer,
    listing,
    record,
)
from tidelog.base.serving.surface import Route
from tidelog.sync.front.admin import ModelVersion, Retention, Snapshot

CLIENT_TOKEN = bearer("sync_token", "A token of a sync client, see [sync] in the settings.")
ADMIN_TOKEN = bearer("admin_token", "The setting admin_token.")

_ERROR = record("error", error=TEXT)


def _message(kind: str, payload: Schema | None = None) -> Schema:
    return record(
        "type msg_id timestamp protocol_version payload",
        type={"const": kind},
        msg_id=TEXT,
        timestamp=WHOLE,
        protocol_version=TEXT,
        payload=payload or {"type": "object"},
    )


_HISTORY = {
    "incarnation": TEXT | {"description": "Names the history of the log."},
    "began": WHOLE
    | {"description": "Up to where it is the history that the client named; 0 if unknown."},
}
_ASKED = record(
    "partitions since_committed_id",
    partitions=listing(TEXT),
    since_committed_id=WHOLE,
    limit=WHOLE,
    max_bytes=WHOLE | {"description": "Size of the events of a page; at most 1 MiB."},
    sync_to_committed_id=WHOLE
    | {"description": "The value from the first page, to be sent for every later one."},
    incarnation=TEXT | {"description": "The history that the client has followed."},
)
_PAGE = record(
    "partitions events next_since_committed_id sync_to_committed_id has_more incarnation began",
    partitions=listing(TEXT),
    events=listing({"type": "object"}),
    next_since_committed_id=WHOLE,
    sync_to_committed_id=WHOLE,
    has_more=FLAG,
    **_HISTORY,
)


def _poll(summary: str, asked: Schema, answered: Schema) -> Operation:
    return Operation(
        summary=summary,
        tag="sync",
        answer=answered,
        body=asked,
        security=CLIENT_TOKEN,
        error=_message("error"),
    )


def _admin(summary: str, answer: Schema, body: object = None) -> Operation:
    return Operation(
        summary=summary,
        tag="sync administration",
        answer=answer,
        body=body,
        security=ADMIN_TOKEN,
        error=_ERROR,
    )


OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("POST", "/sync/v1/submit"): _poll(
        "Submit drafts without a socket.",
        _message("submit_events"),
        _message("submit_events_result"),
    ),
    ("POST", "/sync/v1/sync"): _poll(
        "Read a page without a socket.",
        _message("sync", _ASKED),
        _message("sync_response", _PAGE),
    ),
    ("GET", "/sync/admin/model-version"): _admin(
        "The current model version.", record("model_version", model_version=WHOLE)
    ),
    ("PUT", "/sync/admin/model-version"): _admin(
        "Move to another model version.",
        record("old_model_version new_model_version"),
        ModelVersion,
    ),
    ("GET", "/sync/admin/connections"): _admin(
        "Connected clients.",
        record("last_committed_id connections", connections=listing({"type": "object"})),
    ),
    ("GET", "/sync/admin/snapshot"): msgspec.structs.replace(
        _admin(
            "The state of a partition now.",
            record("partition committed_id model_version state", state={"type": "object"}),
        ),
        parameters=(Parameter("partition", "Which partition.", is_required=True),),
    ),
    ("PUT", "/sync/admin/snapshot"): _admin(
        "Store the state of a partition.", record("partition committed_id"), Snapshot
    ),
    ("POST", "/sync/admin/retention"): _admin(
        "Archive events that snapshots cover.", record("archived", archived=WHOLE), Retention
    ),
}


def described(routes: Iterable[Route]) -> Sequence[Route]:
    """The routes with their descriptions."""
    return tuple(
        msgspec.structs.replace(route, operation=OPERATIONS.get((route.method, route.path)))
        for route in routes
    )
