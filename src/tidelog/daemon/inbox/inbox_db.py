"""The inbox: what the broker delivered to this member, each id of each sender once (mesh 8).

Rows are ordered by `(received_at, id)`, and both only ever grow: a reader that goes on after the
last row it saw misses nothing and sees nothing twice, whatever the clock does.
"""

import asyncio
import base64
import binascii
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Raw, Struct

from tidelog.base.clock import Clock
from tidelog.base.errors import TidelogError
from tidelog.base.faultpoint import FaultPoint, reach
from tidelog.base.ids import UlidFactory
from tidelog.daemon.clock import WallClock
from tidelog.daemon.database import Database, StorageBusy
from tidelog.daemon.inbox.search import Search, words_in
from tidelog.daemon.times import read_timestamp, timestamp
from tidelog.mesh.protocol.wire import Deliver

APPLICATION_ID = 0x74646962
FILE_NAME = "inbox.db"

DEFAULT_PAGE = 100
MAX_PAGE = 1000

KEPT_MS = 30 * 86_400_000
"""How long a row is kept."""
SEEN_MS = 365 * 86_400_000
"""How long an id is remembered after its row is gone."""
VACUUM_EVERY_MS = 7 * 86_400_000

_CLOCKS_DIFFER_MS = 86_400_000
"""How far the broker's clock may be ahead of this one. An id that is used again is so a week later
at least."""

_STEP_ROWS = 1000
"""Rows that retention moves in one transaction."""

_REMEDY = "It is moved aside at the next start; the broker's history fills a new one."


class CursorInvalid(TidelogError):  # noqa: N818 - the failure is the noun
    """Not a cursor of this inbox."""


class Message(Struct, frozen=True, kw_only=True):
    """One received message."""

    cursor: str
    """The position of this message; a page or a stream goes on after it."""
    id: str
    client_message_id: str
    broker_message_id: str | None
    mesh: str
    topic: str | None
    sender_pubkey: str
    sender_name: str
    body: str
    body_encoding: str
    """`utf8`, or `base64` for a body that is not text."""
    meta: Raw
    """JSON as the broker sent it."""
    received_at: str
    reply_to_id: str | None
    history_id: int | None
    priority: str | None
    created_at: str | None
    mention: bool

    @property
    def position(self) -> "Position":
        """What `cursor` names."""
        return read_cursor(self.cursor)


class Position(NamedTuple):
    """A position in the order of the inbox."""

    received_at: int
    id: str

    def cursor(self) -> str:
        """The position as callers see it."""
        text = f"{self.received_at}.{self.id}"
        return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


START = Position(-1, "")
"""Ahead of every message."""


def read_cursor(text: str) -> Position:
    """The position a cursor names."""
    try:
        padded = text + "=" * (-len(text) % 4)
        decoded = base64.b64decode(padded, altchars=b"-_", validate=True).decode("ascii")
        received_at, _, message_id = decoded.partition(".")
        return Position(int(received_at), message_id)
    except (binascii.Error, UnicodeError, ValueError):
        raise CursorInvalid("not a cursor of this inbox") from None


class Inbox:
    """The file `inbox.db`."""

    def __init__(
        self, path: Path, clock: Clock | None = None, *, is_searchable: bool = False
    ) -> None:
        self._clock = clock or WallClock()
        self._database = Database(path, kind="inbox", application_id=APPLICATION_ID, remedy=_REMEDY)
        # One beyond what is stored: ids minted now must sort after those of earlier processes.
        found = self._database.row("inbox_last")
        self._last_ms: int = found[0] + 1 if found else 0
        self._ids = UlidFactory(_Monotone(self._received_at))
        self._is_vacuuming = False
        self._index = Search(self._database, is_wanted=is_searchable)

    @property
    def is_searchable(self) -> bool:
        """Whether `search` can find anything."""
        return self._index.is_available

    def close(self) -> None:
        """Give the file back."""
        self._database.close()

    def _received_at(self) -> int:
        self._last_ms = max(self._last_ms, self._clock.now_ms())
        return self._last_ms

    def receive(self, deliveries: Sequence[Deliver]) -> list[Message | None]:
        """Store deliveries in one transaction; None for each that was stored before.

        All of them may be acknowledged afterwards. Publish the new ones then.

        Raises:
            StorageBusy: the file is being vacuumed.
        """
        if self._is_vacuuming:
            raise StorageBusy(f"{self._database.path} is being vacuumed")
        reach(FaultPoint.RECEIVING)
        received: list[Message | None] = []
        with self._database.transaction():
            newest = 0
            for delivery in deliveries:
                row = self._columns(delivery)
                wanted = {**row, "not_older_than": _created_ms(delivery) - _CLOCKS_DIFFER_MS}
                is_new = self._database.run_named("inbox_receive", wanted).fetchall()
                received.append(_message(tuple(row.values())) if is_new else None)
                newest = max(newest, delivery.history_id)
            self._database.run("inbox_raise_state", "history_id", newest)
        reach(FaultPoint.RECEIVED)
        return received

    def _columns(self, delivery: Deliver) -> dict[str, object]:
        """In the order of `inbox_page`."""
        received_at = self._received_at()
        meta = bytes(delivery.meta).decode()
        return {
            "id": self._ids.mint(),
            "client_message_id": delivery.client_message_id or delivery.broker_message_id,
            "broker_message_id": delivery.broker_message_id,
            "mesh": delivery.mesh,
            "topic": delivery.topic,
            "sender_pubkey": delivery.sender_pubkey,
            "sender_name": delivery.sender_name,
            "body": _stored_body(delivery.body, delivery.body_encoding),
            "meta": None if meta == "null" else meta,
            "received_at": received_at,
            "reply_to_id": delivery.reply_to_id,
            "history_id": delivery.history_id,
            "priority": delivery.priority,
            "created_at": delivery.created_at,
            "mention": int(delivery.mention),
        }

    @property
    def history_id(self) -> int:
        """The greatest `history_id` that was ever stored; 0 before the first."""
        found = self._database.row("inbox_state", "history_id")
        return 0 if found is None else int(found[0])

    def page(
        self,
        after: Position = START,
        *,
        limit: int = DEFAULT_PAGE,
        since_ms: int = 0,
        topic: str | None = None,
        sender: str | None = None,
        max_bytes: int | None = None,
    ) -> list[Message]:
        """Messages after a position, oldest first.

        Args:
            after: the position.
            limit: how many.
            since_ms: none received before this time.
            topic: of this topic only.
            sender: from this public key, or from members of this name, only.
            max_bytes: end with the message that makes the bodies so large.
        """
        wanted: dict[str, object] = {
            "after_at": after.received_at,
            "after_id": after.id,
            "since": since_ms,
            "topic": topic,
            "sender": sender,
            "limit": min(max(limit, 1), MAX_PAGE + 1),
        }
        found: list[Message] = []
        size = 0
        rows = self._database.run_named("inbox_page", wanted)
        for row in rows:
            found.append(_message(row))
            size += len(found[-1].body)
            if max_bytes is not None and size >= max_bytes:
                rows.close()  # the rest is not read at all
                break
        return found

    def newest(self) -> Position:
        """The position of the last message; `START` if there is none."""
        found = self._database.row("inbox_newest")
        return START if found is None else Position(*found)

    def search(
        self, text: str, after: Position = START, *, limit: int = DEFAULT_PAGE
    ) -> list[Message]:
        """Messages after a position that have all these words, oldest first.

        Raises:
            StorageBusy: the file is being vacuumed.
        """
        words = words_in(text)
        if words is None or not self.is_searchable:
            return []
        if self._is_vacuuming:
            raise StorageBusy(f"{self._database.path} is being vacuumed")
        wanted: dict[str, object] = {
            "words": words,
            "after_at": after.received_at,
            "after_id": after.id,
            "limit": min(max(limit, 1), MAX_PAGE + 1),
        }
        return [_message(row) for row in self._database.run_named("search_page", wanted)]

    def senders(self, limit: int) -> dict[str, str]:
        """Key of whoever sent the newest kept message under each name; reads all of them."""
        return dict(self._database.run("inbox_senders", limit).fetchall())

    def count(self) -> int:
        """How many messages are kept."""
        [(rows,)] = self._database.run("inbox_count")
        return int(rows)

    def prune(self) -> int:
        """Remove what is too old, and remember its ids; to be called every hour."""
        removed = 0
        now = self._clock.now_ms()
        while True:
            with self._database.transaction():
                self._database.run("inbox_remember", now - KEPT_MS, _STEP_ROWS)
                count = self._database.run("inbox_remove", now - KEPT_MS, _STEP_ROWS).rowcount
                self._database.run("inbox_forget", now - SEEN_MS, _STEP_ROWS)
            removed += count
            if count < _STEP_ROWS:
                return removed

    async def vacuum_if_due(self) -> bool:
        """Give the space of removed rows back to the disk, once a week.

        It takes as long as the file is large, so it runs in a thread. Deliveries are refused
        meanwhile, not kept waiting: the broker brings them again, and sends and reads go on.
        """
        now = self._clock.now_ms()
        found = self._database.row("inbox_state", "vacuumed_at")
        if found is not None and abs(now - found[0]) < VACUUM_EVERY_MS:
            return False
        if found is not None:
            self._index.before_vacuum()
            self._is_vacuuming = True
            try:
                await asyncio.to_thread(self._database.vacuum)
            finally:
                self._is_vacuuming = False
                self._index.after_vacuum()
        self._database.run("inbox_set_state", "vacuumed_at", now)
        return found is not None


class _Monotone:
    """The time of receipt as a `Clock`."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.now_ms = now_ms


def _stored_body(text: str, encoding: str) -> str | bytes:
    """Bytes that are not text become a BLOB; a body that only says it is base64 stays text."""
    if encoding != "base64":
        return text
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return text


def _created_ms(delivery: Deliver) -> int:
    """When the broker accepted the message; the beginning of time where that cannot be read."""
    try:
        return read_timestamp(delivery.created_at)
    except (ValueError, OverflowError):
        return 0


def _message(row: Sequence[Any]) -> Message:
    message_id, client_id, broker_id, mesh, topic, sender, name, body, meta, received_at = row[:10]
    reply_to_id, history_id, priority, created_at, mention = row[10:]
    is_text = isinstance(body, str)
    return Message(
        cursor=Position(received_at, message_id).cursor(),
        id=message_id,
        client_message_id=client_id,
        broker_message_id=broker_id,
        mesh=mesh,
        topic=topic,
        sender_pubkey=sender,
        sender_name=name,
        body=body if is_text else base64.b64encode(body or b"").decode(),
        body_encoding="utf8" if is_text else "base64",
        meta=Raw(b"null" if meta is None else meta.encode()),
        received_at=timestamp(received_at),
        reply_to_id=reply_to_id,
        history_id=history_id,
        priority=priority,
        created_at=created_at,
        mention=bool(mention),
    )
