"""The outbox: every send this daemon ever accepted, and how far it got (mesh 3.4, 4).

An id that is in here is never released: no statement deletes a row. Every method that changes
something is one transaction, every change of status a compare-and-set on status and attempts, and
what a method returns has been committed. All of it runs on the event loop's thread.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct, structs

from tidelog.base.clock import Clock
from tidelog.base.errors import ConfigError, StoreError, TidelogError
from tidelog.base.faultpoint import FaultPoint, reach
from tidelog.base.ids import UlidFactory
from tidelog.daemon.clock import WallClock
from tidelog.daemon.database import Database, StorageFull
from tidelog.daemon.ipc.requests import read_to
from tidelog.daemon.outbox.pressure import Level, Pressure, Stock
from tidelog.mesh.protocol import policy
from tidelog.mesh.protocol.fingerprint import SendEnvelope, read_envelope, read_object
from tidelog.mesh.protocol.negotiation import Parameters
from tidelog.mesh.protocol.policy import (
    CLAIM_ROWS,
    MAX_AGE_EXCEEDED,
    MIN_BACKOFF_MS,
    STATUSES,
    AcceptReply,
    Existing,
    Status,
    look_up,
    max_age_hours,
    retire_error,
)

APPLICATION_ID = 0x74646F62
FILE_NAME = "outbox.db"

MAX_LIST = 500
DEFAULT_LIST = 50
MAX_CHAIN = 1000
"""Rows of a chain that are shown; each is a requeue somebody asked for."""

MAX_HISTORY_ID = 2**63 - 1
"""What a column can hold."""

MAX_DELAY_MS = 600_000
"""No attempt is put off for longer, whatever a broker asks for. A row that is due later than this
from now was scheduled by a clock that ran ahead, and is due at once."""

_MARK_EVERY_MS = 10_000
"""How far the clock runs before its mark is stored again; a crash loses at most this much of it."""

_HOUR_MS = 3_600_000
_STEP_ROWS = 1000
"""Rows changed in one transaction by expiry and pruning; sends wait meanwhile."""
_STEP_BYTES = 16 * 1024 * 1024
"""Content emptied in one transaction."""

ROW_BYTES = 512
"""About what a row takes beside its content. Rows that failed for good have no other bound."""

_REMEDY = "Stop the daemon and run: tidelog mesh recover"


class OutboxRefused(TidelogError):  # noqa: N818 - the failure is the noun
    """A requeue or drop that cannot be; nothing was changed."""

    def __init__(self, status: int, code: str, **details: Any) -> None:
        super().__init__(code)
        self.status = status
        self.code = code
        self.details = details
        """More members of the answer."""


class NewSend(NamedTuple):
    """A send that passed every check."""

    client_message_id: str
    fingerprint: bytes
    payload: bytes
    to: str | None = None
    """The destination as the caller wrote it."""
    destination_ref: str | None = None
    """What that was taken for."""

    def fingerprint_for(self, existing: Existing) -> bytes:
        """What to compare with a row that has the id already.

        Asked for the same destination it is judged under the row's own: a name that means another
        member by now does not make a repeat another send.
        """
        if self.to is None or existing.asked_to is None or existing.destination_ref is None:
            return self.fingerprint
        if existing.destination_ref == self.destination_ref:
            return self.fingerprint
        if read_to(self.to) != read_to(existing.asked_to):
            return self.fingerprint
        envelope = read_envelope(read_object(self.payload))
        return structs.replace(envelope, destination_ref=existing.destination_ref).fingerprint()


class Row(NamedTuple):
    """One row; `payload` is empty where it was not asked for."""

    id: str
    client_message_id: str
    request_fingerprint: bytes
    payload: bytes
    enqueued_at: int
    attempts: int
    next_attempt_at: int
    status: Status
    last_error: str | None
    delivered_at: int | None
    broker_message_id: str | None
    history_id: int | None
    aborted_at: int | None
    aborted_by: str | None
    superseded_by: str | None
    to: str | None
    """The destination as the caller wrote it; None in rows of before that was kept."""
    destination_ref: str | None
    incarnation: str | None
    """The broker's history in which it became `done`."""
    lost_in: str | None
    """The broker's history that perhaps has not got it any more."""

    @property
    def is_possibly_lost(self) -> bool:
        """Whether the broker had it and perhaps has not got it any more."""
        return self.status == "done" and self.lost_in is not None

    @property
    def maybe_delivered(self) -> bool:
        """Whether the broker may have the message although the row does not say so.

        A row that was given up keeps its error, so what was true of it stays true. What the broker
        has lost may have reached its receivers before.
        """
        if self.lost_in is not None:
            return True
        if self.attempts == 0 or self.status == "done":
            return False
        return not policy.proves_absence(self.last_error, self.attempts)


class Claim(NamedTuple):
    """An attempt under way: what to send, and what its result must match."""

    row_id: str
    client_message_id: str
    request_fingerprint: bytes
    payload: bytes
    attempts: int
    """The number of this attempt."""
    supersedes: str | None
    """The client's id that this row replaced."""
    enqueued_at: int


class Settlement(Struct, frozen=True, kw_only=True):
    """What became of an attempt."""

    claim: Claim
    status: Status
    """`done`, `pending` or `dead`."""
    broker_message_id: str | None = None
    history_id: int | None = None
    incarnation: str | None = None
    """The broker's history in which it said so."""
    error: str | None = None
    delay_ms: int = MIN_BACKOFF_MS
    """For `pending`: until the next attempt; see `tidelog.mesh.protocol.policy.retry_delay_ms`."""


class Requeued(NamedTuple):
    """What a requeue did."""

    aborted_row_id: str
    new_row_id: str
    new_client_message_id: str
    maybe_delivered: bool


class Outbox:
    """The file `outbox.db`."""

    def __init__(self, path: Path, pressure: Pressure, clock: Clock | None = None) -> None:
        """Open or create the file.

        Args:
            path: the file.
            pressure: says when there is no room for more.
            clock: a wall clock that may step back; the mark is kept here.
        """
        self._clock = clock or WallClock()
        self._pressure = pressure
        self._database = Database(
            path, kind="outbox", application_id=APPLICATION_ID, remedy=_REMEDY
        )
        self._mark_ms = int(self._state("clock_mark") or 0)
        self._stored_mark_ms = self._mark_ms
        self._ids = UlidFactory(_Marked(self._now_ms))
        self._counts = Counter(dict.fromkeys(STATUSES, 0))
        self._counts.update(dict(self._database.run("outbox_counts").fetchall()))
        self._max_age_ms = 0
        self.parameters = Parameters()
        """What was negotiated last, also when that was in an earlier process."""
        self.incarnation = self._state("incarnation")
        """The history of the broker's log that was known last."""
        self.on_work: Callable[[], None] | None = None
        """Called after a commit that made a row `pending`."""
        stored = self._state("parameters")
        if stored is not None:
            self.parameters = msgspec.json.decode(stored, type=Parameters)

    def close(self) -> None:
        """Give the file back."""
        self._database.close()

    @property
    def schema_version(self) -> int:
        """The version of the file's schema."""
        return self._database.schema_version

    def belong_to(self, mesh: str) -> None:
        """Be the outbox of this mesh from now on: no row says which mesh it is for.

        A name that was never of use, with no row and no broker that knew it, can be corrected.

        Raises:
            ConfigError: it is the outbox of another mesh; nothing was changed.
        """
        former = self._state("mesh")
        if former == mesh:
            return
        if former is not None and (self.incarnation is not None or self._counts.total()):
            raise ConfigError(
                f"{self._database.path.parent} belongs to mesh {former}, and what waits in it must "
                f"not reach mesh {mesh}. Start with --mesh {former}, or name another --data-dir "
                f"for {mesh}."
            )
        with self._changes():
            self._set_state("mesh", mesh)

    def mint(self) -> str:
        """A new ULID, greater than every one before it."""
        return self._ids.mint()

    # The clock and what was negotiated.

    def _now_ms(self) -> int:
        """The time by which rows age: the wall clock, or its highest mark (mesh 4.3)."""
        self._mark_ms = max(self._mark_ms, self._clock.now_ms())
        return self._mark_ms

    def adopt(self, parameters: Parameters, max_age_override_hours: int | None = None) -> None:
        """Live by what was negotiated from now on, rows that are here already included.

        Raises:
            MaxAgeRefused: the override does not suit it; nothing was changed.
        """
        hours = max_age_hours(
            parameters.mode, parameters.dedupe_retention_days, override=max_age_override_hours
        )
        if parameters != self.parameters:
            with self._changes():
                self._set_state("parameters", msgspec.json.encode(parameters).decode())
        self.parameters = parameters
        self._max_age_ms = hours * _HOUR_MS

    def follow(self, incarnation: str, began: int) -> int:
        """Know which history the broker's log has now.

        Args:
            incarnation: its name.
            began: the last `history_id` that it shares with the one that was known before.

        Returns:
            How many rows are possibly lost by it. They stay `done`, and nothing is sent.
        """
        if incarnation == self.incarnation:
            return 0
        lost = 0
        with self._changes():
            if self.incarnation is not None:
                shared = min(began, MAX_HISTORY_ID)
                change: dict[str, object] = {"incarnation": incarnation, "began": shared}
                self._database.run_named("outbox_find_again", change)
                lost = self._database.run_named("outbox_lose", change).rowcount
            self._set_state("incarnation", incarnation)
        self.incarnation = incarnation
        return lost

    @property
    def max_age_ms(self) -> int:
        """How old a row may get."""
        if not self._max_age_ms:
            kept = self.parameters
            self._max_age_ms = max_age_hours(kept.mode, kept.dedupe_retention_days) * _HOUR_MS
        return self._max_age_ms

    def is_beyond_window(self, claim: Claim) -> bool:
        """Whether the broker may have forgotten an earlier attempt of this row by now."""
        days = self.parameters.dedupe_retention_days
        if claim.attempts <= 1 or days is None:
            return False
        return self._now_ms() - claim.enqueued_at >= days * 24 * _HOUR_MS

    # Accepting (mesh 3.4).

    def accept(self, sends: Sequence[NewSend]) -> list[AcceptReply | StoreError]:
        """Decide sends in one transaction; each has the outcome it would have had alone.

        Returns:
            For each send its answer, or why it could not be stored. Nothing is half done: an
            answer that speaks of a row was committed.
        """
        try:
            return self._accept(sends)
        except StorageFull as error:
            if len(sends) == 1:
                return [error]
        except StoreError as error:
            return [error] * len(sends)
        results: list[AcceptReply | StoreError] = []
        for send in sends:  # one of them was too much: the others must not suffer
            results += self.accept([send])
        return results

    def _accept(self, sends: Sequence[NewSend]) -> list[AcceptReply | StoreError]:
        verdicts: list[AcceptReply | StoreError] = []
        with self._changes() as changes:
            for send in sends:
                existing = self._existing(send.client_message_id)
                fingerprint = send.fingerprint
                if existing is not None:
                    fingerprint = send.fingerprint_for(existing)
                verdict = look_up(send.client_message_id, fingerprint, existing)
                if verdict.inserts:
                    if self._level(changes["pending"]) >= Level.REFUSING:
                        verdicts.append(StorageFull("the outbox is full"))
                        continue
                    self._insert(send)
                    changes["pending"] += 1
                verdicts.append(verdict)
            reach(FaultPoint.DAEMON_ACCEPTING)
        reach(FaultPoint.DAEMON_ACCEPTED)
        return verdicts

    def _insert(self, send: NewSend) -> str:
        row_id = self._ids.mint()
        times = (self._now_ms(), self._clock.now_ms())
        self._database.run("outbox_insert", row_id, *send, *times)
        return row_id

    def destination_of(self, client_message_id: str, to: str) -> str | None:
        """Where the row with this id goes, if it was asked for in the same words."""
        existing = self._existing(client_message_id)
        if existing is None or existing.asked_to is None:
            return None
        return existing.destination_ref if read_to(existing.asked_to) == read_to(to) else None

    def is_taken(self, client_message_id: str) -> bool:
        """Whether there is a row with this id."""
        return self._existing(client_message_id) is not None

    def _existing(self, client_message_id: str) -> Existing | None:
        found = self._database.row("outbox_find", client_message_id)
        return None if found is None else Existing(*found)

    # Attempts (mesh 4.1).

    def recover_inflight(self) -> int:
        """At start, before anything else: attempts of an earlier process are to be repeated."""
        with self._changes() as changes:
            due = self._clock.now_ms() + MIN_BACKOFF_MS
            count = self._database.run("outbox_recover", due).rowcount
            _move(changes, "inflight", "pending", count)
        reach(FaultPoint.DAEMON_RECOVERED)
        return count

    def expire(self) -> int:
        """Give up the rows that are too old; called now and then, connected or not."""
        expired = 0
        while True:
            self._keep_mark()
            oldest = self._now_ms() - self.max_age_ms
            found = self._database.run("outbox_too_old", oldest, _STEP_ROWS).fetchall()
            if not found:
                return expired
            with self._changes() as changes:
                for row_id, attempts in found:
                    changed = self._database.run(
                        "outbox_expire", MAX_AGE_EXCEEDED, row_id, attempts
                    ).rowcount
                    _move(changes, "pending", "dead", changed)
                    expired += changed

    def turn(
        self, settlements: Sequence[Settlement], limit: int = CLAIM_ROWS
    ) -> tuple[list[bool], list[Claim]]:
        """Record results and start attempts for due rows, the oldest first, in one transaction.

        Rows that are too old die instead of being attempted, and final ones lose their content if
        it is time.

        Returns:
            For each settlement whether it counted: False for one whose attempt was superseded,
            which changes nothing. And the attempts to make, at most `limit`.
        """
        self.expire()
        self.trim()
        now = self._clock.now_ms()
        window: dict[str, object] = {"now": now, "latest": now + MAX_DELAY_MS, "limit": limit}
        due = self._database.run_named("outbox_due", window).fetchall() if limit > 0 else []
        if not settlements and not due:
            return [], []
        results, claims = [], []
        with self._changes() as changes:
            for settlement in map(self._as_known_now, settlements):
                changed = self._settle(settlement)
                _move(changes, "inflight", settlement.status, changed)
                results.append(changed == 1)
            for row_id, client_id, fingerprint, payload, attempts, *rest in due:
                changed = self._database.run("outbox_claim", row_id, attempts).rowcount
                _move(changes, "pending", "inflight", changed)
                if changed:
                    claims.append(
                        Claim(row_id, client_id, fingerprint, payload, attempts + 1, *rest)
                    )
        return results, claims

    def claim(self, limit: int = CLAIM_ROWS) -> list[Claim]:
        """A turn without results."""
        return self.turn([], limit)[1]

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        """A turn without attempts."""
        return self.turn(settlements, 0)[0]

    def _as_known_now(self, settlement: Settlement) -> Settlement:
        """What an attempt's result is worth when it is stored.

        An acceptance from another history, before this one was known, does not count: the row was
        not `done` when the rows of that history were looked through. It is asked again, under its
        id.
        """
        if settlement.incarnation in (None, self.incarnation) or settlement.status != "done":
            return settlement
        error = "accepted in a history that the broker has lost"
        return structs.replace(settlement, status="pending", error=error)

    def _settle(self, settlement: Settlement) -> int:
        claim = (settlement.claim.row_id, settlement.claim.attempts)
        match settlement.status:
            case "done":
                accepted = (settlement.broker_message_id, settlement.history_id)
                result = (*accepted, settlement.incarnation, self._now_ms())
                return self._database.run("outbox_done", *result, *claim).rowcount
            case "pending":
                due = self._clock.now_ms() + min(settlement.delay_ms, MAX_DELAY_MS)
                return self._database.run("outbox_retry", settlement.error, due, *claim).rowcount
            case "dead":
                return self._database.run("outbox_bury", settlement.error, *claim).rowcount
            case other:
                raise ValueError(f"an attempt cannot end {other}")

    def next_due_in_ms(self) -> int | None:
        """Until the next row is due, 0 if one is; None when nothing waits."""
        found = self._database.row("outbox_next_due")
        if found is None or found[0] is None:
            return None
        wait: int = found[0] - self._clock.now_ms()
        return 0 if wait < 0 or wait > MAX_DELAY_MS else wait

    # What an operator does (mesh 4.4).

    def requeue(
        self,
        row_id: str,
        new_client_message_id: str | None = None,
        patch: SendEnvelope | None = None,
        to: str | None = None,
    ) -> Requeued:
        """Retire a row that waits, has failed or may be lost; send its content under a fresh id.

        Args:
            row_id: the row to retire.
            new_client_message_id: the fresh id; None mints one.
            patch: the new content; None sends the old payload with its old fingerprint.
            to: the new destination as the operator wrote it; None if it is the old one.

        Raises:
            OutboxRefused: nothing was changed.
        """
        with self._changes() as changes:
            old = self.requeueable(row_id)
            client_id = new_client_message_id or self._ids.mint()
            if self.is_taken(client_id):
                raise OutboxRefused(409, "requeue_client_id_in_use", client_message_id=client_id)
            fingerprint, payload, ref = old.request_fingerprint, old.payload, old.destination_ref
            if patch is not None:
                fingerprint, payload = patch.fingerprint(), patch.payload()
                ref = patch.destination_ref
            new_id = self._insert(NewSend(client_id, fingerprint, payload, to or old.to, ref))
            self._retire(old, new_id, changes)
            changes["pending"] += 1
            reach(FaultPoint.DAEMON_REQUEUEING)
        return Requeued(old.id, new_id, client_id, old.maybe_delivered)

    def drop(self, row_id: str) -> Row:
        """Retire a row without a successor; it stays as the record of its id.

        Returns:
            The row as it was before: whether it may be delivered is a question about that.
        """
        with self._changes() as changes:
            old = self._retirable(row_id)
            self._retire(old, None, changes)
        return old

    def requeueable(self, row_id: str) -> Row:
        """A row that a requeue may retire; `OutboxRefused` if it may not."""
        row = self._retirable(row_id)
        if not row.payload:
            raise OutboxRefused(409, "outbox_payload_pruned", id=row.id)
        return row

    def _retirable(self, row_id: str) -> Row:
        row = self.row(row_id)
        code = retire_error(row.status, is_lost=row.is_possibly_lost)
        if code is not None:
            details = {"superseded_by": row.superseded_by} if row.status == "aborted" else {}
            raise OutboxRefused(409, code, id=row.id, **details)
        return row

    def _retire(self, old: Row, successor: str | None, changes: Counter[str]) -> None:
        changed = self._database.run(
            "outbox_retire", self._now_ms(), successor, old.id, old.status, old.attempts
        ).rowcount
        _move(changes, old.status, "aborted", changed)

    def prune(self) -> int:
        """Empty the content of final rows; the rows stay."""
        pruned = 0
        while True:
            found = self._kept(MAX_HISTORY_ID, MAX_HISTORY_ID)
            if not found:
                return pruned
            self._empty(found)
            pruned += len(found)

    def trim(self) -> int:
        """Empty what final rows have kept for long enough, and the oldest of what is too much.

        One step; there may be more to do. What it leaves never makes the outbox refuse a send.
        """
        old = self._kept(self._now_ms() - self._pressure.keep_final_ms, MAX_HISTORY_ID)
        if old:
            self._empty(old)
        excess = self._pressure.excess_bytes(self.stock())
        too_much = self._kept(MAX_HISTORY_ID, excess) if excess > 0 else []
        if too_much:
            self._empty(too_much)
        return len(old) + len(too_much)

    def _kept(self, until_ms: int, enough_bytes: int) -> list[str]:
        """The oldest final rows with content: one step of them, or fewer if they are enough."""
        found = []
        size = 0
        for row_id, length in self._database.run("outbox_kept", until_ms, _STEP_ROWS).fetchall():
            if size >= min(enough_bytes, _STEP_BYTES):
                break
            found.append(row_id)
            size += length
        return found

    def _empty(self, row_ids: Sequence[str]) -> None:
        with self._changes():
            for row_id in row_ids:
                self._database.run("outbox_empty", row_id)

    # Reading.

    def row(self, row_id: str) -> Row:
        """A row by its own id; `OutboxRefused` if there is none."""
        found = self._database.row("outbox_row", row_id)
        if found is None:
            raise OutboxRefused(404, "outbox_row_not_found")
        return Row(*found)

    def inspect(self, name: str) -> tuple[Row, list[Row]]:
        """A row by its own id or its client's, and the chain it is part of, oldest first."""
        found = self._database.row("outbox_row", name)
        found = found or self._database.row("outbox_row_by_client_id", name)
        if found is None:
            raise OutboxRefused(404, "outbox_row_not_found")
        row = Row(*found)
        chain = [row]
        while len(chain) < MAX_CHAIN:
            earlier = self._database.row("outbox_predecessor", chain[0].id)
            if earlier is None:
                break
            chain.insert(0, Row(*earlier))
        while len(chain) < MAX_CHAIN and chain[-1].superseded_by is not None:
            chain.append(self.row(chain[-1].superseded_by))
        return row, chain

    def rows(self, status: Status | None = None, limit: int = DEFAULT_LIST) -> list[Row]:
        """The newest rows first, without payloads."""
        wanted: dict[str, object] = {"status": status, "limit": min(max(limit, 1), MAX_LIST)}
        return [Row(*found) for found in self._database.run_named("outbox_list", wanted)]

    def lost_rows(self, limit: int = DEFAULT_LIST) -> list[Row]:
        """The rows that are possibly lost, newest first, without payloads."""
        wanted = min(max(limit, 1), MAX_LIST)
        return [Row(*found) for found in self._database.run("outbox_list_lost", wanted)]

    def possibly_lost(self) -> int:
        """How many rows the broker had and perhaps has not got any more."""
        [(rows,)] = self._database.run("outbox_count_lost")
        return int(rows)

    def counts(self) -> dict[str, int]:
        """Rows by status."""
        return dict(self._counts)

    @property
    def waiting(self) -> int:
        """Rows that the broker does not have yet."""
        return self._counts["pending"] + self._counts["inflight"]

    def oldest_age_ms(self) -> int:
        """Age of the oldest row that waits; 0 when none does."""
        found = self._database.row("outbox_oldest")
        return 0 if found is None or found[0] is None else max(0, self._now_ms() - found[0])

    def stock(self) -> Stock:
        """What it holds."""
        return self._stock(0)

    def level(self) -> Level:
        """How full it is."""
        return self._level(0)

    def shares(self) -> dict[str, float]:
        """How much of each thing that can run out is used up."""
        return self._pressure.shares(self.stock())

    def _level(self, added: int) -> Level:
        return self._pressure.level(self._stock(added))

    def _stock(self, added: int) -> Stock:
        [(open_bytes,), (final_bytes,)] = self._database.run("outbox_bytes").fetchall()
        waiting = self.waiting + added
        rows_bytes = (waiting + self._counts["dead"]) * ROW_BYTES
        return Stock(waiting, open_bytes + rows_bytes, final_bytes, self._database.free_bytes())

    # Inside a transaction.

    @contextmanager
    def _changes(self) -> Iterator[Counter[str]]:
        """A transaction; what is counted into it becomes true with its commit."""
        changes: Counter[str] = Counter()
        mark = self._now_ms()
        is_due = mark - self._stored_mark_ms >= _MARK_EVERY_MS
        with self._database.transaction():
            yield changes
            if is_due:
                self._set_state("clock_mark", str(mark))
        if is_due:
            self._stored_mark_ms = mark
        self._counts.update(changes)
        if changes["pending"] > 0 and self.on_work is not None:
            self.on_work()

    def _keep_mark(self) -> None:
        """Store the clock's mark if it has run on: a later step back must not make rows younger."""
        if self._now_ms() - self._stored_mark_ms >= _MARK_EVERY_MS:
            with self._changes():
                pass

    def _state(self, key: str) -> str | None:
        found = self._database.row("outbox_state", key)
        return None if found is None else str(found[0])

    def _set_state(self, key: str, value: str) -> None:
        self._database.run("outbox_set_state", key, value)


class _Marked:
    """The marked time as a `Clock`."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.now_ms = now_ms


def _move(changes: Counter[str], before: str, after: str, count: int) -> None:
    changes[before] -= count
    changes[after] += count
