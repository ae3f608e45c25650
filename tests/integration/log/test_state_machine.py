"""Random programs against a real committer and store, compared with a model of a few lines.

`TIDELOG_TEST_SOAK_EXAMPLES` and `TIDELOG_TEST_SOAK_STEPS` raise how many programs and how long.
"""

import asyncio
import itertools
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import asyncpg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from support.log.nodes import LOG_ID, Node, Witness, joined, put_item, verdict, whole_log
from support.probe.rules import SCOPE, PruneItem, PutItem, log_stream
from support.probe.wire import PruneResult, PutResult
from tidelog.base.errors import DataError, StoreInUse
from tidelog.base.settings.limits import Limits
from tidelog.config.schema import SCHEMA
from tidelog.log.decision import Failure
from tidelog.store import open_store
from tidelog.store.rows import Entry
from tidelog.testing.clock import FakeClock

if TYPE_CHECKING:
    from concurrent.futures import Future

EXAMPLES = int(os.environ.get("TIDELOG_TEST_SOAK_EXAMPLES", "4"))
STEPS = int(os.environ.get("TIDELOG_TEST_SOAK_STEPS", "50"))

MAX_INT64 = 2**63 - 1

NASTY = (
    *("\0", "\0\0", "a\0b", "\ue000", "\ue000" + "0", "\ue000" + "1", "\ue000\ue000", "\ue000\0"),
    *(" ", "A", "a", "\u00e9", "e\u0301", "\U0001f600", "\uffff", "\U0010ffff", "%", "'", "\\0"),
    "x" * 200,
    "\U0001f30a" * 200,
)

streams = st.sampled_from(("s", "S", "\0", "\ue000", "\ue000" + "0", "\U0001f30a" * 50))
keys = st.one_of(
    st.integers(0, 200).map(lambda number: f"k{number}"),
    st.sampled_from(NASTY),
    st.text(st.sampled_from("\0\ue00001a\U0001f600"), min_size=1, max_size=5),
)
values = st.sampled_from(
    (
        *(b"null", b"0", b'""', b'"\\u0000"', '"\ue000\U0001f600"'.encode(), b'{"a": [1, 2.5]}'),
        b'"' + b"x" * 6000 + b'"',
    )
)
weights = st.integers(-3, 6)
poison_weights = st.sampled_from((MAX_INT64 + 1, 2**64, 2**200, MAX_INT64))
puts = st.builds(put_item, streams, keys, values, weights)
poisons = st.builds(put_item, streams, keys, values, poison_weights)


class Prune(NamedTuple):
    """A prune as it is drawn; the keys it names are those of the model when it is submitted."""

    stream: str
    after: int
    emptied: int


class Again(NamedTuple):
    """An earlier put once more, as it was or with another value under its key."""

    which: int
    changed: bool


prunes = st.builds(Prune, streams, st.integers(0, 4), st.integers(1, 4))
repeats = st.builds(Again, st.integers(0, 1000), st.booleans())
anything = st.one_of(puts, puts, repeats, poisons, prunes)

Drawn = PutItem | Prune | Again
Item = PutItem | PruneItem
Outcome = tuple[object, ...]


class Poison(Exception):  # noqa: N818 - not an error of the test
    """The store must refuse this row."""


class Known(NamedTuple):
    """A remembered key."""

    fingerprint: bytes
    committed_id: int
    serial: int
    committed_at: int
    available: bool


class Placed(NamedTuple):
    """An entry of the model."""

    stream: str
    serial: int
    key: str
    body: bytes
    weight: int
    committed_at: int


class Model:
    """What the log must be: plain lists and dictionaries, one decision after the other."""

    def __init__(self) -> None:
        self.entries: list[Placed] = []
        self.emptied: set[int] = set()
        self.keys: dict[str, Known] = {}
        self.serials: Counter[str] = Counter()
        self.weights: Counter[str] = Counter()
        self.last: dict[str, int] = {}
        self.head_at = 0

    def copy(self) -> "Model":
        """An equal model to try something on."""
        other = Model()
        other.entries, other.emptied = list(self.entries), set(self.emptied)
        other.keys, other.last = dict(self.keys), dict(self.last)
        other.serials, other.weights = Counter(self.serials), Counter(self.weights)
        other.head_at = self.head_at
        return other

    def request(self, items: Sequence[Item], now_ms: int) -> list[Outcome]:
        """Items are decided in order; a poison one fails with all that follow it in the request."""
        outcomes: list[Outcome] = []
        for item in items:
            try:
                done = (
                    self.put(item, now_ms)
                    if isinstance(item, PutItem)
                    else self.prune(item, now_ms)
                )
            except Poison:
                return outcomes + [("failed",)] * (len(items) - len(outcomes))
            outcomes.append(done)
        return outcomes

    def put(self, item: PutItem, now_ms: int) -> Outcome:
        """The rule of the probe's put."""
        known = self.keys.get(item.key)
        if known is not None:
            if known.fingerprint != item.fingerprint:
                return ("conflict", 0, 0, 0, True)
            return ("duplicate", *known[1:])
        weight = self.weights[item.stream] + item.weight
        if weight < 0:
            return ("refused", 0, 0, 0, True)
        if weight > MAX_INT64:
            raise Poison
        self.head_at = max(self.head_at, now_ms)
        self.serials[item.stream] += 1
        self.weights[item.stream] = weight
        serial = self.serials[item.stream]
        self.entries.append(
            Placed(item.stream, serial, item.key, item.body, item.weight, self.head_at)
        )
        committed_id = self.last[item.stream] = len(self.entries)
        self.keys[item.key] = Known(item.fingerprint, committed_id, serial, self.head_at, True)
        return ("committed", committed_id, serial, self.head_at, True)

    def prune(self, item: PruneItem, now_ms: int) -> Outcome:
        """The rule of the probe's prune."""
        named_all = len(item.keys) == item.through - item.after
        if item.through > self.serials[item.stream] or not named_all:
            return ("beyond", 0)
        self.head_at = max(self.head_at, now_ms)
        for committed_id, entry in enumerate(self.entries, start=1):
            if entry.stream == item.stream and item.after < entry.serial <= item.through:
                self.emptied.add(committed_id)
        for key in item.keys:
            self.keys[key] = self.keys[key]._replace(available=False)
        return ("pruned", item.through - item.after)


def outcome(answer: object) -> Outcome:
    """An answer in the model's words."""
    match answer:
        case Failure(DataError()):
            return ("failed",)
        case PruneResult(pruned, reason):
            return ("beyond" if reason else "pruned", pruned)
        case PutResult(_, status, committed_id, serial, committed_at, available):
            return (status, committed_id, serial, committed_at, available)
    raise AssertionError(f"unexpected answer {answer!r}")


def interleavings(first: int, second: int) -> Iterator[tuple[int, ...]]:
    """Every order in which so many requests of node 0 and of node 1 can have been committed."""
    for places in itertools.combinations(range(first + second), first):
        yield tuple(0 if index in places else 1 for index in range(first + second))


class LogMachine(RuleBasedStateMachine):
    """Drives one store through one or two nodes."""

    def __init__(
        self, runner: asyncio.Runner, engine: str, fresh: Callable[[], str], lengths: list[int]
    ) -> None:
        super().__init__()
        self.run = runner.run
        self.engine = engine
        self.lengths = lengths
        self.model = Model()
        self.tried: list[PutItem] = []
        self.violations: list[str] = []
        self.location = fresh()
        self.clocks = [FakeClock(), FakeClock()]
        self.nodes: list[Node] = []
        for number in range(2 if engine == "postgresql" else 1):
            self.nodes.append(self.run(self.open(number)))
        self.witness = Witness(self.location)
        self.steps = 0
        self.writes: Counter[str] = Counter()
        """Steps that wrote, since the rule of that name was last applied."""

    async def open(self, number: int) -> Node:
        """Start the node of that number; small batches of hand-over show their seams."""
        node = await Node.open(
            self.location,
            name=f"node-{number}",
            clock=self.clocks[number],
            limits=Limits(handover_entries=3),
        )
        node.committer.tail.subscribe("probe", self.check_delivery)
        return node

    def check_delivery(self, entries: Sequence[Entry]) -> None:
        """L4: what the tail delivers can be read by anybody."""
        self.check_visible(entries[-1].committed_id, "delivered")

    def check_visible(self, committed_id: int, what: str) -> None:
        """L1 and L4, as another connection sees it at this moment."""
        highest, count = self.witness.end()
        if highest < committed_id:
            self.violations.append(f"{committed_id} was {what} while the log ended at {highest}")
        if highest != count:
            self.violations.append(f"a reader found {count} entries up to {highest}")

    def check_answers(self, answered: "Future[Any]") -> None:
        """L4: whoever is told of an entry can read it."""
        for answer in answered.result():
            if isinstance(answer, PutResult) and answer.committed_id:
                self.check_visible(answer.committed_id, "answered")

    def prepared(self, drawn: Drawn) -> Item:
        """The item that was meant, given what there is by now."""
        if isinstance(drawn, Again):
            if not self.tried:
                return put_item("s", "first")
            item = self.tried[drawn.which % len(self.tried)]
            return put_item(item.stream, item.key, b'"other"') if drawn.changed else item
        if isinstance(drawn, Prune):
            through = drawn.after + drawn.emptied
            found = tuple(
                entry.key
                for entry in self.model.entries
                if entry.stream == drawn.stream and drawn.after < entry.serial <= through
            )
            return PruneItem(drawn.stream, drawn.after, through, found)
        self.tried.append(drawn)
        return drawn

    def submit(self, node: Node, items: Sequence[Item]) -> "Future[Any]":
        """Queue one request."""
        answered = node.submit(items, joined(items))
        answered.add_done_callback(self.check_answers)
        return answered

    def together(self, number: int, requests: Sequence[Sequence[Drawn]]) -> None:
        """Submit requests to one node at once and compare every answer with the model's."""
        number %= len(self.nodes)
        prepared = [[self.prepared(drawn) for drawn in request] for request in requests]

        async def submit_all() -> list[list[Outcome]]:
            waiting = [self.submit(self.nodes[number], items) for items in prepared]
            answers = await asyncio.gather(*map(asyncio.wrap_future, waiting))
            return [[outcome(answer) for answer in one] for one in answers]

        got = self.run(submit_all())
        now_ms = self.clocks[number].now_ms()
        assert got == [self.model.request(items, now_ms) for items in prepared]
        self.wrote()

    @invariant()
    def holds_after_every_step(self) -> None:
        """What is cheap enough to check each time."""
        self.run(self.check_step())
        self.steps += 1

    def wrote(self) -> None:
        """A step that wrote has passed."""
        self.writes.update(("clock_jumps", "reopen", "second_writer"))

    async def check_step(self) -> None:
        """After every step: head, keys and delivery are the model's; nothing unseen was told."""
        assert self.violations == []
        model, end = self.model, len(self.model.entries)
        [head] = self.witness.rows("SELECT committed_id, committed_at, log_id FROM head")
        assert head == (end, model.head_at, LOG_ID)
        assert self.witness.rows("SELECT count(*) FROM dedupe") == [(len(model.keys),)]
        for node in self.nodes:
            await node.committer.catch_up()
            assert node.committer.tail.position == end
            positions = [entry.committed_id for entry in node.delivered]
            assert positions == list(range(node.start + 1, end + 1))

    async def check_everything(self) -> None:
        """L1 to L8 over all that is stored."""
        store, model = self.nodes[-1].store, self.model
        log = await whole_log(store)
        assert [entry.committed_id for entry in log] == list(range(1, len(model.entries) + 1))
        for entry, placed in zip(log, model.entries, strict=True):
            emptied = entry.committed_id in model.emptied
            assert entry[1:11] == (
                *(log_stream(placed.stream), placed.serial, "probe", "put", placed.key, "", ""),
                *(placed.committed_at, None if emptied else placed.body, None),
            )
        for node in self.nodes:
            for delivered in node.delivered:
                stored = log[delivered.committed_id - 1]
                body = None if stored.body is None else delivered.body
                assert delivered._replace(body=body) == stored
        dedupe = self.witness.rows(
            "SELECT scope, key, fingerprint, committed_id, available, first_seen_at FROM dedupe"
        )
        assert sorted(dedupe) == sorted(
            (SCOPE, key, known.fingerprint, known.committed_id, known.available, known.committed_at)
            for key, known in model.keys.items()
        )
        folded = [
            (stream, serial, model.weights[stream], model.last[stream])
            for stream, serial in model.serials.items()
            if serial
        ]
        rows = self.witness.rows("SELECT stream, puts, weight, last_committed_id FROM probe_stream")
        assert sorted(rows) == sorted(folded)
        for stream, serial, _, _ in folded:
            entries = await store.stream_entries(log_stream(stream), 0)
            assert [entry.stream_serial for entry in entries] == list(range(1, serial + 1))
        last = await verdict(store)
        assert (last.finding, last.verified, last.pruned) == (None, len(log), len(model.emptied))

    @rule(number=st.integers(0, 1), put=puts)
    def append(self, number: int, put: PutItem) -> None:
        """One put."""
        self.together(number, [[put]])

    @rule(number=st.integers(0, 1), again=repeats)
    def repeat(self, number: int, again: Again) -> None:
        """An earlier key, with the same request or another."""
        self.together(number, [[again]])

    @rule(
        number=st.integers(0, 1),
        requests=st.lists(st.lists(puts, min_size=1, max_size=1), min_size=2, max_size=8),
    )
    def batch(self, number: int, requests: list[list[PutItem]]) -> None:
        """Several requests in one transaction."""
        self.together(number, requests)

    @rule(
        number=st.integers(0, 1),
        put=puts,
        weight=st.integers(-6, 1),
        repeats=st.lists(st.booleans(), min_size=1, max_size=3),
    )
    def equal_keys(self, number: int, put: PutItem, weight: int, repeats: list[bool]) -> None:
        """Equal keys inside one batch: only an accepted first one makes the others repeats."""
        first = put_item(put.stream, put.key, b'"first"', weight)
        others = [put if changed else first for changed in repeats]
        self.together(number, [[first], *([other] for other in others)])

    @rule(
        number=st.integers(0, 1),
        requests=st.lists(st.lists(anything, min_size=1, max_size=4), min_size=1, max_size=3),
    )
    def mixture(self, number: int, requests: list[list[Drawn]]) -> None:
        """Requests of several items, some of them poison, repeats or prunes."""
        self.together(number, requests)

    @rule(number=st.integers(0, 1), before=puts, poison=poisons, after=puts)
    def poisoned_batch(self, number: int, before: PutItem, poison: PutItem, after: PutItem) -> None:
        """A row that the store refuses takes no neighbour with it."""
        self.together(number, [[before], [poison], [after]])

    @rule(number=st.integers(0, 1), prune=prunes)
    def empty(self, number: int, prune: Prune) -> None:
        """Empty some entries, or be refused for asking beyond the end."""
        self.together(number, [[prune]])

    @precondition(lambda self: self.writes["clock_jumps"] >= 1)
    @rule(number=st.integers(0, 1), by_ms=st.integers(-5000, 5000))
    def clock_jumps(self, number: int, by_ms: int) -> None:
        """A node's clock is corrected, forwards or backwards."""
        self.writes["clock_jumps"] = 0
        clock = self.clocks[number]
        clock.set(clock.now_ms() + by_ms)

    @precondition(lambda self: self.writes["reopen"] >= 6)
    @rule(number=st.integers(0, 1))
    def reopen(self, number: int) -> None:
        """A node ends and starts again."""
        self.writes["reopen"] = 0
        number %= len(self.nodes)
        self.run(self.nodes[number].close())
        self.nodes[number] = self.run(self.open(number))

    @precondition(lambda self: self.engine == "sqlite" and self.writes["second_writer"] >= 6)
    @rule()
    def second_writer(self) -> None:
        """The embedded engine has one writer."""
        self.writes["second_writer"] = 0
        with pytest.raises(StoreInUse, match=str(os.getpid())):
            self.run(open_store(SCHEMA, self.location, log_id="other", node="node-2"))

    @precondition(lambda self: self.engine == "postgresql")
    @rule(
        first=st.lists(st.one_of(puts, puts, repeats), min_size=1, max_size=3),
        second=st.lists(st.one_of(puts, puts, repeats), min_size=1, max_size=3),
    )
    def concurrently(self, first: list[Drawn], second: list[Drawn]) -> None:
        """Two nodes write at once: their answers are those of some order of the requests."""
        prepared = [[self.prepared(drawn) for drawn in drawns] for drawns in (first, second)]

        async def submit_all() -> list[list[Outcome]]:
            waiting = [
                [self.submit(node, [item]) for item in items]
                for node, items in zip(self.nodes, prepared, strict=True)
            ]
            return [
                [outcome(*await asyncio.wrap_future(answered)) for answered in one]
                for one in waiting
            ]

        got = self.run(submit_all())
        for order in interleavings(len(first), len(second)):
            model = self.model.copy()
            left = [iter(items) for items in prepared]
            would: list[list[Outcome]] = [[], []]
            for number in order:
                now_ms = self.clocks[number].now_ms()
                would[number] += model.request([next(left[number])], now_ms)
            if would == got:
                self.model = model
                break
        else:
            raise AssertionError(f"no order explains {got}")
        self.wrote()

    def teardown(self) -> None:
        """At the end everything is checked, also as a fresh start finds it."""
        try:
            self.run(self.check_everything())
            for node in self.nodes:
                self.run(node.close())
            self.nodes = [self.run(self.open(0))]
            self.run(self.check_everything())
        finally:
            for node in self.nodes:
                self.run(node.close())
            self.witness.close()
            self.lengths.append(self.steps)


def empty_database(runner: asyncio.Runner, url: str) -> str:
    """The database with its schema and nothing in it; much cheaper than a new one."""

    async def empty() -> None:
        connection = await asyncpg.connect(url)
        try:
            tables = await connection.fetch(
                "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables "
                "WHERE schemaname IN ('tidelog', 'mesh') AND tablename <> 'schema_version'"
                "   OR tablename = 'probe_stream'"
            )
            if tables:
                await connection.execute(f"TRUNCATE {', '.join(name for (name,) in tables)}")
        finally:
            await connection.close()

    runner.run(empty())
    return url


def test_every_program_leaves_the_log_the_model_predicts(
    engine: str, store_location: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever is put, repeated, refused, poisoned, pruned and reopened: L1 to L8 hold."""
    caplog.set_level(logging.CRITICAL, "tidelog")  # every poison row is logged, by the thousand
    numbers = itertools.count()
    lengths: list[int] = []
    with asyncio.Runner() as runner:

        def fresh() -> str:
            if engine == "postgresql":
                return empty_database(runner, store_location)
            return str(tmp_path / f"{next(numbers)}" / "tidelog.db")

        class Machine(LogMachine):
            def __init__(self) -> None:
                super().__init__(runner, engine, fresh, lengths)

        for _ in range(5):  # some programs end early, when hypothesis has run out of choices
            missing = EXAMPLES - sum(length >= STEPS for length in lengths)
            if missing > 0:
                run_state_machine_as_test(
                    Machine,
                    settings=settings(
                        max_examples=missing + 1,  # the first one it tries has no steps
                        stateful_step_count=STEPS,
                        deadline=None,
                        print_blob=True,
                        suppress_health_check=list(HealthCheck),
                    ),
                )
    assert sum(length >= STEPS for length in lengths) >= EXAMPLES, sorted(lengths)
