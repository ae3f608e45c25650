"""Links for tests: one process, whose halves share nothing but the bytes of their messages."""

import asyncio
import logging
from typing import Any

import msgspec

from tidelog.link.ends import FrontEnd, OwnerHalf, Send
from tidelog.link.message import Vocabulary

_log = logging.getLogger(__name__)

_encode = msgspec.msgpack.Encoder().encode


def connect_encoded(half: OwnerHalf, vocabulary: Vocabulary) -> FrontEnd:
    """Every message is encoded, decoded and received at once."""
    end = FrontEnd()
    to_front = _through(vocabulary.to_front, end.received)
    end.send = _through(vocabulary.to_owner, half.accept(to_front).received)
    return end


def connect_apart(half: OwnerHalf, vocabulary: Vocabulary) -> FrontEnd:
    """Messages are encoded in frames of many, and received in a later turn of the event loop."""
    end = FrontEnd()
    to_front = _Later(vocabulary.to_front, end.received).send
    end.send = _Later(vocabulary.to_owner, half.accept(to_front).received).send
    return end


def _through(kind: Any, receive: Send) -> Send:
    decode = msgspec.msgpack.Decoder(tuple[int, kind]).decode

    def send(number: int, message: Any) -> None:
        receive(*decode(_encode((number, message))))

    return send


class _Later:
    """One direction of a link as a socket would be it."""

    def __init__(self, kind: Any, receive: Send) -> None:
        self._decode = msgspec.msgpack.Decoder(list[tuple[int, kind]]).decode
        self._receive = receive
        self._waiting: list[tuple[int, Any]] = []

    def send(self, number: int, message: Any) -> None:
        """Part of the next frame."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)
        self._waiting.append((number, message))

    def _flush(self) -> None:
        frame, self._waiting = _encode(self._waiting), []
        for number, message in self._decode(frame):
            try:
                self._receive(number, message)
            except Exception:  # noqa: BLE001 - what follows it in the frame must arrive
                _log.exception("receiving a %s failed", type(message).__name__)
