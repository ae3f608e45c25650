"""What the owners of channels on the nodes of one log tell each other beside the log.

Entries reach every node through its tail. Frames that no entry carries, and changes of what is kept
of a history, go as announcements (`tidelog.log.announcements`): heard in one order, and never ahead
of an entry that was committed before them. Every node numbers what it tells; a number that does not
follow the one before means that something was not heard.

What registrars tell each other has a topic of its own, and passes through here unread.

Where only one process can use the store, nothing here has a timer, a task or an announcement.
"""

import asyncio
import os
from collections import OrderedDict
from collections.abc import Callable

import msgspec
from msgspec import Struct

from tidelog.base.errors import QueueFull, ShuttingDown, StoreError
from tidelog.channels.messages import Erased, Live, Summary
from tidelog.link.message import Message
from tidelog.log.announcements import Announcements
from tidelog.store.rows import Announcement

REGISTRARS = "channels"
OWNERS = "channels_owners"
"""Topics: who speaks."""

HEARTBEAT_SECONDS = 5.0
"""How long it takes at most until it is noticed that the last thing told was not heard."""

REMEMBERED_NODES = 1000
"""Nodes whose last number is remembered; those that ended are among them."""


class Alive(Message, frozen=True):
    """Nothing has happened."""


class HistoryChanged(Message, frozen=True):
    """Epochs or floors of channels are others, and messages are gone."""

    streams: tuple[str, ...]
    gone: tuple[int, ...] = ()


class RevocationsChanged(Message, frozen=True):
    """Tokens were revoked; the store says which."""


Told = Alive | Live | Summary | Erased | HistoryChanged | RevocationsChanged


class _Numbered(Struct, frozen=True, array_like=True):
    node: str
    number: int
    message: Told


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Numbered).decode


class OtherNodes:
    """The other nodes, as the owner of this one sees them."""

    def __init__(
        self,
        announcements: Announcements,
        *,
        is_shared: bool,
        hear: Callable[[Told], None],
        hear_registrar: Callable[[bytes], None],
        doubt: Callable[[], None],
        missed: Callable[[], None],
        beat: Callable[[], None],
    ) -> None:
        """None of the callbacks may await.

        `doubt` is called when an owner may not have been heard, `missed` when this node could not
        listen for too long, and `beat` every few seconds.
        """
        self._announcements = announcements
        self._is_shared = is_shared
        self._hear = hear
        self._hear_registrar = hear_registrar
        self._doubt = doubt
        self._missed = missed
        self._beat = beat
        self._name = os.urandom(8).hex()
        self._number = 0
        self._numbers: OrderedDict[str, int] = OrderedDict()
        """The last number of every other node."""
        self._beating: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to hear."""
        if self._is_shared:
            self._announcements.subscribe(OWNERS, self._on_owner, missed=self._missed)
            self._announcements.subscribe(REGISTRARS, self._on_registrar)
            self._beating = asyncio.create_task(self._keep_beating(), name="tidelog-channels-beat")

    def tell(self, message: Told) -> "asyncio.Future[int]":
        """Tell the owners on all other nodes; done when they are told, and fails if not.

        A caller that does not wait relies on a node that missed it to notice.
        """
        if not self._is_shared:
            return self._announcements.announce(OWNERS, b"")
        self._number += 1
        told = _Numbered(self._name, self._number, message)
        return self._announcements.announce(OWNERS, _encode(told))

    def tell_registrars(self, payload: bytes) -> "asyncio.Future[int]":
        """Tell the registrars of all other nodes."""
        return self._announcements.announce(REGISTRARS, payload)

    def _on_owner(self, announcement: Announcement) -> None:
        node, number, message = msgspec.structs.astuple(_decode(announcement.payload))
        follows = number == self._numbers.get(node, 0) + 1
        self._numbers[node] = number
        self._numbers.move_to_end(node)
        if len(self._numbers) > REMEMBERED_NODES:
            self._numbers.popitem(last=False)
        if not follows:
            self._doubt()
        self._hear(message)

    def _on_registrar(self, announcement: Announcement) -> None:
        self._hear_registrar(announcement.payload)

    async def _keep_beating(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            self._beat()
            try:
                await self.tell(Alive())
            except ShuttingDown:
                return
            except (QueueFull, StoreError):
                pass  # announcements have said so in the log; the next one tells the number
