"""Frames: how messages of several surfaces cross one stream of bytes, many at a time, in order.

A frame is a head (how long the rest is, and which surface it is of) and a MessagePack array of
pairs of a number and a message.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

_HEAD = struct.Struct("<IB")

MAX_FRAME_BYTES = 268_435_456
"""A frame that says it is larger is none: the other end does not speak this protocol. The largest
message is a snapshot, which an administrator has asked for."""

MAX_FRAME_MESSAGES = 512
"""So that whoever reads a frame gets to something else soon."""

_encode = msgspec.msgpack.Encoder().encode


class NotAFrame(ValueError):  # noqa: N818 - the failure is the noun
    """What came cannot be read, and so nothing after it can."""


class FrameWriter:
    """Gathers messages; what is taken from it are bytes to send."""

    def __init__(self) -> None:
        self._runs: list[tuple[int, list[tuple[int, Any]]]] = []
        """Messages of one surface each, in the order in which they are to leave."""

    def add(self, surface: int, number: int, message: Any) -> bool:
        """One more message; returns whether it is the first since `take`."""
        runs = self._runs
        is_first = not runs
        if is_first or runs[-1][0] != surface or len(runs[-1][1]) >= MAX_FRAME_MESSAGES:
            runs.append((surface, [(number, message)]))
        else:
            runs[-1][1].append((number, message))
        return is_first

    def take(self) -> bytes:
        """Everything that was added, as frames."""
        runs, self._runs = self._runs, []
        parts: list[bytes] = []
        for surface, messages in runs:
            body = _encode(messages)
            parts += (_HEAD.pack(len(body), surface), body)
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
                if size > MAX_FRAME_BYTES or surface >= len(self._decoders):
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
