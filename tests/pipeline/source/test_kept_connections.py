"""Connections to PostgreSQL that outlive a read."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from typing import Any

import asyncpg
import pytest

from tidelog.pipeline.source import kept_connections
from tidelog.pipeline.source.kept_connections import MOST_KEPT, KeptConnections

WAIT_SECONDS = 60.0


@pytest.fixture
def connections() -> Iterator[KeptConnections]:
    """None is kept yet, nor afterwards."""
    with closing(KeptConnections()) as kept:
        yield kept


def pid(connection: Any) -> int:
    """Which process of the server it is served by."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def asked(url: str, ask: Callable[[asyncpg.Connection], Awaitable[Any]]) -> Any:
    """What the server returns to somebody else."""

    async def go() -> Any:
        observer = await asyncpg.connect(url)
        try:
            return await ask(observer)
        finally:
            await observer.close()

    return asyncio.run(go())


def served(url: str, *pids: int) -> int:
    """How many of these processes there are."""
    question = "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY($1::int[])"
    return int(asked(url, lambda server: server.fetchval(question, pids)))


def test_the_next_read_has_the_connection_of_the_last(
    connections: KeptConnections, postgresql_url: str
) -> None:
    """Two reads at once have one each."""
    with connections.lent(postgresql_url) as first:
        one = pid(first)
        with connections.lent(postgresql_url) as second:
            assert pid(second) != one
    with connections.lent(postgresql_url) as again:
        assert pid(again) == one


def test_nothing_is_open_in_what_is_kept(connections: KeptConnections, postgresql_url: str) -> None:
    """It is idle, so no vacuum waits for it."""
    with connections.lent(postgresql_url) as connection:
        kept = pid(connection)
    question = "SELECT state FROM pg_stat_activity WHERE pid = $1"
    assert asked(postgresql_url, lambda server: server.fetchval(question, kept)) == "idle"


def test_one_that_the_server_has_ended_is_not_lent(
    connections: KeptConnections, postgresql_url: str
) -> None:
    """The read gets another."""
    with connections.lent(postgresql_url) as connection:
        ended = pid(connection)
    end = "SELECT pg_terminate_backend($1, 60000)"
    assert asked(postgresql_url, lambda server: server.fetchval(end, ended))
    with connections.lent(postgresql_url) as another:
        assert pid(another) != ended


def test_a_read_that_failed_closes_its_connection(
    connections: KeptConnections, postgresql_url: str
) -> None:
    """Nobody knows what state it is in."""
    pids = []

    def fail() -> None:
        with connections.lent(postgresql_url) as connection:
            pids.append(pid(connection))
            raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            fail()
    assert len(set(pids)) == 2


def test_only_some_are_kept(connections: KeptConnections, postgresql_url: str) -> None:
    """However many were needed at once."""
    lent = [connections.lent(postgresql_url) for _ in range(MOST_KEPT + 2)]
    pids = [pid(each.__enter__()) for each in lent]
    for each in lent:
        each.__exit__(None, None, None)
    deadline = time.monotonic() + WAIT_SECONDS
    while served(postgresql_url, *pids) > MOST_KEPT:
        assert time.monotonic() < deadline
    assert served(postgresql_url, *pids) == MOST_KEPT


def test_one_that_nobody_uses_is_closed(
    connections: KeptConnections, postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By itself, after a while."""
    monkeypatch.setattr(kept_connections, "IDLE_SECONDS", 0.1)
    with connections.lent(postgresql_url) as connection:
        unused = pid(connection)
    deadline = time.monotonic() + WAIT_SECONDS
    while served(postgresql_url, unused):
        assert time.monotonic() < deadline
