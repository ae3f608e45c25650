"""The committer on real stores: batches, failures, hand-over and the end."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

import asyncpg
import pytest
from msgspec import Struct

from support.log.nodes import Node, joined, put_item, running_node, verdict, whole_log
from support.probe.rules import SCOPE, STATE, PruneItem, PutItem, log_stream
from tidelog.base import brake
from tidelog.base.errors import (
    DataError,
    OutcomeUnknown,
    QueueFull,
    ShuttingDown,
    StoreUnavailable,
    StoreUntrustworthy,
    TidelogError,
)
from tidelog.base.settings.limits import Limits
from tidelog.log.decision import Accept, Failure, Names, Refuse, RowChange, View
from tidelog.log.draft import Draft
from tidelog.log.request import Submission, submit_and_wait
from tidelog.store import Store
from tidelog.store.rows import Effects, Entry, Loaded
from tidelog.testing.clock import FakeClock

POISON = 2**63
"""A weight that no engine can store."""


class ScriptedWriter:
    """The real writer; notes what it commits, and fails first as often as it was told to."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.batches: list[Effects] = []
        """What was committed, batch by batch."""
        self.begin_failures: deque[Exception] = deque()
        self.commit_failures: deque[Exception | None] = deque()
        """Raised instead of committing; None lets one commit pass."""
        self.lost_answers: deque[Exception] = deque()
        """Raised after committing."""
        self.asked_failures: deque[Exception] = deque()

    async def begin(self, names: Names, seen: int) -> Loaded:
        """See `Writer.begin`."""
        if self.begin_failures:
            raise self.begin_failures.popleft()
        loaded: Loaded = await self._real.begin(names, seen)
        return loaded

    async def commit(self, batch_id: bytes, effects: Effects) -> None:
        """See `Writer.commit`."""
        if self.commit_failures and (failure := self.commit_failures.popleft()):
            await self._real.rollback()
            raise failure
        await self._real.commit(batch_id, effects)
        self.batches.append(effects)
        if self.lost_answers:
            raise self.lost_answers.popleft()

    async def confirm(self) -> None:
        """See `Writer.confirm`."""
        await self._real.confirm()

    async def rollback(self) -> None:
        """See `Writer.rollback`."""
        await self._real.rollback()

    async def committed(self, batch_id: bytes) -> bool:
        """See `Writer.committed`."""
        if self.asked_failures:
            raise self.asked_failures.popleft()
        return bool(await self._real.committed(batch_id))


class ScriptedStore:
    """The real store with a `ScriptedWriter`, and reads that can be made to fail."""

    def __init__(self, real: Store) -> None:
        self._real = real
        self.writer = ScriptedWriter(real.writer)
        self.is_readable = True
        self.reads = 0
        self.is_notified = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    async def entries(self, after: int, **bounds: int) -> list[Entry]:
        """See `Store.entries`."""
        self.reads += 1
        if not self.is_readable:
            raise StoreUnavailable("injected: unreadable")
        return await self._real.entries(after, **bounds)

    def watch_head(self, moved: Callable[[int], None]) -> None:
        """See `Store.watch_head`."""
        if self.is_notified:
            self._real.watch_head(moved)


class Scripts:
    """Scripts one node's store: pass `wrap` to the node."""

    store: ScriptedStore
    """The wrapped store, once the node is open."""

    def __init__(self, *, is_notified: bool = True) -> None:
        self._is_notified = is_notified

    def wrap(self, real: Store) -> Store:
        """Put the script around the real store."""
        self.store = ScriptedStore(real)
        self.store.is_notified = self._is_notified
        return cast("Store", self.store)

    @property
    def writer(self) -> ScriptedWriter:
        """The wrapped store's writer."""
        return self.store.writer


class Deciding(Struct, frozen=True):
    """An item whose decision is given by the test."""

    decision: Callable[[View], Accept | Refuse]

    def decide(self, view: View) -> Accept | Refuse:
        """What the test wants."""
        return self.decision(view)


def submit_put(node: Node, item: PutItem, size_bytes: int = 100) -> "asyncio.Future[Any]":
    """Queue one put; nothing runs before the caller awaits."""
    return asyncio.wrap_future(node.submit((item,), item.names(), size_bytes))


async def statuses(waiting: Sequence["asyncio.Future[Any]"]) -> list[str]:
    """The status of each request's only answer, or the name of its error."""
    answers = [answer for (answer,) in await asyncio.gather(*waiting)]
    return [
        type(answer.error).__name__ if isinstance(answer, Failure) else answer.status
        for answer in answers
    ]


async def stored_keys(store: Store) -> list[str]:
    """The keys in the log, in order; fails if the log does not verify."""
    last = await verdict(store)
    assert last.finding is None
    return [entry.entity for entry in await whole_log(store)]


async def test_decisions_see_what_the_batch_accepted_before_them(store_location: str) -> None:
    """One batch, one transaction: a sum that an earlier request made is there for the next."""
    scripts = Scripts()
    async with running_node(store_location, wrap=scripts.wrap) as node:
        weights = {"five": 5, "minus five": -5, "minus one": -1, "two": 2}
        waiting = [
            submit_put(node, put_item("s", key, weight=weight)) for key, weight in weights.items()
        ]
        assert await statuses(waiting) == ["committed", "committed", "refused", "committed"]
        assert [len(batch.entries) for batch in scripts.writer.batches] == [3]
        assert await node.store.rows(STATE, ("s",)) == (("s", 3, 2, 3),)


async def test_equal_keys_in_a_batch_repeat_only_an_accepted_one(store_location: str) -> None:
    """A refused first use leaves the key free for the second in the same batch."""
    async with running_node(store_location) as node:
        items = [
            put_item("s", "k", b"1", weight=-1),
            put_item("s", "k", b"2"),
            put_item("s", "k", b"2"),
            put_item("s", "k", b"3"),
        ]
        waiting = [submit_put(node, item) for item in items]
        assert await statuses(waiting) == ["refused", "committed", "duplicate", "conflict"]
        assert await node.store.dedupe_count() == 1


async def test_a_full_queue_refuses_by_count(store_location: str) -> None:
    """The request too many is refused at once and nothing of it ever appears."""
    async with running_node(store_location, limits=Limits(commit_queue_requests=3)) as node:
        waiting = [submit_put(node, put_item("s", f"k{number}")) for number in range(3)]
        with pytest.raises(QueueFull, match="retry"):
            submit_put(node, put_item("s", "too many"))
        assert await statuses(waiting) == ["committed"] * 3
        assert (await node.put("s", "later")).status == "committed"
        assert await stored_keys(node.store) == ["k0", "k1", "k2", "later"]


async def test_a_full_queue_refuses_by_bytes(store_location: str) -> None:
    """Few large requests fill the queue as many small ones do, and leave it when they commit."""
    async with running_node(store_location, limits=Limits(commit_queue_bytes=1000)) as node:
        waiting = [submit_put(node, put_item("s", f"k{number}"), 500) for number in range(2)]
        with pytest.raises(QueueFull):
            submit_put(node, put_item("s", "too many"), 1)
        assert await statuses(waiting) == ["committed"] * 2
        assert await statuses([submit_put(node, put_item("s", "later"), 1000)]) == ["committed"]
        assert await stored_keys(node.store) == ["k0", "k1", "later"]


def unnamed_dedupe(view: View) -> Refuse:
    """Looks for a key it did not name."""
    return Refuse(view.dedupe(SCOPE, "unnamed"))


def unnamed_serial(view: View) -> Refuse:
    """Looks at a stream it did not name."""
    return Refuse(view.serial("unnamed"))


def unnamed_rows(view: View) -> Refuse:
    """Looks at a row it did not name."""
    return Refuse(view.rows(STATE, ("unnamed",)))


def unnamed_draft(view: View) -> Accept:
    """Appends to a named stream and to one it did not name."""
    del view
    drafts = (
        Draft(stream, "probe", "put", "bad", "", "", b"{}") for stream in ("named", "unnamed")
    )
    return Accept("never", entries=tuple(drafts))


def mistaken(view: View) -> Refuse:
    """Has a bug."""
    raise ZeroDivisionError(view.now_ms)


@pytest.mark.parametrize(
    "decision", [mistaken, unnamed_dedupe, unnamed_serial, unnamed_rows, unnamed_draft]
)
async def test_a_decision_that_raises_fails_alone(
    store_location: str, decision: Callable[[View], Accept | Refuse]
) -> None:
    """A mistake in a rule fails its own request; its neighbours commit in the same transaction."""
    scripts = Scripts()
    async with running_node(store_location, wrap=scripts.wrap) as node:
        before = submit_put(node, put_item("s", "before"))
        failing = asyncio.wrap_future(
            node.submit(
                (Deciding(decision), put_item("s", "same request")), Names(streams=("named",))
            )
        )
        after = submit_put(node, put_item("s", "after"))
        assert await statuses([before, after]) == ["committed", "committed"]
        answers = await failing
        assert [type(answer.error) for answer in answers] == [TidelogError, TidelogError]
        assert "internal error" in str(answers[0].error)
        assert len(scripts.writer.batches) == 1
        assert await stored_keys(node.store) == ["before", "after"]
        assert await node.store.stream_entries("named", 0) == []


async def test_slow_decisions_are_told_now_and_then(
    store_location: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On a machine without a free processor each may be one, and a line for each fills the log."""
    monkeypatch.setattr("tidelog.log.committer.SLOW_DECIDE_SECONDS", -1.0)
    monkeypatch.setattr("tidelog.log.committer.SLOW_LOG_SECONDS", 3600.0)
    async with running_node(store_location) as node:
        for number in range(3):
            await node.put("s", f"k{number}")
        assert caplog.text.count("a decision of PutItem took over 50 ms") == 1
        monkeypatch.setattr("tidelog.log.committer.SLOW_LOG_SECONDS", 0.0)
        await node.put("s", "k3")
    assert "took over 50 ms (2 more times since the last such line)" in caplog.text


@pytest.mark.parametrize(
    "names",
    [
        Names(rows=(("no_such_query", ("s",)),)),
        Names(dedupe=((SCOPE, "\ud800"),)),
        Names(streams=("\ud800",)),
        Names(rows=((STATE, (5.5,)),), dedupe=((SCOPE, "\ud800"),)),
    ],
)
async def test_names_that_cannot_be_loaded_fail_alone(store_location: str, names: Names) -> None:
    """What the store cannot even look up fails its own request and nothing else."""
    async with running_node(store_location) as node:
        before = submit_put(node, put_item("s", "before"))
        failing = asyncio.wrap_future(node.submit((Deciding(lambda _: Refuse("never")),), names))
        after = submit_put(node, put_item("s", "after"))
        assert await statuses([before, failing, after]) == ["committed", "DataError", "committed"]
        assert await stored_keys(node.store) == ["before", "after"]


async def test_a_statement_that_there_is_not_fails_alone(store_location: str) -> None:
    """A row change under an unknown name fails its own request and nothing else."""
    async with running_node(store_location) as node:
        change = Accept("never", rows=(RowChange("no_such_statement", (1,)),))
        before = submit_put(node, put_item("s", "before"))
        failing = asyncio.wrap_future(node.submit((Deciding(lambda _: change),), Names()))
        after = submit_put(node, put_item("s", "after"))
        assert await statuses([before, failing, after]) == ["committed", "DataError", "committed"]
        assert await stored_keys(node.store) == ["before", "after"]


async def test_a_row_named_twice_is_loaded_once(store_location: str) -> None:
    """Two items of one request may name the same row; each sees it once."""
    async with running_node(store_location) as node:
        await node.put("s", "k")
        row = (STATE, ("s",))
        items = (Deciding(lambda view: Refuse(view.rows(*row))),) * 2
        answers = await asyncio.wrap_future(node.submit(items, Names(rows=(row, row))))
        assert answers == [(("s", 1, 1, 1),)] * 2


async def test_a_poison_row_fails_alone(store_location: str) -> None:
    """A value that the store refuses costs its own request, whatever the batch held."""
    async with running_node(store_location) as node:
        weights = {"a": 1, "poison": POISON, "b": 1, "c": -2, "d": -1}
        waiting = [
            submit_put(node, put_item("s", key, weight=weight)) for key, weight in weights.items()
        ]
        assert await statuses(waiting) == [
            *("committed", "DataError", "committed", "committed", "refused"),
        ]
        assert await stored_keys(node.store) == ["a", "b", "c"]
        assert await node.store.dedupe_row(SCOPE, "poison") is None


async def test_the_items_before_a_poison_one_stay(store_location: str) -> None:
    """A request of several items commits those before the poison one and fails the rest."""
    async with running_node(store_location) as node:
        items = [
            put_item("s", key, weight=POISON if key == "poison" else 1)
            for key in ("a", "b", "poison", "c")
        ]
        neighbour = submit_put(node, put_item("s", "before"))
        answers = await asyncio.wrap_future(node.submit(items, joined(items)))
        assert await statuses([neighbour]) == ["committed"]
        assert [answer.status for answer in answers[:2]] == ["committed", "committed"]
        assert [type(answer.error) for answer in answers[2:]] == [DataError, DataError]
        assert await stored_keys(node.store) == ["before", "a", "b"]
        assert [entry.entity for entry in node.delivered] == ["before", "a", "b"]


async def test_a_hand_over_that_raises_stops_nobody(store_location: str) -> None:
    """A surface that fails to take its answer keeps no neighbour from theirs, nor the tail."""

    def fail(answers: Sequence[Any]) -> None:
        raise RuntimeError(len(answers))

    async with running_node(store_location) as node:
        first = submit_put(node, put_item("s", "first"))
        item = put_item("s", "second")
        node.committer.submit(Submission(item.names(), 100, (item,), fail))
        third = submit_put(node, put_item("s", "third"))
        assert await statuses([first, third]) == ["committed", "committed"]
        await node.put("s", "fourth")
        assert [entry.entity for entry in node.delivered] == ["first", "second", "third", "fourth"]


async def test_refusals_commit_nothing(store_location: str) -> None:
    """A batch in which all are refused or repeated ends without a transaction (L5)."""
    scripts = Scripts()
    clock = FakeClock()
    async with running_node(store_location, wrap=scripts.wrap, clock=clock) as node:
        await node.put("s", "k")
        head = await node.store.head()
        clock.advance(1000)
        items = [put_item("s", "new", weight=-9), put_item("s", "k"), put_item("s", "k", b"2")]
        waiting = [submit_put(node, item) for item in items]
        assert await statuses(waiting) == ["refused", "duplicate", "conflict"]
        assert len(scripts.writer.batches) == 1
        assert await node.store.head() == head
        assert await node.store.dedupe_count() == 1
        assert await node.store.rows(STATE, ("s",)) == (("s", 1, 1, 1),)


async def test_batches_are_bounded_by_count(store_location: str) -> None:
    """No transaction holds more requests than the limit."""
    scripts = Scripts()
    limits = Limits(commit_batch_requests=4)
    async with running_node(store_location, wrap=scripts.wrap, limits=limits) as node:
        waiting = [submit_put(node, put_item("s", f"k{number}")) for number in range(10)]
        assert await statuses(waiting) == ["committed"] * 10
        assert [len(batch.entries) for batch in scripts.writer.batches] == [4, 4, 2]


async def test_batches_are_bounded_by_bytes(store_location: str) -> None:
    """No transaction holds more bytes than the limit, but a larger request commits alone."""
    scripts = Scripts()
    limits = Limits(commit_batch_bytes=1000)
    async with running_node(store_location, wrap=scripts.wrap, limits=limits) as node:
        sizes = [400, 400, 400, 5000, 600, 400, 1]
        waiting = [
            submit_put(node, put_item("s", f"k{number}"), size) for number, size in enumerate(sizes)
        ]
        assert await statuses(waiting) == ["committed"] * 7
        assert [len(batch.entries) for batch in scripts.writer.batches] == [2, 1, 1, 2, 1]


async def test_hand_over_goes_in_steps(store_location: str) -> None:
    """After so many entries of a batch the event loop gets its turn."""
    turns = 0
    seen: list[int] = []

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    async with running_node(store_location, limits=Limits(handover_entries=3)) as node:
        node.committer.tail.subscribe("probe", lambda entries: seen.extend([turns] * len(entries)))
        waiting = [submit_put(node, put_item("s", f"k{number}")) for number in range(8)]
        await asyncio.gather(*waiting)
    counting.cancel()
    first, second, third = seen[0], seen[3], seen[6]
    assert first < second < third
    assert seen == [first] * 3 + [second] * 3 + [third] * 2


async def test_each_result_leaves_before_its_entries(store_location: str) -> None:
    """Per request: the origin's result, then its entries, then the next request's result."""
    events: list[str] = []
    async with running_node(store_location) as node:
        node.committer.tail.subscribe(
            "probe", lambda entries: events.extend(f"entry {entry.entity}" for entry in entries)
        )
        waiting = []
        for keys in ("ab", "c", "de"):
            items = [put_item("s", key) for key in keys]
            answered = node.submit(items, joined(items))
            answered.add_done_callback(
                lambda done: events.append(f"result {''.join(a.key for a in done.result())}")
            )
            waiting.append(asyncio.wrap_future(answered))
        await asyncio.gather(*waiting)
    assert events == [
        *("result ab", "entry a", "entry b"),
        *("result c", "entry c"),
        *("result de", "entry d", "entry e"),
    ]


class WaitsForEntries(Submission):
    """A request whose caller waits until its entries have come too."""

    waits_for_entries = True


async def test_entries_leave_together_if_their_callers_wait_for_them(store_location: str) -> None:
    """Other answers, and those without entries, come after the entries before them."""
    events: list[str] = []
    async with running_node(store_location) as node:
        node.committer.tail.subscribe(
            "probe", lambda entries: events.append(f"{' '.join(e.entity for e in entries)} came")
        )
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def submit(kind: type[Submission], key: str) -> None:
            def answered(answers: Any) -> None:
                events.append(f"{key} {answers[0].status}")
                if key == "f":
                    done.set_result(None)

            item = put_item("s", key)
            node.committer.submit(kind(item.names(), 10, (item,), answered))

        for kind, keys in ((WaitsForEntries, "abb"), (Submission, "c"), (WaitsForEntries, "def")):
            for key in keys:
                submit(kind, key)
        await done
    assert events == [
        *("a committed", "b committed", "a b came", "b duplicate"),
        *("c committed", "d committed", "e committed", "f committed", "c d e f came"),
    ]


async def test_whoever_was_answered_finds_the_tail_beyond_the_entry(store_location: str) -> None:
    """A caller that awaits its answer resumes after its entries were delivered."""
    async with running_node(store_location) as node:
        item = put_item("s", "k")
        answers: Any = await submit_and_wait(node.committer, item.names(), 10, (item,))
        assert node.committer.tail.position == answers[0].committed_id == 1
        assert [entry.entity for entry in node.delivered] == ["k"]


async def test_a_cancelled_caller_withdraws_nothing(store_location: str) -> None:
    """What was queued commits, also if nobody waits for it any more."""
    async with running_node(store_location) as node:
        item = put_item("s", "k")
        caller = asyncio.create_task(
            cast("Any", submit_and_wait(node.committer, item.names(), 10, (item,)))
        )
        await asyncio.sleep(0)
        caller.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await caller
        assert caller.cancelled()
        await node.put("s", "next")
        assert await stored_keys(node.store) == ["k", "next"]


async def test_committed_at_never_decreases_when_the_clock_jumps_back(store_location: str) -> None:
    """A corrected clock, also across a restart, never makes an entry older than the one before."""
    clock = FakeClock(5000)
    async with running_node(store_location, clock=clock) as node:
        assert (await node.put("s", "a")).committed_at == 5000
        clock.set(1000)
        assert (await node.put("s", "b")).committed_at == 5000
        clock.set(6000)
        assert (await node.put("s", "c")).committed_at == 6000
    async with running_node(store_location, clock=FakeClock(10)) as node:
        assert (await node.put("s", "d")).committed_at == 6000
        assert [entry.committed_at for entry in await whole_log(node.store)] == [
            *(5000, 5000, 6000, 6000),
        ]


async def test_committed_at_never_decreases_across_nodes(postgresql_url: str) -> None:
    """A node whose clock is behind dates its entries no earlier than those of the one ahead."""
    async with (
        running_node(postgresql_url, name="ahead", clock=FakeClock(9000)) as ahead,
        running_node(postgresql_url, name="behind", clock=FakeClock(2000)) as behind,
    ):
        assert (await behind.put("s", "a")).committed_at == 2000
        assert (await ahead.put("s", "b")).committed_at == 9000
        assert (await behind.put("s", "c")).committed_at == 9000


async def test_a_prune_moves_the_clock_but_no_position(store_location: str) -> None:
    """A write that appends nothing keeps the head's position and digest."""
    clock = FakeClock(1000)
    async with running_node(store_location, clock=clock) as node:
        await node.put("s", "k")
        before = await node.store.head()
        clock.set(2000)
        item = PruneItem("s", 0, 1, ("k",))
        [answer] = await asyncio.wrap_future(node.submit((item,), item.names()))
        assert answer.pruned == 1
        assert await node.store.head() == before._replace(committed_at=2000)
        assert (await node.put("s", "k")).available is False
        assert await stored_keys(node.store) == ["k"]


async def test_stop_finishes_what_was_accepted(store_location: str) -> None:
    """Everything queued before the end commits and is answered; nothing new is taken."""
    node = await Node.open(store_location, limits=Limits(commit_batch_requests=2))
    try:
        waiting = [submit_put(node, put_item("s", f"k{number}")) for number in range(7)]
        stopping = asyncio.create_task(node.committer.stop())
        await asyncio.sleep(0)
        with pytest.raises(ShuttingDown):
            submit_put(node, put_item("s", "late"))
        await stopping
        assert await statuses(waiting) == ["committed"] * 7
        assert await stored_keys(node.store) == [f"k{number}" for number in range(7)]
    finally:
        await node.store.close()


@pytest.mark.parametrize("at", ["begin", "commit"])
async def test_an_unavailable_store_refuses_the_batch_and_recovers(
    store_location: str, at: str
) -> None:
    """Engine unavailable: the whole batch is refused and not retried; the next one works."""
    scripts = Scripts()
    async with running_node(store_location, wrap=scripts.wrap) as node:
        await node.put("s", "before")
        failures = (
            scripts.writer.begin_failures if at == "begin" else scripts.writer.commit_failures
        )
        cast("deque[Any]", failures).append(StoreUnavailable("injected: disk full"))
        waiting = [submit_put(node, put_item("s", f"k{number}")) for number in range(3)]
        assert await statuses(waiting) == ["StoreUnavailable"] * 3
        assert await node.store.dedupe_count() == 1
        retried = await node.put("s", "k1")
        assert (retried.status, retried.committed_id, retried.stream_serial) == ("committed", 2, 2)
        assert await stored_keys(node.store) == ["before", "k1"]
        assert [entry.entity for entry in node.delivered] == ["before", "k1"]


async def test_an_untrustworthy_store_ends_everything(store_location: str) -> None:
    """A failed fsync resolves `failed`; what waits is refused and nothing new is taken."""
    scripts = Scripts()
    limits = Limits(commit_batch_requests=1)
    async with running_node(store_location, wrap=scripts.wrap, limits=limits) as node:
        await node.put("s", "before")
        scripts.writer.commit_failures.append(StoreUntrustworthy("injected: fsync"))
        waiting = [submit_put(node, put_item("s", f"k{number}")) for number in range(3)]
        assert await statuses(waiting) == ["StoreUntrustworthy"] * 3
        assert isinstance(node.committer.failed.result(), StoreUntrustworthy)
        with pytest.raises(ShuttingDown):
            submit_put(node, put_item("s", "after"))
        assert await stored_keys(node.store) == ["before"]


@pytest.mark.parametrize("refusals", [1, 2], ids=["request by request", "item by item"])
async def test_an_untrustworthy_store_ends_a_replay_too(store_location: str, refusals: int) -> None:
    """A failed fsync while a poisoned batch is replayed ends the replay and the committer."""
    scripts = Scripts()
    async with running_node(store_location, wrap=scripts.wrap) as node:
        several = [put_item("s", key) for key in "ab"]
        scripts.writer.commit_failures.extend([DataError("injected: a row")] * refusals)
        scripts.writer.commit_failures.append(StoreUntrustworthy("injected: fsync"))
        first = asyncio.wrap_future(node.submit(several, joined(several)))
        second = submit_put(node, put_item("s", "neighbour"))
        assert [type(answer.error) for answer in await first] == [StoreUntrustworthy] * 2
        assert await statuses([second]) == ["StoreUntrustworthy"]
        assert node.committer.failed.done()
        assert await stored_keys(node.store) == []


async def test_an_unforeseen_failure_ends_everything(store_location: str) -> None:
    """A mistake of the committer's own stops it for all to see, instead of leaving callers wait."""
    scripts = Scripts()
    limits = Limits(commit_batch_requests=1)
    async with running_node(store_location, wrap=scripts.wrap, limits=limits) as node:
        scripts.writer.commit_failures.append(RuntimeError("injected: a bug"))
        first = submit_put(node, put_item("s", "first"))
        second = submit_put(node, put_item("s", "second"))
        assert await statuses([first, second]) == ["StoreUntrustworthy", "ShuttingDown"]
        assert "RuntimeError" in str(await asyncio.wait_for(node.committer.failed, 5))
        with pytest.raises(ShuttingDown):
            submit_put(node, put_item("s", "after"))
        assert await stored_keys(node.store) == []


async def test_a_lost_commit_answer_is_found_out(postgresql_url: str) -> None:
    """Outcome unknown: the store is asked until it can say; committed means handed over."""
    scripts = Scripts()
    async with running_node(postgresql_url, wrap=scripts.wrap) as node:
        scripts.writer.lost_answers.append(OutcomeUnknown("injected: cut after COMMIT"))
        scripts.writer.asked_failures.append(StoreUnavailable("injected: not yet back"))
        assert (await node.put("s", "kept")).committed_id == 1
        scripts.writer.commit_failures.append(OutcomeUnknown("injected: cut before COMMIT"))
        lost = await node.put("s", "lost")
        assert isinstance(lost.error, StoreUnavailable)
        assert (await node.put("s", "next")).committed_id == 2
        assert await stored_keys(node.store) == ["kept", "next"]
        assert [entry.entity for entry in node.delivered] == ["kept", "next"]


async def test_another_nodes_entries_come_before_ones_own(postgresql_url: str) -> None:
    """A node that writes has delivered everything that precedes its own result."""
    events: list[str] = []
    async with (
        running_node(postgresql_url, name="a") as a,
        running_node(postgresql_url, name="b", wrap=Scripts(is_notified=False).wrap) as b,
    ):
        b.committer.tail.subscribe(
            "probe", lambda entries: events.extend(entry.entity for entry in entries)
        )
        await a.put_many([put_item("s", f"k{number}") for number in range(5)])
        item = put_item("s", "own")
        answered = b.submit((item,), item.names())
        answered.add_done_callback(lambda _: events.append("result"))
        [answer] = await asyncio.wrap_future(answered)
        assert answer.committed_id == 6
    assert events == ["k0", "k1", "k2", "k3", "k4", "result", "own"]


async def test_catch_up_reaches_the_head_of_now(postgresql_url: str) -> None:
    """A second node that catches up has delivered all that the first one has committed."""
    async with (
        running_node(postgresql_url, name="a") as a,
        running_node(
            postgresql_url,
            name="b",
            wrap=Scripts(is_notified=False).wrap,
            limits=Limits(head_poll_ms=60_000),
        ) as b,
    ):
        await a.put_many([put_item("s", f"k{number}") for number in range(1200)])
        assert b.committer.tail.position == 0
        await asyncio.wait_for(b.committer.catch_up(), 10)
        assert b.committer.tail.position == 1200
        assert b.delivered == a.delivered


async def test_a_node_hears_of_other_nodes_commits(postgresql_url: str) -> None:
    """What one node commits reaches the tail of another that does nothing, by notification."""
    limits = Limits(head_poll_ms=60_000)
    async with (
        running_node(postgresql_url, name="a") as a,
        running_node(postgresql_url, name="b", limits=limits) as b,
    ):
        delivered = asyncio.Event()
        b.committer.tail.subscribe("probe", lambda _: delivered.set())
        for number in range(100):  # it may not listen yet
            await a.put("s", f"k{number}")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(delivered.wait(), 0.05)
                break
        assert delivered.is_set()


async def test_what_others_wrote_waits_for_fronts_that_lag(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be any amount; it comes when they can take more, and nothing is left out."""
    monkeypatch.setattr(brake, "PATIENCE_SECONDS", 60.0)
    async with (
        asyncio.timeout(60),
        running_node(postgresql_url, name="a") as a,
        running_node(postgresql_url, name="b") as b,
    ):
        held, front = b.committer.tail.brake, asyncio.Event()
        held.hold(front.set)
        for number in range(3):
            await a.put("s", f"k{number}")
        reached = asyncio.create_task(b.committer.catch_up())
        while not held.is_awaited:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
        assert b.delivered == []
        held.release(front.set)
        await reached
        assert not front.is_set(), "it was not given up"
        assert [entry.committed_id for entry in b.delivered] == [1, 2, 3]


async def test_a_lost_notification_costs_one_poll(postgresql_url: str) -> None:
    """A node that is never notified finds other nodes' entries when it next looks at the head."""
    limits = Limits(head_poll_ms=30)
    async with (
        running_node(postgresql_url, name="a") as a,
        running_node(
            postgresql_url, name="b", limits=limits, wrap=Scripts(is_notified=False).wrap
        ) as b,
    ):
        delivered = asyncio.Event()
        b.committer.tail.subscribe("probe", lambda _: delivered.set())
        await a.put("s", "k")
        await asyncio.wait_for(delivered.wait(), 5)
        assert b.delivered == a.delivered


async def test_an_unreadable_store_is_not_hammered(postgresql_url: str) -> None:
    """While other nodes' entries cannot be read, they are asked for about once per poll."""
    scripts = Scripts()
    limits = Limits(head_poll_ms=50)
    async with (
        running_node(postgresql_url, name="a") as a,
        running_node(postgresql_url, name="b", limits=limits, wrap=scripts.wrap) as b,
    ):
        scripts.store.is_readable = False
        await a.put("s", "k")
        waiting = asyncio.create_task(b.committer.catch_up())
        await asyncio.sleep(0.5)
        assert 1 <= scripts.store.reads <= 25
        assert not waiting.done()
        scripts.store.is_readable = True
        await asyncio.wait_for(waiting, 5)
        assert b.delivered == a.delivered


async def test_catch_up_ends_with_the_committer(postgresql_url: str) -> None:
    """Whoever waits for the tail is told when it moves no more."""
    scripts = Scripts()
    async with (
        running_node(postgresql_url, name="a") as a,
        running_node(postgresql_url, name="b", wrap=scripts.wrap) as b,
    ):
        scripts.store.is_readable = False
        await a.put("s", "k")
        waiting = asyncio.create_task(b.committer.catch_up())
        await asyncio.sleep(0.05)
        await b.committer.stop()
        with pytest.raises(ShuttingDown):
            await asyncio.wait_for(waiting, 5)
        with pytest.raises(ShuttingDown):
            await asyncio.wait_for(b.committer.catch_up(), 5)


async def test_streams_are_apart(store_location: str) -> None:
    """Entries of one batch on several streams share positions and have serials of their own."""
    async with running_node(store_location) as node:
        answers = await node.put_many(
            [put_item(name, f"{name}{n}") for n in (1, 2) for name in "ab"]
        )
        assert [(a.committed_id, a.stream_serial) for a in answers] == [
            (1, 1),
            (2, 1),
            (3, 2),
            (4, 2),
        ]
        entries = await node.store.stream_entries(log_stream("b"), 0)
        assert [(entry.committed_id, entry.stream_serial) for entry in entries] == [(2, 1), (4, 2)]


async def test_a_wake_up_for_nothing_ends(postgresql_url: str) -> None:
    """A notification of entries that are not there, or of nonsense, leaves an idle node idle."""
    async with running_node(postgresql_url) as node:
        await node.put("s", "first")
        other = await asyncpg.connect(postgresql_url)
        for payload in ("999999999999", "nonsense", ""):
            await other.execute("SELECT pg_notify('tidelog_head', $1)", payload)
        await other.close()
        await asyncio.sleep(0.3)
        assert node.committer._known_head == node.committer.tail.position == 1
        assert (await node.put("s", "second")).committed_id == 2


async def test_pages_are_bounded_in_bytes(store_location: str) -> None:
    """Large entries come in short pages, at least one at a time, none left out."""
    async with running_node(store_location) as node:
        for number in range(5):
            body = b'"' + b"x" * (5 * 1024 * 1024) + b'"'
            await node.append(Draft("s", "probe", "raw", str(number), "", "", body))
        seen: list[int] = []
        while page := await node.store.entries(len(seen)):
            assert len(page) <= 2
            seen += [entry.committed_id for entry in page]
        assert seen == [1, 2, 3, 4, 5]
        assert len(await node.store.stream_entries("s", 0)) == 2
