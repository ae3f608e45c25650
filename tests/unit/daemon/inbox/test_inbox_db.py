"""The inbox stores each id once and keeps its order (mesh 8)."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from msgspec import Raw

from support.mesh.local_daemon import BOB, delivery
from tidelog.base.sql.queries import load_queries
from tidelog.daemon.database import StorageBusy, StorageFull
from tidelog.daemon.inbox.inbox_db import (
    KEPT_MS,
    SEEN_MS,
    VACUUM_EVERY_MS,
    CursorInvalid,
    Inbox,
    read_cursor,
)
from tidelog.daemon.times import timestamp
from tidelog.testing.clock import FakeClock

OTHER = "c1" * 32
DAY_MS = 86_400_000
Open = Callable[[], Inbox]


@pytest.fixture
def reopen(tmp_path: Path, clock: FakeClock) -> Iterator[Open]:
    """Opens the same file again and again, as restarts do."""
    opened: list[Inbox] = []

    def open_() -> Inbox:
        for earlier in opened:
            earlier.close()
        opened.append(Inbox(tmp_path / "inbox.db", clock))
        return opened[-1]

    yield open_
    for inbox in opened:
        inbox.close()


@pytest.fixture
def inbox(reopen: Open) -> Inbox:
    """An empty inbox."""
    return reopen()


def test_a_second_copy_is_recognised(inbox: Inbox) -> None:
    """In the same transaction and in a later one."""
    first, copy = inbox.receive([delivery(1), delivery(1)])
    assert first is not None
    assert first.client_message_id == "c-1"
    assert copy is None
    assert inbox.receive([delivery(1)]) == [None]
    assert inbox.count() == 1


def test_another_members_message_under_the_same_id_is_another_message(inbox: Inbox) -> None:
    """Ids are each sender's own here: the broker forgets one, and another member may use it."""
    inbox.receive([delivery(1)])
    [theirs] = inbox.receive([delivery(2, client_message_id="c-1", sender_pubkey=OTHER)])
    assert theirs is not None
    assert [message.sender_pubkey for message in inbox.page()] == [BOB, OTHER]
    assert inbox.receive([delivery(3, client_message_id="c-1", sender_pubkey=OTHER)]) == [None]
    [elsewhere] = inbox.receive([delivery(4, client_message_id="c-1", mesh="other")])
    assert elsewhere is not None


def test_another_members_message_under_a_pruned_id_is_taken(inbox: Inbox, clock: FakeClock) -> None:
    """What is remembered of a message that is gone is whose it was, too."""
    inbox.receive([delivery(1)])
    clock.advance(KEPT_MS + 1)
    assert inbox.prune() == 1
    assert inbox.receive([delivery(1)]) == [None]
    [theirs] = inbox.receive([delivery(2, client_message_id="c-1", sender_pubkey=OTHER)])
    assert theirs is not None


@pytest.mark.parametrize("is_searchable", [False, True])
def test_an_inbox_of_the_first_version_is_migrated(
    tmp_path: Path, clock: FakeClock, is_searchable: bool
) -> None:
    """Its messages stay, in their order and findable; copies of what it had are still copies."""
    path = tmp_path / "inbox.db"
    make_first_version(path, clock, is_searchable=is_searchable)
    inbox = Inbox(path, clock, is_searchable=is_searchable)
    try:
        assert [message.body for message in inbox.page()] == ["body 1", "body 2"]
        assert inbox.receive([delivery(1), delivery(2)]) == [None, None]
        if is_searchable:
            assert [found.history_id for found in inbox.search("body 2")] == [2]
        [theirs] = inbox.receive([delivery(3, client_message_id="c-1", sender_pubkey=OTHER)])
        assert theirs is not None
        if is_searchable:
            assert [found.history_id for found in inbox.search("body 3")] == [3]
        before, now = timestamp(clock.now_ms() - 40 * DAY_MS), timestamp(clock.now_ms())
        copy = delivery(4, client_message_id="pruned", created_at=before)
        assert inbox.receive([copy]) == [None], "nobody noted whose it was"
        later = delivery(5, client_message_id="pruned", created_at=now, sender_pubkey=OTHER)
        [reused] = inbox.receive([later])
        assert reused is not None, "it was written after the message that had this id had arrived"
    finally:
        inbox.close()


def make_first_version(path: Path, clock: FakeClock, *, is_searchable: bool) -> None:
    """An inbox as the first version of the schema had it: two messages and a pruned id."""
    statements = load_queries(files("tidelog.daemon") / "sql")
    with sqlite3.connect(path) as connection:
        connection.executescript(
            (files("tidelog.daemon") / "migrations" / "0001_inbox.sql").read_text()
        )
        connection.execute("PRAGMA user_version = 1")
        for name in ("view", "table", "on_insert", "on_delete") if is_searchable else ():
            connection.execute(statements[f"search_{name}"])
        for number in (1, 2):
            connection.execute(
                "INSERT INTO inbox VALUES (?, ?, ?, 'ops', 'alerts', ?, 'bob', ?, NULL, ?, NULL, ?,"
                " 'next', '2026-01-01T00:00:00.000Z', 0)",
                (
                    f"id-{number}",
                    f"c-{number}",
                    f"01BROKER{number:06}",
                    BOB,
                    f"body {number}",
                    clock.now_ms() - DAY_MS + number,
                    number,
                ),
            )
        received_at = clock.now_ms() - 40 * DAY_MS
        connection.execute("INSERT INTO inbox_seen VALUES ('pruned', ?)", (received_at,))
    connection.close()


def test_a_message_without_a_clients_id_has_the_brokers(inbox: Inbox) -> None:
    """So that its copies are recognised too."""
    for expected in (1, 1):
        inbox.receive([delivery(1, client_message_id=None)])
        assert inbox.count() == expected
    assert inbox.page()[0].client_message_id == "01BROKER000001"


def test_everything_of_a_message_is_kept(inbox: Inbox) -> None:
    """What is told live is what is read later."""
    [stored] = inbox.receive(
        [delivery(7, meta=Raw(b'{"a":1}'), mention=True, topic=None, reply_to_id="01A")]
    )
    assert inbox.page() == [stored]
    assert stored is not None
    assert (bytes(stored.meta), stored.mention, stored.reply_to_id) == (b'{"a":1}', True, "01A")
    assert inbox.history_id == 7


def test_order_survives_clocks_and_restarts(reopen: Open, clock: FakeClock) -> None:
    """A reader that continues after the last row sees each later one once (FT-23)."""
    start = clock.now_ms()
    seen: list[int | None] = []
    position = None
    number = 0
    for offset in (0, 0, 500, -10_000, -10_000, 400, 600):
        clock.set(start + offset)
        inbox = reopen()
        for _ in range(3):
            number += 1
            inbox.receive([delivery(number)])
        page = inbox.page(position) if position else inbox.page()
        seen += [message.history_id for message in page]
        position = page[-1].position
    assert seen == list(range(1, number + 1))
    times = [message.received_at for message in reopen().page(limit=1000)]
    assert times == sorted(times)


def test_a_pruned_id_is_still_known(inbox: Inbox, clock: FakeClock) -> None:
    """For a year; a message that is first delivered late is taken whatever its age."""
    inbox.receive([delivery(1)])
    clock.advance(KEPT_MS + 1)
    inbox.receive([delivery(2)])
    assert inbox.prune() == 1
    assert [message.history_id for message in inbox.page()] == [2]
    assert inbox.receive([delivery(1)]) == [None]
    clock.advance(SEEN_MS)
    inbox.prune()
    assert inbox.receive([delivery(1)]) != [None]
    assert inbox.receive([delivery(3, created_at="1999-01-01T00:00:00Z")]) != [None]


def test_pruning_takes_many_steps(inbox: Inbox, clock: FakeClock) -> None:
    """However much there is."""
    inbox.receive([delivery(number) for number in range(2500)])
    clock.advance(KEPT_MS + 1)
    assert inbox.prune() == 2500
    assert inbox.count() == 0


async def test_space_is_given_back_once_a_week(inbox: Inbox, clock: FakeClock) -> None:
    """Not at the first start, and not twice."""
    assert not await inbox.vacuum_if_due()
    clock.advance(VACUUM_EVERY_MS - 1)
    assert not await inbox.vacuum_if_due()
    clock.advance(1)
    assert await inbox.vacuum_if_due()
    assert not await inbox.vacuum_if_due()


async def test_the_loop_goes_on_while_space_is_given_back(inbox: Inbox, clock: FakeClock) -> None:
    """A delivery is refused at once and read access stays; afterwards it is stored."""
    inbox.receive([delivery(number, body="x" * 1000) for number in range(2000)])
    await inbox.vacuum_if_due()
    clock.advance(VACUUM_EVERY_MS)
    vacuuming = asyncio.create_task(inbox.vacuum_if_due())
    await asyncio.sleep(0)
    assert not vacuuming.done()
    with pytest.raises(StorageBusy):
        inbox.receive([delivery(2000)])
    assert inbox.count() == 2000
    assert await vacuuming
    assert inbox.receive([delivery(2000)]) != [None]


async def test_a_full_disk_leaves_the_file_as_it_was(
    inbox: Inbox, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was not given back is tried again at the next look, and deliveries are stored."""
    await inbox.vacuum_if_due()
    clock.advance(VACUUM_EVERY_MS)

    def full() -> None:
        raise StorageFull("no room")

    monkeypatch.setattr(inbox._database, "vacuum", full)
    with pytest.raises(StorageFull):
        await inbox.vacuum_if_due()
    assert inbox.receive([delivery(1)]) != [None]
    monkeypatch.undo()
    assert await inbox.vacuum_if_due()


def test_the_newest_history_id_is_remembered(reopen: Open) -> None:
    """Also when its row is gone, and when older ones come later."""
    inbox = reopen()
    assert inbox.history_id == 0
    inbox.receive([delivery(9)])
    inbox.receive([delivery(3)])
    assert reopen().history_id == 9


@pytest.mark.parametrize("text", ["", "%", "YWJj", "MS4\xe9", "LjE"])
def test_what_is_no_cursor_is_refused(text: str) -> None:
    """A position is not guessed."""
    with pytest.raises(CursorInvalid):
        read_cursor(text)
