"""What a decision sees, what it returns, and what the committer expects of a request."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from msgspec import Struct

from tidelog.base.errors import TidelogError
from tidelog.log.draft import Draft, to_entry
from tidelog.store.rows import DedupeRow, Effects, Entry, Key, Loaded, Names, Row, RowChange

__all__ = [
    "Accept",
    "Failure",
    "Item",
    "Names",
    "Refuse",
    "Request",
    "RowChange",
    "StateChange",
    "View",
]

Answer = Any
"""What a surface tells its caller; the log never looks inside."""


class StateChange(Protocol):
    """A change of cached state that later decisions of the same batch must already see."""

    def apply(self) -> Callable[[], None]:
        """Change the cache in place, at a cost of O(change); returns how to take it back.

        Must not fail: whatever can fail belongs into the decision.
        """


class Accept(Struct):
    """Append these, remember these, change these, and then answer this."""

    answer: Answer
    entries: tuple[Draft, ...] = ()
    dedupe: tuple[DedupeRow, ...] = ()
    rows: tuple[RowChange, ...] = ()
    forget: tuple[tuple[str, str], ...] = ()
    """(scope, key) of dedupe rows that have ended; a new row of the same key may follow in
    `dedupe`."""
    unavailable: tuple[tuple[str, str], ...] = ()
    """(scope, key) of dedupe rows whose content this prunes: they now say that it is gone."""
    states: tuple[StateChange, ...] = ()
    """Changes of cached state; taken back if the batch does not commit."""


class Refuse(Struct):
    """Answer this and change nothing: a refusal, or the replay of a known key."""

    answer: Answer


class Failure(Struct, frozen=True):
    """Takes the place of an answer when the store failed; nothing of the item was committed.

    The exception is `OutcomeUnknown`: then nobody can say, and a retry under the same key will.
    """

    error: TidelogError


class View:
    """The state that decisions see: what was loaded, plus what this batch has accepted so far.

    A decision may only ask for what its request named; anything else is a `KeyError`, which the
    committer turns into a failure of that request alone.
    """

    __slots__ = (
        "_changes",
        "_dedupe",
        "_digest",
        "_entries",
        "_forgotten",
        "_new_dedupe",
        "_rows",
        "_serials",
        "_undo",
        "next_committed_id",
        "now_ms",
    )

    def __init__(self, loaded: Loaded, now_ms: int) -> None:
        self.now_ms = max(now_ms, loaded.head.committed_at)
        """`committed_at` of what this batch appends: never before the head's (another node's
        clock may be ahead of ours)."""
        self.next_committed_id = loaded.head.committed_id + 1
        """The position of the first entry of the next accepted decision."""
        self._digest = loaded.head.digest
        self._dedupe = loaded.dedupe
        self._serials = loaded.serials
        self._rows = loaded.rows
        self._entries: list[Entry] = []
        self._new_dedupe: list[DedupeRow] = []
        self._forgotten: list[tuple[str, str]] = []
        self._changes: list[RowChange] = []
        self._undo: list[Callable[[], None]] = []

    def dedupe(self, scope: str, key: str) -> DedupeRow | None:
        """The row of a key, if the key is known."""
        return self._dedupe[scope, key]

    def serial(self, stream: str) -> int:
        """The last serial of a stream, 0 if it has none yet."""
        return self._serials[stream]

    def rows(self, query: str, key: Key) -> tuple[Row, ...]:
        """What a named query returns."""
        return self._rows[query, key]

    def accept(self, accepted: Accept) -> list[Entry]:
        """Take an accepted decision into the view; only the committer calls this.

        All that can fail comes first: a decision that raises here leaves the view as it was.
        """
        committed_id, digest = self.next_committed_id, self._digest
        serials = self._serials
        entries = []
        moved: dict[str, int] = {}
        for draft in accepted.entries:
            stream = draft.stream
            serial = (moved[stream] if stream in moved else serials[stream]) + 1
            entry = to_entry(draft, committed_id, serial, self.now_ms, digest)
            moved[stream] = serial
            committed_id += 1
            digest = entry.digest
            entries.append(entry)
        serials.update(moved)
        self.next_committed_id, self._digest = committed_id, digest
        self._entries += entries
        for name in accepted.forget:
            self._dedupe[name] = None
            self._forgotten.append(name)
        for row in accepted.dedupe:
            self._dedupe[row.scope, row.key] = row
            self._new_dedupe.append(row)
        for change in accepted.rows:
            self._changes.append(change)
            if change.becomes is not None:
                self._rows[change.becomes.query, change.becomes.key] = change.becomes.rows
        for name in accepted.unavailable:
            self._changes.append(RowChange("unavailable_keys", name))
            known = self._dedupe.get(name)
            if known is not None:
                self._dedupe[name] = known._replace(available=0)
        for state in accepted.states:
            self._undo.append(state.apply())
        return entries

    def take_back(self) -> None:
        """The batch did not commit: restore the cached state; only the committer calls this."""
        while self._undo:
            self._undo.pop()()

    def effects(self) -> Effects | None:
        """What the batch writes, or None if every decision refused."""
        if not (self._entries or self._new_dedupe or self._forgotten or self._changes):
            return None
        return Effects(
            committed_id=self.next_committed_id - 1,
            digest=self._digest,
            committed_at=self.now_ms,
            entries=self._entries,
            dedupe=self._new_dedupe,
            forgotten=self._forgotten,
            changes=self._changes,
        )


class Item(Protocol):
    """One decision."""

    def decide(self, view: View) -> Accept | Refuse:
        """Pure, costs O(change) and may run twice; the time is `view.now_ms`."""


class Request(Protocol):
    """What a surface submits; the stateless work (parsing, fingerprints, authority) is done."""

    names: Names
    size_bytes: int
    """What it holds in memory while it waits."""
    waits_for_entries: bool
    """Whether whoever is answered waits until the entries have come too, or gets none. Then the
    answer may be handed over ahead of the entries of the requests before it; otherwise it comes
    after them."""

    def items(self) -> Sequence[Item]:
        """Its decisions, in order. They stay together in one batch and fail separately."""

    def hand_over(self, answers: Sequence[Answer | Failure]) -> None:
        """Take the answers, one per item. On the event loop, after COMMIT; must not raise.

        The entries of the request reach the tail after this returns. A future resolved here wakes
        its awaiter later still, so an HTTP caller answers after its entries are delivered.
        """
