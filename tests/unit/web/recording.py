"""Recording fakes for both sides of a WebSocket connection, and client frames made by hand."""

import asyncio
from typing import Any

from tidelog.base.serving.surface import Outlet


def client_frame(
    opcode: int,
    payload: bytes = b"",
    *,
    fin: bool = True,
    reserved: int = 0,
    mask: bytes | None = b"\x0a\xf3\x51\xc7",
) -> bytes:
    """One frame as a client sends it; `mask=None` leaves it unmasked, which is a violation."""
    size = len(payload)
    bit = 0 if mask is None else 0x80
    if size < 126:
        head = bytes((fin << 7 | reserved << 4 | opcode, bit | size))
    elif size < 65536:
        head = bytes((fin << 7 | reserved << 4 | opcode, bit | 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((fin << 7 | reserved << 4 | opcode, bit | 127)) + size.to_bytes(8, "big")
    if mask is None:
        return head + payload
    return head + mask + bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))


def server_frames(data: bytes) -> list[tuple[int, bytes]]:
    """The unfragmented, unmasked frames in `data`."""
    frames = []
    while data:
        size, start = data[1], 2
        if size == 126:
            size, start = int.from_bytes(data[2:4], "big"), 4
        elif size == 127:
            size, start = int.from_bytes(data[2:10], "big"), 10
        assert data[0] & 0x80
        assert len(data) >= start + size
        frames.append((data[0] & 0x0F, data[start : start + size]))
        data = data[start + size :]
    return frames


class RecordingTransport(asyncio.Transport):
    """A transport whose socket takes `room` bytes and then nothing; None takes everything."""

    def __init__(self, room: int | None = None) -> None:
        super().__init__({"peername": ("192.0.2.1", 4711)})
        self.room = room
        self.protocol: Any = None
        self.writes: list[bytes] = []
        self.waiting = 0
        self.ended: list[str] = []
        self.reading = True
        self.half_close = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Record; buffer what the socket has no room for."""
        self.writes.append(bytes(data))
        if self.room is not None:
            taken = min(self.room, len(data))
            self.room -= taken
            if len(data) > taken:
                paused = self.waiting > 0
                self.waiting += len(data) - taken
                if not paused:
                    self.protocol.pause_writing()

    def drain(self, size: int) -> None:
        """The socket takes `size` bytes of what waits."""
        self.waiting -= size
        if not self.waiting:
            self.room = None
            self.protocol.resume_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Only the mark that makes every leftover visible is expected."""
        assert (high, low) == (1, None)

    def get_write_buffer_size(self) -> int:
        """Bytes that wait."""
        return self.waiting

    def is_closing(self) -> bool:
        """Whether it ended."""
        return "close" in self.ended or "abort" in self.ended

    def can_write_eof(self) -> bool:
        """Whether it is not TLS."""
        return self.half_close

    def write_eof(self) -> None:
        """Record."""
        self.ended.append("eof")

    def close(self) -> None:
        """Record; the connection is lost in the next turn."""
        self._lose("close")

    def abort(self) -> None:
        """Record; the connection is lost in the next turn."""
        self._lose("abort")

    def _lose(self, how: str) -> None:
        if not self.is_closing():
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)
        self.ended.append(how)

    def pause_reading(self) -> None:
        """Record."""
        self.reading = False

    def resume_reading(self) -> None:
        """Record."""
        self.reading = True


class RecordingConversation:
    """Records its calls; raises in those named by `failing`."""

    def __init__(self, *failing: str) -> None:
        self.failing = failing
        self.outlet: Outlet
        self.messages: list[tuple[bytes, bool]] = []
        self.codes: list[int] = []

    def opened(self, outlet: Outlet) -> None:
        """Record."""
        self.outlet = outlet
        self._fail("opened")

    def received(self, payload: bytes, *, is_text: bool) -> None:
        """Record."""
        self.messages.append((payload, is_text))
        self._fail("received", payload)

    def closed(self, code: int) -> None:
        """Record."""
        self.codes.append(code)
        self._fail("closed")

    def _fail(self, call: str, quoted: bytes = b"") -> None:
        if call in self.failing:
            raise RuntimeError(f"broken in {call}: {quoted!r}")
