"""Do the rows of sync agree with the log? Partitions, archived bodies, and remembered ids.

Every event keeps its body, in the log or in the archive, so all of these are computed again.
Snapshots and settings cannot be; they carry seals.
"""

from collections.abc import AsyncIterator
from typing import NamedTuple

import msgspec

from tidelog.base.data import strictjson
from tidelog.base.data.canonical import canonical
from tidelog.base.data.digest import body_digest
from tidelog.base.errors import InvalidJson, NotCanonicalizable
from tidelog.log.derived import Damage, Looked, pages, shown
from tidelog.store.engine import Store
from tidelog.sync.decide.rules import dedupe_row
from tidelog.sync.protocol.items import proofs_of

EVENTS = 50
"""Events of one read; each may have a megabyte."""


class _Stored(msgspec.Struct):
    """The part of a body that says where its event belongs."""

    partitions: list[str]
    event: msgspec.Raw


_decode = msgspec.json.Decoder(_Stored).decode


async def verify_sync(store: Store) -> AsyncIterator[Looked]:
    """A `Verifier`."""
    async for looked in _verify_events(store):
        yield looked
    async for looked in _verify_partitions(store):
        yield looked


class _Event(NamedTuple):
    """What `sync_check_events` returns of an entry."""

    stream_serial: int
    committed_id: int
    entity: str
    actor: str
    committed_at: int
    body: bytes | None
    archived: bytes | None
    body_digest: bytes


async def _verify_events(store: Store) -> AsyncIterator[Looked]:
    """Every event has its content, its id and its partitions."""
    width = len(_Event._fields)
    async for page in pages(store, "sync_check_events", (0,), EVENTS):
        damage: list[Damage] = []
        memberships: list[tuple[str, int]] = []
        for row in page:
            event, known = _Event._make(row[:width]), row[width:]
            if problem := _content_problem(event):
                damage.append(Damage("sync_events_archive", str(event.committed_id), problem))
                continue
            body = event.archived if event.body is None else event.body
            assert body is not None  # noqa: S101 - `_content_problem` looked for it
            stored = _read(body)
            proofs = None if stored is None else _proofs(stored)
            if stored is None or proofs is None:
                damage.append(Damage("log", str(event.committed_id), "is not an event of sync"))
                continue
            memberships += [(name, event.committed_id) for name in stored.partitions]
            expected = dedupe_row(
                event.entity, event.actor, event.committed_id, event.committed_at, proofs
            )
            if known != expected:
                problem = "is missing" if known[0] is None else "is not that of its event"
                damage.append(Damage("dedupe", shown(expected.scope, event.entity), problem))
        found = await store.rows_of("sync_check_in_partition", memberships)
        damage += [
            Damage("sync_event_partitions", shown(*membership), "is missing")
            for membership, rows in zip(memberships, found, strict=True)
            if not rows
        ]
        archived = sum(row[6] is not None for row in page)
        yield Looked("sync_events_archive", archived, damage)


def _content_problem(event: _Event) -> str | None:
    if event.body is not None:
        return None if event.archived is None else "is there, and the body in the log too"
    if event.archived is None:
        return "is missing, and the body in the log is pruned"
    if body_digest(event.archived, None) != event.body_digest:
        return "is not the body that was committed"
    return None


def _read(body: bytes) -> _Stored | None:
    """What is stored of an event; None if it is not an event."""
    try:
        return _decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _proofs(stored: _Stored) -> tuple[bytes, bytes] | None:
    """What an id was committed with; None if that event could not have been accepted."""
    try:
        event = canonical(strictjson.read(bytes(stored.event)))
    except (InvalidJson, NotCanonicalizable):
        return None
    return proofs_of(event, canonical(stored.partitions))


async def _verify_partitions(store: Store) -> AsyncIterator[Looked]:
    """Whatever is in a partition names that partition."""
    async for page in pages(store, "sync_check_partitions", ("", -(2**63)), EVENTS):
        damage = []
        for partition, committed_id, body in page:
            stored = None if body is None else _read(body)
            if stored is None or partition not in stored.partitions:
                key = shown(partition, committed_id)
                damage.append(Damage("sync_event_partitions", key, "its event is not in it"))
        yield Looked("sync_event_partitions", len(page), damage)
