"""What `/openapi.json` tells of the broker's routes; the protocol is docs/protocol/mesh.md."""

from collections.abc import Mapping

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
from tidelog.mesh.protocol.negotiation import CONNECTION_POLICIES

MESH = "/mesh/{slug}"

MEMBER_TOKEN = bearer(
    "mesh_member_token",
    "A JWT that the member signed with its ed25519 key: sub the key in hex, aud the slug, exp at "
    "most 300 s ahead, jti used once.",
)
ADMIN_TOKEN = bearer("admin_token", "The setting admin_token.")

_ERROR = record("error", error=TEXT, detail=TEXT)
_NULLABLE_WHOLE: Schema = {"type": ["integer", "null"], "minimum": 0}
_NULLABLE_TEXT: Schema = {"type": ["string", "null"]}

_MESSAGE = record(
    "broker_message_id client_message_id history_id mesh sender_pubkey sender_name priority body "
    "body_encoding created_at mention",
    broker_message_id=TEXT,
    client_message_id=TEXT,
    history_id=WHOLE,
    mesh=TEXT,
    topic=_NULLABLE_TEXT,
    sender_pubkey=TEXT,
    sender_name=TEXT,
    priority={"enum": ["now", "next", "low"]},
    reply_to_id=_NULLABLE_TEXT,
    meta={"type": ["object", "null"]},
    body=TEXT,
    body_encoding={"enum": ["utf8", "base64"]},
    created_at=TEXT,
    mention=FLAG,
)

_SEND = record(
    "envelope_version destination_kind destination_ref body",
    envelope_version={"type": "integer", "minimum": 1},
    destination_kind={"enum": ["topic", "dm", "queue"]},
    destination_ref={"type": "string", "minLength": 1},
    body=TEXT,
    body_encoding={"enum": ["utf8", "base64"]},
    reply_to_id=_NULLABLE_TEXT,
    priority={"enum": ["now", "next", "low"]},
    meta={"type": ["object", "null"]},
    client_message_id=TEXT,
    request_fingerprint={"type": "string", "pattern": "^[0-9a-f]{64}$"},
    supersedes=TEXT,
)

_ACCEPTED = record(
    "broker_message_id client_message_id history_id duplicate",
    broker_message_id=TEXT,
    client_message_id=TEXT,
    history_id=_NULLABLE_WHOLE,
    duplicate=FLAG,
    history_available=FLAG,
    first_seen_at=TEXT,
    destination_kind=TEXT,
    destination_ref=TEXT,
)

_SETTINGS: Mapping[str, Schema] = {
    "dedupe_retention_mode": {"enum": ["retention_scoped", "permanent"]},
    "dedupe_retention_days": WHOLE,
    "message_retention_days": _NULLABLE_WHOLE,
    "echo_to_sender": FLAG,
    "clone_concurrency_policy": {"enum": list(CONNECTION_POLICIES)},
    "rate_limit": WHOLE,
    "rate_window_ms": WHOLE,
}

_LIMIT = Parameter("limit", "Most items per page.", WHOLE)


def _operation(
    summary: str,
    answer: Schema,
    *,
    status: int = 200,
    body: Schema | None = None,
    is_body_required: bool = True,
    parameters: tuple[Parameter, ...] = (),
    security: Security | None = MEMBER_TOKEN,
) -> Operation:
    return Operation(
        summary=summary,
        tag="mesh",
        answer=answer,
        status=status,
        body=body,
        is_body_required=is_body_required,
        parameters=parameters,
        security=security,
        error=_ERROR,
    )


def _page(next_name: str) -> Schema:
    schema = record(f"items {next_name} has_more", items=listing(_MESSAGE), has_more=FLAG)
    schema["properties"][next_name] = WHOLE
    return schema


_SUBSCRIPTION = record("topic subscribed", topic=TEXT, subscribed=FLAG)

OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("POST", f"{MESH}/messages"): _operation(
        "Accept a send; 200 for a duplicate.",
        _ACCEPTED,
        status=201,
        body=_SEND,
        parameters=(
            Parameter(
                "Idempotency-Key", "The client_message_id; wins over the body's.", location="header"
            ),
        ),
    ),
    ("GET", f"{MESH}/history"): _operation(
        "Messages the member may see, oldest first.",
        _page("next_after"),
        parameters=(Parameter("after", "The history_id to begin after.", WHOLE), _LIMIT),
    ),
    ("GET", f"{MESH}/mentions"): _operation(
        "Mentions of a member, newest first.",
        _page("next_before"),
        parameters=(
            Parameter("member", "The mentioned key; the caller's own if it is left out."),
            Parameter("before", "The history_id to begin before.", WHOLE),
            _LIMIT,
        ),
    ),
    ("GET", f"{MESH}/topics"): _operation(
        "All topics.",
        record("topics", topics=listing(record("name subscribed", name=TEXT, subscribed=FLAG))),
    ),
    ("POST", f"{MESH}/topics"): _operation(
        "Create a topic; 200 if there is one.",
        record("topic created", topic=TEXT, created=FLAG),
        status=201,
        body=record("topic", topic=TEXT),
    ),
    ("DELETE", f"{MESH}/topics/{{topic}}"): _operation(
        "Delete a topic: its creator, or with the admin token.",
        record("topic removed", topic=TEXT, removed=FLAG),
    ),
    ("PUT", f"{MESH}/topics/{{topic}}/subscription"): _operation("Subscribe.", _SUBSCRIPTION),
    ("DELETE", f"{MESH}/topics/{{topic}}/subscription"): _operation("Unsubscribe.", _SUBSCRIPTION),
    ("GET", f"{MESH}/queues"): _operation("All queues.", record("queues", queues=listing(TEXT))),
    ("POST", f"{MESH}/queues"): _operation(
        "Create a queue; 200 if there is one.",
        record("queue created", queue=TEXT, created=FLAG),
        status=201,
        body=record("queue", queue=TEXT),
    ),
    ("DELETE", f"{MESH}/queues/{{queue}}"): _operation(
        "Delete a queue and close what waits in it: its creator, or with the admin token.",
        record("queue removed", queue=TEXT, removed=FLAG),
    ),
    ("POST", f"{MESH}/queues/{{queue}}/claim"): _operation(
        "Lease messages of a queue, oldest first.",
        record(
            "claim_id claim_expires_at items",
            claim_id=TEXT,
            claim_expires_at=TEXT,
            items=listing(_MESSAGE),
        ),
        body=record(
            limit={"type": "integer", "minimum": 1, "maximum": 100},
            lease_ms={"type": "integer", "minimum": 1, "maximum": 300_000},
        ),
        is_body_required=False,
    ),
    ("POST", f"{MESH}/queues/{{queue}}/ack"): _operation(
        "Complete leased messages of a queue; 409 for those whose lease was lost.",
        record("completed lost", completed=listing(TEXT), lost=listing(TEXT)),
        body=record(
            "claim_id",
            claim_id=TEXT,
            broker_message_id=TEXT,
            broker_message_ids={"type": "array", "items": TEXT, "minItems": 1, "maxItems": 100},
        ),
    ),
    ("GET", f"{MESH}/members"): _operation(
        "A page of the members, in the order of their keys.",
        record(
            "items next_after has_more",
            items=listing(record("member_pubkey name", member_pubkey=TEXT, name=TEXT)),
            next_after=TEXT,
            has_more=FLAG,
        ),
        parameters=(
            Parameter("after", "The key to begin after."),
            Parameter("name", "Only the member that has this name."),
        ),
    ),
    ("POST", f"{MESH}/members"): _operation(
        "Join with an invite; 200 for the member that it made.",
        record("mesh_id member_id member_pubkey name", mesh_id=TEXT, member_id=TEXT, name=TEXT),
        status=201,
        body=record(
            "invite member_pubkey name signature",
            invite=TEXT,
            member_pubkey=TEXT,
            name=TEXT,
            signature=TEXT,
        ),
        security=None,
    ),
    ("DELETE", f"{MESH}/membership"): _operation(
        "Leave: revoke the caller's own key, for good.",
        record("member_pubkey revoked", member_pubkey=TEXT, revoked=FLAG),
    ),
    ("POST", "/mesh"): _operation(
        "Create a mesh.",
        record("mesh_id slug", mesh_id=TEXT, slug=TEXT),
        status=201,
        body=record("slug", slug=TEXT, **_SETTINGS),
        security=ADMIN_TOKEN,
    ),
    ("GET", MESH): _operation(
        "The settings of a mesh.",
        record(f"mesh_id slug {' '.join(_SETTINGS)}", mesh_id=TEXT, slug=TEXT, **_SETTINGS),
        security=ADMIN_TOKEN,
    ),
    ("PATCH", MESH): _operation(
        "Change settings of a mesh; what is left out stays.",
        record(f"mesh_id slug {' '.join(_SETTINGS)}", mesh_id=TEXT, slug=TEXT, **_SETTINGS),
        body=record("", **_SETTINGS),
        security=ADMIN_TOKEN,
    ),
    ("GET", f"{MESH}/invites"): _operation(
        "Invites that can still be used, without their secrets.",
        record(
            "invites",
            invites=listing(
                record("id created_at expires_at", id=TEXT, created_at=TEXT, expires_at=TEXT)
            ),
        ),
        security=ADMIN_TOKEN,
    ),
    ("DELETE", f"{MESH}/invites/{{invite}}"): _operation(
        "Withdraw an invite.", record("id removed", id=TEXT, removed=FLAG), security=ADMIN_TOKEN
    ),
    ("POST", f"{MESH}/invites"): _operation(
        "Make an invite, shown once.",
        record("invite id expires_at", invite=TEXT, id=TEXT, expires_at=TEXT),
        status=201,
        body=record(expires_in=WHOLE),
        is_body_required=False,
        security=ADMIN_TOKEN,
    ),
    ("DELETE", f"{MESH}/members/{{pubkey}}"): _operation(
        "Revoke a member.",
        record("member_pubkey revoked", member_pubkey=TEXT, revoked=FLAG),
        security=ADMIN_TOKEN,
    ),
    ("GET", f"{MESH}/webhooks"): _operation(
        "All webhooks.",
        record("webhooks", webhooks=listing(record("id url", id=TEXT, url=TEXT))),
        security=ADMIN_TOKEN,
    ),
    ("POST", f"{MESH}/webhooks"): _operation(
        "Send messages of a topic, or of the whole mesh, to a URL; the secret is shown once.",
        record("id secret", id=TEXT, topic=_NULLABLE_TEXT, secret=TEXT),
        status=201,
        body=record("url", url=TEXT, topic=_NULLABLE_TEXT, secret=_NULLABLE_TEXT),
        security=ADMIN_TOKEN,
    ),
    ("DELETE", f"{MESH}/webhooks/{{webhook}}"): _operation(
        "Remove a webhook.", record("id removed", id=TEXT, removed=FLAG), security=ADMIN_TOKEN
    ),
}
"""By method and path."""
