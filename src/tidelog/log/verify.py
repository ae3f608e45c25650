"""Walking the digest chain: is every entry what was committed, and are all of them there?"""

from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from tidelog.base.data.digest import body_digest
from tidelog.base.errors import StoreError
from tidelog.log.draft import digest_after
from tidelog.store.engine import GENESIS_DIGEST, PAGE_ENTRIES, Store
from tidelog.store.rows import Entry, Head

_TEXTS = ("stream", "surface", "kind", "entity", "ref", "actor")
_NUMBERS = ("committed_id", "stream_serial", "committed_at")
_CONTENT = ("body", "data")
_DIGESTS = ("body_digest", "digest")

REMEMBERED_STREAMS = 50_000
"""Streams whose last serial is kept in memory; of another one the entry before is looked up."""

_BEFORE_ALL = -(2**63)
"""Where reading begins: an entry below position 1 was added."""


class Finding(NamedTuple):
    """The first position at which the log is not what was committed."""

    committed_id: int
    problem: str


class Progress(NamedTuple):
    """How far verification has come; `finding` ends it."""

    verified: int
    """Entries found sound so far, from the start of the log."""
    head: int
    pruned: int
    """How many of them no longer have their content."""
    finding: Finding | None = None


async def verify(store: Store) -> AsyncIterator[Progress]:
    """Check every entry up to the head as it is now; yields after each page, and at the end.

    Finds any changed column, any removed, added or moved entry, and a cut-off end: the head row
    holds the last digest. Content that was pruned is vouched for by its digest alone.
    """
    try:
        head = await store.head()
    except StoreError as error:
        yield Progress(0, 0, 0, Finding(1, f"unreadable: {error}"))
        return
    previous, at, pruned, dated = GENESIS_DIGEST, 0, 0, 0
    serials = _Serials(store)
    limit = PAGE_ENTRIES
    while at < head.committed_id or at == 0:
        try:
            page = await store.entries(at or _BEFORE_ALL, through=head.committed_id, limit=limit)
        except StoreError as error:
            if limit > 1:  # which entry of the page is it?
                limit = 1
                continue
            yield Progress(at, head.committed_id, pruned, Finding(at + 1, f"unreadable: {error}"))
            return
        limit = min(limit * 2, PAGE_ENTRIES)
        if not page:
            break
        try:
            await serials.expect(page)
        except StoreError as error:
            yield Progress(at, head.committed_id, pruned, Finding(at + 1, f"unreadable: {error}"))
            return
        for entry in page:
            problem = _problem(entry, at + 1, serials.last(entry.stream) + 1, previous)
            if problem:
                yield Progress(at, head.committed_id, pruned, Finding(at + 1, problem))
                return
            at, previous, dated = entry.committed_id, entry.digest, entry.committed_at
            serials.note(entry)
            pruned += entry.body is None
        yield Progress(at, head.committed_id, pruned)
    problem = await _end_problem(store, head, at, previous, dated)
    yield Progress(at, head.committed_id, pruned, Finding(at + 1, problem) if problem else None)


class _Serials:
    """The last serials of streams, of however many there are."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._last: OrderedDict[str, int] = OrderedDict()
        """The least recently seen first."""

    async def expect(self, page: Sequence[Entry]) -> None:
        """Make sure that the streams of a page are known: from before, or from the store."""
        while len(self._last) > REMEMBERED_STREAMS:
            self._last.popitem(last=False)
        firsts = {entry.stream: entry for entry in reversed(page)}
        asked = [
            (stream, entry.stream_serial - 1, entry.committed_id)
            for stream, entry in firsts.items()
            if stream not in self._last and _is_placed(entry) and entry.stream_serial > 1
        ]
        found = await self._store.rows_of("stream_serial_before", asked)
        for (stream, _, _), rows in zip(asked, found, strict=True):
            if rows:
                self._last[stream] = rows[0][0]

    def last(self, stream: str) -> int:
        """The serial of its last entry so far, 0 if there is none."""
        return self._last.get(stream, 0)

    def note(self, entry: Entry) -> None:
        """This entry comes next in its stream."""
        self._last[entry.stream] = entry.stream_serial
        self._last.move_to_end(entry.stream)


def _is_placed(entry: Entry) -> bool:
    """Whether the store can be asked for what is before it; damage may be of another type."""
    stream: object = entry.stream
    serial: object = entry.stream_serial
    return isinstance(stream, str) and isinstance(serial, int)


def _problem(entry: Entry, committed_id: int, serial: int, previous: bytes) -> str | None:
    if entry.committed_id != committed_id:
        return f"missing: the next entry found is {entry.committed_id}"
    kinds = ((_TEXTS, str), (_NUMBERS, int), (_CONTENT, bytes | None), (_DIGESTS, bytes))
    for names, kind in kinds:
        for name in names:
            if not isinstance(getattr(entry, name), kind):
                return f"{name} is of another type than was committed"
    if entry.stream_serial != serial:
        return f"serial {entry.stream_serial} of stream {entry.stream!r}, expected {serial}"
    if entry.body is None:
        if entry.data is not None:
            return "data without a body"
    elif body_digest(entry.body, entry.data) != entry.body_digest:
        return "the content is not what was committed"
    if digest_after(previous, entry) != entry.digest:
        return "the digest chain breaks here"
    return None


async def _end_problem(
    store: Store, head: Head, at: int, previous: bytes, dated: int
) -> str | None:
    if at < head.committed_id:
        return f"missing: the log ends at {at}, its head row says {head.committed_id}"
    if previous != head.digest:
        return "the head row's digest is not that of the last entry"
    if head.committed_at < dated:
        return "the head row is dated before the last entry"
    later = await store.entries(head.committed_id, limit=1)
    if later and (await store.head()).committed_id < later[0].committed_id:
        return f"entry {later[0].committed_id} lies beyond the head row"
    return None
