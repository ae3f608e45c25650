"""What the broker delivers: stored first, told second, acknowledged last (mesh 8.1)."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec

from tidelog.base.errors import StoreError, StoreUntrustworthy
from tidelog.daemon.inbox.inbox_db import Inbox, Message
from tidelog.daemon.ipc.events import Events
from tidelog.daemon.metrics import DaemonMetrics
from tidelog.daemon.outbox.outbox_db import MAX_HISTORY_ID
from tidelog.mesh.protocol import wire

REBUILD_NAME = "inbox.rebuild"
"""A file in the data directory while a lost inbox is filled from the broker's history; it holds
the `history_id` up to which that has got, so that a restart goes on there."""

_log = logging.getLogger(__name__)

History = Callable[[int], Awaitable[wire.HistoryPage]]


class RebuildMarker:
    """Says, across restarts, that the inbox is being filled from history, and how far it is."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / REBUILD_NAME

    def after(self) -> int | None:
        """The `history_id` to go on after; None when there is nothing to rebuild."""
        if not self._path.exists():
            return None
        return int(self._path.read_text(encoding="ascii") or 0)

    def set(self, after: int) -> None:
        """Everything up to this `history_id` is stored."""
        self._path.write_text(str(after), encoding="ascii")

    def clear(self) -> None:
        """The inbox is whole."""
        self._path.unlink(missing_ok=True)


class Receiver:
    """Between the connection and the inbox."""

    def __init__(
        self, inbox: Inbox, events: Events, metrics: DaemonMetrics, member_pubkey: str
    ) -> None:
        self._inbox = inbox
        self._events = events
        self._metrics = metrics
        self._member_pubkey = member_pubkey
        self.on_new: Callable[[Message], None] = lambda message: None
        """Called with each message that is new and stored; not for what a rebuild brings back."""
        self.on_sender: Callable[[str, str], None] = lambda name, key: None
        """Called with the name and key of whoever sent a new message."""

    def receive(self, deliveries: Sequence[wire.Deliver]) -> Sequence[wire.Deliver]:
        """Store what was delivered, tell, and run hooks; returns as `_take` does."""
        return self._take(deliveries, self.on_new)

    def _take(
        self, deliveries: Sequence[wire.Deliver], on_new: Callable[[Message], None] | None
    ) -> Sequence[wire.Deliver]:
        """Store deliveries and tell of the new ones; returns those that may be acknowledged.

        None may be when they could not be stored: the broker delivers them again. One that no
        inbox could hold is left out, or it would keep the others from being stored for ever.
        """
        storable = [one for one in deliveries if 0 <= one.history_id <= MAX_HISTORY_ID]
        self._metrics.invalid_inbound += len(deliveries) - len(storable)
        try:
            received = self._inbox.receive(storable)
        except StoreUntrustworthy:
            raise
        except StoreError as error:
            _log.error("deliveries could not be stored and will come again: %s", error)
            return ()
        for message in received:
            if message is None:
                self._metrics.dedupe["in"] += 1
            else:
                self._metrics.received += 1
                self.on_sender(message.sender_name, message.sender_pubkey)
                self._events.publish_message(message)
                if on_new is not None:
                    on_new(message)
        return storable

    async def rebuild(self, marker: RebuildMarker, history: History) -> None:
        """Fill the inbox from the broker's history, if the marker says that it was lost.

        What this member sent itself is part of the history it may see, and not of its inbox.
        """
        after = marker.after()
        has_more = after is not None
        while after is not None and has_more:
            page = await history(after)
            found = [_delivery(item) for item in page.items]
            theirs = [one for one in found if one.sender_pubkey != self._member_pubkey]
            if theirs and not self._take(theirs, None):
                return  # the disk is full; the next connection goes on from the marker
            after, has_more = page.next_after, page.has_more
            marker.set(after)
        if after is not None:
            marker.clear()
            _log.info("the inbox was rebuilt from the broker's history up to %s", after)


def _delivery(item: msgspec.Raw) -> wire.Deliver:
    """An item of a history page, which is a delivery without a claim."""
    fields = msgspec.json.decode(item)
    if not isinstance(fields, dict):
        raise wire.FrameInvalid("a history page has an item that is not an object")
    frame = wire.read_broker_frame(
        msgspec.json.encode({**fields, "type": "deliver", "claim_id": ""})
    )
    if not isinstance(frame, wire.Deliver):
        raise wire.FrameInvalid("a history page has an item that is not a message")
    return frame
