"""Meshes for the page: who is a member, who is here, and what became of the last messages."""

import itertools
from collections import Counter
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from tidelog.store.engine import Store

if TYPE_CHECKING:
    from tidelog.mesh.surface import MeshFront

MAX_MESHES = 100
MAX_MEMBERS = 500
MAX_SENDS = 50
MAX_DELIVERIES = 2000
"""Rows read for those sends: a topic may have a thousand subscribers."""

LOOKED_AT = 20_000
"""Unfinished deliveries that are counted; more are more than anybody reads."""

SHOWN_DELIVERIES = 20
"""Deliveries of one message shown one by one; of all others only the states."""


MESH_PRESENT = "mesh.present"
"""What processes tell each other: who is connected."""

_decode = msgspec.msgpack.Decoder(list[tuple[str, str]]).decode


class MeshView:
    """Reads what is stored, and who is connected."""

    def __init__(self, store: Store, surface: "MeshFront | None") -> None:
        self._store = store
        self._surface = surface

    def signature(self, commits: float) -> Hashable:
        """Changes with connections and, because deliveries are no entries, with every commit."""
        return commits, tuple(sorted(self._present()))

    def _present(self) -> set[tuple[str, str]]:
        if self._surface is None:
            return set()
        return {(mesh_id, key) for _, mesh_id, key in self._surface.service.peers}

    async def meshes(self) -> dict[str, Any]:
        """All meshes."""
        rows = await self._store.rows("dashboard_meshes", (MAX_MESHES,))
        return {
            "is_served": self._surface is not None,
            "meshes": [{"id": row[0], "slug": row[1], "created_at": row[2]} for row in rows],
        }

    def own(self) -> bytes:
        """Who is connected to this process."""
        return msgspec.msgpack.encode(sorted(self._present()))

    async def mesh(self, mesh_id: str, connected: Iterable[bytes]) -> dict[str, Any]:
        """Members, what waits for whom, and the newest sends; `connected` is of all processes."""
        members = await self._store.rows("dashboard_members", (mesh_id, MAX_MEMBERS))
        waiting = await self._store.rows("dashboard_waiting", (mesh_id, LOOKED_AT))
        key = (mesh_id, MAX_SENDS, MAX_DELIVERIES)
        sends = await self._store.rows("dashboard_sends", key)
        names = {row[0]: row[1] for row in members}
        present = {
            key for part in connected for in_mesh, key in _decode(part) if in_mesh == mesh_id
        }
        waits: Counter[str] = Counter()
        states: Counter[str] = Counter()
        for recipient, _, status, count, _ in waiting:
            waits[recipient] += count
            states[status] += count
        return {
            "members": [
                {
                    "key": key,
                    "name": name,
                    "joined_at": joined_at,
                    "revoked_at": revoked_at,
                    "is_here": key in present,
                    "waiting": waits[key],
                }
                for key, name, joined_at, revoked_at in members
            ],
            "waiting": states,
            "sends": [
                _send(list(rows), names)
                for _, rows in itertools.groupby(sends, key=lambda row: row[0])
            ],
        }


def _send(rows: list[tuple[Any, ...]], names: dict[str, str]) -> dict[str, Any]:
    """A send and its deliveries; a row without a recipient is a send that has none."""
    serial, entity, kind, ref, sender, at = rows[0][:6]
    deliveries = [row[6:] for row in rows if row[6] is not None]
    return {
        "serial": serial,
        "id": entity,
        "kind": kind.removeprefix("send."),
        "to": names.get(ref, ref),
        "sender": sender,
        "at": at,
        "states": Counter(row[2] for row in deliveries),
        "deliveries": [
            {
                "recipient": names.get(recipient, recipient) or "webhook",
                "channel": channel,
                "status": status,
                "attempts": attempts,
                "error": error,
                "delivered_at": delivered_at,
            }
            for recipient, channel, status, attempts, error, delivered_at in deliveries[
                :SHOWN_DELIVERIES
            ]
        ],
    }
