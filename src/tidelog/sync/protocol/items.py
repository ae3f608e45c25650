"""A submitted item after the stateless steps of sync 8.2: what a session hands to a decision.

Nothing here looks at the log or at a partition's state, so it may happen anywhere and in any order.
A prepared item is data: it may be decided in another process than it was prepared in.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from typing import Any

from msgspec import Struct

from tidelog.base.data.canonical import canonical
from tidelog.base.errors import NotCanonicalizable
from tidelog.sync.protocol.fault import Fault
from tidelog.sync.protocol.partitions import (
    MAX_PARTITIONS,
    normal_name,
    normal_set,
    partition_faults,
)
from tidelog.sync.protocol.profiles import (
    CANONICAL,
    TREE_ACTIONS,
    Model,
    accepted_types,
    event_faults,
    number_faults,
    tree_faults,
)
from tidelog.sync.protocol.wire import stored_body

REMEMBERED_SETS = 512
REMEMBERED_CHARACTERS = 1024
"""Sets of partitions whose normal form is remembered, and the names of one of them together."""

_Normal = tuple[tuple[Fault, ...], tuple[str, ...], bytes]


class PreparedItem(Struct, frozen=True, array_like=True):
    """One submitted event whose stateless work is done."""

    id: str
    client_id: str
    partitions: tuple[str, ...]
    event: dict[str, Any]
    """As sent if it may have to be applied to states; else its type, and an empty payload."""
    body: bytes
    fingerprint: bytes
    event_hash: bytes
    refused: tuple[str, tuple[Fault, ...]] | None
    """Reason and faults of steps 1 to 3 of sync 8.2, which come before the id is looked at."""
    invalid: tuple[Fault, ...]
    """Faults of steps 5 and 6 that need no state; they count only for a new id (sync D25)."""
    check: bytes | None = None
    """`Claims.encoded`, if the application has rules about states, which need it; else None."""

    def needs_state(self) -> bool:
        """Whether a decision about it may look at tree states."""
        if self.refused or self.invalid:
            return False
        return self.check is not None or self.event["type"] in TREE_ACTIONS


def refused_item(
    item_id: str, client_id: str, event: dict[str, Any], refusal: tuple[str, tuple[Fault, ...]]
) -> PreparedItem:
    """An item that is rejected whatever is known of its id."""
    return PreparedItem(item_id, client_id, (), _without_content(event), b"", b"", b"", refusal, ())


def _without_content(event: dict[str, Any]) -> dict[str, Any]:
    return {"type": event["type"], "payload": {}} if "type" in event else {}


def proofs_of(canonical_event: bytes, canonical_partitions: bytes) -> tuple[bytes, bytes]:
    """The fingerprint of a whole item, and the hash of its event alone."""
    # RFC 8785 of {"event": ..., "partitions": ...}: two ASCII keys, already in their order.
    whole = b'{"event":%s,"partitions":%s}' % (canonical_event, canonical_partitions)
    return sha256(whole).digest(), sha256(canonical_event).digest()


def prepare(
    item: Mapping[str, Any],
    raw_event: bytes,
    *,
    client_id: str,
    profile: str,
    model: Model,
    allows: Callable[[str], bool],
    user_id: str | None = None,
) -> PreparedItem:
    """The stateless steps of sync 8.2 for an item that passed the invariants of sync 8.1.

    `user_id` is the only user it may name, if there is one.
    """
    event = item["event"]
    canonical_event: bytes | None = None
    # Integers beyond 2^53 are valid JSON and have no canonical form.
    with suppress(NotCanonicalizable):
        canonical_event = canonical(event)
    return prepare_read(
        item["id"],
        item["partitions"],
        event,
        raw_event,
        canonical_event,
        Preparation(client_id, user_id, profile, model, allows),
    )


class Preparation(Struct, frozen=True):
    """What all items of a request are prepared by."""

    client_id: str
    user_id: str | None
    profile: str
    model: Model
    allows: Callable[[str], bool]


def prepare_read(
    item_id: str,
    names: Sequence[str],
    event: dict[str, Any],
    raw_event: bytes,
    canonical_event: bytes | None,
    by: Preparation,
) -> PreparedItem:
    """As `prepare`; `canonical_event` is None for an event that has no such form."""
    client_id = by.client_id
    faults, partitions, canonical_partitions = _normal(names)
    refused = ("validation_failed", faults) if faults else None
    if refused is None:
        refused = _denial(names, partitions, by.allows)
    if refused is None and by.user_id is not None:
        refused = _foreign_user(event, by.user_id)
    if refused is None and canonical_event is None:
        refused = "validation_failed", tuple(number_faults(event))
    if refused is not None or canonical_event is None:
        assert refused is not None  # noqa: S101 - for mypy
        return refused_item(item_id, client_id, event, refused)
    fingerprint, event_hash = proofs_of(canonical_event, canonical_partitions)
    invalid = _invalid(event, by.profile, by.model)
    is_applied = not invalid and event["type"] in TREE_ACTIONS
    return PreparedItem(
        item_id,
        client_id,
        partitions,
        event if is_applied else _without_content(event),
        stored_body(item_id, client_id, canonical_partitions, raw_event),
        fingerprint,
        event_hash,
        None,
        tuple(invalid),
    )


def _normal(names: Sequence[str]) -> _Normal:
    """Step 1 of sync 8.2: what is wrong with partitions, or their normal set and its RFC 8785.

    A client names the same again and again, so they are remembered; but not a megabyte of them.
    """
    if len(names) <= MAX_PARTITIONS and len("".join(names)) <= REMEMBERED_CHARACTERS:
        return _remembered(tuple(names))
    return _normalized(names)


@lru_cache(REMEMBERED_SETS)
def _remembered(names: tuple[str, ...]) -> _Normal:
    return _normalized(names)


def _normalized(names: Sequence[str]) -> _Normal:
    if faults := partition_faults(names):
        return tuple(faults), (), b""
    partitions = normal_set(names)
    return (), partitions, canonical(partitions)


def _denial(
    names: Sequence[str], partitions: Sequence[str], allows: Callable[[str], bool]
) -> tuple[str, tuple[Fault, ...]] | None:
    """Step 2 of sync 8.2; `partitions` is the normal set of the names."""
    denied = [name for name in partitions if not allows(name)]
    if not denied:
        return None
    faults = [
        Fault(f"partitions.{index}", "not allowed")
        for index, name in enumerate(names)
        if normal_name(name) in denied
    ]
    return "forbidden", tuple(sorted(faults))


def _foreign_user(event: Mapping[str, Any], user_id: str) -> tuple[str, tuple[Fault, ...]] | None:
    """Sync D77: who an event says it is by, where clients of the other dialect are told it."""
    named = {"event.meta": event.get("meta"), "event.payload.meta": event["payload"].get("meta")}
    faults = tuple(
        Fault(f"{field}.userId", "must be the authenticated user")
        for field, meta in named.items()
        if isinstance(meta, dict) and meta.get("userId", user_id) != user_id
    )
    return ("forbidden", faults) if faults else None


def _invalid(event: dict[str, Any], profile: str, model: Model) -> list[Fault]:
    if event["type"] not in accepted_types(profile):
        return [Fault("event.type", f"not accepted by profile {profile}")]
    return event_faults(model, event) if profile == CANONICAL else tree_faults(model, event)
