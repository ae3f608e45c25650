"""Frames: how messages of several surfaces cross one stream of bytes, many at a time, in order.

A frame is a head (how long the rest is, and which surface it is of) and a MessagePack array of
pairs of a number and a message. Each pair is encoded when it is added: one that cannot be is
refused to whoever sends it, and takes no other with it.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from tidelog.base.errors import TooLargeToSend, Unsendable
from tidelog.link import bounds

_HEAD = struct.Struct("<IB")

_COUNT = struct.Struct(">BH")
"""MessagePack's array of up to 65,535 values."""
_ARRAY = 0xDC

_encode = msgspec.msgpack.Encoder().encode


class NotAFrame(ValueError):  # noqa: N818 - the failure is the noun
    """What came cannot be read, and so nothing after it can."""


class _Told:
    """What was told last, with its bytes: an owner tells all of its fronts the same."""

    message: Any = None
    pair = b""


def encoded(number: int, message: Any) -> bytes:
    """A pair as it is in a frame.

    Raises:
        Unsendable: it does not fit, or has something that bytes cannot say.
    """
    if not number:
        if message is _Told.message:
            return _Told.pair
        pair = _encoded(number, message)
        if len(pair) <= bounds.FRAME_BYTES:  # a larger one is not worth its memory
            _Told.message, _Told.pair = message, pair
        return pair
    return _encoded(number, message)


def _encoded(number: int, message: Any) -> bytes:
    try:
        pair = _encode((number, message))
    except (ArithmeticError, RecursionError, TypeError, ValueError) as error:
        raise Unsendable(f"it has something that cannot be encoded: {error}") from error
    if len(pair) > bounds.MAX_MESSAGE_BYTES:
        raise TooLargeToSend(
            f"it is too large: {len(pair)} bytes where {bounds.MAX_MESSAGE_BYTES} are the most; "
            "send or ask for less at a time"
        )
    return pair


class FrameWriter:
    """Gathers messages; what is taken from it are bytes to send."""

    def __init__(self) -> None:
        self._frames: list[tuple[int, list[bytes]]] = []
        """Pairs of one surface each, in the order in which they are to leave."""
        self._room = 0
        """Bytes that the last frame has left."""

    def add(self, surface: int, number: int, message: Any) -> bool:
        """One more message; returns whether it is the first since `take`.

        Raises:
            Unsendable: nothing was added.
        """
        pair = encoded(number, message)
        frames = self._frames
        is_first = not frames
        if (
            is_first
            or frames[-1][0] != surface
            or len(pair) > self._room
            or len(frames[-1][1]) >= bounds.MAX_FRAME_MESSAGES
        ):
            frames.append((surface, [pair]))
            self._room = bounds.FRAME_BYTES
        else:
            frames[-1][1].append(pair)
        self._room -= len(pair)
        return is_first

    def take(self) -> bytes:
        """Everything that was added, as frames."""
        frames, self._frames = self._frames, []
        parts: list[bytes] = []
        for surface, pairs in frames:
            size = bounds.COUNT_BYTES + sum(map(len, pairs))
            parts += (_HEAD.pack(size, surface), _COUNT.pack(_ARRAY, len(pairs)), *pairs)
        return b"".join(parts)


def _decoder(kind: Any) -> msgspec.msgpack.Decoder[list[tuple[int, Any]]]:
    return msgspec.msgpack.Decoder(list[tuple[int, kind]])


class FrameReader:
    """Turns bytes into messages again, however they are cut on their way."""

    def __init__(self, kinds: Sequence[Any]) -> None:
        """`kinds` are the unions of messages that come here, by the number of their surface."""
        self._decoders = [_decoder(kind) for kind in kinds]
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, int, Any]]:
        """Surface, number and message of all that is complete now.

        Raises:
            NotAFrame: the stream is of no more use.
        """
        buffer = self._buffer
        buffer += data
        start = 0
        try:
            while len(buffer) - start >= _HEAD.size:
                size, surface = _HEAD.unpack_from(buffer, start)
                if size > bounds.MAX_FRAME_BYTES or surface >= len(self._decoders):
                    raise NotAFrame(f"a frame of {size} bytes for surface {surface}")
                end = start + _HEAD.size + size
                if len(buffer) < end:
                    break
                body = bytes(memoryview(buffer)[start + _HEAD.size : end])
                start = end
                try:
                    messages = self._decoders[surface].decode(body)
                except msgspec.MsgspecError as error:
                    raise NotAFrame(f"a frame for surface {surface}: {error}") from error
                for number, message in messages:
                    yield surface, number, message
        finally:
            del buffer[:start]
