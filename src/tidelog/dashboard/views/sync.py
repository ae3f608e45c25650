"""Sync clients for the page: who is connected, and how far each was sent what is there."""

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from tidelog.sync.surface import SyncFront

SYNC_CLIENTS = "sync.clients"
"""What processes tell each other: their connections."""

MAX_CLIENTS = 500
MAX_PARTITIONS = 20
"""Names of partitions shown of one client."""


class SyncView:
    """Looks at connections; without a surface if sync is not served here."""

    def __init__(self, surface: "SyncFront | None") -> None:
        self._surface = surface

    def signature(self) -> Hashable:
        """Changes with connections, cursors and events."""
        if self._surface is None:
            return None
        service = self._surface.service
        clients = tuple(
            (c.client_id, c.cursor, c.session.watermark, c.subscriptions) for c in service.active()
        )
        return service.last_event, clients

    def own(self) -> bytes:
        """The connections of this process, those that are furthest behind first."""
        rows = self._rows()
        return msgspec.msgpack.encode({"count": len(rows), "rows": rows[:MAX_CLIENTS]})

    def clients(self, connected: Iterable[bytes]) -> dict[str, Any]:
        """Every client, the one that is furthest behind first; `connected` is of all processes."""
        if self._surface is None:
            return {"is_served": False, "clients": []}
        service = self._surface.service
        parts = [msgspec.msgpack.decode(part) for part in connected]
        rows = sorted((row for part in parts for row in part["rows"]), key=_order)
        return {
            "is_served": True,
            "last_event": service.last_event,
            "model_version": service.model_version,
            "count": sum(part["count"] for part in parts),
            "clients": rows[:MAX_CLIENTS],
        }

    def _rows(self) -> list[dict[str, Any]]:
        """The cursor is the end of the last page that a client was sent.

        Positions are those of the log, which other surfaces share: a lag counts at most as many
        events.
        """
        if self._surface is None:
            return []
        service = self._surface.service
        rows: list[dict[str, Any]] = []
        for connection in service.active():
            watermark = connection.session.watermark
            if watermark is not None:
                state, lag = "catching up", watermark - connection.cursor
            elif connection.subscriptions:
                state, lag = "live", 0  # whatever the tail delivers was pushed to it
            else:
                state, lag = "idle", max(0, service.last_event - connection.cursor)
            rows.append(
                {
                    "client": connection.client_id,
                    "profile": connection.session.profile,
                    "state": state,
                    "cursor": connection.cursor,
                    "lag": lag,
                    "partitions": connection.subscriptions[:MAX_PARTITIONS],
                    "partition_count": len(connection.subscriptions),
                    "waiting": len(connection.unanswered),
                }
            )
        return sorted(rows, key=_order)


def _order(row: dict[str, Any]) -> tuple[int, str]:
    return -row["lag"], row["client"]
