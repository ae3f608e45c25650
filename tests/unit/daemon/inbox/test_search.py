"""Search finds what the inbox has, and nothing else, whatever happens to the file (mesh 8.2)."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.mesh.local_daemon import delivery
from tidelog.daemon.inbox.inbox_db import KEPT_MS, VACUUM_EVERY_MS, Inbox
from tidelog.daemon.inbox.search import words_in
from tidelog.testing.clock import FakeClock

Open = Callable[[bool], Inbox]


@pytest.fixture
def reopen(tmp_path: Path, clock: FakeClock) -> Iterator[Open]:
    """Opens the inbox, closing it first if it is open; with search or without."""
    opened: list[Inbox] = []

    def open_inbox(is_searchable: bool) -> Inbox:
        while opened:
            opened.pop().close()
        opened.append(Inbox(tmp_path / "inbox.db", clock, is_searchable=is_searchable))
        return opened[-1]

    yield open_inbox
    for inbox in opened:
        inbox.close()


def found(inbox: Inbox, text: str) -> list[str]:
    """Client ids of what a search finds."""
    return [message.client_message_id for message in inbox.search(text)]


def test_words_of_body_sender_and_topic(reopen: Open) -> None:
    """All words must be there, in any order and case; a star completes one."""
    inbox = reopen(True)
    inbox.receive([delivery(1, body="Disk 91% on db-3"), delivery(2, body="the tide is in")])
    inbox.receive([delivery(3, body="disk is fine", topic="tides", sender_name="Gr\u00fc\u00dfer")])
    assert found(inbox, "disk") == ["c-1", "c-3"]
    assert found(inbox, "db-3 DISK") == ["c-1"]
    assert found(inbox, "ti*") == ["c-2", "c-3"]
    assert found(inbox, "alerts tide") == ["c-2"]
    assert found(inbox, "gr\u00fc\u00dfer") == ["c-3"]
    assert found(inbox, "nowhere") == []


@pytest.mark.parametrize(
    "text",
    ["", "   ", '"', "* *", "AND", "NEAR(", "body:", 'a" OR "b', "^", "(", "\u4e16*" * 99],
)
def test_no_text_is_a_wrong_search(reopen: Open, text: str) -> None:
    """What means something to the index is a word like any other."""
    inbox = reopen(True)
    inbox.receive([delivery(1, body="quiet")])
    assert found(inbox, text) == []


def test_pages_are_those_of_the_inbox(reopen: Open) -> None:
    """The same order, the same cursors."""
    inbox = reopen(True)
    inbox.receive([delivery(number, body=f"disk {number % 2}") for number in range(1, 11)])
    first = inbox.search("disk 1", limit=3)
    rest = inbox.search("disk 1", first[-1].position, limit=10)
    ids = [message.client_message_id for message in (*first, *rest)]
    assert ids == ["c-1", "c-3", "c-5", "c-7", "c-9"]


def test_a_duplicate_and_bytes_are_not_indexed(reopen: Open) -> None:
    """A body that is no text has no words, and a second delivery changes nothing."""
    inbox = reopen(True)
    inbox.receive([delivery(1, body="ZGlzaw==", body_encoding="base64")])
    inbox.receive([delivery(2, body="disk"), delivery(2, body="disk")])
    assert found(inbox, "disk") == ["c-2"]


def test_what_is_pruned_is_not_found(reopen: Open, clock: FakeClock) -> None:
    """Retention takes a message out of the index too."""
    inbox = reopen(True)
    inbox.receive([delivery(1, body="disk")])
    clock.advance(KEPT_MS + 1)
    inbox.receive([delivery(2, body="disk")])
    assert inbox.prune() == 1
    assert found(inbox, "disk") == ["c-2"]


async def test_a_vacuum_does_not_mix_them_up(reopen: Open, clock: FakeClock) -> None:
    """It gives rows other places; the index follows."""
    inbox = reopen(True)
    inbox.receive([delivery(number, body=f"disk w{number}") for number in range(1, 9)])
    await inbox.vacuum_if_due()
    clock.advance(KEPT_MS + 1)
    inbox.receive([delivery(number, body=f"disk w{number}") for number in range(9, 17)])
    assert inbox.prune() == 8
    clock.advance(VACUUM_EVERY_MS)
    assert await inbox.vacuum_if_due()
    assert [found(inbox, f"w{number}") for number in range(9, 17)] == [
        [f"c-{number}"] for number in range(9, 17)
    ]
    clock.advance(KEPT_MS)
    assert inbox.prune() == 8
    assert found(inbox, "disk") == []


def test_it_is_switched_on_and_off(reopen: Open) -> None:
    """Off by default; on, it finds what came meanwhile; a vacuum that was cut short is mended."""
    inbox = reopen(False)
    inbox.receive([delivery(1, body="disk one")])
    assert (inbox.is_searchable, found(inbox, "disk")) == (False, [])
    assert found(reopen(True), "disk") == ["c-1"]
    reopen(False).receive([delivery(2, body="disk two")])
    inbox = reopen(True)
    assert found(inbox, "disk") == ["c-1", "c-2"]
    inbox._index.before_vacuum()
    inbox._database.connection.execute("INSERT INTO inbox_fts (inbox_fts) VALUES ('delete-all')")
    assert found(inbox, "disk") == []
    assert found(reopen(True), "disk") == ["c-1", "c-2"]


def test_words() -> None:
    """Each is quoted, so that nothing in it has a meaning."""
    assert words_in('tide "in" 3*') == '"tide" """in""" "3"*'
    assert words_in("* - !") is None
