"""A link over a socket, between two processes of one machine.

What a turn of the event loop sends leaves in one write. An end that does not read what it is sent
is dropped: a front then begins again as a new one, with its connections closed. `bounds` says how
much that is, and when the tail waits for a front that reads.

Both ends first say which version of tidelog they are of, and then now and then that they live. The
owner drops a front that says nothing any more. A front only knows it of its owner: the supervisor
kills one that hangs, and until then it may go on.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple, cast

from tidelog import __version__
from tidelog.base.brake import Brake
from tidelog.base.errors import OtherVersion
from tidelog.base.faultpoint import FaultPoint, reach
from tidelog.link import bounds
from tidelog.link.ends import AtOwner, FrontEnd, OwnerHalf, Send, answering
from tidelog.link.frames import FrameReader, FrameWriter, NotAFrame
from tidelog.link.message import Message, Vocabulary

_log = logging.getLogger(__name__)

_OWN = 0
"""What the ends themselves say to each other; the surfaces are numbered after it."""


class Opened(Message, frozen=True):
    """The first message of either end. It is the same in every version."""

    version: str


class Beat(Message, frozen=True):
    """This end lives."""


class Within(Message, frozen=True):
    """The question that follows under the same number is asked within this trace."""

    surface: int
    trace: str


Trace = Callable[[], str | None]
"""The trace that whoever asks a question is within, as a `traceparent`."""

WithinTrace = Callable[[str], AbstractContextManager[object]]
"""What is done within the block belongs to that trace."""


def _encoded_alone(message: Message) -> bytes:
    writer = FrameWriter()
    writer.add(_OWN, 0, message)
    return writer.take()


_BEAT = _encoded_alone(Beat())


class SocketLink(asyncio.Protocol):
    """One end of a link that carries the messages of several surfaces."""

    def __init__(
        self,
        kinds: Sequence[Any],
        lost: Callable[[], None],
        brake: Brake,
        *,
        drops_silent: bool,
    ) -> None:
        """`kinds` as of `FrameReader`; `lost` is called once, when nothing comes any more.

        The brake is held while the other end has much to read. `drops_silent`: what hangs is lost.
        """
        self.receive: list[Send] = []
        """Takes what comes, by the number of the surface."""
        self.made: Callable[[], None] = _do_nothing
        """Called when messages can be sent."""
        self.refused: OtherVersion | None = None
        """Why it was dropped, if the other end is of another version."""
        self.trace: Trace | None = None
        self.within: WithinTrace | None = None
        """Of the end that asks and of the one that is asked, if somebody wants traces."""
        self._receivers: list[Send] = [self._take_own, *[_too_early] * len(kinds)]
        """Those of `receive` after our own, as soon as the other end has said its version."""
        self._drops_silent = drops_silent
        self._silent_beats = 0
        self._beating: asyncio.TimerHandle | None = None
        self._reader = FrameReader([Opened | Beat | Within, *kinds])
        self._writer = FrameWriter()
        self._lost = lost
        self._brake = brake
        self._transport: asyncio.Transport | None = None

    def sender(self, surface: int) -> Send:
        """What sends messages of a surface; they are dropped once the link is lost."""
        return partial(self._send, surface + 1)

    def _send(self, surface: int, number: int, message: Any) -> None:
        if self._transport is not None:
            if self.trace is not None and number and surface and (trace := self.trace()):
                self._send(_OWN, number, Within(surface, trace))
            if self._writer.add(surface, number, message):
                asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        frames, transport = self._writer.take(), self._transport
        if transport is None or transport.is_closing():
            return
        reach(FaultPoint.LINK_SENDING)
        transport.write(frames)
        waiting = transport.get_write_buffer_size()
        if waiting > bounds.MAX_WAITING_BYTES:
            self._drop(f"{waiting} bytes wait to be read at its other end")

    def _drop(self, why: str) -> None:
        if self._transport is not None:
            _log.error("dropped a link: %s", why)
            self._transport.abort()

    def give_up(self) -> None:
        """The other end misses something: it must begin again."""
        self._drop("its other end could not be told something that it relies on")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are no subclass
        self._transport.set_write_buffer_limits(bounds.HIGH_WATER_BYTES, bounds.LOW_WATER_BYTES)
        self._transport.write(_encoded_alone(Opened(__version__)))
        self._beat_later()
        self.made()

    def _beat_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._beating = loop.call_later(bounds.BEAT_SECONDS, self._beat)

    def _beat(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(_BEAT)  # beside the frames of this turn: it says nothing of an order
        self._silent_beats += 1
        if self._drops_silent and self.is_silent:
            self._drop("its other end hangs: nothing has come from it for a while")
        else:
            self._beat_later()

    @property
    def is_silent(self) -> bool:
        """Whether the other end hangs, as far as that can be told from here."""
        return self._silent_beats > bounds.MOST_SILENT_BEATS

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._brake.hold(self._too_slow)

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._brake.release(self._too_slow)

    def _too_slow(self) -> None:
        self._drop("its other end is too slow, and the tail has waited long enough for it")

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._silent_beats = 0
        reach(FaultPoint.LINK_RECEIVED)
        receivers = self._receivers
        try:
            for surface, number, message in self._reader.feed(data):
                try:
                    receivers[surface](number, message)
                except (NotAFrame, OtherVersion):
                    raise
                except Exception:  # noqa: BLE001 - what follows must arrive
                    _log.exception("receiving a %s failed", type(message).__name__)
        except (NotAFrame, OtherVersion) as error:
            self._drop(str(error))

    def _take_own(self, number: int, message: Opened | Beat | Within) -> None:
        if isinstance(message, Opened):
            self._check(message.version)
        elif isinstance(message, Within) and self._receivers[message.surface] is not _too_early:
            self._receivers[message.surface] = partial(self._receive_within, number, message)

    def _check(self, version: str) -> None:
        """Whether both ends are of one version: they share what messages mean, and nothing else."""
        if version != __version__:
            self.refused = OtherVersion(
                f"this process is of tidelog {__version__} and its other end of {version}: "
                "restart the server, so that all of its processes are of one version"
            )
            raise self.refused
        self._receivers[1:] = self.receive

    def _receive_within(self, asked: int, within: Within, number: int, message: Any) -> None:
        """The next message of a surface: the question, unless that could not be sent after all."""
        receive = self._receivers[within.surface] = self.receive[within.surface - 1]
        if number == asked and self.within is not None:
            with self.within(within.trace):
                receive(number, message)
        else:
            receive(number, message)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        del exc
        self._transport = None
        self._silent_beats = 0  # it is gone, and does not hang
        if self._beating is not None:
            self._beating.cancel()
        self._brake.release(self._too_slow)
        self._lost()


class Served(NamedTuple):
    """The owner's half of a surface, and what it speaks."""

    half: OwnerHalf
    vocabulary: Vocabulary


def owner_link(
    surfaces: Sequence[Served], brake: Brake | None = None, within: WithinTrace | None = None
) -> SocketLink:
    """The owner's end of a link to one more front; both ends have the surfaces in one order.

    `brake` is the tail's.
    """
    fronts: list[AtOwner] = []

    def lost() -> None:
        for front in fronts:
            front.lost()

    kinds = [each.vocabulary.to_owner for each in surfaces]
    link = SocketLink(kinds, lost, brake or Brake(), drops_silent=True)
    link.within = within
    for number, each in enumerate(surfaces):
        fronts.append(each.half.accept(answering(link.sender(number), link.give_up)))
    link.receive = [front.received for front in fronts]
    return link


def front_link(
    vocabularies: Sequence[Vocabulary], lost: Callable[[], None]
) -> tuple[SocketLink, Sequence[FrontEnd]]:
    """The front's end of a link, and what each surface is given of it.

    `lost` is called after all who wait were told that nobody knows what became of their questions;
    those that may be repeated wait for `repeating_link`, or for the end of their surface's.
    """
    ends = [FrontEnd() for _ in vocabularies]
    link = _to_owner(vocabularies, ends, lost)
    for number, end in enumerate(ends):
        end.send = link.sender(number)
    return link, ends


def repeating_link(
    vocabularies: Sequence[Vocabulary], ends: Sequence[FrontEnd], lost: Callable[[], None]
) -> SocketLink:
    """A link to the next owner for ends that have lost theirs: when it is made, they ask again."""

    def made() -> None:
        for number, end in enumerate(ends):
            end.ask_again(link.sender(number))

    link = _to_owner(vocabularies, ends, lost)
    link.made = made
    return link


def _to_owner(
    vocabularies: Sequence[Vocabulary], ends: Sequence[FrontEnd], lost: Callable[[], None]
) -> SocketLink:
    def lose() -> None:
        for end in ends:
            end.cut()
        lost()

    kinds = [each.to_front for each in vocabularies]
    link = SocketLink(kinds, lose, Brake(), drops_silent=False)
    link.receive = [end.received for end in ends]
    return link


def _too_early(number: int, message: Any) -> None:
    raise NotAFrame(f"it says {number, type(message).__name__} before its version")


def _do_nothing() -> None:
    pass
