"""What a cold start is given instead of events: the stored state of a partition (sync 10.1).

It is sent as text, in parts: a state may be larger than a page, and a tree deeper than some JSON
readers accept.
"""

import asyncio
import logging
from typing import Any, NamedTuple

from tidelog.store.engine import Store
from tidelog.sync.protocol.actions import SnapshotWish
from tidelog.sync.protocol.tree import snapshot_digest

_log = logging.getLogger(__name__)

MAX_STATE_BYTES = 16_777_216
"""Larger states are not sent: the whole state is read for each part, and so many parts would cost
more than the events."""

LEAST_PART_BYTES = 4096
"""No part but the last is smaller, whatever is asked for."""


class Part(NamedTuple):
    """As much of a state as fits an answer."""

    text: str
    committed_id: int
    """The state includes the events up to here."""
    next: int | None
    """Where the rest starts; None if this is the last part."""

    def members(self) -> dict[str, Any]:
        """What `sync_response` says of it."""
        members = {"snapshot": self.text, "snapshot_committed_id": self.committed_id}
        return members if self.next is None else members | {"snapshot_next": self.next}


class StoredState(NamedTuple):
    """The state of a partition as it is stored."""

    text: bytes
    committed_id: int

    def as_of(self, watermark: int) -> "StoredState":
        """The same as of `watermark` at the latest; no event between the two is part of it."""
        return self._replace(committed_id=min(self.committed_id, watermark))

    def part(self, wish: SnapshotWish, most_bytes: int) -> Part:
        """The part that is asked for; the first one, if the request is about another state.

        That is safe: the client sees that it is another state, and starts anew.
        """
        start = wish.start if wish.committed_id == self.committed_id else 0
        if not _is_boundary(self.text, start):
            start = 0
        end = min(len(self.text), start + max(LEAST_PART_BYTES, most_bytes))
        while not _is_boundary(self.text, end):
            end -= 1
        text = self.text[start:end].decode()
        return Part(text, self.committed_id, None if end == len(self.text) else end)


def _is_boundary(text: bytes, offset: int) -> bool:
    """Whether text can be cut there: before a character of its own, or at the end."""
    if offset >= len(text):
        return offset == len(text)
    return text[offset] & 0b1100_0000 != 0b1000_0000


async def stored_state(
    store: Store, partition: str, model_version: int, *, through: int
) -> StoredState | None:
    """The state of a partition as of no later than `through`; None if none can be given."""
    key = (partition, model_version, through, MAX_STATE_BYTES)
    for text, committed_id, digest in await store.rows("sync_snapshot_within", key):
        if await asyncio.to_thread(snapshot_digest, text) == digest:
            return StoredState(text, committed_id)
        _log.warning("ignored the snapshot of a partition: it is not what was stored")
    return None
