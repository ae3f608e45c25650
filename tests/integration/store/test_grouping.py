"""A batch is a statement for each kind of row, and leaves what one at a time would have left."""

import asyncio
import itertools
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from support.channels.peer import channels_server
from support.log.nodes import LOG_ID, Node, running_node
from tidelog.base.sql import sqlitefile
from tidelog.config.schema import SCHEMA
from tidelog.log.decision import Accept, Failure, Names, RowChange, View
from tidelog.store.grouping import Group, group
from tidelog.store.one_statement import writing
from tidelog.store.postgresql import PostgresqlStore
from tidelog.store.postgresql_rows import to_columns
from tidelog.store.sqlite import SqliteStore
from tidelog.testing.postgresql import create_database, drop_database

POISON = 2**63
"""A number that no engine can store."""

REQUESTS = 34

numbers = st.integers(1, 3)
texts = st.sampled_from("ab")
states = st.sampled_from([None, b"one", b"two"])
delivery = (st.just("m"), texts, st.just("push"), st.just(""))

VALUES: dict[str, tuple[st.SearchStrategy[Any], ...]] = {
    "channels_note_history": (texts, numbers),
    "channels_add_message": (numbers, texts, numbers, numbers, st.just(0), numbers),
    "channels_add_version": (numbers, numbers),
    "channels_fold": (numbers, st.integers(0, 1), numbers, numbers, states),
    "mesh_add_delivery": (*delivery, st.just("mesh"), numbers, numbers),
    "mesh_claim_delivery": (*delivery, st.just("claim"), numbers, numbers),
    "mesh_finish_delivery": (
        *delivery,
        st.just("claim"),
        st.sampled_from(["pending", "delivered"]),
        numbers,
        st.none(),
        st.none(),
    ),
    "mesh_add_mention": (texts, texts, st.just("mesh"), numbers, numbers),
    "sync_add_partition": (texts, numbers),
    # These keep their places.
    "channels_set_floors": (texts, numbers, numbers, numbers),
    "channels_remove_message": (numbers,),
    "channels_remove_versions": (numbers, numbers),
    "mesh_expire_deliveries": (st.just("m"),),
}

TABLES = (
    *("channels_channel", "channels_message", "channels_version"),
    *("mesh_delivery_queue", "mesh_mention_index", "sync_event_partitions"),
)

ADDS = {name for name in VALUES if "_add_" in name}


@st.composite
def batches_of_changes(draw: st.DrawFn) -> list[RowChange]:
    """Changes of one surface, whose rows meet; seldom is a row added that is there already."""
    surface = draw(st.sampled_from(["channels", "channels", "mesh", "mesh", "mesh", "sync"]))
    moving = [name for name in SCHEMA.touches if name.startswith(surface)]
    kinds = 3 * moving + [name for name in VALUES if name.startswith(surface)]
    named: list[RowChange] = []
    added: set[tuple[Any, ...]] = set()
    is_refusable = draw(st.integers(0, 9)) == 0
    if surface == "mesh" and draw(st.booleans()):  # else little can be claimed and finished
        for who in "ab":
            named.append(RowChange("mesh_add_delivery", ("m", who, "push", "", "mesh", 1, 1)))
            added.add(("mesh_add_delivery", "m", who, "push", ""))
    for _ in range(draw(st.integers(0, 20))):
        name = draw(st.sampled_from(kinds))
        values = draw(st.tuples(*VALUES[name]))
        if name == "channels_add_message":  # a serial of its own, whatever the message
            values = (*values[:2], len(named), *values[3:])
        if name in ADDS:
            row = (name, *values[SCHEMA.touches[name].key])
            if row in added and not is_refusable:
                continue
            added.add(row)
        named.append(RowChange(name, values))
    return named


Execute = Callable[[Sequence[Group]], Any]
"""Returns what statements leave in the tables of a database that has nothing else in them."""


@pytest.fixture(params=["sqlite", "postgresql"])
def execute(request: pytest.FixtureRequest) -> Execute:
    """On either engine."""
    found: Execute = request.getfixturevalue(f"execute_{request.param}")
    return found


@pytest.fixture
def execute_sqlite(tmp_path: Path) -> Iterator[Execute]:
    """As the writer does it: a call for each statement, with all of its rows."""
    path = tmp_path / "log.db"
    asyncio.run(SqliteStore(SCHEMA, path, log_id=LOG_ID).close())
    queries = SCHEMA.queries("sqlite")

    def left(statements: Sequence[Group]) -> Any:
        connection.execute("BEGIN IMMEDIATE")
        try:
            for name, rows in statements:
                connection.executemany(queries[name], rows)
            return {
                table: Counter(connection.execute(f"SELECT * FROM {table}")) for table in TABLES
            }
        except sqlite3.IntegrityError:
            return "refused"
        finally:
            connection.execute("ROLLBACK")

    with closing(sqlitefile.connect(path)) as connection:
        sqlitefile.enable_seals(connection)
        yield left


@pytest.fixture
def execute_postgresql(
    postgresql_server: str, postgresql_template: str
) -> Iterator[Callable[..., Any]]:
    """With the rows of a statement as its columns.

    As many of the first as it is told are parts of one, which come after yet another statement.
    """
    queries = SCHEMA.queries("postgresql")

    async def left(
        connection: asyncpg.Connection,
        statements: Sequence[Group],
        together: int = 0,
        first: str = "SELECT 1",
    ) -> Any:
        transaction = connection.transaction()
        await transaction.start()
        try:
            parts = tuple((queries[name], len(rows[0])) for name, rows in statements[:together])
            values = [to_columns(rows, len(rows[0])) for _, rows in statements[:together]]
            one = writing(first, "SELECT 2", "SELECT 3", 0, parts)
            await connection.execute(one, *itertools.chain(*values))
            for name, rows in statements[together:]:
                await connection.execute(queries[name], *to_columns(rows, len(rows[0])))
            return {
                table: Counter(map(tuple, await connection.fetch(f"SELECT * FROM tidelog.{table}")))
                for table in TABLES
            }
        except asyncpg.UniqueViolationError:
            return "refused"
        finally:
            await transaction.rollback()

    with asyncio.Runner() as runner:
        url = runner.run(create_database(postgresql_server, template=postgresql_template))
        connection = runner.run(asyncpg.connect(url))
        yield lambda *given: runner.run(left(connection, *given))
        runner.run(connection.close())
        runner.run(drop_database(url))


def _add(message: int) -> RowChange:
    return RowChange("channels_add_message", (message, "s", message, 1, 0, 1))


def _fold(message: int, is_open: int, state: bytes | None) -> RowChange:
    return RowChange("channels_fold", (message, is_open, 7, 7, state))


def _delivery(statement: str, who: str, *values: Any) -> RowChange:
    return RowChange(f"mesh_{statement}_delivery", ("m", who, "push", "", *values))


_DELIVERED = ("claim", "delivered", 1, None, None)

FOLDED_AFTER_ADDED = [_fold(2, 0, b"two"), _add(1), _fold(1, 1, b"one")]
FOLDED_TWICE = [_add(1), _fold(1, 1, b"one"), _add(2), _fold(1, 0, None), _fold(1, 1, b"two")]
ADDED_ACROSS_A_REMOVAL = [_add(1), RowChange("channels_remove_message", (1,)), _add(1)]
FINISHED_AFTER_CLAIMED = [
    *(_delivery("add", who, "mesh", 1, 1) for who in "ab"),
    _delivery("finish", "b", *_DELIVERED),
    _delivery("claim", "a", "claim", 1, 2),
    _delivery("finish", "a", *_DELIVERED),
]
CLAIMED_TWICE = [
    _delivery("add", "a", "mesh", 1, 1),
    _delivery("claim", "a", "claim", 1, 1),
    _delivery("claim", "a", "claim", 2, 3),
]


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(named=batches_of_changes())
@example(named=FOLDED_AFTER_ADDED)
@example(named=FOLDED_TWICE)
@example(named=ADDED_ACROSS_A_REMOVAL)
@example(named=FINISHED_AFTER_CLAIMED)
@example(named=CLAIMED_TWICE)
def test_grouped_leave_what_one_at_a_time_leave(execute: Execute, named: list[RowChange]) -> None:
    """Also that a row is refused: then the committer asks again, request by request."""
    grouped, _ = group(named, SCHEMA.touches)
    assert Counter((each.statement, row) for each in grouped for row in each.rows) == Counter(
        (change.statement, change.values) for change in named
    )
    assert execute(grouped) == execute(_one_by_one(named))


def _one_by_one(named: Sequence[RowChange]) -> list[Group]:
    return [Group(change.statement, [change.values]) for change in named]


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(named=batches_of_changes())
@example(named=FOLDED_AFTER_ADDED)
@example(named=FOLDED_TWICE)
@example(named=FINISHED_AFTER_CLAIMED)
def test_parts_of_one_statement_leave_what_one_at_a_time_leave(
    execute_postgresql: Callable[..., Any], named: list[RowChange]
) -> None:
    """And nothing, if the statement before them has no row: the batch is overtaken."""
    grouped, together = group(named, SCHEMA.touches)
    assert execute_postgresql(grouped, together) == execute_postgresql(_one_by_one(named))
    left = execute_postgresql(grouped[:together], together, "SELECT 1 WHERE false")
    assert left == execute_postgresql([])


def test_every_statement_that_moves_is_compared() -> None:
    """And has the table that is looked at."""
    assert set(SCHEMA.touches) <= set(VALUES)
    assert {touch.table for touch in SCHEMA.touches.values()} == set(TABLES)


def test_only_what_touches_the_same_row_stands_in_the_way() -> None:
    """A message is folded after it was added; others are added beside it, but not across a rule."""

    def add(message: int) -> RowChange:
        return RowChange("channels_add_message", (message, "s", message, 0, 0, 0))

    def fold(message: int) -> RowChange:
        return RowChange("channels_fold", (message, 0, 0, message, None))

    remove = RowChange("channels_remove_message", (1,))
    named = [add(1), fold(1), add(2), fold(2), fold(1), remove, remove, add(3), fold(3), remove]
    grouped, together = group(named, SCHEMA.touches)
    assert together == 1, "a message that is folded must have been added before"
    assert [(each.statement, [row[0] for row in each.rows]) for each in grouped] == [
        ("channels_add_message", [1, 2]),
        ("channels_fold", [1, 2, 1]),
        ("channels_remove_message", [1, 1]),
        ("channels_add_message", [3]),
        ("channels_fold", [3]),
        ("channels_remove_message", [1]),
    ]


def test_a_row_that_must_not_repeat_gets_a_statement_of_its_own() -> None:
    """PostgreSQL applies one of several changes of a row, and does not say which."""
    claims = [RowChange("mesh_claim_delivery", ("m", who, "push", "", "c", 1, 2)) for who in "abab"]
    assert [[row[1] for row in each.rows] for each in group(claims, SCHEMA.touches).groups] == [
        ["a", "b"],
        ["a", "b"],
    ]


@asynccontextmanager
async def standing_still(url: str) -> Any:
    """Nobody gets the head lock for the length of the block."""
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            await connection.execute("SELECT 1 FROM tidelog.head FOR UPDATE")
            yield
    finally:
        await connection.close()


async def test_a_batch_of_publishes_is_one_statement_with_a_part_for_each_kind_of_row(
    tmp_path: Path, postgresql_url: str
) -> None:
    """Half of them create messages, half end streams: three kinds of rows, and one of states."""
    executed: list[str] = []

    def note(query: Any) -> None:
        executed.append(query.query)

    async with channels_server(tmp_path, postgresql_url) as node:
        streaming = {"ai": {"transport": {"status": "streaming"}}}
        done = {"ai": {"transport": {"status": "complete"}}}
        serials = [
            (await node.api.publish(f"ai:{n}", "x", extras=streaming))["message_serial"]
            for n in range(REQUESTS // 2)
        ]
        store = node.server.store
        assert isinstance(store, PostgresqlStore)
        connection = store.writer._connection
        assert connection is not None
        connection.add_query_logger(note)
        async with asyncio.TaskGroup() as group, standing_still(postgresql_url):
            group.create_task(node.api.publish("first"))
            while not executed:  # noqa: ASYNC110 - the driver tells nobody
                await asyncio.sleep(0.01)
            for n, serial in enumerate(serials):
                group.create_task(node.api.publish(f"room-{n}"))
                group.create_task(
                    node.api.mutate("append", f"ai:{n}", serial, data="y", extras=done)
                )
            while len(node.server.committer._queue) < REQUESTS:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        connection.remove_query_logger(note)
        _looked, _first, _looked_again, batch = executed
        tables = re.findall(r"(?:INSERT INTO|UPDATE) tidelog\.(\w+)", batch)
        parts = ("channels_channel", "channels_message", "channels_message", "channels_version")
        assert sorted(tables) == sorted(("head", "log", "writer", *parts))
        for n, serial in enumerate(serials):
            assert (await node.api.item(f"ai:{n}", serial))["data"] == "xy"


class Adding:
    """A request that adds messages of these numbers to the tables."""

    def __init__(self, *messages: int) -> None:
        self._messages = messages

    def decide(self, view: View) -> Accept:
        """Two kinds of rows for each, so that the neighbours' must be gathered."""
        del view
        return Accept(
            "added",
            rows=tuple(
                change
                for message in self._messages
                for change in (
                    RowChange("channels_add_message", (message, "s", message, 0, 0, 0)),
                    RowChange("channels_add_version", (message, message)),
                )
            ),
        )


async def added(node: Node, *requests: Adding) -> list[bool]:
    """Whether each of them was; they are one batch, because nothing runs before this awaits."""
    waiting = [asyncio.wrap_future(node.submit((each,), Names())) for each in requests]
    return [not isinstance(answers[0], Failure) for answers in await asyncio.gather(*waiting)]


async def test_a_refused_row_does_not_disturb_its_neighbours(store_location: str) -> None:
    """Whether a value is impossible or a row is there already, the request it is in fails alone."""
    async with running_node(store_location) as node:
        assert await added(node, Adding(7)) == [True]
        answers = await added(
            node, Adding(1, 2), Adding(3, POISON), Adding(4), Adding(5, 7), Adding(6), Adding(1)
        )
        assert answers == [True, False, True, False, True, False]
        found = await node.store.rows("channels_history_up", ("s", 0, 99, 0, 99, 99))
        assert [serial for serial, _ in found] == [1, 2, 4, 6, 7]
