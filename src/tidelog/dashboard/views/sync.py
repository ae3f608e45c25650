"""Sync clients for the page: who is connected, and how far each was sent what is there."""

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidelog.sync.surface import SyncSurface


MAX_CLIENTS = 500
MAX_PARTITIONS = 20
"""Names of partitions shown of one client."""


class SyncView:
    """Looks at the connections of this node; None if sync is not served here."""

    def __init__(self, surface: "SyncSurface | None") -> None:
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

    def clients(self) -> dict[str, Any]:
        """Every client, the one that is furthest behind first.

        The cursor is the end of the last page it was sent. Positions are those of the log, which
        other surfaces share: a lag counts at most as many events.
        """
        if self._surface is None:
            return {"is_served": False, "clients": []}
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
        rows.sort(key=lambda row: (-row["lag"], row["client"]))
        return {
            "is_served": True,
            "last_event": service.last_event,
            "model_version": service.model_version,
            "count": len(rows),
            "clients": rows[:MAX_CLIENTS],
        }
