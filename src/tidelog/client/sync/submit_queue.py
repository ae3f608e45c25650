"""Which drafts are submitted next: in their order, one batch at a time (sync 17.7)."""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import orjson

from tidelog.client.sync.messages import Json, Limits
from tidelog.client.sync.rows import StoredEvent
from tidelog.client.sync.store import SyncStore

ENVELOPE_BYTES = 1024
"""Room for what surrounds the items of a batch; it takes some 200 bytes."""

ASSUMED_MESSAGE_BYTES = 1024 * 1024
"""A batch stays below this where the server does not say how much it takes."""


class Batch(NamedTuple):
    """Drafts on their way."""

    msg_id: str
    ids: tuple[str, ...]
    sent_at: int


class Taken(NamedTuple):
    """What to submit, and what cannot be."""

    items: list[Json]
    oversized: list[str]
    """Ids of drafts that would not fit a message of their own; sending one ends the connection."""


class SubmitQueue:
    """The drafts of a store, seen from the connection."""

    def __init__(self, store: SyncStore) -> None:
        self._store = store
        self._singly: deque[str] = deque()
        self.in_flight: Batch | None = None

    def is_sending(self, event_id: str) -> bool:
        """Whether a draft is on its way."""
        return self.in_flight is not None and event_id in self.in_flight.ids

    def take(self, limits: Limits) -> Taken:
        """The next batch; empty when nothing waits, or while one is in flight."""
        if self.in_flight is not None:
            return Taken([], [])
        while self._singly:
            draft = self._store.find(self._singly.popleft())
            if draft is not None and draft.status == "draft":
                return Taken([_item(draft)], [])
        room = (limits.max_message_bytes or ASSUMED_MESSAGE_BYTES) - ENVELOPE_BYTES
        taken = Taken([], [])
        used = 0
        for draft in self._store.next_drafts(limits.batch_size):
            item = _item(draft)
            size = len(orjson.dumps(item)) + 1
            if size > room and limits.max_message_bytes is not None:
                taken.oversized.append(draft.id)
                continue
            if taken.items and used + size > room:
                break
            taken.items.append(item)
            used += size
        return taken

    def sent(self, msg_id: str, items: Iterable[Json], now: int) -> None:
        """A batch is on its way."""
        self.in_flight = Batch(msg_id, tuple(item["id"] for item in items), now)

    def answered(self, ids: Iterable[str]) -> None:
        """Results came; those of the batch in flight end it."""
        if self.in_flight is not None and not set(ids).isdisjoint(self.in_flight.ids):
            self.in_flight = None

    def refused(self) -> str | None:
        """The batch was malformed; returns the id at fault, or None to try its items singly."""
        batch, self.in_flight = self.in_flight, None
        if batch is None:
            return None
        if len(batch.ids) == 1:
            return batch.ids[0]
        self._singly = deque(batch.ids)
        return None

    def postponed(self) -> None:
        """The batch in flight was not processed: it will be taken again."""
        batch, self.in_flight = self.in_flight, None
        if batch is not None and (self._singly or len(batch.ids) == 1):
            self._singly.appendleft(batch.ids[0])

    def dropped(self) -> None:
        """The connection is gone: every draft is to be sent again."""
        self.in_flight = None
        self._singly.clear()


def _item(draft: StoredEvent) -> Json:
    return {"id": draft.id, "partitions": list(draft.partitions), "event": draft.event}
