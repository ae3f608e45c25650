"""From a draft to an entry: what a decision wants to append gets its position in the log."""

from typing import NamedTuple

from tidelog.base.data.digest import body_digest, entry_digest
from tidelog.store.rows import Entry


class Draft(NamedTuple):
    """What a decision appends; the columns of `Entry` that do not depend on its position."""

    stream: str
    surface: str
    kind: str
    entity: str
    ref: str
    actor: str
    body: bytes
    data: bytes | None = None


def digest_after(previous: bytes, entry: Entry) -> bytes:
    """The digest that an entry must have if it follows the one whose digest is `previous`."""
    return entry_digest(
        previous,
        entry.committed_id,
        entry.stream,
        entry.stream_serial,
        entry.surface,
        entry.kind,
        entry.entity,
        entry.ref,
        entry.actor,
        entry.committed_at,
        entry.body_digest,
    )


def to_entry(
    draft: Draft, committed_id: int, stream_serial: int, committed_at: int, previous: bytes
) -> Entry:
    """The entry that `draft` becomes after the entry whose digest is `previous`."""
    stream, surface, kind, entity, ref, actor, body, data = draft
    content = body_digest(body, data)
    return Entry(
        committed_id,
        stream,
        stream_serial,
        surface,
        kind,
        entity,
        ref,
        actor,
        committed_at,
        body,
        data,
        content,
        entry_digest(
            previous,
            committed_id,
            stream,
            stream_serial,
            surface,
            kind,
            entity,
            ref,
            actor,
            committed_at,
            content,
        ),
    )
