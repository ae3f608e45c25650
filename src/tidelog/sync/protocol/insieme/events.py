"""One event in both dialects (sync 21.3): stored in the protocol's own form, whoever wrote it."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from tidelog.sync.protocol.profiles import EVENT, TREE_ACTIONS
from tidelog.sync.protocol.wire import encode

SEPARATOR = "/"
"""Between project and partition in the name of a partition of the protocol."""

VERBATIM = "tidelog.event"
"""Type under which an event of the event profile is delivered that the dialect cannot express."""

SCHEMA_VERSION = 1
"""Of an event whose author named none."""

RESERVED_META = ("schemaVersion", "userId")
"""Members of the stored `event.meta` that are members of the item in the dialect."""


def partition_name(project: str, partition: str) -> str:
    """What the protocol calls a partition of a project."""
    return f"{project}{SEPARATOR}{partition}"


def project_of(partition: str) -> str | None:
    """The project that a partition of the protocol belongs to, if it belongs to one."""
    project, _, rest = partition.partition(SEPARATOR)
    return project if project and rest else None


class Item(Struct, frozen=True):
    """A submitted item of the dialect whose own checks are done."""

    type: str
    schema_version: int
    payload: dict[str, Any]
    user_id: str | None
    meta: Mapping[str, Any]
    """As sent but for `clientId`; has a number `clientTs`, and none of `RESERVED_META`."""


def to_event(item: Item, raw_payload: bytes) -> tuple[dict[str, Any], bytes]:
    """The event that is stored for an item, and its text; `raw_payload` is the payload as sent."""
    meta: dict[str, Any] = {"schemaVersion": item.schema_version, **item.meta}
    if item.user_id is not None:
        meta["userId"] = item.user_id
    raw_meta = encode(meta)
    if item.type in TREE_ACTIONS:
        event = {"type": item.type, "payload": item.payload, "meta": meta}
        parts = (encode(item.type), raw_payload, raw_meta)
        return event, b'{"type":%s,"payload":%s,"meta":%s}' % parts
    payload = {"schema": item.type, "data": item.payload}
    return {"type": EVENT, "payload": payload, "meta": meta}, (
        b'{"type":"event","payload":{"schema":%s,"data":%s},"meta":%s}'
        % (encode(item.type), raw_payload, raw_meta)
    )


class _Event(Struct):
    type: str
    payload: Raw
    meta: dict[str, Any] = {}


class _Body(Struct):
    id: str
    client_id: str
    partitions: list[str]
    event: _Event


class _EventPayload(Struct):
    schema: str
    data: Raw
    meta: dict[str, Any] = {}


_decode_body = msgspec.json.Decoder(_Body).decode
_decode_payload = msgspec.json.Decoder(_EventPayload).decode


def delivered(body: bytes, committed_id: int, committed_at: int, project: str) -> bytes:
    """A stored event as a client of the dialect in that project is sent it (sync 21.3)."""
    stored = _decode_body(body)
    kind, payload, meta = _words(stored.event)
    version, user_id = meta.pop("schemaVersion", None), meta.pop("userId", None)
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        version = SCHEMA_VERSION
    if isinstance(meta.get("clientTs"), bool) or not isinstance(meta.get("clientTs"), int | float):
        meta["clientTs"] = committed_at
    head: dict[str, Any] = {"id": stored.id, "projectId": project}
    if isinstance(user_id, str) and user_id:
        head["userId"] = user_id
    within = _within(project, stored.partitions)
    head["partition"] = within[0]
    if len(within) > 1:
        head["partitions"] = within
    tail = {"meta": {**meta, "clientId": stored.client_id}, "serverTs": committed_at}
    return b'%s,"committedId":%d,"type":%s,"schemaVersion":%d,"payload":%s,%s' % (
        encode(head)[:-1],
        committed_id,
        encode(kind),
        version,
        payload,
        encode(tail)[1:],
    )


def _words(event: _Event) -> tuple[str, bytes, dict[str, Any]]:
    """Type, payload and meta of an event in the dialect."""
    if event.type != EVENT:
        return event.type, event.payload, dict(event.meta)
    inner = _decode_payload(event.payload)
    meta = {**inner.meta, **event.meta}
    if bytes(memoryview(inner.data)[:1]) != b"{" or inner.schema in (*TREE_ACTIONS, VERBATIM):
        return VERBATIM, event.payload, meta
    return inner.schema, inner.data, meta


def _within(project: str, partitions: Sequence[str]) -> list[str]:
    """The partitions of an event that are in a project, by the names they have there."""
    start = project + SEPARATOR
    return [name[len(start) :] for name in partitions if name.startswith(start) and name != start]
