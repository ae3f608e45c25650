"""The last versions of channels, kept in memory for whoever comes back soon."""

from collections import OrderedDict, deque
from collections.abc import Sequence
from itertools import islice

from tidelog.channels.messages import Entry
from tidelog.channels.protocol.version import Version

ENTRY_BYTES = 1000
"""What an entry weighs in memory besides its content."""


class HotBuffer:
    """The last versions of channels, so that a short absence costs no read.

    They are kept as they came: most are never asked for.
    """

    def __init__(self, max_versions: int, ttl_seconds: float, max_bytes: int) -> None:
        """`max_versions` of one channel; `max_bytes` of all: beyond it the store is read."""
        self._max_versions = max_versions
        self._max_bytes = max_bytes
        self._ttl_ms = ttl_seconds * 1000
        self._channels: OrderedDict[str, deque[Entry]] = OrderedDict()
        """The oldest first; the channel last written to comes last."""
        self._bytes = 0

    def add(self, entry: Entry) -> None:
        """Keep a version that has just come."""
        stream = entry.stream
        recent = self._channels.setdefault(stream, deque())
        self._channels.move_to_end(stream)
        recent.append(entry)
        self._bytes += _size(entry)
        too_old = entry.committed_at - self._ttl_ms
        while len(recent) > self._max_versions or recent[0].committed_at < too_old:
            self._bytes -= _size(recent.popleft())
        while (oldest := next(iter(self._channels))) != stream:
            if self._channels[oldest][-1].committed_at >= too_old:
                break
            self.forget(oldest)  # most channels are written to for a while and never again
        while self._bytes > self._max_bytes:
            oldest, entries = next(iter(self._channels.items()))
            self._bytes -= _size(entries.popleft())
            if not entries:
                del self._channels[oldest]

    def forget(self, stream: str) -> None:
        """Keep nothing of a channel; what is asked for is read from the store."""
        self._bytes -= sum(map(_size, self._channels.pop(stream, ())))

    def clear(self) -> None:
        """Keep nothing."""
        self._channels.clear()
        self._bytes = 0

    def after(
        self, stream: str, serial: int, through: int, now_ms: int
    ) -> Sequence[Version] | None:
        """Every version after `serial` up to `through`; None if one of them is not here."""
        if serial == through:
            return ()
        recent = self._channels.get(stream)
        newest = recent[-1].stream_serial if recent else 0
        if not recent or newest < through:
            return None
        # From the end: whoever comes back has missed the last of it.
        missed = islice(reversed(recent), newest - through, newest - serial)
        found = [*missed]
        found.reverse()
        is_whole = [entry.stream_serial for entry in found] == [*range(serial + 1, through + 1)]
        is_young = is_whole and found[0].committed_at >= now_ms - self._ttl_ms
        return [entry.version() for entry in found] if is_young else None

    def at(self, stream: str, serial: int) -> Version | None:
        """The version with this serial, if it is here."""
        recent = self._channels.get(stream)
        if not recent:
            return None
        offset = serial - recent[0].stream_serial
        found = recent[offset] if 0 <= offset < len(recent) else None
        return found.version() if found is not None and found.stream_serial == serial else None


def _size(entry: Entry) -> int:
    return len(entry.body or b"") + ENTRY_BYTES
