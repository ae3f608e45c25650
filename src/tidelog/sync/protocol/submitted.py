"""A submit in the form that almost all have, read in one go.

`session` reads messages as plain JSON and checks them in the order that the protocol prescribes, so
that each fault has its own error. A submit without a fault needs no order: here it is read into
structs, and each event once, together with its canonical form. Whatever is unusual about it (a
fault, an unknown member, a key that appears twice) makes this say nothing, and it is read the other
way. So this may only ever be believed if it says yes.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from tidelog.base.data import strictjson
from tidelog.base.data.canonical import read_canonical
from tidelog.base.errors import NotCanonicalizable
from tidelog.sync.protocol.wire import MAX_ID_BYTES, SUBMIT, SUPPORTED_VERSIONS, encode


class _Item(Struct):
    id: str
    partitions: list[str]
    event: Raw
    client_id: str | UnsetType = UNSET


class _Payload(Struct):
    events: list[_Item]
    client_id: str | UnsetType = UNSET
    stop_at_rejection: bool | UnsetType = UNSET


class PlainSubmit(Struct):
    """A message whose members have the right types; its events are not looked at."""

    type: str
    msg_id: str
    timestamp: int | float
    protocol_version: str
    payload: _Payload

    @property
    def events(self) -> list[Raw]:
        """The events as sent."""
        return [item.event for item in self.payload.events]

    @property
    def stops_at_rejection(self) -> bool:
        """Whether what comes after a rejected item is not processed (sync D68)."""
        return self.payload.stop_at_rejection is True


class ReadItem(NamedTuple):
    """An item that has passed the invariants of sync 8.1."""

    id: str
    partitions: Sequence[str]
    event: dict[str, Any]
    raw_event: bytes
    canonical_event: bytes


_decode = msgspec.json.Decoder(PlainSubmit).decode


def plain_submit(frame: bytes) -> PlainSubmit | None:
    """A frame as a submit; None if it is none, or has to be read member by member."""
    if b'"submit_events"' not in frame:
        return None
    try:
        message = _decode(frame)
    except (ValueError, RecursionError):
        return None
    return message if message.type == SUBMIT else None


def read_items(
    submit: PlainSubmit, frame: bytes, client_id: str, max_batch_size: int
) -> list[ReadItem] | None:
    """The items of a submit of this client without any fault; None if there may be one."""
    payload = submit.payload
    drafts = payload.events
    if (
        not submit.msg_id
        or submit.protocol_version not in SUPPORTED_VERSIONS
        or not 0 < len(drafts) <= max_batch_size
        or payload.client_id not in (UNSET, client_id)
        or strictjson.spells_colons(frame)
        or strictjson.is_deeper(frame, strictjson.MAX_DEPTH)
    ):
        return None
    # As in `strictjson`: a key that appears twice, or is unknown, takes a colon with it.
    if encode(submit).count(b":") != frame.count(b":"):
        return None
    items = []
    for draft in drafts:
        item_id, raw = draft.id, bytes(draft.event)
        try:
            event, canonical = read_canonical(raw)
        except (ValueError, RecursionError, NotCanonicalizable):
            return None
        if (
            raw.count(b":") != canonical.count(b":")
            or not 0 < len(item_id) <= MAX_ID_BYTES
            or not (item_id.isascii() or len(item_id.encode()) <= MAX_ID_BYTES)
            or draft.client_id not in (UNSET, client_id)
            or type(event) is not dict
            or type(event.get("type")) is not str
            or type(event.get("payload")) is not dict
        ):
            return None
        items.append(ReadItem(item_id, draft.partitions, event, raw, canonical))
    if len(items) > 1 and len({item.id for item in items}) < len(items):
        return None
    return items
