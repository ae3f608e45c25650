"""WebSocket frames as a server sends them, encoded once and shared by every receiver.

A server frame is not masked, so its bytes do not depend on the connection. A broadcast encodes one
frame and hands the same object to all of its receivers.
"""

TEXT = 0x1
BINARY = 0x2
CLOSE = 0x8
PING = 0x9
PONG = 0xA

_FINAL = 0x80
_MIDDLE_TEXT = bytes((_FINAL | TEXT, 126))
"""How a text frame of 126 to 65,535 bytes begins."""


def frame(opcode: int, payload: bytes) -> bytes:
    """One unfragmented server frame (RFC 6455, section 5.2)."""
    size = len(payload)
    if size < 126:
        return bytes((_FINAL | opcode, size)) + payload
    if size < 65536:
        return bytes((_FINAL | opcode, 126)) + size.to_bytes(2, "big") + payload
    return bytes((_FINAL | opcode, 127)) + size.to_bytes(8, "big") + payload


def text_frame(payload: bytes) -> bytes:
    """A text message; `payload` is UTF-8."""
    size = len(payload)
    if 126 <= size < 65536:  # as most are; there is one for each answer and each broadcast
        return _MIDDLE_TEXT + size.to_bytes(2, "big") + payload
    return frame(TEXT, payload)


def payload_of(encoded: bytes) -> bytes:
    """What such a frame carries."""
    size = encoded[1]
    return encoded[2 if size < 126 else 4 if size == 126 else 10 :]


def close_frame(code: int, reason: str = "") -> bytes:
    """A close frame; the reason is cut to the 123 bytes that fit beside the code."""
    cut = reason.encode()[:123].decode("utf-8", "ignore").encode()
    return frame(CLOSE, code.to_bytes(2, "big") + cut)
