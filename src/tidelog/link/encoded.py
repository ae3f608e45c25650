"""Links for tests: one process, whose halves share nothing but the bytes of their messages."""

import asyncio
import logging
from typing import Any

import msgspec

from tidelog.link.ends import FrontEnd, OwnerHalf, Send, answering
from tidelog.link.frames import FrameReader, FrameWriter, encoded
from tidelog.link.message import Vocabulary

_log = logging.getLogger(__name__)


def connect_encoded(half: OwnerHalf, vocabulary: Vocabulary) -> FrontEnd:
    """Every message is encoded, decoded and received at once."""
    end = FrontEnd()
    to_front = answering(_through(vocabulary.to_front, end.received), end.lost)
    end.send = _through(vocabulary.to_owner, half.accept(to_front).received)
    return end


def connect_apart(half: OwnerHalf, vocabulary: Vocabulary) -> FrontEnd:
    """Messages are encoded in frames of many, and received in a later turn of the event loop."""
    end = FrontEnd()
    to_front = answering(_Later(vocabulary.to_front, end.received).send, end.lost)
    end.send = _Later(vocabulary.to_owner, half.accept(to_front).received).send
    return end


def _through(kind: Any, receive: Send) -> Send:
    decode = msgspec.msgpack.Decoder(tuple[int, kind]).decode

    def send(number: int, message: Any) -> None:
        receive(*decode(encoded(number, message)))

    return send


class _Later:
    """One direction of a link as a socket would be it."""

    def __init__(self, kind: Any, receive: Send) -> None:
        self._writer = FrameWriter()
        self._reader = FrameReader([kind])
        self._receive = receive

    def send(self, number: int, message: Any) -> None:
        """Part of the next frame."""
        if self._writer.add(0, number, message):
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        for _, number, message in self._reader.feed(self._writer.take()):
            try:
                self._receive(number, message)
            except Exception:  # noqa: BLE001 - what follows it in the frame must arrive
                _log.exception("receiving a %s failed", type(message).__name__)
