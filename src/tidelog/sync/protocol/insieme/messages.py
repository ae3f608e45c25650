"""What a client of the dialect says, read and checked in the order of sync 21.4."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw, Struct

from tidelog.base.data.strictjson import MAX_DEPTH, is_deeper
from tidelog.sync.protocol.actions import Sync
from tidelog.sync.protocol.fault import Fault
from tidelog.sync.protocol.insieme.events import (
    RESERVED_META,
    SEPARATOR,
    VERBATIM,
    Item,
    partition_name,
    to_event,
)
from tidelog.sync.protocol.items import PreparedItem, prepare, refused_item
from tidelog.sync.protocol.partitions import MAX_NAME_BYTES, normal_name
from tidelog.sync.protocol.problem import Problem
from tidelog.sync.protocol.profiles import (
    CANONICAL,
    COMPATIBILITY,
    TREE_ACTIONS,
    Model,
    number_faults,
)
from tidelog.sync.protocol.tokens import Claims
from tidelog.sync.protocol.wire import MAX_ID_BYTES, SUBMIT, VERSION

MAX_PAYLOAD_DEPTH = MAX_DEPTH - 6
"""A payload is two levels deeper inside a page of the protocol than in the message it came in, and
a client of ours reads no deeper than `MAX_DEPTH`."""

DEFAULT_LIMIT = 500

_INTEGER = 2**53 - 1


def is_spoken(message: Mapping[str, Any]) -> bool:
    """Whether a message is of the dialect: it names its version by another word (sync 21.1)."""
    return "protocolVersion" in message and "protocol_version" not in message


class _SubmittedItem(Struct):
    payload: Raw = Raw(b"null")


class _SubmittedPayload(Struct):
    events: list[_SubmittedItem] = []


class _Submitted(Struct):
    type: str
    payload: _SubmittedPayload


_decode_submitted = msgspec.json.Decoder(_Submitted).decode


def raw_payloads(frame: bytes) -> list[Raw]:
    """The `payload` of each item of a submit as it was sent; nothing for other messages."""
    if b'"submit_events"' not in frame and b"\\u" not in frame:
        return []
    try:
        message = _decode_submitted(frame)
    except (ValueError, RecursionError):
        return []
    return [item.payload for item in message.payload.events] if message.type == SUBMIT else []


def read_envelope(message: Mapping[str, Any], *, is_connected: bool) -> str:
    """The type of a message whose envelope is fine and that may come now."""
    kind = message.get("type")
    if not isinstance(kind, str) or not isinstance(message.get("payload"), dict):
        raise Problem("bad_request", "type and payload: must be a string and an object")
    if not isinstance(message.get("msgId", ""), str):
        raise Problem("bad_request", "msgId: must be a string")
    if message.get("protocolVersion") != VERSION:
        raise Problem(
            "protocol_version_unsupported",
            "this protocol version is not supported",
            supported_versions=[VERSION],
        )
    if not is_connected and kind != "connect":
        raise Problem("bad_request", "connect first")
    if kind == "connect" and is_connected:
        raise Problem("bad_request", "already connected")
    if kind not in ("connect", SUBMIT, "sync"):
        raise Problem("bad_request", "unknown type")
    return kind


class Connect(NamedTuple):
    """Who wants to connect, and to which project."""

    token: str
    client_id: str
    project: str


def read_connect(payload: Mapping[str, Any]) -> Connect:
    """The handshake; nothing of it is believed yet."""
    token, client_id = payload.get("token"), payload.get("clientId")
    if not isinstance(token, str):
        raise Problem("bad_request", "token: must be a string")
    if not isinstance(client_id, str) or not client_id:
        raise Problem("bad_request", "clientId: must be a non-empty string")
    project = payload.get("projectId")
    if not isinstance(project, str) or not project:
        raise Problem("bad_request", "projectId: must be a non-empty string")
    if SEPARATOR in project:
        raise Problem("bad_request", f"projectId: must not contain {SEPARATOR!r}")
    if normal_name(project) != project:
        raise Problem("bad_request", "projectId: must be in Unicode normal form C")
    if len(project.encode()) > MAX_NAME_BYTES - 2:
        raise Problem("bad_request", f"projectId: longer than {MAX_NAME_BYTES - 2} bytes")
    return Connect(token, client_id, project)


def read_sync(payload: Mapping[str, Any], project: str, max_bytes: int) -> Sync:
    """A request for a page of the project, which is followed from its last page on."""
    named = payload.get("projectId")
    if not isinstance(named, str) or not named:
        raise Problem("bad_request", "projectId: must be a non-empty string")
    if named != project:
        raise Problem("forbidden", "projectId: not the project of this connection")
    since = _whole(payload.get("sinceCommittedId"))
    if since is None or since < 0:
        raise Problem("bad_request", "sinceCommittedId: must be a whole number, at least 0")
    limit = _whole(payload.get("limit"))
    limit = DEFAULT_LIMIT if limit is None else limit
    return Sync((), (project,), since, limit, max_bytes, None, project=project)


class Rules(NamedTuple):
    """What items are judged by."""

    claims: Claims
    project: str
    model: Model
    allows: Callable[[str], bool]


def check_submit(payload: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The items of a request, each an object with an id that no other of them has."""
    events = payload.get("events")
    if not isinstance(events, list) or not events:
        raise Problem("bad_request", "events: must be a non-empty array")
    seen: set[str] = set()
    for index, item in enumerate(events):
        if not isinstance(item, dict):
            raise Problem("bad_request", f"events[{index}]: must be an object")
        item_id = item.get("id")
        if not isinstance(item_id, str) or not item_id:
            raise Problem("bad_request", f"events[{index}].id: must be a non-empty string")
        if item_id in seen:
            raise Problem("bad_request", f"events[{index}].id: appears twice in one request")
        seen.add(item_id)
    return events


def prepare_items(
    items: Sequence[dict[str, Any]], raw_payloads: Sequence[bytes], rules: Rules
) -> tuple[tuple[PreparedItem, ...], tuple[bytes, ...]]:
    """The stateless work of every item, and the text of the event that is stored for each."""
    prepared = [_prepare(item, raw, rules) for item, raw in zip(items, raw_payloads, strict=True)]
    return tuple([item for item, _ in prepared]), tuple([raw for _, raw in prepared])


def _prepare(item: dict[str, Any], raw_payload: bytes, rules: Rules) -> tuple[PreparedItem, bytes]:
    client_id = rules.claims.client_id
    try:
        read = _read_item(item, raw_payload, rules)
    except _Refused as refused:
        refusal = refused.reason, (Fault(refused.field, refused.message),)
        return refused_item(item["id"], client_id, {}, refusal), b""
    event, raw_event = to_event(read, raw_payload)
    native = {
        "id": item["id"],
        "partitions": [partition_name(rules.project, item["partition"])],
        "event": event,
    }
    done = prepare(
        native,
        raw_event,
        client_id=client_id,
        profile=COMPATIBILITY if read.type in TREE_ACTIONS else CANONICAL,
        model=rules.model,
        allows=rules.allows,
    )
    return done, raw_event


class _Refused(Exception):  # noqa: N818 - the refusal is the noun
    def __init__(self, field: str, message: str, reason: str = "validation_failed") -> None:
        super().__init__(message)
        self.field = field
        self.message = message
        self.reason = reason


def _read_item(item: Mapping[str, Any], raw_payload: bytes, rules: Rules) -> Item:
    """An item whose members are what the dialect says; the first that is not decides."""
    kind, payload = item.get("type"), item.get("payload")
    version = _whole(item.get("schemaVersion"))
    if len(item["id"].encode()) > MAX_ID_BYTES:
        raise _Refused("id", f"longer than {MAX_ID_BYTES} bytes")
    if not isinstance(kind, str) or not kind:
        raise _Refused("type", "must be a non-empty string")
    if kind == VERBATIM:
        raise _Refused("type", "marks events that this protocol cannot express; choose another")
    if version is None or not 1 <= version <= _INTEGER:
        raise _Refused("schemaVersion", "must be a positive integer")
    if not isinstance(payload, dict):
        raise _Refused("payload", "must be an object")
    if is_deeper(bytes(raw_payload), MAX_PAYLOAD_DEPTH):
        raise _Refused("payload", f"nested more than {MAX_PAYLOAD_DEPTH} levels deep")
    _check_partition(item.get("partition"), rules.project)
    meta = _read_meta(item.get("meta"), rules.claims.client_id)
    user_id = _read_user(item, rules.claims)
    if item.get("projectId") != rules.project:
        raise _Refused("projectId", "must be the project of this connection", "forbidden")
    accepted = COMPATIBILITY if kind in TREE_ACTIONS else CANONICAL
    if accepted not in rules.model.profiles:
        raise _Refused("type", f"not accepted: this server does not offer profile {accepted}")
    return Item(kind, version, payload, user_id, meta)


def _check_partition(partition: object, project: str) -> None:
    if not isinstance(partition, str) or not partition:
        raise _Refused("partition", "must be a non-empty string")
    if normal_name(partition) != partition:
        # Delivered in that form it would not be what the client has in its store.
        raise _Refused("partition", "must be in Unicode normal form C")
    if len(partition_name(project, partition).encode()) > MAX_NAME_BYTES:
        raise _Refused("partition", f"longer than {MAX_NAME_BYTES} bytes with its project")


def _read_meta(given: object, client_id: str) -> dict[str, Any]:
    meta = dict(given) if isinstance(given, dict) else {}
    if meta.pop("clientId", client_id) != client_id:
        raise _Refused("meta.clientId", "must be the authenticated client", "forbidden")
    written_at = meta.get("clientTs")
    if isinstance(written_at, bool) or not isinstance(written_at, int | float):
        raise _Refused("meta.clientTs", "must be a number")
    for name in RESERVED_META:
        if name in meta:
            raise _Refused(f"meta.{name}", "is a member of the event itself")
    for fault in number_faults(meta):
        raise _Refused(f"meta{fault.field.removeprefix('event')}", fault.message)
    return meta


def _read_user(item: Mapping[str, Any], claims: Claims) -> str | None:
    if "userId" not in item:
        return None
    user_id = item["userId"]
    if not isinstance(user_id, str) or not user_id:
        raise _Refused("userId", "must be a non-empty string")
    if claims.user_id not in (None, user_id):
        raise _Refused("userId", "must be the authenticated user", "forbidden")
    return user_id


def _whole(value: object) -> int | None:
    """An integer; integral floats count (sync D4)."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return None if isinstance(value, bool) or not isinstance(value, int) else value
