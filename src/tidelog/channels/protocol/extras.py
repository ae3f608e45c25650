"""`extras`: the publisher's own, of which the server reads a few reserved members (channels 3)."""

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec
from msgspec import Raw, Struct

from tidelog.channels.protocol import fault

TRANSPORT_STATUSES = frozenset({"streaming", "complete", "cancelled"})
TERMINAL_STATUSES = frozenset({"complete", "cancelled"})

MAX_KEY_BYTES = 128
"""Of an idempotency key, wherever it stands."""

T = TypeVar("T")

_KEY_NAMES = ("idempotencyKey", "idempotency_key")
"""The second is how the Python SDK spells it."""

_SPACE = re.compile(rb"[ \t\r\n]")
_SPACE_OR_STRING = re.compile(rb'("[^"\\]*(?:\\.[^"\\]*)*")|[ \t\r\n]+', re.DOTALL)


class Extras(Struct, frozen=True):
    """What the server reads of `extras`."""

    text: bytes | None = None
    """The object as it is stored and sent, without an idempotency key; None if there is none."""
    idempotency_key: str | None = None
    transport: Mapping[str, str] = {}
    """`ai.transport`."""
    codec: Mapping[str, str] = {}
    """`ai.codec`."""
    is_ephemeral: bool = False

    @property
    def transport_status(self) -> str | None:
        """`ai.transport.status`."""
        return self.transport.get("status")

    @property
    def codec_status(self) -> str | None:
        """`ai.codec.status`."""
        return self.codec.get("status")

    @property
    def ends_stream(self) -> bool:
        """Whether they say that nothing will be appended any more, to transport or codec."""
        return self.transport_status in TERMINAL_STATUSES or self.codec_status in TERMINAL_STATUSES


class _Ai(Struct):
    transport: dict[str, str] | None = None
    codec: dict[str, str] | None = None


class _Whole(Struct):
    ai: _Ai | None = None


_NONE = Extras()
_encode = msgspec.json.Encoder().encode
_text = msgspec.json.Decoder(str).decode
_flag = msgspec.json.Decoder(bool).decode
_headers = msgspec.json.Decoder(dict[str, str | int | float | bool]).decode
_ai = msgspec.json.Decoder(_Ai).decode
_whole = msgspec.json.Decoder(_Whole).decode
_members = msgspec.json.Decoder(dict[str, Raw]).decode


def compact(text: bytes) -> bytes:
    """JSON text without white space between its tokens."""
    if _SPACE.search(text) is None:
        return text
    return _SPACE_OR_STRING.sub(rb"\1", text)


def read_extras(members: Mapping[str, Raw] | None, *, is_run: bool = False) -> Extras:
    """The reserved members of an `extras` object, checked; whatever else it holds is kept.

    `is_run`: of an event of a run, whose faults have codes of their own.

    Raises:
        Fault: A reserved member is not what it must be.
    """
    if members is None:
        return _NONE
    _member(_headers, members, "headers", "a flat object of strings, numbers and booleans")
    _member(_flag, members, "echo", "true or false")
    is_ephemeral = _member(_flag, members, "ephemeral", "true or false") or False
    wanted = "an object whose transport and codec are objects of strings"
    refuse = fault.invalid_transport_header if is_run else fault.invalid_input
    ai = _member(_ai, members, "ai", wanted, refuse)
    keys = [_member(_text, members, name, "a string") for name in _KEY_NAMES]
    key = keys[0] if keys[0] is not None else keys[1]
    if key is not None and not 1 <= len(key.encode()) <= MAX_KEY_BYTES:
        raise fault.invalid_input(f"extras.idempotencyKey must be 1..={MAX_KEY_BYTES} bytes")
    kept = {
        name: Raw(compact(bytes(value)))
        for name, value in members.items()
        if name not in _KEY_NAMES and not (name == "headers" and bytes(value) == b"null")
    }
    return Extras(
        text=_encode(kept),
        idempotency_key=key,
        transport=ai.transport or {} if ai else {},
        codec=ai.codec or {} if ai else {},
        is_ephemeral=is_ephemeral,
    )


def with_transport(extras: bytes | Raw | None, **changes: str | None) -> bytes:
    """Extras with some members of their `ai.transport` changed, all else as it was.

    An underscore in the name of a change stands for the hyphen of the member's name; None takes the
    member away.
    """
    whole = _members(extras or b"{}")
    ai = _members(_or_empty(whole.get("ai")))
    transport = _members(_or_empty(ai.get("transport")))
    for name, text in changes.items():
        key = name.replace("_", "-")
        if text is None:
            transport.pop(key, None)
        else:
            transport[key] = Raw(_encode(text))
    ai["transport"] = Raw(_encode(transport))
    whole["ai"] = Raw(_encode(ai))
    return _encode(whole)


def _or_empty(member: Raw | None) -> bytes | Raw:
    """A member that is an object; null counts as absent."""
    return b"{}" if member is None or bytes(member) == b"null" else member


def transport_of(extras: bytes | Raw) -> Mapping[str, str]:
    """`ai.transport` of extras that were accepted, empty if they have none."""
    ai = _whole(extras).ai
    return {} if ai is None or ai.transport is None else ai.transport


def _member(
    decode: Callable[[bytes | Raw], T],
    members: Mapping[str, Raw],
    name: str,
    wanted: str,
    refuse: Callable[[str], fault.Fault] = fault.invalid_input,
) -> T | None:
    """A reserved member of extras; null counts as absent."""
    raw = members.get(name)
    if raw is None or bytes(raw) == b"null":
        return None
    try:
        return decode(raw)
    except msgspec.DecodeError:
        raise refuse(f"extras.{name} must be {wanted}") from None
