"""A link over a socket, between two processes of one machine.

What a turn of the event loop sends leaves in one write. An end that does not read what it is sent
is dropped: a front then begins again as a new one, with its connections closed.
"""

import asyncio
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

from tidelog.link.ends import AtOwner, FrontEnd, OwnerHalf, Send
from tidelog.link.frames import FrameReader, FrameWriter, NotAFrame
from tidelog.link.message import Vocabulary

_log = logging.getLogger(__name__)

MAX_WAITING_BYTES = 67_108_864
"""Of messages that the other end has not read. A front that is this far behind could not tell its
clients anything in time, and what waits for it is memory of the owner."""


class SocketLink(asyncio.Protocol):
    """One end of a link that carries the messages of several surfaces."""

    def __init__(self, kinds: Sequence[Any], lost: Callable[[], None]) -> None:
        """`kinds` as of `FrameReader`; `lost` is called once, when nothing comes any more."""
        self.receive: list[Send] = []
        """Takes what comes, by the number of the surface."""
        self._reader = FrameReader(kinds)
        self._writer = FrameWriter()
        self._lost = lost
        self._transport: asyncio.Transport | None = None

    def sender(self, surface: int) -> Send:
        """What sends messages of a surface; they are dropped once the link is lost."""
        return functools.partial(self._send, surface)

    def _send(self, surface: int, number: int, message: Any) -> None:
        if self._transport is not None and self._writer.add(surface, number, message):
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        frames, transport = self._writer.take(), self._transport
        if transport is None:
            return
        transport.write(frames)
        waiting = transport.get_write_buffer_size()
        if waiting > MAX_WAITING_BYTES:
            _log.error("dropped a link: %d bytes wait to be read at its other end", waiting)
            transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are no subclass

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        try:
            for surface, number, message in self._reader.feed(data):
                try:
                    self.receive[surface](number, message)
                except Exception:  # noqa: BLE001 - what follows must arrive
                    _log.exception("receiving a %s failed", type(message).__name__)
        except NotAFrame as error:
            _log.error("dropped a link: %s", error)
            if self._transport is not None:
                self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        del exc
        self._transport = None
        self._lost()


class Served(NamedTuple):
    """The owner's half of a surface, and what it speaks."""

    half: OwnerHalf
    vocabulary: Vocabulary


def owner_link(surfaces: Sequence[Served]) -> SocketLink:
    """The owner's end of a link to one more front; both ends have the surfaces in one order."""
    fronts: list[AtOwner] = []

    def lost() -> None:
        for front in fronts:
            front.lost()

    link = SocketLink([each.vocabulary.to_owner for each in surfaces], lost)
    fronts += [each.half.accept(link.sender(number)) for number, each in enumerate(surfaces)]
    link.receive = [front.received for front in fronts]
    return link


def front_link(
    vocabularies: Sequence[Vocabulary], lost: Callable[[], None]
) -> tuple[SocketLink, Sequence[FrontEnd]]:
    """The front's end of a link, and what each surface is given of it.

    `lost` is called after all who wait were told that nobody knows what became of their questions.
    """
    ends = [FrontEnd() for _ in vocabularies]

    def lose() -> None:
        for end in ends:
            end.lost()
        lost()

    link = SocketLink([each.to_front for each in vocabularies], lose)
    for number, end in enumerate(ends):
        end.send = link.sender(number)
    link.receive = [end.received for end in ends]
    return link, ends
