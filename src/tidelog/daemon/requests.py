"""From the JSON of a send, a post or a patch to an envelope (mesh 4.1, steps 1 and 2; 11.2)."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn

from tidelog.mesh.fingerprint import (
    KINDS,
    Envelope,
    RequestRefused,
    make_envelope,
    read_envelope,
    read_object,
)

Resolve = Callable[[str], Awaitable[str | None]]
"""From a member's name to its public key."""

PATCH_MEMBERS = frozenset(
    {
        *("to", "destination_kind", "destination_ref", "message", "priority"),
        *("meta", "mentions", "replyToId", "reply_to_id"),
    }
)
"""What a patch may replace; another member is a mistake that would do nothing."""

_KEY_LENGTH = 64


async def read_send(fields: Mapping[str, Any], max_bytes: int, resolve: Resolve) -> Envelope:
    """The envelope of `POST /v1/send`; `RequestRefused` if it cannot be sent."""
    body = _message(fields.get("message"), max_bytes)
    kind, ref = await _destination(fields, resolve)
    return make_envelope(
        destination_kind=kind,
        destination_ref=ref,
        body=body,
        reply_to_id=_reply_to(fields),
        priority=fields.get("priority"),
        meta=fields.get("meta"),
        mentions=fields.get("mentions"),
    )


async def read_post(fields: Mapping[str, Any], max_bytes: int, resolve: Resolve) -> Envelope:
    """The envelope of `POST /v1/topic/post`, which is a send to a topic."""
    if not isinstance(fields.get("topic"), str):
        _refuse("schema_invalid", "topic is missing or no text")
    others = {
        name: value
        for name, value in fields.items()
        if name not in ("to", "destination_kind", "destination_ref")
    }
    topic = {"destination_kind": "topic", "destination_ref": fields["topic"]}
    return await read_send(others | topic, max_bytes, resolve)


async def read_patch(payload: bytes, patch: object, max_bytes: int, resolve: Resolve) -> Envelope:
    """An outbox row's envelope with the members of a send request that `patch` gives replaced."""
    if not isinstance(patch, dict) or not patch or not patch.keys() <= PATCH_MEMBERS:
        _refuse("schema_invalid", f"a patch is an object of {', '.join(sorted(PATCH_MEMBERS))}")
    old = read_envelope(read_object(payload))
    kind, ref = old.destination_kind, old.destination_ref
    if patch.keys() & {"to", "destination_kind", "destination_ref"}:
        kind, ref = await _destination(patch, resolve)
    is_reply_patched = patch.keys() & {"replyToId", "reply_to_id"}
    meta = read_object(old.meta) if old.meta else None
    if "mentions" in patch and "meta" not in patch and meta is not None:
        meta.pop("mentions", None)
    return make_envelope(
        destination_kind=kind,
        destination_ref=ref,
        body=_message(patch["message"], max_bytes) if "message" in patch else old.body,
        reply_to_id=_reply_to(patch) if is_reply_patched else old.reply_to_id,
        priority=patch.get("priority", old.priority),
        meta=patch.get("meta", meta),
        mentions=patch.get("mentions"),
    )


def _message(message: object, max_bytes: int) -> bytes:
    if not isinstance(message, str):
        _refuse("schema_invalid", "message is missing or no text")
    body = message.encode()
    if len(body) > max_bytes:
        raise RequestRefused(
            413, "payload_too_large", f"the message has {len(body)} bytes, {max_bytes} are allowed"
        )
    return body


def _reply_to(fields: Mapping[str, Any]) -> object:
    """`replyToId` and `reply_to_id` are one member with two names."""
    given = [fields[name] for name in ("replyToId", "reply_to_id") if fields.get(name) is not None]
    if len(given) == 2 and given[0] != given[1]:
        _refuse("schema_invalid", "replyToId and reply_to_id differ")
    return given[0] if given else None


async def _destination(fields: Mapping[str, Any], resolve: Resolve) -> tuple[Any, Any]:
    """Kind and reference; a name of a member has become its key."""
    to, kind, ref = (fields.get(name) for name in ("to", "destination_kind", "destination_ref"))
    if to is not None:
        if kind is not None or ref is not None or not isinstance(to, str):
            _refuse("schema_invalid", "give either to, as text, or destination_kind and _ref")
        kind, ref = _parse_to(to)
    if kind == "dm" and isinstance(ref, str) and "\0" not in ref:
        return kind, await _member_key(ref, resolve)
    return kind, ref


def _parse_to(to: str) -> tuple[str, str]:
    kind, colon, ref = to.partition(":")
    if colon and kind in KINDS:
        return kind, ref
    return "dm", to


async def _member_key(name: str, resolve: Resolve) -> str:
    lowered = name.lower()
    if len(lowered) == _KEY_LENGTH and all(digit in "0123456789abcdef" for digit in lowered):
        return lowered
    found = await resolve(name) if name else None
    if found is None:
        raise RequestRefused(
            404, "destination_unresolvable", "no member of that name is known; give the public key"
        )
    return found


def _refuse(code: str, text: str) -> NoReturn:
    raise RequestRefused(400, code, text)
