"""What a client's bytes mean: frames checked, unmasked and assembled into messages (RFC 6455).

No sockets and no clock: bytes are fed in, whole messages and control frames are taken out one by
one, so the caller may stop in the middle of a chunk (a full inbox, a close) and go on later.

Our own parser, because picows cannot keep three promises: a message is refused by the header that
makes it too large, *before* its payload is buffered, also when only the sum of its fragments is too
large (picows caps single frames); what precedes a violation is delivered before the connection is
closed (picows sends the close frame first and cuts the connection 10 ms later); memory that one
large message needed is given back (picows never shrinks a connection's read buffer). `websockets`'
sans-I/O `ServerProtocol` keeps them, but takes a whole chunk at once, so that a full inbox cannot
stop it, and costs more. `bench/inbound.py`, µs per 200-byte message: alone in its chunk 1.6 here,
1.1 with picows (0.7x), 4.3 with `websockets` (2.7x); of 32 in a chunk 1.3, 0.4 (0.3x), 3.6 (2.8x).
"""

from collections.abc import Callable
from typing import Final

# The C function that `websockets` itself unmasks with, or its Python twin where no wheel fits.
# 1 MiB takes 0.03 ms with it and 4 ms with arithmetic on Python integers.
try:  # as `websockets.frames` has it, which costs a start 8 ms of imports
    from websockets.speedups import apply_mask
except ImportError:  # pragma: no cover - no wheel of websockets for this machine
    from websockets.utils import apply_mask

from tidelog.base.net.frame import BINARY, CLOSE, PING, PONG, TEXT

CONTINUATION: Final = 0x0
_WHOLE_TEXT: Final = 0x80 | TEXT
"""First byte of a text message in one frame, as almost all are."""
COMPRESSED: Final = 0x40
"""The reserved bit of the first byte of a compressed message's first frame (RFC 7692, 6)."""

NORMAL: Final = 1000
GOING_AWAY: Final = 1001
PROTOCOL_ERROR: Final = 1002
NO_CODE: Final = 1005
"""Never on the wire: a close frame without a code."""
ABNORMAL: Final = 1006
"""Never on the wire: the connection ended without a close frame."""
INVALID_TEXT: Final = 1007
TOO_BIG: Final = 1009
INTERNAL_ERROR: Final = 1011
TRY_AGAIN_LATER: Final = 1013


class Violation(Exception):  # noqa: N818 - the failure is the noun
    """The peer broke the protocol; `code` is what the connection must be closed with."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason


class FrameReader:
    """One connection's inbound direction.

    Args:
        max_message_bytes: The largest message, all fragments together. A peer could otherwise make
            us hold any amount.
        inflate: Restores a message that the peer has compressed, if that was agreed on; takes it
            and the largest size.
    """

    __slots__ = (
        "_at",
        "_data",
        "_fragments",
        "_head",
        "_inflate",
        "_is_compressed",
        "_mask",
        "_message_opcode",
        "_missing",
        "_partial",
        "max_message_bytes",
    )

    def __init__(
        self, max_message_bytes: int, inflate: Callable[[bytes, int], bytes] | None = None
    ) -> None:
        self.max_message_bytes = max_message_bytes
        self._inflate = inflate
        self._data: bytes = b""
        """The chunk being read; empty between chunks, so that an idle connection holds nothing."""
        self._at = 0
        """Where in `_data` the next frame starts."""
        self._head = 0
        """First byte of the frame whose payload is incomplete."""
        self._mask = b""
        """Masking key of that frame."""
        self._partial: bytearray | None = None
        """Payload of that frame as far as it came, still masked; None between frames."""
        self._missing = 0
        """Bytes of that payload yet to come."""
        self._fragments: bytearray | None = None
        """Earlier fragments of an unfinished message; None outside a fragmented message."""
        self._message_opcode = 0
        """Opcode of the unfinished message."""
        self._is_compressed = False
        """Whether that message is compressed: its first frame says so for all."""

    def feed(self, data: bytes) -> None:
        """Take in what the socket gave; `take` then gives it out."""
        if self._at < len(self._data):
            self._data = self._data[self._at :] + data
        else:
            self._data = data
        self._at = 0

    @property
    def held_bytes(self) -> int:
        """Of messages that are not whole yet."""
        return len(self._data) - self._at + len(self._partial or b"") + len(self._fragments or b"")

    def take(self) -> tuple[int, bytes] | None:
        """The next whole message or control frame, `(opcode, payload)`; None if bytes are missing.

        Raises:
            Violation: The peer broke the protocol; the reader cannot be used any more.
        """
        data = self._data
        available = len(data)
        while True:
            if self._partial is not None:
                ended = self._continue_payload(self._partial)
                if ended is None:
                    return None
                first, payload = ended
            else:
                at = self._at
                if available - at < 2:
                    break
                first = data[at]
                size = data[at + 1] - 0x80
                if first & 0x70 and not self._may_be_compressed(first):
                    raise Violation(PROTOCOL_ERROR, "reserved bits set without an extension")
                if size < 0:
                    raise Violation(PROTOCOL_ERROR, "client frame is not masked")
                at += 2
                if size > 125:
                    if first & 0x08:
                        raise Violation(PROTOCOL_ERROR, "control frame over 125 bytes")
                    width, least = (2, 126) if size == 126 else (8, 65536)
                    if available - at < width:
                        break
                    size = int.from_bytes(data[at : at + width], "big")
                    if size < least or size >> 63:  # the shortest form, and 63 bits (RFC 6455, 5.2)
                        raise Violation(PROTOCOL_ERROR, "malformed payload length")
                    at += width
                is_plain = first == _WHOLE_TEXT and self._fragments is None
                if not is_plain or size > self.max_message_bytes:
                    self._check(first, size)
                if available - at < 4:
                    break
                mask = data[at : at + 4]
                at += 4
                end = at + size
                if end > available:
                    self._head = first
                    self._mask = mask
                    self._partial = bytearray(data[at:])
                    self._missing = end - available
                    self._data = b""
                    self._at = 0
                    return None
                payload = apply_mask(data[at:end], mask)
                self._at = end
                if is_plain and payload.isascii():
                    return TEXT, payload
            whole = self._assemble(first, payload)
            if whole is not None:
                return whole
        if self._at:
            self._data = data[self._at :]
            self._at = 0
        return None

    def _continue_payload(self, partial: bytearray) -> tuple[int, bytes] | None:
        data = self._data
        end = min(self._at + self._missing, len(data))
        self._missing -= end - self._at
        partial += data[self._at : end] if self._at or end < len(data) else data
        if self._missing:
            self._data = b""
            self._at = 0
            return None
        self._at = end
        self._partial = None
        return self._head, apply_mask(partial, self._mask)

    def _may_be_compressed(self, first: int) -> bool:
        """Whether reserved bits say of the first frame of a message that it is compressed."""
        is_message = first & 0x0F in (TEXT, BINARY)
        return self._inflate is not None and first & 0x70 == COMPRESSED and is_message

    def _check(self, first: int, size: int) -> None:
        """Judge whether a frame may come now and be that large, before its payload is kept."""
        opcode = first & 0x0F
        if opcode in (TEXT, BINARY):
            if self._fragments is not None:
                raise Violation(PROTOCOL_ERROR, "new message inside a fragmented one")
            if size > self.max_message_bytes:
                raise Violation(TOO_BIG, "message too large")
        elif opcode == CONTINUATION:
            if self._fragments is None:
                raise Violation(PROTOCOL_ERROR, "continuation without a message")
            if len(self._fragments) + size > self.max_message_bytes:
                raise Violation(TOO_BIG, "message too large")
        elif opcode not in (CLOSE, PING, PONG):
            raise Violation(PROTOCOL_ERROR, "reserved opcode")
        elif first < 0x80:
            raise Violation(PROTOCOL_ERROR, "fragmented control frame")

    def _assemble(self, first: int, payload: bytes) -> tuple[int, bytes] | None:
        opcode = first & 0x0F
        if opcode >= CLOSE:
            return opcode, payload
        if first < 0x80:
            if self._fragments is None:
                self._fragments = bytearray(payload)
                self._message_opcode = opcode
                self._is_compressed = bool(first & COMPRESSED)
            else:
                self._fragments += payload
            return None
        if self._fragments is not None:
            self._fragments += payload
            payload = bytes(self._fragments)
            opcode = self._message_opcode
            first |= COMPRESSED if self._is_compressed else 0
            self._fragments = None
        if first & COMPRESSED and self._inflate is not None:
            payload = self._inflate(payload, self.max_message_bytes)
        if opcode == TEXT and not payload.isascii():
            try:
                payload.decode()
            except UnicodeDecodeError:
                raise Violation(INVALID_TEXT, "text is not UTF-8") from None
        return opcode, payload


def close_code(payload: bytes) -> int:
    """The code in a close frame's payload, `NO_CODE` if it is empty.

    Raises:
        Violation: The payload is one byte, or the code is not one that may be sent, or the reason
            is not UTF-8.
    """
    if not payload:
        return NO_CODE
    code = int.from_bytes(payload[:2], "big")
    if len(payload) == 1 or not (
        1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999
    ):
        raise Violation(PROTOCOL_ERROR, "invalid close code")
    try:
        payload[2:].decode()
    except UnicodeDecodeError:
        raise Violation(INVALID_TEXT, "close reason is not UTF-8") from None
    return code
