"""The committer: every durable write of a process passes through here, in one order.

It takes all that waits, opens one transaction, loads what the requests name, lets each decide
against the state its predecessors left, writes everything at once, commits, and only then hands
over answers and entries. A request that is refused leaves nothing; one that the store cannot take
fails alone.
"""

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from tidelog.base.clock import ServerClock
from tidelog.base.data.incarnation import FORMER_INCARNATIONS, Incarnation, Incarnations
from tidelog.base.errors import (
    DataError,
    HistoryReplaced,
    OutcomeUnknown,
    Overtaken,
    QueueFull,
    ShuttingDown,
    StoreError,
    StoreUnavailable,
    StoreUntrustworthy,
    TidelogError,
)
from tidelog.base.faultpoint import FaultPoint, reach
from tidelog.base.metrics import Metrics
from tidelog.base.settings.limits import Limits
from tidelog.base.spaced_lines import SpacedLines
from tidelog.log.announcements import Announcements
from tidelog.log.clock_skew import ClockSkew
from tidelog.log.decision import Accept, Answer, Failure, Item, Names, Request, View
from tidelog.log.tail import Tail
from tidelog.store.engine import MAX_ID, Store, new_incarnation
from tidelog.store.rows import Effects, Entry, Head, Loaded, RowChange

_log = logging.getLogger(__name__)

SLOW_DECIDE_SECONDS = 0.05
"""A single decision above this is logged with its kind: it holds up every neighbour."""

SLOW_LOG_SECONDS = 10.0
"""Pause between two such lines: on a machine without a free processor each decision may be one."""

RENEW_SECONDS = 0.5
"""Pause between attempts to begin another incarnation in a store that does not answer."""

UNKNOWN_OUTCOME_SECONDS = 30.0
"""How long a lost COMMIT answer is asked after before its callers are told that nobody knows."""


Restore = Callable[[Sequence[int]], Awaitable[Mapping[int, bytes]]]
"""Returns the kept bodies of pruned entries by `committed_id`. A `StoreError` lets the node wait
where it is and ask again."""


class _Decided(NamedTuple):
    """A request with its answers and the entries it appended, in log order."""

    request: Request
    answers: Sequence[Answer | Failure]
    entries: list[Entry]


class Committer:
    """One writer per process; see the module's docstring for what a batch goes through.

    Everything but COMMIT itself runs on the event loop, in one task. That task also brings the tail
    up to entries of other nodes, so the tail has a single publisher and needs no lock.
    """

    def __init__(
        self,
        store: Store,
        clock: ServerClock,
        metrics: Metrics,
        limits: Limits,
        tail: Tail,
        incarnations: Incarnations,
    ) -> None:
        self.tail = tail
        self.incarnations = incarnations
        """Of the log that this committer writes; they never change while it lives."""
        self.failed: asyncio.Future[StoreUntrustworthy] = asyncio.get_running_loop().create_future()
        """Resolved when the process must stop because the disk can no longer be trusted."""
        self.replaced: asyncio.Future[HistoryReplaced]
        self.replaced = asyncio.get_running_loop().create_future()
        """Resolved when the store has another log than this node has served, and a name for it:
        everything made from what was seen must go, connections too, and begin again."""
        self.is_suspended = False
        """Whether nothing is taken while that is being found out."""
        self.ended = asyncio.Event()
        """Set when nothing is written any more: whoever works beside the requests ends with it,
        before the store is closed."""
        self._store = store
        self.clock_skew = ClockSkew(clock, metrics)
        """Of this node's clock against a shared store's: with too much nothing is written."""
        self.metrics = metrics
        """Of the whole node: surfaces count theirs here too."""
        self._limits = limits
        self._queue: deque[Request] = deque()
        self._queued_bytes = 0
        self._unanswered: deque[Request] = deque()
        """Taken from the queue and not yet answered, in order."""
        self._wake = asyncio.Event()
        self._stopping = False
        self._slow_decisions = SpacedLines()
        self._known_head = tail.position
        self._awaited: list[tuple[int, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None
        self._poll_timer: asyncio.TimerHandle | None = None
        """None when it is time to look at the head."""
        self._restorers: dict[str, Restore] = {}
        self.announcements = Announcements(store, self.reach, limits.head_poll_ms / 1000)
        """What this node and the others tell each other beside the log."""
        metrics.queue_depth.set_function(lambda: len(self._queue))
        metrics.wal_bytes.set_function(store.wal_bytes)
        metrics.tail_position.set_function(lambda: tail.position)
        metrics.tail_lag.set_function(lambda: max(0, self._known_head - tail.position))

    @classmethod
    async def start(
        cls, store: Store, clock: ServerClock, metrics: Metrics, limits: Limits
    ) -> "Committer":
        """A running committer whose tail stands at the log's head."""
        head = await store.head()
        tail = Tail(head.committed_id, head.digest)
        incarnations = Incarnations(await store.incarnations())
        committer = cls(store, clock, metrics, limits, tail, incarnations)
        await committer.clock_skew.look(store)
        store.watch_head(committer._on_head_moved)
        committer._task = asyncio.create_task(committer._run(), name="tidelog-committer")
        await committer.announcements.start()
        return committer

    @property
    def is_stopping(self) -> bool:
        """Whether nothing new is taken any more."""
        return self._stopping

    @property
    def position(self) -> int:
        """How far the tail has delivered the log."""
        return self.tail.position

    @property
    def problem(self) -> str | None:
        """Why nothing is taken although nobody stops it; anybody may read it."""
        if self.failed.done():
            return "the store cannot be trusted any more; see the server's log"
        if self.is_suspended:
            return "the store has another log than before; beginning again"
        return self.clock_skew.problem

    def submit(self, request: Request) -> None:
        """Queue a request; it cannot be withdrawn.

        Raises:
            QueueFull: the bounded queue has no room; reply with the surface's own backpressure.
            ShuttingDown: nothing new is taken.
        """
        if self.is_suspended:
            self.metrics.refusals.labels("history_replaced").inc()
            raise ShuttingDown("the store has another log than before; connect again in a moment")
        if self._stopping:
            self.metrics.refusals.labels("shutting_down").inc()
            raise ShuttingDown("the server is shutting down; retry against another one")
        limits = self._limits
        if (
            len(self._queue) >= limits.commit_queue_requests
            or self._queued_bytes >= limits.commit_queue_bytes
        ):
            self.metrics.refusals.labels("commit_queue_full").inc()
            raise QueueFull("the server has more writes waiting than it takes; retry in a moment")
        self._queue.append(request)
        self._queued_bytes += request.size_bytes
        self._wake.set()

    async def catch_up(self) -> None:
        """Return once the tail has reached the head that the store has now.

        A client that comes from a faster node must not find itself ahead of this one.

        Raises:
            HistoryReplaced: what the store has now is another log than this node has served.
            ShuttingDown: the tail moves no more.
        """
        try:
            head = await self._look()
        except HistoryReplaced:
            self._poll_now()
            raise
        await self.reach(head)

    async def _look(self) -> int:
        """Where the store's log ends now; it must be the log that was seen."""
        # What was passed before the question was on disk before it, and cannot have gone since.
        last = self.tail.known_digests.last
        head = await self._store.head()
        if last.is_missing_from(head.committed_id, head.digest):
            raise HistoryReplaced(
                f"the log that this node has seen up to {last.position} now ends at "
                f"{head.committed_id}, or with another entry"
            )
        self._require_incarnation(head)
        return head.committed_id

    def _require_incarnation(self, head: Head) -> None:
        if head.incarnation != self.incarnations.current.id:
            raise HistoryReplaced("another node found that the log has another history now")

    def _require_continuation(self, loaded: Loaded) -> None:
        """What is loaded under the lock must go on from what was seen."""
        head, seen = loaded.head, self.tail.known_digests
        self._require_incarnation(head)
        is_next = (
            seen.is_followed_by(loaded.others[0])
            if loaded.others
            else (head.committed_id, head.digest) == seen.last
        )
        if not is_next:
            raise HistoryReplaced(
                f"the log ends at {head.committed_id}, and is not the one that this node has seen "
                f"up to {seen.last.position}"
            )

    async def reach(self, head: int) -> None:
        """Return once the tail has reached `head`, where the store's log ended at some moment.

        Raises:
            ShuttingDown: the tail moves no more.
        """
        if head > self.tail.position:
            if self.ended.is_set():
                raise ShuttingDown("the server is shutting down; retry against another one")
            reached = asyncio.get_running_loop().create_future()
            self._awaited.append((head, reached))
            self._follow_to(head)
            await reached

    def restore_bodies(self, surface: str, restore: Restore) -> None:
        """Ask `restore` for bodies of a surface that were pruned before this node delivered them.

        Another node may prune what this one has yet to read. Without this the tail's sinks get such
        an entry without its body.
        """
        self._restorers[surface] = restore

    async def stop(self) -> None:
        """Take nothing new, finish what was accepted, then end.

        Whoever stops waiting for this does not stop the work; see `abandon`.
        """
        self._stopping = True
        self._wake.set()
        if self._task is not None:
            await asyncio.wait([self._task])
        await self.announcements.close()

    async def abandon(self) -> None:
        """End at once: what waits is refused, of what is under way nobody knows the outcome."""
        self._stopping = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self.announcements.close()

    def _on_head_moved(self, head: int) -> None:
        if head == 0:  # listening again, and perhaps to another server
            self._poll_now()
        self._follow_to(head)

    def _follow_to(self, head: int) -> None:
        if head > self._known_head:
            self._known_head = head
            self._wake.set()

    async def _run(self) -> None:
        try:
            while True:
                try:
                    await self._work()
                    break
                except HistoryReplaced as error:
                    if await self._begin_incarnation(error):
                        break
        except Exception as error:  # noqa: BLE001 - whatever we did not think of
            # A mistake of ours: nobody can say what state we are in. Better no server than one that
            # takes writes and never answers.
            _log.exception("the committer failed")
            self._fail(
                StoreUntrustworthy(
                    f"internal error of the committer ({type(error).__name__}); start tidelog "
                    "again: it continues from what is really stored."
                )
            )
        finally:
            self.ended.set()
            if self._poll_timer is not None:
                self._poll_timer.cancel()
            self._refuse_rest()
            self._release_awaiting()

    async def _work(self) -> None:
        is_readable = True
        self._poll_later()
        while True:
            if self._queue:
                await self._commit(self._take())
                if self._queue:
                    # An embedded commit never waits; sockets are read and flushed between batches.
                    await asyncio.sleep(0)
            elif self._stopping:
                return
            elif self._known_head > self.tail.position and is_readable:
                is_readable = await self._follow_others()
            elif self._poll_timer is None:
                await self._poll()
                is_readable = True
            else:
                self._wake.clear()
                await self._wake.wait()
                is_readable = True

    async def _begin_incarnation(self, error: HistoryReplaced) -> bool:
        """See that the log's other history has a name; False if it is the same after all.

        Nothing is acknowledged meanwhile. Nodes that notice at the same time agree, because they do
        this under the head lock: who comes later finds that it is done.
        """
        self.is_suspended = True
        self._refuse_rest(error)
        self._release_awaiting()
        while not self._stopping:
            try:
                is_another = await self._name_history(error)
            except (HistoryReplaced, Overtaken):  # again
                continue
            except StoreError as problem:
                _log.warning("%s; to begin again there, the store is needed: %s", error, problem)
                await asyncio.sleep(RENEW_SECONDS)
            else:
                self.is_suspended = is_another
                if is_another and not self.replaced.done():
                    self.replaced.set_result(error)
                return is_another
        return True

    async def _name_history(self, error: HistoryReplaced) -> bool:
        under, seen = self.incarnations.current.id, self.tail.known_digests.kept
        names = Names(
            rows=(("incarnations", ()), *(("digest_at", (at,)) for at, _ in seen)),
        )
        writer = self._store.writer
        loaded = await writer.begin(names, MAX_ID)
        try:
            known = Incarnations(map(Incarnation._make, loaded.rows["incarnations", ()]))
            stored = {at: row[0] for at, _ in seen for row in loaded.rows["digest_at", (at,)]}
            began = known.where_to_begin(under, seen, stored)
            if began is None:
                await writer.rollback()
                return self._say_known(error, known, under)
            new = new_incarnation()
            head = loaded.head
            effects = Effects(head.committed_id, head.digest, head.committed_at, [], [], [], [])
            effects.changes = [
                RowChange("add_incarnation", (new[0], began, new[1])),
                RowChange("count_incarnation", ()),
                RowChange("forget_incarnations", (FORMER_INCARNATIONS,)),
            ]
            await self._write(effects)
        except BaseException:
            await writer.rollback()
            raise
        _log.error(
            "%s. Both have the entries up to %d; whatever was acknowledged after that, up to %d, "
            "is lost. The log goes on as incarnation %s; all connections are closed now, and "
            "clients that have seen what is lost are told so when they reconnect",
            error,
            began,
            self.tail.position,
            new[0],
        )
        return True

    def _say_known(self, error: HistoryReplaced, known: Incarnations, under: str) -> bool:
        if known.current.id == under:
            _log.warning(
                "%s, said the store, and says otherwise under its lock: are reads answered by a "
                "replica? Let the `store` setting name the primary alone",
                error,
            )
            return False
        _log.error(
            "%s. The log goes on as incarnation %s, which another node has begun; all connections "
            "are closed now",
            error,
            known.current.id,
        )
        return True

    def _poll_later(self) -> None:
        if self._poll_timer is not None:
            self._poll_timer.cancel()
        seconds = self._limits.head_poll_ms / 1000
        self._poll_timer = asyncio.get_running_loop().call_later(seconds, self._poll_now)

    def _poll_now(self) -> None:
        if self._poll_timer is not None:
            self._poll_timer.cancel()
        self._poll_timer = None
        self._wake.set()

    async def _poll(self) -> None:
        """Look at the head now and then, should a wake-up be lost."""
        try:
            self._follow_to(await self._look())
            await self.clock_skew.look(self._store)
        except HistoryReplaced:
            raise
        except StoreError as error:
            _log.warning("could not look at the head: %s", error)
        finally:
            self._poll_later()

    def _take(self) -> list[Request]:
        batch: list[Request] = []
        size = 0
        limits = self._limits
        while self._queue and len(batch) < limits.commit_batch_requests:
            size += self._queue[0].size_bytes
            if batch and size > limits.commit_batch_bytes:
                break
            batch.append(self._queue.popleft())
        self._queued_bytes -= sum(request.size_bytes for request in batch)
        self._unanswered.extend(batch)
        return batch

    def _refuse_rest(self, reason: TidelogError | None = None) -> None:
        """The end: nobody may be left waiting."""
        unknown = reason or OutcomeUnknown(
            "the server stopped; retry with the same key to learn the outcome"
        )
        if self.failed.done():
            unknown = self.failed.result()
        for request in tuple(self._unanswered):
            self._answer(request, [Failure(unknown)] * len(request.items()))
        refused = Failure(ShuttingDown("the server is shutting down; retry against another one"))
        while self._queue:
            request = self._queue.popleft()
            self._answer(request, [refused] * len(request.items()))

    async def _commit(self, batch: list[Request]) -> None:
        if self.failed.done():
            self._refuse(batch, self.failed.result())
            return
        try:
            decided = await self._transact([(request, request.items()) for request in batch])
        except DataError as error:
            await self._commit_without_poison(batch, error)
        except HistoryReplaced as error:
            self._refuse(batch, error)
            raise
        except StoreError as error:
            self._refuse(batch, error)
        else:
            await self._hand_over(decided)

    async def _commit_without_poison(self, batch: list[Request], error: DataError) -> None:
        """The batch holds a row that the store refuses: halve it until that stands alone."""
        await asyncio.sleep(0)
        if len(batch) == 1:
            await self._hand_over([await self._commit_item_by_item(batch[0], error)])
        else:
            middle = len(batch) // 2
            await self._commit(batch[:middle])
            await self._commit(batch[middle:])

    async def _commit_item_by_item(self, request: Request, error: DataError) -> _Decided:
        """Commit the items of a poison request up to the one that is to blame; fail the rest."""
        items = request.items()
        answers: list[Answer | Failure] = []
        failure = Failure(error)
        if len(items) > 1:
            for item in items:
                try:
                    [decided] = await self._transact([(request, [item])])
                except StoreError as item_error:
                    failure = Failure(item_error)
                    if isinstance(item_error, StoreUntrustworthy):
                        self._fail(item_error)
                    break
                answers += decided.answers
                if decided.entries:
                    # At once, and so ahead of the answers: the next item's transaction may find
                    # another node's entries after these.
                    self._publish(decided.entries)
        _log.error("a request failed alone: %s", failure.error)
        answers += [failure] * (len(items) - len(answers))
        return _Decided(request, answers, [])

    async def _transact(self, batch: list[tuple[Request, Sequence[Item]]]) -> list[_Decided]:
        """One transaction: load, decide, write, commit; again if another node came between."""
        while True:
            try:
                return await self._attempt(batch)
            except Overtaken:
                self.metrics.overtaken.inc()

    async def _attempt(self, batch: list[tuple[Request, Sequence[Item]]]) -> list[_Decided]:
        started = time.perf_counter()
        writer = self._store.writer
        if self._known_head > self.tail.position:
            await self._follow_others()
        asked_ms = self.clock_skew.wall_ms()
        loaded = await writer.begin(_union(batch), self.tail.position)
        try:
            view = View(loaded, await self._now_ms(asked_ms, loaded))
        except StoreError:
            await writer.rollback()
            raise
        try:
            self._require_continuation(loaded)
            await self._publish_in_steps(loaded.others)
            decided = self._decide_all(batch, view)
            effects = view.effects()
            reach(FaultPoint.DECIDED)
            if effects is None:
                await writer.confirm()
            else:
                await self._write(effects)
        except BaseException:
            view.take_back()
            await writer.rollback()
            raise
        self.metrics.commit_batch_requests.observe(len(batch))
        self.metrics.commit_seconds.observe(time.perf_counter() - started)
        return decided

    async def _now_ms(self, asked_ms: int, loaded: Loaded) -> int:
        """The time that a batch goes by.

        Raises:
            ClockSkewed: nothing may be written.
        """
        skew, store_ms = self.clock_skew, loaded.clock_ms
        if store_ms is None and self._store.is_shared:
            remembered = skew.remembered_ms()
            if remembered is not None:
                return remembered
            asked_ms = skew.wall_ms()
            store_ms = await self._store.clock_ms()
        return skew.require(asked_ms, store_ms)

    async def _write(self, effects: Effects) -> None:
        batch_id = os.urandom(16)
        asked_ms = self.clock_skew.wall_ms()
        try:
            store_ms = await self._store.writer.commit(batch_id, effects)
        except OutcomeUnknown as error:
            await self._resolve(batch_id, error)
        else:
            self.clock_skew.note(asked_ms, store_ms)
        self._known_head = max(self._known_head, effects.committed_id)
        self.metrics.entries_committed.inc(len(effects.entries))

    def _decide_all(
        self, batch: list[tuple[Request, Sequence[Item]]], view: View
    ) -> list[_Decided]:
        before = time.perf_counter()
        decided = [self._decide(request, items, view) for request, items in batch]
        self.metrics.decide_seconds.observe(time.perf_counter() - before)
        return decided

    def _decide(self, request: Request, items: Sequence[Item], view: View) -> _Decided:
        answers: list[Answer | Failure] = []
        entries: list[Entry] = []
        before = time.perf_counter()
        for item in items:
            try:
                decision = item.decide(view)
                if type(decision) is Accept:
                    entries += view.accept(decision)
            except Exception as error:  # noqa: BLE001 - whatever a rule raises
                # A mistake in a rule fails its own request; the view is as it was before the item.
                _log.exception("the decision of %s failed", type(item).__name__)
                failure = Failure(TidelogError(f"internal error ({type(error).__name__})"))
                answers += [failure] * (len(items) - len(answers))
                break
            answers.append(decision.answer)
            after = time.perf_counter()
            if after - before > SLOW_DECIDE_SECONDS:
                also = self._slow_decisions.written(after, SLOW_LOG_SECONDS)
                if also is not None:
                    _log.warning("a decision of %s took over 50 ms%s", type(item).__name__, also)
            before = after
        return _Decided(request, answers, entries)

    async def _resolve(self, batch_id: bytes, error: OutcomeUnknown) -> None:
        """The answer to COMMIT was lost: ask the store until it can say what happened."""
        deadline = time.monotonic() + UNKNOWN_OUTCOME_SECONDS
        pause = 0.05
        committed: bool | None = None
        while committed is None:
            try:
                committed = await self._store.writer.committed(batch_id)
            except StoreUnavailable:
                if time.monotonic() > deadline:
                    raise error from None
                await asyncio.sleep(pause)
                pause = min(pause * 2, 2.0)
        if not committed:
            raise StoreUnavailable("the connection was lost before the commit; retry") from error

    def _refuse(self, batch: Sequence[Request], error: StoreError) -> None:
        """The engine is not available: refuse the whole batch and retry nothing."""
        _log.error("refused %d requests: %s", len(batch), error)
        self.metrics.refusals.labels(type(error).__name__).inc(len(batch))
        if isinstance(error, StoreUntrustworthy):
            self._fail(error)
        failure = Failure(error)
        for request in batch:
            self._answer(request, [failure] * len(request.items()))

    def _fail(self, error: StoreUntrustworthy) -> None:
        self._stopping = True
        if not self.failed.done():
            self.failed.set_result(error)

    async def _hand_over(self, decided: list[_Decided]) -> None:
        """Answers and entries leave in log order, in steps that no healthy peer is overrun by.

        Entries leave together as long as each answer may go ahead of them: whoever follows the log
        is told of many at once.
        """
        in_step, limit = 0, self._limits.handover_entries
        ready: list[Entry] = []
        for request, answers, entries in decided:
            if ready and not (entries and request.waits_for_entries):
                self.tail.publish(ready)
                ready = []
            reach(FaultPoint.HANDING_OVER)
            self._answer(request, answers)
            if entries:
                ready += entries
                in_step += len(entries)
                if in_step >= limit:
                    self.tail.publish(ready)
                    in_step, ready = 0, []
                    await asyncio.sleep(0)
        if ready:
            self.tail.publish(ready)
        self._tell_awaiting()

    def _answer(self, request: Request, answers: Sequence[Answer | Failure]) -> None:
        if self._unanswered and self._unanswered[0] is request:
            self._unanswered.popleft()
        try:
            request.hand_over(answers)
        except Exception:  # noqa: BLE001 - whatever a surface raises
            # The write is durable whatever becomes of its answer; the next one must get its own.
            _log.exception("handing over to %s failed", type(request).__name__)

    def _publish(self, entries: Sequence[Entry]) -> None:
        self.tail.publish(entries)
        self._known_head = max(self._known_head, self.tail.position)
        self._tell_awaiting()

    def _release_awaiting(self) -> None:
        """The tail may never get where they wait for it."""
        awaited, self._awaited = self._awaited, []
        for _, reached in awaited:
            if not reached.done():
                reached.set_exception(ShuttingDown("the server is shutting down"))

    def _tell_awaiting(self) -> None:
        """Resolve what `catch_up` waits for."""
        if self._awaited:
            position = self.tail.position
            for head, reached in self._awaited:
                if head <= position and not reached.done():
                    reached.set_result(None)
            self._awaited = [waiting for waiting in self._awaited if waiting[0] > position]

    async def _publish_in_steps(self, entries: Sequence[Entry]) -> None:
        """Publish what others committed, letting sockets have their turn now and then."""
        limit = self._limits.handover_entries
        for start in range(0, len(entries), limit):
            self._publish(await self._with_bodies(entries[start : start + limit]))
            await asyncio.sleep(0)

    async def _with_bodies(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Entries that were pruned before this node got to them, with their bodies again."""
        pruned: dict[str, list[int]] = {}
        for entry in entries:
            if entry.body is None and entry.surface in self._restorers:
                pruned.setdefault(entry.surface, []).append(entry.committed_id)
        if not pruned:
            return entries
        bodies: dict[int, bytes] = {}
        for surface, ids in pruned.items():
            bodies |= await self._restorers[surface](ids)
        return [
            entry._replace(body=bodies[entry.committed_id])
            if entry.committed_id in bodies
            else entry
            for entry in entries
        ]

    async def _follow_others(self) -> bool:
        """Bring the tail up to the head known now, without the lock; False if it failed.

        No further: others may write faster than this node delivers, and its own writes wait.
        """
        target = self._known_head
        try:
            while self.tail.position < target:
                await self.tail.brake.released()
                page = await self._store.entries(self.tail.position, through=target)
                if not page:
                    # The wake-up spoke of entries that are not there: somebody else's, or a lie.
                    self._known_head = self.tail.position
                    break
                if not self.tail.known_digests.is_followed_by(page[0]):
                    raise HistoryReplaced(
                        f"the log that was seen up to {self.tail.position} does not go on with the "
                        "entry after it"
                    )
                await self._publish_in_steps(page)
        except HistoryReplaced:
            raise
        except StoreError as error:
            _log.warning("could not read what other nodes wrote: %s", error)
            return False
        return True


def _union(batch: list[tuple[Request, Sequence[Item]]]) -> Names:
    if len(batch) == 1:
        return batch[0][0].names
    dedupe: set[tuple[str, str]] = set()
    streams: set[str] = set()
    rows: set[tuple[str, tuple[object, ...]]] = set()
    for request, _ in batch:
        names = request.names
        dedupe.update(names.dedupe)
        streams.update(names.streams)
        if names.rows:
            rows.update(names.rows)
    return Names(tuple(dedupe), tuple(streams), tuple(rows))
