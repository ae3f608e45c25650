"""What is stored, as the engines and the log see it.

Named tuples, because a row goes to an engine as a tuple: a struct would have to be taken apart for
every one of the tens of thousands of rows a second.
"""

from typing import Any, NamedTuple

from msgspec import Struct

Key = tuple[Any, ...]
"""The parameters of a named query."""

Row = tuple[Any, ...]
"""One result row of a named query."""


class Entry(NamedTuple):
    """One committed entry of the log, in the order of its columns."""

    committed_id: int
    """Global position, gapless from 1 over all surfaces."""
    stream: str
    """Name of the sequence this entry is in, such as `channels/{app_id}/{channel}`."""
    stream_serial: int
    """Position in that stream, contiguous from 1."""
    surface: str
    kind: str
    """What happened: `message.create`, `event`, `send.topic` ..."""
    entity: str
    """What it happened to: a message serial, an event id, a broker message id."""
    ref: str
    """A second name the surface needs, such as a send's destination; empty if none."""
    actor: str
    """The authenticated client, member or app; `server` for what the server writes by itself."""
    committed_at: int
    """Server clock in ms, never decreasing along the log."""
    body: bytes | None
    """UTF-8 JSON of what happened; None once pruned."""
    data: bytes | None
    """Raw bytes beside the body, for content that is not JSON; None if none, or once pruned."""
    body_digest: bytes
    """Over `body` and `data`; survives pruning."""
    digest: bytes
    """Over the previous entry's digest and every column above but `body` and `data`."""


class DedupeRow(NamedTuple):
    """That a key was used: what for, by whom, and what was answered."""

    scope: str
    key: str
    committed_id: int | None
    """The entry it was used for; None for a stored answer that names several entries or none."""
    fingerprint: bytes
    """SHA-256 of the canonical request; another one under the same key is a conflict."""
    owner: str
    outcome: bytes
    """The stored answer as JSON, so that a duplicate gets it without the body."""
    available: int
    """1, or 0 once the content was pruned. The only column that ever changes."""
    first_seen_at: int
    expires_at: int | None
    """When a sweep may remove the row; None for never."""


class Head(NamedTuple):
    """Where the log ends."""

    committed_id: int
    digest: bytes
    committed_at: int
    log_id: str
    """Which log this is: a ULID minted with it, copied by backup and restore."""
    incarnation: str | None
    """Which continuation of it: the id of the current `Incarnation`. None only in a damaged store,
    which no server opens."""


class Announcement(NamedTuple):
    """Something one node tells the others that is worth no entry."""

    id: int
    """Ascends over all nodes in the order of the announcements."""
    topic: str
    payload: bytes
    head: int
    """Head of the log when it was announced: what is up to there came before it."""
    age_ms: int
    """How long ago it was announced, by the store's clock, when it was read."""


class SurfaceStats(NamedTuple):
    """Sums over one surface's entries."""

    surface: str
    entries: int
    streams: int
    pruned: int
    content_bytes: int
    first_at: int
    last_at: int


class Names(Struct):
    """What a request reads in its decision; the union over a batch is loaded in bulk."""

    dedupe: tuple[tuple[str, str], ...] = ()
    """(scope, key) pairs."""
    streams: tuple[str, ...] = ()
    """Streams whose last serial is needed: all it may append to."""
    rows: tuple[tuple[str, Key], ...] = ()
    """(named query, its parameters)."""


class Becomes(Struct, frozen=True):
    """What a named query returns after a change, for later decisions of the same batch."""

    query: str
    key: Key
    rows: tuple[Row, ...]


class RowChange(Struct, frozen=True):
    """A named statement and its parameters: an effect that commits with its entry or not at all."""

    statement: str
    values: tuple[Any, ...]
    becomes: Becomes | None = None
    """None if no decision reads what this changes."""


class Loaded(Struct):
    """What `Writer.begin` found."""

    head: Head
    others: list[Entry]
    """Entries that other nodes committed after what the caller had seen."""
    dedupe: dict[tuple[str, str], DedupeRow | None]
    """Every named key; None for a new one."""
    serials: dict[str, int]
    """Last serial of each named stream, 0 for a new one."""
    rows: dict[tuple[str, Key], tuple[Row, ...]]
    clock_ms: int | None = None
    """What the store's clock showed; None if it was not asked, or has no clock of its own."""


class Effects(Struct):
    """What one batch writes."""

    committed_id: int
    digest: bytes
    committed_at: int
    """The new head."""
    entries: list[Entry]
    dedupe: list[DedupeRow]
    forgotten: list[tuple[str, str]]
    """(scope, key) of dedupe rows that go before `dedupe` is written."""
    changes: list[RowChange]


SEAL = "seal"
"""The column that holds a row's seal (`tidelog.base.data.seal`)."""


class SealedTable(NamedTuple):
    """A table whose every row carries a seal over all of its other columns."""

    name: str
    columns: tuple[str, ...]
    """Those others, in their order."""
    key: tuple[str, ...]
    """The primary key."""

    @property
    def rows_per_page(self) -> int:
        """A state may be as large as a partition; other rows are small."""
        return 1 if "state" in self.columns else 500

    def page(self, schema: str, mark: str, *, is_first: bool) -> str:
        """A statement that reads a page in the order of the key: the columns, then the seal.

        Its parameters, each a `mark` with its number, are the key to go on after, unless it is the
        first page, and the number of rows.
        """
        marks = [f"{mark}{number}" for number in range(1, len(self.key) + 2)]
        key, limit = ", ".join(self.key), marks[0 if is_first else -1]
        after = "" if is_first else f"WHERE ({key}) > ({', '.join(marks[:-1])}) "
        return (
            f"SELECT {', '.join(self.columns)}, {SEAL} FROM {schema}{self.name} "
            f"{after}ORDER BY {key} LIMIT {limit}"
        )
