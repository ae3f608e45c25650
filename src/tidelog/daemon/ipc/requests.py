"""From the JSON of a send, a post or a patch to an envelope (mesh 3.2, 3.4)."""

from collections.abc import Mapping
from typing import Any, Final, NoReturn

from msgspec import Struct, structs

from tidelog.mesh.protocol.fingerprint import (
    KINDS,
    PUBLIC_KEY,
    RequestRefused,
    SendEnvelope,
    make_envelope,
    read_envelope,
    read_object,
)

PATCH_MEMBERS = frozenset(
    {
        *("to", "destination_kind", "destination_ref", "message", "priority"),
        *("meta", "mentions", "replyToId", "reply_to_id"),
    }
)
"""What a patch may replace; another member is a mistake that would do nothing."""

_NOBODY: Final = "0" * 64
"""A key for the checks of an envelope whose own is not known yet."""


class Draft(Struct, frozen=True, kw_only=True):
    """A send that is as it should be, except that its destination may still be a name."""

    to: str
    """The destination as the caller wrote it."""
    name: str | None
    """The name of the member it goes to; None where it is known whither it goes."""
    unnamed: SendEnvelope
    """The envelope; with a name, nobody's yet."""

    def addressed(self, destination_ref: str) -> SendEnvelope:
        """The envelope to the member that has the name."""
        return structs.replace(self.unnamed, destination_ref=destination_ref)


def read_send(fields: Mapping[str, Any], max_bytes: int) -> Draft:
    """What `POST /v1/send` asks for; `RequestRefused` if it cannot be sent."""
    body = _message(fields.get("message"), max_bytes)
    to, kind, ref = _destination(fields)
    name = _name_in(kind, ref)
    envelope = make_envelope(
        destination_kind=kind,
        destination_ref=ref if name is None else _NOBODY,
        body=body,
        reply_to_id=_reply_to(fields),
        priority=fields.get("priority"),
        meta=fields.get("meta"),
        mentions=fields.get("mentions"),
    )
    return Draft(to=to, name=name, unnamed=envelope)


def read_post(fields: Mapping[str, Any], max_bytes: int) -> Draft:
    """What `POST /v1/topic/post` asks for, which is a send to a topic."""
    if not isinstance(fields.get("topic"), str):
        _refuse("schema_invalid", "topic is missing or not text")
    others = {
        name: value
        for name, value in fields.items()
        if name not in ("to", "destination_kind", "destination_ref")
    }
    topic = {"destination_kind": "topic", "destination_ref": fields["topic"]}
    return read_send(others | topic, max_bytes)


def read_patch(payload: bytes, patch: object, max_bytes: int) -> tuple[Draft, bool]:
    """An outbox row's envelope with the members of a send request that `patch` gives replaced.

    Returns:
        The new send, and whether it goes elsewhere than the old one.
    """
    if not isinstance(patch, dict) or not patch or not patch.keys() <= PATCH_MEMBERS:
        members = ", ".join(sorted(PATCH_MEMBERS))
        _refuse("schema_invalid", f"a patch must be an object with some of {members}")
    old = read_envelope(read_object(payload))
    is_redirected = bool(patch.keys() & {"to", "destination_kind", "destination_ref"})
    destination = {"destination_kind": old.destination_kind, "destination_ref": old.destination_ref}
    to, kind, ref = _destination(patch if is_redirected else destination)
    name = _name_in(kind, ref)
    is_reply_patched = patch.keys() & {"replyToId", "reply_to_id"}
    meta = read_object(old.meta) if old.meta else None
    if "mentions" in patch and "meta" not in patch and meta is not None:
        meta.pop("mentions", None)
    envelope = make_envelope(
        destination_kind=kind,
        destination_ref=ref if name is None else _NOBODY,
        body=_message(patch["message"], max_bytes) if "message" in patch else old.body,
        reply_to_id=_reply_to(patch) if is_reply_patched else old.reply_to_id,
        priority=patch.get("priority", old.priority),
        meta=patch.get("meta", meta),
        mentions=patch.get("mentions"),
    )
    return Draft(to=to, name=name, unnamed=envelope), is_redirected


def read_to(to: str) -> tuple[str, str]:
    """Kind and reference that a `to` means; two that mean the same may be written differently."""
    kind, colon, ref = to.partition(":")
    if not colon or kind not in KINDS:
        kind, ref = "dm", to
    is_key = kind == "dm" and PUBLIC_KEY.fullmatch(ref.lower()) is not None
    return kind, ref.lower() if is_key else ref


def _message(message: object, max_bytes: int) -> bytes:
    if not isinstance(message, str):
        _refuse("schema_invalid", "message is missing or not text")
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


def _destination(fields: Mapping[str, Any]) -> tuple[str, Any, Any]:
    """The destination as it was written, and its kind and reference."""
    to, kind, ref = (fields.get(name) for name in ("to", "destination_kind", "destination_ref"))
    if to is None:
        to = f"{kind}:{ref}"
        is_readable = isinstance(ref, str) and kind in KINDS
        return (to, *read_to(to)) if is_readable else (to, kind, ref)
    if kind is not None or ref is not None or not isinstance(to, str):
        _refuse("schema_invalid", "give either to, as text, or destination_kind and _ref")
    return (to, *read_to(to))


def _name_in(kind: object, ref: object) -> str | None:
    """The name of a member, where that is what a destination says."""
    if kind != "dm" or not isinstance(ref, str) or "\0" in ref or PUBLIC_KEY.fullmatch(ref):
        return None
    return ref


def _refuse(code: str, text: str) -> NoReturn:
    raise RequestRefused(400, code, text)
