"""Whether what a client holds of a channel is what the channel has: stream ids, and their judge."""

import hmac
from collections.abc import Callable
from functools import lru_cache

from tidelog.base.data.incarnation import Incarnation, Incarnations
from tidelog.channels.protocol.actions import Position
from tidelog.channels.protocol.message_ids import is_system_id
from tidelog.channels.protocol.version import Version
from tidelog.channels.stored import version_of
from tidelog.store.engine import Store

MAX_STREAM_IDS = 20_000


class StreamIds:
    """The continuity tokens of channels.

    Derived, not stored: nobody without the app's secret can guess one, an untouched channel has
    one, and it stays the same until the channel's history is reset or the log has another
    incarnation.
    """

    def __init__(
        self, log_id: str, incarnations: Incarnations, secret_of: Callable[[str], str]
    ) -> None:
        self._log_id = log_id
        self._incarnations = incarnations
        self._secret_of = secret_of
        self.of = lru_cache(MAX_STREAM_IDS)(self._current)

    def _current(self, stream: str, epoch: int) -> str:
        return self._derive(stream, epoch, self._incarnations.current)

    def _derive(self, stream: str, epoch: int, incarnation: Incarnation) -> str:
        app_id = stream.split("/", 2)[1]
        # The first one adds nothing: ids from before there were incarnations stay good.
        under = "" if incarnation.number == 1 else f"{incarnation.id}/"
        text = f"stream_id/{self._log_id}/{under}{epoch}/{stream}"
        digest = hmac.digest(self._secret_of(app_id).encode(), text.encode(), "sha256").hex()
        variant = "89ab"[int(digest[16], 16) & 3]
        return (
            f"{digest[:8]}-{digest[8:12]}-4{digest[13:16]}-{variant}{digest[17:20]}-{digest[20:32]}"
        )

    def given_under(self, stream: str, epoch: int, stream_id: str) -> str | None:
        """The incarnation that gave out an id of this epoch; None if it is not such an id."""
        given = stream_id.encode(errors="surrogatepass")
        if hmac.compare_digest(self.of(stream, epoch).encode(), given):
            return self._incarnations.current.id
        for former in reversed(self._incarnations.former):
            if hmac.compare_digest(self._derive(stream, epoch, former).encode(), given):
                return former.id
        return None


class Continuity:
    """Judges the positions that clients come back with."""

    def __init__(
        self,
        store: Store,
        incarnations: Incarnations,
        stream_ids: StreamIds,
        recent: Callable[[str, int], Version | None],
    ) -> None:
        """`recent` knows the last versions by stream and serial: most clients were away briefly."""
        self._store = store
        self._recent = recent
        self._incarnations = incarnations
        self._stream_ids = stream_ids
        first = (*incarnations.former, incarnations.current)[0]
        self._named_since = first.at if first.number == 1 else 0
        """Before this, ids of system frames could not be told from those of messages."""

    async def broken_by(self, stream: str, epoch: int, position: Position) -> str | None:
        """Why a position is not one of this stream as it is now: a `reason`; None if it may be one.

        The operations up to the position are the same here only if they were committed before the
        log was taken back. A serial alone does not say so, and names whichever operation has it
        now; that one's position in the log does.

        Raises:
            StoreError: the operation at the position could not be read.
        """
        shared = self._incarnations.shared_by_all()
        if position.stream_id is not None:
            incarnation = self._stream_ids.given_under(stream, epoch, position.stream_id)
            if incarnation is None:
                return "stream_id_mismatch"
            shared = self._incarnations.shared_with(incarnation)
        message_id = position.last_message_id
        if message_id is not None and is_system_id(message_id):
            message_id = None  # it came with the position, and names no message
        if position.serial == 0 or (shared is None and message_id is None):
            return None
        version = self._recent(stream, position.serial)
        committed_id = 0 if version is None else version.committed_id
        if version is None:
            found = await self._store.stream_entries(stream, position.serial - 1, limit=1)
            if not found:
                return None if shared is None else "history_replaced"
            committed_id, version = found[0].committed_id, version_of(found[0])
        if shared is not None and committed_id > shared:
            return "history_replaced"
        if message_id is None or version is None or version.committed_at <= self._named_since:
            return None
        return None if version.message_id == message_id else "message_id_mismatch"
