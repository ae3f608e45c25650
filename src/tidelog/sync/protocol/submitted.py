"""A submit in the form that almost all have, read in one go.

`session` reads messages as plain JSON and checks them in the order that the protocol prescribes, so
that each fault has its own error. A submit without a fault needs no order: here it is read into
structs, and each event once, together with its canonical form. Whatever is unusual about it (a
fault, an unknown member, a key that appears twice) makes this say nothing, and it is read the other
way. So this may only ever be believed if it says yes.
"""

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from tidelog.base.data import strictjson
from tidelog.base.data.canonical import read_canonical
from tidelog.base.errors import NotCanonicalizable
from tidelog.sync.protocol.items import Preparation, PreparedItem, prepare_read
from tidelog.sync.protocol.wire import MAX_ID_BYTES, SUBMIT, SUPPORTED_VERSIONS, encode

MAX_EVENT_DEPTH = strictjson.MAX_DEPTH - 4
"""Of an event: it is in an item, which is in the events of the payload of a message."""


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


def prepared_items(
    submit: PlainSubmit, frame: bytes, by: Preparation, max_batch_size: int
) -> list[PreparedItem] | None:
    """The items of a submit after `prepare`, if it has no fault; None if there may be one."""
    client_id, payload = by.client_id, submit.payload
    drafts = payload.events
    if (
        not submit.msg_id
        or submit.protocol_version not in SUPPORTED_VERSIONS
        or not 0 < len(drafts) <= max_batch_size
        or payload.client_id not in (UNSET, client_id)
        or not strictjson.has_every_key(encode(submit), frame)  # and no unknown one
    ):
        return None
    items = []
    for draft in drafts:
        item_id, raw = draft.id, bytes(draft.event)
        try:
            event, canonical = read_canonical(raw)
        except (ValueError, RecursionError, NotCanonicalizable):
            return None
        if (
            not strictjson.has_every_key(encode(event), raw)
            or strictjson.is_deeper(raw, MAX_EVENT_DEPTH)
            or not 0 < len(item_id) <= MAX_ID_BYTES
            or not (item_id.isascii() or len(item_id.encode()) <= MAX_ID_BYTES)
            or draft.client_id not in (UNSET, client_id)
            or type(event) is not dict
            or type(event.get("type")) is not str
            or type(event.get("payload")) is not dict
        ):
            return None
        items.append(prepare_read(item_id, draft.partitions, event, raw, canonical, by))
    if len(items) > 1 and len({item.id for item in items}) < len(items):
        return None
    return items
