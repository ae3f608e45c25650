"""Appends of one message that leave as one frame, for who asked for a window (channels 5.13).

A rolled frame says what the frames of its appends would have said, one after the other: their texts
are joined, the rest is that of the last one, and `rolled` has the length of each. Its appends have
consecutive delivery serials, so that a position is never past something that was not sent.
"""

from math import ceil

import msgspec
from msgspec import Raw, UnsetType

from tidelog.channels.protocol import fault
from tidelog.channels.protocol.growing_text import FRAGMENT_BYTES
from tidelog.channels.protocol.verbs import APPEND
from tidelog.channels.protocol.version import Version, join_text
from tidelog.channels.protocol.wire import ROLLUP_WINDOWS, RollupWindow

_WINDOWS = {str(window): window for window in ROLLUP_WINDOWS}
"""By how a query says them."""

TICK = 0.005
"""Seconds that a window is rounded up to, so that what many wait for leaves in one turn."""

HELD_BYTES = 65_536
"""Held for one channel and window; what is beyond it does not wait for the end of the window."""

_read_text = msgspec.json.Decoder(str).decode


def parse_window(text: str) -> RollupWindow:
    """An `append_rollup_window`.

    Raises:
        Fault: it is none.
    """
    window = _WINDOWS.get(text)
    if window is None:
        raise fault.rollup_window_invalid("append_rollup_window must be 0, 20, 40, 100 or 500")
    return window


class Rollup:
    """What is held of one channel for those who asked for the same window: one message at a time.

    The first append of a message leaves at once, and so does one after a pause as long as the
    window. Those that follow sooner are held until the first of them has waited for the window.
    """

    __slots__ = (
        "_bytes",
        "_fragments",
        "_last",
        "_message",
        "_until",
        "_window",
        "due",
        "number",
        "subscribers",
    )

    def __init__(self, window: RollupWindow) -> None:
        self._window = window / 1000
        self.subscribers = 0
        self._message = ""
        """What was appended to last."""
        self._until = 0.0
        """Until then an append to it is held."""
        self._fragments: list[bytes] = []
        self._bytes = 0
        self._last: Version | None = None
        """Of those that are held."""
        self.number = 0
        """How often appends were held, those that are held now included."""
        self.due = 0.0
        """When those that are held leave, at the latest."""

    @property
    def is_holding(self) -> bool:
        """Whether something is held."""
        return self._last is not None

    @property
    def is_over(self) -> bool:
        """Whether what is held must not wait: its stream has ended, or it is too much."""
        return self._last is not None and (self._bytes > HELD_BYTES or self._last.is_terminal)

    def is_broken_by(self, version: Version) -> bool:
        """Whether what is held must leave before a version: that does not go on where it ends."""
        last = self._last
        return last is not None and not (
            _can_wait(version)
            and version.message_serial == last.message_serial
            and version.delivery_serial == last.delivery_serial + 1
        )

    def hold(self, version: Version, now: float) -> bool:
        """Hold a version, which breaks nothing; False if it leaves at once."""
        if not _can_wait(version):
            return False
        if self._last is None:
            if version.message_serial != self._message or now >= self._until or version.is_terminal:
                self._message, self._until = version.message_serial, now + self._window
                return False
            self.number += 1
            self.due = ceil((now + self._window) / TICK) * TICK
        fragment = b'""' if isinstance(version.data, UnsetType) else bytes(version.data)
        self._fragments.append(fragment)
        self._bytes += len(fragment) + FRAGMENT_BYTES
        self._last = version
        return True

    def held(self) -> Version:
        """All that is held as one version."""
        assert self._last is not None  # noqa: S101 - asked for while it is holding
        return rolled_up(self._fragments, self._last)

    def take(self, now: float) -> Version:
        """All that is held as one version, which leaves now."""
        version = self.held()
        self._fragments, self._bytes, self._last = [], 0, None
        self._until = now + self._window
        return version


def rolled_up(fragments: list[bytes], last: Version) -> Version:
    """Appends with consecutive serials as one; `last` is the last of them."""
    if len(fragments) == 1:
        return last
    lengths = tuple([len(_read_text(fragment)) for fragment in fragments])
    return msgspec.structs.replace(last, data=Raw(join_text(fragments)), rolled=lengths)


def _can_wait(version: Version) -> bool:
    # Who must not get a version does not get a part of a frame either.
    return version.kind == APPEND and version.socket_id is None
