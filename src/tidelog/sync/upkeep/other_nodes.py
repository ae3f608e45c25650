"""What the sync nodes of one log tell each other: who has connected, and that the model changed.

Both go as announcements (`tidelog.log.announcements`). A client has one connection over all nodes
(sync 3.3): the node it connects to announces it, and the id of that announcement is its claim. When
a client connects to two nodes at the same moment, the one with the later claim keeps it, and both
agree on which that is.
"""

from collections import OrderedDict
from collections.abc import Callable

from tidelog.log.announcements import Announcements
from tidelog.store.rows import Announcement

CONNECTED = "sync.connected"
MODEL_VERSION = "sync.model_version"

REMEMBERED_CLAIMS = 10_000
"""Claims of other nodes that are remembered, the latest ones. One is needed while a handshake of
the same client is under way here, which is shorter than so many handshakes elsewhere."""


class OtherNodes:
    """The other nodes, as sync sees them."""

    def __init__(
        self,
        announcements: Announcements,
        *,
        connected: Callable[[str, int], None],
        model_changed: Callable[[], None],
    ) -> None:
        """`connected` takes a client and its claim on another node; neither callback may await.

        `model_changed` is also called when it may have changed without this node hearing of it.
        """
        self._announcements = announcements
        self._connected = connected
        self._model_changed = model_changed
        self._claims: OrderedDict[str, int] = OrderedDict()
        announcements.subscribe(CONNECTED, self._on_connected)
        announcements.subscribe(MODEL_VERSION, self._on_model_version, missed=model_changed)

    async def claim(self, client_id: str) -> int:
        """Announce a client that has connected; returns the claim, 0 if there are no others."""
        return await self._announcements.announce(CONNECTED, client_id.encode())

    def has_later_claim(self, client_id: str, claim: int) -> bool:
        """Whether the client has meanwhile connected elsewhere."""
        return self._claims.get(client_id, 0) > claim

    async def tell_model_version(self) -> None:
        """Announce that the stored model version has changed."""
        await self._announcements.announce(MODEL_VERSION, b"")

    def _on_connected(self, announcement: Announcement) -> None:
        client_id = announcement.payload.decode()
        self._claims[client_id] = announcement.id
        self._claims.move_to_end(client_id)
        if len(self._claims) > REMEMBERED_CLAIMS:
            self._claims.popitem(last=False)
        self._connected(client_id, announcement.id)

    def _on_model_version(self, announcement: Announcement) -> None:
        del announcement  # the number is read from the store, where the last writer has won
        self._model_changed()
