"""From deliveries to the inbox and its events."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tidelog.base.errors import StoreUnavailable, StoreUntrustworthy
from tidelog.daemon.inbox.inbox_db import Inbox
from tidelog.daemon.inbox.receiver import RebuildMarker, Receiver
from tidelog.daemon.ipc.events import Events
from tidelog.daemon.metrics import DaemonMetrics
from tidelog.mesh.protocol import wire

ME, OTHER = "a" * 64, "b" * 64


class Desk:
    """A receiver with everything around it."""

    def __init__(self, folder: Path) -> None:
        self.inbox = Inbox(folder / "inbox.db")
        self.events = Events(self.inbox)
        self.metrics = DaemonMetrics()
        self.receiver = Receiver(self.inbox, self.events, self.metrics, ME)
        self.told: list[str] = []
        self.events.listeners.append(lambda kind, data: self.told.append(data.client_message_id))


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """An empty inbox."""
    desk = Desk(tmp_path)
    yield desk
    desk.inbox.close()


def delivery(message_id: str, **changes: Any) -> wire.Deliver:
    """A frame of the broker."""
    fields: dict[str, Any] = {
        "broker_message_id": f"B-{message_id}",
        "client_message_id": message_id,
        "history_id": 1,
        "mesh": "harbour",
        "sender_pubkey": OTHER,
        "sender_name": "bob",
        "priority": "next",
        "body": "x",
        "created_at": "2026-01-01T00:00:00Z",
        "claim_id": "c",
    }
    return wire.Deliver(**fields | changes)


def item(message_id: str, **changes: Any) -> msgspec.Raw:
    """The same in a history page."""
    fields = msgspec.json.decode(wire.encode(delivery(message_id, **changes)))
    del fields["claim_id"], fields["type"]
    return msgspec.Raw(msgspec.json.encode(fields))


def test_a_new_message_is_told_and_a_copy_is_counted(desk: Desk) -> None:
    """Both may be acknowledged."""
    frames = [delivery("a"), delivery("b"), delivery("a", claim_id="again")]
    assert desk.receiver.receive(frames) == frames
    assert desk.told == ["a", "b"]
    assert (desk.metrics.received, desk.metrics.dedupe["in"]) == (2, 1)


def test_what_cannot_be_stored_is_not_acknowledged(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk means that it comes again, a failed fsync that the process ends."""

    def fail(error: Exception) -> None:
        def receive(deliveries: Any) -> Any:
            raise error

        monkeypatch.setattr(desk.inbox, "receive", receive)

    fail(StoreUnavailable("full"))
    assert desk.receiver.receive([delivery("a")]) == ()
    fail(StoreUntrustworthy("fsync"))
    with pytest.raises(StoreUntrustworthy):
        desk.receiver.receive([delivery("a")])
    assert desk.told == []


def test_a_delivery_that_no_inbox_can_hold_does_not_block_the_others(desk: Desk) -> None:
    """It is counted and left to the broker."""
    frames = [delivery("a", history_id=2**70), delivery("b")]
    assert desk.receiver.receive(frames) == frames[1:]
    assert (desk.told, desk.metrics.invalid_inbound) == (["b"], 1)


def test_who_sent_a_new_message_is_told(desk: Desk) -> None:
    """With the key the name had; the inbox knows the newest of each name."""
    heard: list[tuple[str, str]] = []
    desk.receiver.on_sender = lambda name, key: heard.append((name, key))
    desk.receiver.receive([delivery("a", sender_pubkey=ME), delivery("b"), delivery("b")])
    desk.receiver.receive([delivery("c", sender_name="carol", sender_pubkey=ME)])
    assert heard == [("bob", ME), ("bob", OTHER), ("carol", ME)]
    assert desk.inbox.senders(10) == {"bob": OTHER, "carol": ME}
    assert desk.inbox.senders(1) == {"carol": ME}


class History:
    """The broker's history, two to a page."""

    def __init__(self, *items: msgspec.Raw) -> None:
        self.items = items
        self.asked: list[int] = []

    async def __call__(self, after: int) -> wire.HistoryPage:
        """The page after a `history_id`."""
        self.asked.append(after)
        page = list(self.items[after : after + 2])
        return wire.HistoryPage(
            ref=1,
            items=page,
            next_after=after + len(page),
            has_more=after + 2 < len(self.items),
        )


async def test_a_lost_inbox_is_filled_from_history(desk: Desk, tmp_path: Path) -> None:
    """Page by page, from where it got to, without what this member said itself."""
    marker = RebuildMarker(tmp_path)
    history = History(item("a"), item("mine", sender_pubkey=ME), item("b"), item("c"), item("d"))
    marker.set(1)
    await desk.receiver.rebuild(marker, history)
    assert history.asked == [1, 3]
    assert desk.told == ["b", "c", "d"]
    assert marker.after() is None


async def test_without_a_marker_nothing_is_asked(desk: Desk, tmp_path: Path) -> None:
    """A new member's empty inbox is not a lost one."""
    history = History(item("a"))
    await desk.receiver.rebuild(RebuildMarker(tmp_path), history)
    assert history.asked == []


@pytest.mark.parametrize("broken", [b"7", b'{"body": "x"}'])
async def test_a_history_that_makes_no_sense_leaves_the_marker(
    desk: Desk, tmp_path: Path, broken: bytes
) -> None:
    """The next connection tries again."""
    marker = RebuildMarker(tmp_path)
    marker.set(0)
    with pytest.raises(wire.FrameInvalid):
        await desk.receiver.rebuild(marker, History(msgspec.Raw(broken)))
    assert marker.after() == 0
