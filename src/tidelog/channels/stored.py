"""Messages, their versions and open streams as they are stored: reading them, for either half.

Everything here reads what is committed, and nothing is cached.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec import UnsetType

from tidelog.channels.protocol.names import STREAM_PREFIX
from tidelog.channels.protocol.version import Version, decode_version, fold, stored_version
from tidelog.store.engine import Store
from tidelog.store.rows import Entry, Row

VERSIONS_PER_READ = 1000

PAGE_STREAMS = 256
"""Open streams read at once, at most."""

AFTER_ALL = STREAM_PREFIX[:-1] + chr(ord("/") + 1)
"""Greater than the name of every channel's stream."""

OpenStreamKey = tuple[str, int]
"""Stream and message: the order in which open streams are read."""


class OpenStream(NamedTuple):
    """A message that is being streamed."""

    stream: str
    message: int
    """`committed_id` of its create."""
    published_at: int
    written_at: int
    """When it got its last version."""


def version_of(entry: Entry) -> Version | None:
    """The version that an entry is; None if its body was emptied."""
    if entry.body is None:
        return None
    return stored_version(
        entry.kind,
        entry.committed_id,
        entry.committed_at,
        entry.stream_serial,
        entry.entity,
        entry.body,
    )


def versions_of(rows: Iterable[Row]) -> list[Version]:
    """The versions that rows of a query are."""
    return [stored_version(*row) for row in rows]


async def read_message(store: Store, stream: str, number: int) -> tuple[Version, int, int] | None:
    """A message as stored and committed, folded; how many versions and bytes were unfolded.

    The stored state may move while its successors are read; then this begins again.
    """
    while True:
        found = await store.rows("channels_message", (stream, number))
        if not found:
            return None
        [(through, state)] = found
        later = await read_versions(store, number, through)
        again = await store.rows("channels_message", (stream, number))
        if again and again[0][0] == through:
            break
    base = None if state is None else decode_version(state)
    latest = fold(base, later)
    if latest is None:
        return None
    size = sum(len(bytes(v.data)) for v in later if not isinstance(v.data, UnsetType))
    return latest, len(later), size


async def read_versions(
    store: Store, number: int, after: int, through: int = 2**62
) -> Sequence[Version]:
    """The versions of a message after `after`, oldest first."""
    versions: list[Version] = []
    while True:
        page = versions_of(
            await store.rows("channels_versions_after", (number, after, through, VERSIONS_PER_READ))
        )
        versions += page
        if len(page) < VERSIONS_PER_READ:
            return versions
        after = page[-1].committed_id


async def read_data(store: Store, version: Version) -> bytes | None:
    """All the data after an append, or after a version that keeps it, as JSON.

    None if the version is gone by now. The base is read last: versions that went meanwhile are in
    it, and those after it were all there to be read.
    """
    number = int(version.message_serial[-20:])
    later = await read_versions(store, number, version.data_of - 1, version.committed_id)
    base = None
    if not (later and later[0].says_all and len(later) < VERSIONS_PER_READ):
        # What it refers to was purged, or it does not say, or the read was none of one moment.
        found = await store.rows("channels_base", (number,))
        if not found:
            return None
        base = None if found[0][0] is None else decode_version(found[0][0])
        after = 0 if base is None else base.committed_id
        later = [each for each in later if each.committed_id > after]
    folded = fold(base, later)
    if folded is None or folded.committed_id != version.committed_id:
        return None
    return None if isinstance(folded.data, UnsetType) else bytes(folded.data)


async def open_streams(
    store: Store, after: OpenStreamKey, last: str, until: int, limit: int
) -> list[OpenStream]:
    """Messages being streamed after one of them, up to the channel `last`, silent since `until`."""
    limit = min(limit, PAGE_STREAMS)
    rows = await store.rows("channels_open_streams", (*after, last, until, limit))
    return [OpenStream._make(row) for row in rows]


async def has_app(store: Store, app_id: str) -> bool:
    """Whether anything was ever stored of an app."""
    return bool(await store.rows("channels_app", (f"{STREAM_PREFIX}{app_id}/",)))
