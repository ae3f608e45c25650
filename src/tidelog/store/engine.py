"""The narrow interface that both engines implement."""

import secrets
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from tidelog.base.data.incarnation import Incarnation
from tidelog.store.read_gate import ReadGate
from tidelog.store.rows import (
    Announcement,
    DedupeRow,
    Effects,
    Entry,
    Head,
    Key,
    Loaded,
    Names,
    Row,
    SealedTable,
    SurfaceStats,
)
from tidelog.store.schema import Schema

MAX_ID = 2**63 - 1
"""Beyond every position."""

PAGE_ENTRIES = 1000
"""Most entries one read returns: so a SQLite reader is too short to hold back a checkpoint."""

PAGE_BYTES = 8 * 1024 * 1024
"""Content after which a read returns no further entry, so that a reader's memory stays bounded
however large entries are. One entry is always returned."""

ANNOUNCED_MS = 60_000
"""How long an announcement can be heard: a node that was away for longer has closed its clients'
connections or cannot have known of what changed."""

NO_DRIVER = (
    "the `store` setting names PostgreSQL, but its driver is not installed. "
    "Run `pip install 'tidelog[postgresql]'`."
)
NO_URL = "store: not a valid postgresql:// URL; percent-encode special characters"

REMEDY = (
    "Restore a backup into an empty database with `tidelog restore BACKUP --store URL`; "
    "`tidelog log verify` says how far a log is intact."
)
"""What an operator does about a damaged log of PostgreSQL."""

GENESIS_DIGEST = bytes(16)
"""The digest before the first entry."""


def new_incarnation() -> tuple[str, int]:
    """Id and time of an `Incarnation` that begins now."""
    return secrets.token_hex(16), time.time_ns() // 1_000_000


def end_problem(head: Head | None, last: Sequence[Entry]) -> str | None:
    """What is wrong with the end of a log; `last` are its entries from the head on, two at most.

    The head row and the last entry were written together; if they differ, one is damaged.
    """
    if head is None:
        return "the head row is missing"
    if head.incarnation is None:
        return "the log's incarnation is missing"
    if head.committed_id == 0 and not last:
        return None
    if len(last) == 1 and (last[0].committed_id, last[0].digest) == head[:2]:
        return None
    return f"the last entry is not the one the head row names ({head.committed_id})"


class Writer(Protocol):
    """All that an engine implements for writing. Its one user awaits each call before the next."""

    async def begin(self, names: Names, seen: int) -> Loaded:
        """Load what is named, for a batch that `commit`, `confirm` or `rollback` ends.

        An engine that others write to may leave it to those to find out that somebody did. After
        one of them has raised `Overtaken`, the next batch cannot be overtaken.

        Raises:
            StoreUnavailable: nothing is open.
        """

    async def confirm(self) -> None:
        """End a batch that writes nothing: what it was decided by was true after it had begun.

        Raises:
            Overtaken: it was not.
            StoreUnavailable: nobody can say.
        """

    async def commit(self, batch_id: bytes, effects: Effects) -> int | None:
        """Write and commit; durable when it returns. On any error nothing is open any more.

        Returns what the store's clock showed; None for one that has no clock of its own.

        Raises:
            DataError: a row is to blame; nothing was committed.
            Overtaken: others have written since what was loaded; nothing was committed.
            StoreUnavailable: nothing was committed.
            OutcomeUnknown: ask `committed`.
            StoreUntrustworthy: nothing can be said; stop the process.
        """

    async def rollback(self) -> None:
        """End the transaction without a trace."""

    async def committed(self, batch_id: bytes) -> bool:
        """Whether that batch, this writer's last, is in the store; if not, it never will be."""


class Store(Protocol):
    """A log on disk: one writer, any number of readers."""

    schema: Schema
    """What it was opened with."""
    read_gate: ReadGate
    """Every read of SQLite passes it; nobody closes that of PostgreSQL."""

    @property
    def writer(self) -> Writer:
        """The only way to write."""

    async def head(self) -> Head:
        """Where the log ends, after the last COMMIT."""

    async def incarnations(self) -> list[Incarnation]:
        """The continuations of the log that are known, oldest first; the last is the current one.

        Never empty. `tidelog.base.data.incarnation.Incarnations` judges positions by them.
        """

    def wal_bytes(self) -> int:
        """What was written and is not folded into the file yet, on SQLite; 0 on PostgreSQL."""

    async def clock_ms(self) -> int | None:
        """What the store's clock shows; None for one that has no clock of its own."""

    async def entries(
        self, after: int, *, through: int | None = None, limit: int = PAGE_ENTRIES
    ) -> list[Entry]:
        """Entries with `after < committed_id <= through`, in order, at most `limit`."""

    async def stream_entries(
        self, stream: str, after: int, *, limit: int = PAGE_ENTRIES
    ) -> list[Entry]:
        """Entries of one stream with `stream_serial > after`, in order, at most `limit`."""

    async def dedupe_row(self, scope: str, key: str) -> DedupeRow | None:
        """The row of a key, read outside any decision."""

    async def dedupe_count(self) -> int:
        """How many keys are remembered."""

    async def rows(self, query: str, key: Key) -> tuple[Row, ...]:
        """Run one named query outside any decision."""

    async def rows_of(self, query: str, keys: Sequence[Key]) -> list[tuple[Row, ...]]:
        """Run one named query for many keys at once; what each of them got, in their order."""

    async def rows_within(
        self, query: str, positions: Sequence[int], *, most_bytes: int
    ) -> list[Row]:
        """The one row that a named query has for each position, until they are too large.

        In the order of the positions: as many as have `most_bytes` in their last columns together,
        at least one. No more than that is read, whatever there is.
        """

    async def lowest(
        self, query: str, names: Sequence[str], *, after: int, through: int, limit: int
    ) -> list[int]:
        """The lowest positions in (`after`, `through`] that a named query finds under any name.

        At most `limit`, each once, ascending; one round trip, however many names.
        """

    async def sealed_page(self, table: SealedTable, after: Key | None) -> list[Row]:
        """Rows of a table after a key, in its order: the sealed columns, then the seal."""

    async def stats(self) -> list[SurfaceStats]:
        """Sums over the log by surface."""

    def watch_head(self, moved: Callable[[int], None]) -> None:
        """Call `moved` with the new head, on the event loop, when any process has moved it."""

    is_shared: bool
    """Whether other processes may serve the same log. If not, nobody hears an announcement."""

    async def announce(self, messages: Sequence[tuple[str, bytes]]) -> list[int]:
        """Tell all other nodes these (topic, payload); returns their ids, which ascend.

        Not durable, and gone after `ANNOUNCED_MS`: for what is worth no entry.
        """

    async def announcements(self, after: int) -> list[Announcement]:
        """What other nodes announced after an id, in order; a page of it."""

    async def last_announcement(self) -> int:
        """The id of the last announcement so far, of any node."""

    async def announcement_keeper(self) -> tuple[str, int]:
        """Who keeps announcements, another name after every start of it; the last id it gave."""

    def watch_announcements(self, heard: Callable[[int], None]) -> None:
        """Call `heard` with the id of a new announcement, or 0 if some may have been missed."""

    async def scrub(self) -> None:
        """Let no byte remain of content that was removed, where the store can see to that.

        Raises:
            StoreUnavailable: somebody still reads; ask again.
        """

    async def close(self) -> None:
        """Finish and let go of everything."""
