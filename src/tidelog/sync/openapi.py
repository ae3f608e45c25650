"""What `/openapi.json` tells of the sync routes; the protocol itself is docs/protocol/sync.md."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from tidelog.base.openapi import TEXT, WHOLE, Operation, Parameter, Schema, bearer, listing, record
from tidelog.base.surface import Route
from tidelog.sync.admin import ModelVersion, Retention, Snapshot

CLIENT_TOKEN = bearer("sync_token", "A token of a sync client, see [sync] in the settings.")
ADMIN_TOKEN = bearer("admin_token", "The setting admin_token.")

_ERROR = record("error", error=TEXT)


def _message(kind: str) -> Schema:
    return record(
        "type msg_id timestamp protocol_version payload",
        type={"const": kind},
        msg_id=TEXT,
        timestamp=WHOLE,
        protocol_version=TEXT,
        payload={"type": "object"},
    )


def _poll(summary: str, asked: str, answered: str) -> Operation:
    return Operation(
        summary=summary,
        tag="sync",
        answer=_message(answered),
        body=_message(asked),
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
        "Submit drafts without a socket.", "submit_events", "submit_events_result"
    ),
    ("POST", "/sync/v1/sync"): _poll("Read a page without a socket.", "sync", "sync_response"),
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
    """The routes with what is to be said of them."""
    return tuple(
        msgspec.structs.replace(route, operation=OPERATIONS.get((route.method, route.path)))
        for route in routes
    )
