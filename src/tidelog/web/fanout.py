"""Outbound frames: gathered per connection, written once per turn of the event loop.

Whatever a turn pushes to a connection leaves in one `write`: a batch of sixteen frames to a
thousand subscribers is a thousand system calls, not sixteen thousand. Connections that were pushed
the same frames share one joined buffer.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence

from tidelog.base import faultpoint
from tidelog.base.faultpoint import FaultPoint
from tidelog.base.metrics import Metrics
from tidelog.base.settings.limits import Limits
from tidelog.web.deflate import deflated

_log = logging.getLogger("tidelog.web")

MANY_RECEIVERS = 16
"""Connections with something to write, from which on a flush may wait for more: with fewer there
is little to save."""


class _Backlog:
    """The writes that a clogged socket has not wholly taken."""

    __slots__ = ("_untaken_bytes", "_writes", "messages", "taken")

    def __init__(self) -> None:
        self._writes: deque[tuple[int, int]] = deque()
        """Bytes and messages of each write, the oldest first."""
        self._untaken_bytes = 0
        self.taken = asyncio.Event()
        """Set when it is over, one way or the other."""
        self.messages = 0
        """Messages in those writes: not fewer than what waits, and at most one write more."""

    def wrote(self, size: int, messages: int, waiting_bytes: int) -> None:
        """Add a write, and forget the writes that are no part of what still waits."""
        writes = self._writes
        writes.append((size, messages))
        self._untaken_bytes += size
        self.messages += messages
        while writes and self._untaken_bytes - writes[0][0] >= waiting_bytes:
            size, messages = writes.popleft()
            self._untaken_bytes -= size
            self.messages -= messages


class FrameWriter:
    """The outbound direction of one connection; `tidelog.web.websocket` adds the inbound one."""

    __slots__ = (
        "_answer_bytes",
        "_backlog",
        "_transport",
        "_write",
        "attention",
        "deflates",
        "fanout",
        "frames",
        "writable",
    )

    def __init__(self, fanout: "Fanout") -> None:
        self.fanout = fanout
        self.frames: list[bytes] = []
        """Pushed and not yet given to the transport. Not empty exactly while the writer is in the
        fan-out's dirty list."""
        self.writable = False
        """Whether frames are taken: from the handshake to the first close frame."""
        self.attention = False
        """Whether `wrote` must follow a write: the socket is clogged or a close is pending."""
        self.deflates = False
        """Whether the peer takes compressed frames."""
        self._answer_bytes = 0
        """Size of the last answer: what waits beside it is judged, not the answer itself."""
        self._transport: asyncio.Transport | None = None
        self._backlog: _Backlog | None = None
        """Set while the socket has not taken everything that was written."""

    def attach(self, transport: asyncio.Transport) -> None:
        """Start writing to `transport`.

        With a high-water mark of one byte the transport offers every write to the socket at once
        and calls `pause_writing` if anything is left: a healthy connection is never measured at
        all. With zero, one that speaks TLS takes an empty buffer for a full one.
        """
        self._transport = transport
        self._write = transport.write
        transport.set_write_buffer_limits(high=1)
        self.writable = True

    def detach(self) -> None:
        """The connection is gone; drop what was not written."""
        self.writable = False
        self.frames = []
        self._transport = None
        if self._backlog is not None:
            self._backlog.taken.set()

    def push(self, frame: bytes) -> None:
        """Queue an encoded frame; it leaves with the next flush, in order."""
        if self.writable:
            frames = self.frames
            if not frames:
                self.fanout.mark(self)
            frames.append(frame)

    def push_all(self, frames: Sequence[bytes]) -> None:
        """As `push` of each, at the cost of one."""
        if self.writable:
            if not self.frames:
                self.fanout.mark(self)
            self.frames += frames

    def answer(self, frame: bytes) -> None:
        """Queue a large frame that the peer has asked for; it never makes it a slow consumer.

        Only the last one is exempt: wait for `drained` before the next, or it is held against it.
        """
        self._answer_bytes = len(frame)
        self.push(frame)

    def write(self, data: bytes, messages: int) -> None:
        """Give frames to the socket; the transport keeps what the socket does not take."""
        self._write(data)
        if self.attention:
            self.wrote(len(data), messages)

    def wrote(self, size: int, messages: int) -> None:
        """After a write that needs attention: judge whether the peer reads fast enough."""
        if self._backlog is None or self._transport is None:
            return
        limits = self.fanout.limits
        waiting_bytes = self._transport.get_write_buffer_size()
        self._backlog.wrote(size, messages, waiting_bytes)
        answers = 1 if self._answer_bytes else 0
        if (
            waiting_bytes > limits.send_buffer_bytes + self._answer_bytes
            or self._backlog.messages > limits.send_buffer_messages + answers
        ):
            self.fanout.metrics.slow_consumers.inc()
            _log.warning(
                "dropped a slow consumer: %d bytes in %d messages wait for it",
                waiting_bytes,
                self._backlog.messages,
            )
            self.too_slow()

    def too_slow(self) -> None:
        """The peer left more untaken than the limits allow: free the memory at once.

        A close frame could only queue up behind what the peer does not read.
        """
        self.writable = False
        self.abort()

    def abort(self) -> None:
        """Drop the connection and everything buffered for it."""
        if self._transport is not None:
            self._transport.abort()

    async def drained(self) -> None:
        """Return when the socket has taken what was pushed, or the connection is gone."""
        await asyncio.sleep(0)  # the flush of what was pushed comes first
        while self.writable and (self._backlog is not None or self.frames):
            if self._backlog is None:
                await asyncio.sleep(self.fanout.wait_seconds)
            else:
                await self._backlog.taken.wait()

    def pause_writing(self) -> None:
        """The socket did not take everything."""
        self._backlog = _Backlog()
        self.attention = True

    def resume_writing(self) -> None:
        """The socket has taken everything."""
        if self._backlog is not None:
            self._backlog.taken.set()
        self._backlog = None
        self._answer_bytes = 0
        self.attention = not self.writable


class Fanout:
    """The dirty list of one server and its flush.

    Args:
        loop: The event loop that owns every connection.
        metrics: Where sent bytes and slow consumers are counted.
        limits: `send_buffer_bytes` and `send_buffer_messages` judge slow consumers.
        wait_ms: How long a flush to many receivers waits for more; 0 for not at all.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        metrics: Metrics,
        limits: Limits,
        wait_ms: int = 0,
    ) -> None:
        self.metrics = metrics
        self.limits = limits
        self.wait_seconds = wait_ms / 1000
        self._loop = loop
        self._dirty: list[FrameWriter] = []

    def now(self) -> float:
        """Event-loop time."""
        return self._loop.time()

    def mark(self, writer: FrameWriter) -> None:
        """Flush `writer` after this turn of the loop; called when its first frame is queued."""
        dirty = self._dirty
        if not dirty:
            self._loop.call_soon(self._flush_soon if self.wait_seconds else self._flush)
        dirty.append(writer)

    def _flush_soon(self) -> None:
        if len(self._dirty) >= MANY_RECEIVERS:
            self._loop.call_later(self.wait_seconds, self._flush)
        else:
            self._flush()

    def _flush(self) -> None:
        dirty = self._dirty
        self._dirty = []
        try:
            faultpoint.reach(FaultPoint.FLUSHING)
        except OSError:
            # Frames are gone, so the order is broken for every receiver: they must resume.
            _log.exception("flush failed; dropping its connections")
            for writer in dirty:
                writer.abort()
            return
        sent_bytes = 0
        batch: list[bytes] = []
        joined = b""
        smaller: dict[bytes, bytes] = {}
        """Frames as compressed for whoever takes that; most go to many."""
        for writer in dirty:
            frames = writer.frames
            if not frames:  # the connection went away between push and flush
                continue
            writer.frames = []
            if frames != batch:
                batch = frames
                joined = frames[0] if len(frames) == 1 else b"".join(frames)
            data = joined
            if writer.deflates:
                for each in frames:
                    if each not in smaller:
                        smaller[each] = deflated(each)
                data = b"".join([smaller[each] for each in frames])
            sent_bytes += len(data)
            try:
                writer.write(data, len(frames))
            except Exception:  # noqa: BLE001 - one connection's failure is not its neighbours'
                _log.exception("write failed; dropping the connection")
                writer.abort()
        self.metrics.sent_bytes.inc(sent_bytes)
