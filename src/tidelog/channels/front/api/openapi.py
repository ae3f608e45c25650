"""What `/openapi.json` tells of the channels routes: one entry per method and path."""

from collections.abc import Mapping

import msgspec

from tidelog.base.serving.openapi import (
    FLAG,
    TEXT,
    WHOLE,
    Operation,
    Parameter,
    Schema,
    Security,
    bearer,
    listing,
    record,
)
from tidelog.channels.protocol import bodies
from tidelog.channels.protocol.verbs import MUTATION_VERBS, VERBS

APP = "/apps/{app_id}"
CHANNEL = f"{APP}/channels/{{channel}}"
MESSAGE = f"{CHANNEL}/messages/{{message_serial}}"
PROXY = "/proxy/{app_id}"
ADMIN = "/channels/admin"

SIGNATURE = Security(
    "signature",
    {
        "type": "apiKey",
        "in": "query",
        "name": "auth_signature",
        "description": "HMAC-SHA256, in hex and under the app's secret, of the method, the path as "
        "sent and the sorted query, each on a line of its own.",
    },
)
ADMIN_TOKEN = bearer("admin_token", "The setting admin_token.")
PROXY_TOKEN = bearer("proxy_token", "The setting channels.proxy_token.")

_SIGNED = (
    Parameter("auth_key", "Key of the app.", is_required=True),
    Parameter(
        "auth_timestamp",
        "Unix time in seconds, at most 600 off.",
        TEXT | {"pattern": "^[0-9]+$"},
        is_required=True,
    ),
    Parameter("auth_version", "Always 1.0.", {"const": "1.0"}, is_required=True),
)
_SIGNED_BODY = (
    *_SIGNED,
    Parameter("body_md5", "MD5 of the body, in hex.", TEXT | {"pattern": "^[0-9a-f]{32}$"}, True),
)
_IDEMPOTENCY_KEY = Parameter(
    "X-Idempotency-Key",
    "A request repeated within two minutes gets the response to the first.",
    TEXT | {"minLength": 1, "maxLength": 128},
    location="header",
)
_INFO = Parameter("info", "Comma-separated: subscription_count, user_count.")
_CURSOR = Parameter("cursor", "next_cursor of the previous page.")
_LIMIT = Parameter(
    "limit", "Items per page; reduced to the largest page allowed.", WHOLE | {"minimum": 1}
)
_DIRECTION = Parameter("direction", "Order.", {"enum": ["newest_first", "oldest_first"]})
_HISTORY_DIRECTION = Parameter(
    "direction",
    "Order.",
    {"enum": ["newest_first", "backwards", "reverse", "oldest_first", "forwards", "forward"]},
)
_BOUNDS = tuple(
    Parameter(name, f"Inclusive {kind}.", WHOLE)
    for name, kind in (
        ("start_serial", "history serial"),
        ("end_serial", "history serial"),
        ("start_time_ms", "Unix time"),
        ("end_time_ms", "Unix time"),
    )
)

_FORGOTTEN = (
    Parameter("channel", "The channel that was named."),
    Parameter("message_serial", "The message of it that was named."),
    Parameter("actor", "The actor that was named instead."),
)
_OK = record("ok", ok={"const": True})
_ERASED = record("ok complete", ok={"const": True}, complete=FLAG)
_RECEIPT = record(
    acknowledgement_id=TEXT,
    message_serial=TEXT,
    version_serial=TEXT,
    history_serial=WHOLE,
    delivery_serial=WHOLE,
    subscription_count=WHOLE,
    user_count=WHOLE,
)
_RECEIPTS = record("channels", channels={"type": "object", "additionalProperties": _RECEIPT})
_VERSION = record("serial timestamp_ms", serial=TEXT, timestamp_ms=WHOLE, client_id=TEXT)
_ITEM = record(
    "event channel serial action message_serial history_serial delivery_serial version",
    event=TEXT,
    channel=TEXT,
    name=TEXT,
    data={},
    serial=WHOLE,
    extras={"type": "object"},
    action={"enum": list(VERBS)},
    message_serial=TEXT,
    history_serial=WHOLE,
    delivery_serial=WHOLE,
    version=_VERSION,
)
_MUTATED = record(
    "channel message_serial action accepted version_serial history_serial delivery_serial status",
    channel=TEXT,
    message_serial=TEXT,
    action={"enum": list(MUTATION_VERBS)},
    accepted={"const": True},
    version_serial=TEXT,
    history_serial=WHOLE,
    delivery_serial=WHOLE,
    status={"enum": ["applied", "duplicate"]},
)
_SUMMARY = record(
    "action serial latest versions appends data_bytes deleted",
    action={"const": "message.summary"},
    serial=TEXT,
    latest=record("action version_serial timestamp_ms"),
    versions=WHOLE,
    appends=WHOLE,
    data_bytes=WHOLE,
    deleted=FLAG,
)
_STREAM = record(
    "app_id channel message_serial published_at_ms written_at_ms silent_seconds",
    app_id=TEXT,
    channel=TEXT,
    message_serial=TEXT,
    published_at_ms=WHOLE,
    written_at_ms=WHOLE,
    silent_seconds={"type": "number"},
)
_PAGE: Schema = record(
    "items direction limit has_more",
    items=listing({"type": "object"}),
    direction=TEXT,
    limit=WHOLE,
    has_more=FLAG,
    next_cursor={"type": ["string", "null"]},
)


def _get(summary: str, answer: Schema, *parameters: Parameter) -> Operation:
    return Operation(
        summary=summary,
        tag="channels",
        answer=answer,
        parameters=(*_SIGNED, *parameters),
        security=SIGNATURE,
    )


def _post(
    summary: str, answer: Schema, body: object, *parameters: Parameter, optional: bool = False
) -> Operation:
    return Operation(
        summary=summary,
        tag="channels",
        answer=answer,
        parameters=(*_SIGNED_BODY, *parameters),
        body=body,
        is_body_required=not optional,
        security=SIGNATURE,
    )


OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("POST", f"{APP}/events"): _post(
        "Publish an event.",
        {"anyOf": [_OK, _RECEIPTS]},
        bodies.EventBody,
        _IDEMPOTENCY_KEY,
    ),
    ("POST", f"{APP}/batch_events"): _post(
        "Publish up to ten events, decided one by one.",
        record(batch=listing({"type": "object"})),
        record("batch", batch=listing({"$ref": "#/components/schemas/EventBody"})),
        _IDEMPOTENCY_KEY,
    ),
    ("GET", f"{APP}/channels"): _get(
        "Channels somebody is subscribed to.",
        record("channels", channels={"type": "object"}),
        Parameter("filter_by_prefix", "Prefix of the names."),
        _INFO,
    ),
    ("GET", CHANNEL): _get(
        "One channel.",
        record("occupied", occupied=FLAG, subscription_count=WHOLE, user_count=WHOLE),
        _INFO,
    ),
    ("GET", f"{CHANNEL}/users"): _get(
        "Members of a presence channel.", record("users", users=listing(record("id", id=TEXT)))
    ),
    ("POST", f"{APP}/users/{{user_id}}/terminate_connections"): _post(
        "Close every socket of a user.", _OK, {"type": "object"}, optional=True
    ),
    ("POST", f"{APP}/users/{{user_id}}/force_reconnect"): _post(
        "Make every socket of a user reconnect.", _OK, {"type": "object"}, optional=True
    ),
    ("POST", f"{APP}/revocations"): _post(
        "Revoke tokens and close their sockets.",
        record(
            "closed_connections",
            revoked_jti={"type": ["string", "null"]},
            revoked_client_id={"type": ["string", "null"]},
            closed_connections=WHOLE,
        ),
        bodies.RevocationBody,
    ),
    ("POST", f"{APP}/forget"): _post(
        "Erase a channel, a message of it, or all messages that an actor wrote to.",
        _ERASED,
        bodies.ForgetBody,
    ),
    ("GET", f"{APP}/forget"): _get(
        "Whether what was asked to be forgotten is erased.",
        _ERASED,
        *_FORGOTTEN,
    ),
    ("GET", f"{CHANNEL}/history"): _get(
        "Messages of a channel, each in its latest state.",
        _PAGE,
        _LIMIT,
        _HISTORY_DIRECTION,
        _CURSOR,
        *_BOUNDS,
    ),
    ("GET", f"{CHANNEL}/stream"): Operation(
        summary="A channel as server-sent events: what comes, and what was missed.",
        tag="channels",
        answer=TEXT,
        media_type="text/event-stream",
        parameters=(
            Parameter("token", "A capability token; without one the request is signed."),
            *(msgspec.structs.replace(each, is_required=False) for each in _SIGNED),
            Parameter("rewind", "How many messages that are there already.", WHOLE),
            Parameter("append_mode", "Appends as fragments or whole.", {"enum": ["delta", "full"]}),
            Parameter(
                "append_rollup_window",
                "Milliseconds for which appends may be held to be sent together.",
                {"enum": [0, 20, 40, 100, 500]},
            ),
            Parameter("last_event_id", "Id of the last event that was seen."),
            Parameter("user_id", "Who joins a presence channel; signed requests only."),
            Parameter("Last-Event-ID", "The same, as browsers send it.", location="header"),
        ),
        security=SIGNATURE,
    ),
    ("GET", f"{CHANNEL}/history/state"): _get(
        "What is kept of a channel.", record("channel stream", channel=TEXT)
    ),
    ("POST", f"{CHANNEL}/history/reset"): _post(
        "Erase the history and begin a new one under a new stream id.",
        record("ok operation complete", ok=FLAG, operation={"const": "reset"}, complete=FLAG),
        bodies.ResetBody,
    ),
    ("POST", f"{CHANNEL}/history/purge"): _post(
        "Erase history before a bound.",
        record("ok operation complete", ok=FLAG, operation={"const": "purge"}, complete=FLAG),
        bodies.PurgeBody,
    ),
    ("GET", MESSAGE): _get(
        "The latest state of a message.", record("channel item", channel=TEXT, item=_ITEM)
    ),
    ("GET", f"{MESSAGE}/versions"): _get(
        "Versions of a message; an append is given as what it added.",
        _PAGE | {"required": ["channel", *_PAGE["required"]]},
        _LIMIT,
        _DIRECTION,
        _CURSOR,
    ),
    ("GET", f"{MESSAGE}/summary"): _get("Statistics of a message.", _SUMMARY),
    ("POST", f"{MESSAGE}/summary"): _post(
        "Send the statistics of a message to its subscribers.",
        _SUMMARY,
        bodies.SocketBody,
        optional=True,
    ),
    **{
        ("POST", f"{MESSAGE}/{verb}"): _post(summary, _MUTATED, body)
        for verb, (body, summary) in bodies.MUTATIONS.items()
    },
    ("GET", f"{ADMIN}/streams"): Operation(
        summary="Messages that are being streamed, in the order of channels.",
        tag="channels administration",
        answer=record(
            "streams next_cursor",
            streams=listing(_STREAM),
            next_cursor={"type": ["string", "null"]},
        ),
        parameters=(
            Parameter("app_id", "Only of this app."),
            Parameter("channel", "Only of this channel; needs app_id."),
            _CURSOR,
            _LIMIT,
        ),
        security=ADMIN_TOKEN,
    ),
    ("POST", f"{ADMIN}/streams/close"): Operation(
        summary="End a stream whose writer is gone.",
        tag="channels administration",
        answer=record("closed", closed=FLAG),
        body=bodies.CloseStreamBody,
        security=ADMIN_TOKEN,
    ),
    ("POST", f"{ADMIN}/forget"): Operation(
        summary="Erase a channel, a message of it, or all messages that an actor wrote to.",
        tag="channels administration",
        answer=_ERASED,
        body=bodies.AdminForgetBody,
        security=ADMIN_TOKEN,
    ),
    ("GET", f"{ADMIN}/forget"): Operation(
        summary="Whether what was asked to be forgotten is erased.",
        tag="channels administration",
        answer=_ERASED,
        parameters=(Parameter("app_id", "The app that was named.", is_required=True), *_FORGOTTEN),
        security=ADMIN_TOKEN,
    ),
    ("POST", f"{PROXY}/history"): Operation(
        summary="Channel history for client libraries.",
        tag="proxy",
        answer=_PAGE,
        body=bodies.ProxyHistoryBody,
        security=PROXY_TOKEN,
    ),
    ("POST", f"{PROXY}/messages"): Operation(
        summary="Mutable messages for client libraries.",
        tag="proxy",
        answer=record("ack", ack={"type": "object"}),
        body=bodies.ProxyBody,
        security=PROXY_TOKEN,
    ),
}
"""Every route that does something. Routes that return `feature_disabled` are not among them."""
