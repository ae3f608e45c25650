"""Pages of what was sent, as far as a member may see it: its topics, and messages to or from it."""

from collections.abc import Sequence

from msgspec import Raw, Struct

from tidelog.mesh.protocol.envelopes import Stored, history_item
from tidelog.mesh.protocol.model import Member, Mesh, stream_name
from tidelog.store.engine import Store

SCAN_ENTRIES = 5000
"""Entries one page looks at. A member of few topics may get a page with little or nothing on it and
asks for the next; without this one question could read a whole history."""

PAGE_BYTES = 1024 * 1024
"""Content after which a page ends; it is held in memory until the socket has taken it."""

MAX_HISTORY_ID = 2**63 - 1


class Page(Struct, frozen=True):
    """Some items, and where the next page begins."""

    items: list[Raw]
    next_history_id: int
    has_more: bool


class HistoryReader:
    """Reads pages."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def last(self, mesh: Mesh) -> int:
        """The newest `history_id` of a mesh."""
        [(seq,)] = await self._store.rows("mesh_history_seq", (stream_name(mesh.id),))
        newest: int = seq
        return newest

    async def last_until(self, mesh: Mesh, position: int, newest: int) -> int:
        """The newest `history_id` up to a position of the log; 0 for none.

        The history has no gaps and both only grow, so it is found by halving.
        """
        found, above = 0, newest + 1
        while above - found > 1 and position > 0:
            middle = (found + above) // 2
            key = (stream_name(mesh.id), middle)
            [(committed_id,)] = await self._store.rows("mesh_history_position", key)
            if committed_id <= position:
                found = middle
            else:
                above = middle
        return found

    async def after(self, mesh: Mesh, member: Member, after: int, limit: int) -> Page:
        """What a member may see after a `history_id`, oldest first."""
        last = await self.last(mesh)
        through = min(last, after + SCAN_ENTRIES)
        key = (mesh.id, member.public_hex, member.id, after, through, limit + 1)
        visible = await self._store.rows("mesh_visible", key) if through > after else ()
        taken = _within(visible[:limit])
        items = await self._items(mesh, member, taken)
        if len(taken) < len(visible):
            return Page(items, taken[-1], has_more=True)
        return Page(items, max(after, through), has_more=through < last)

    async def mentions(
        self, mesh: Mesh, member: Member, mentioned: str, before: int, limit: int
    ) -> Page:
        """Mentions of somebody before a `history_id`, those a member may see, newest first."""
        key = (mesh.id, member.public_hex, member.id, mentioned, before, SCAN_ENTRIES)
        looked_at = await self._store.rows("mesh_mentions", key)
        visible = [(serial, size) for serial, size, may_see in looked_at if may_see]
        taken = _within(visible[:limit])
        items = await self._items(mesh, member, taken)
        if len(taken) < len(visible):
            return Page(items, taken[-1], has_more=True)
        last = looked_at[-1][0] if looked_at else before
        return Page(items, last, has_more=len(looked_at) == SCAN_ENTRIES)

    async def _items(self, mesh: Mesh, member: Member, serials: Sequence[int]) -> list[Raw]:
        stream = stream_name(mesh.id)
        found = await self._store.rows_of("mesh_entry", [(stream, serial) for serial in serials])
        return [
            history_item(Stored._make(rows[0]), mesh.slug, member.public_hex)
            for rows in found
            if rows  # pruned meanwhile
        ]


def _within(sizes: Sequence[tuple[int, ...]]) -> list[int]:
    """Each `history_id` up to the one that fills a page; at least one, if there is any."""
    taken: list[int] = []
    total = 0
    for serial, size in sizes:
        taken.append(serial)
        total += size
        if total >= PAGE_BYTES:
            break
    return taken
