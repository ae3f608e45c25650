"""A channel as its subscriber knows it: operations in, messages out; no sockets, no clock.

Operations of a channel are numbered without a gap (`delivery_serial`), so a position says exactly
what is known. A message is folded as the server folds it: an append adds text, anything else says
all of it.

What a slow reader has not looked at yet is not queued: a message that changed is noted once, and
read as it is then. Memory is bounded by the messages kept, whatever the speed of either side.
"""

from bisect import insort
from collections.abc import Sequence
from enum import Enum
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from tidelog.client.channels.message import BadFrame, Message, Operation, Position

MAX_KEPT_BYTES = 64 * 1024**2
"""Data of the messages of one channel; beyond it the oldest go, whatever the limit on their number.
A single message has at most what the server allows, a megabyte unless it is set otherwise."""

MAX_PASSING = 1000
"""Events that nothing is kept of, waiting for a slow reader; the oldest go first."""

MAX_REWOUND = 20_000
"""Frames of one rewind: a page of history, at most 1000, and what was published meanwhile."""

MAX_UNFINISHED = 100
"""Messages whose beginning is asked for at the same time; others stay partial."""


class Verdict(Enum):
    """What became of an operation."""

    APPLIED = "applied"
    """It is part of the state now, or was already."""
    GAP = "gap"
    """Something before it is missing."""
    OTHER_STREAM = "other stream"
    """It belongs to another stream: nothing that is known here leads to it."""


class _Kept:
    """A message of which the latest operation and the text so far are known."""

    def __init__(self, operation: Operation, *, is_partial: bool) -> None:
        self.latest = operation
        self.is_partial = is_partial
        self.parts: list[tuple[int, str]] = []
        """Text and the delivery serial of the operation that added it; joined when it is read."""
        self.value: Any = None
        """Data that is no text."""
        self.size = 0
        self.built: Message | None = None
        self._take(operation)

    def replace(self, operation: Operation) -> None:
        """An operation that says all of it."""
        self.parts, self.value, self.size = [], None, 0
        self.latest, self.is_partial, self.built = operation, False, None
        self._take(operation)

    def add(self, operation: Operation) -> None:
        """An operation that says what it added."""
        self.latest, self.built = operation, None
        self._take(operation)

    def _take(self, operation: Operation) -> None:
        if isinstance(operation.data, str):
            self.parts.append((operation.delivery_serial or 0, operation.data))
            self.size += len(operation.data)
        elif not isinstance(operation.data, UnsetType):
            self.value = operation.data
            self.size = len(msgspec.json.encode(operation.data))

    def message(self, channel: str) -> Message:
        """The message as it is now."""
        if self.built is None:
            if len(self.parts) > 1:
                text = "".join(part for _, part in self.parts)
                self.parts = [(self.parts[-1][0], text)] if not self.is_partial else self.parts
                self.built = _message(channel, self.latest, text, is_partial=self.is_partial)
            else:
                data = self.parts[0][1] if self.parts else self.value
                self.built = _message(channel, self.latest, data, is_partial=self.is_partial)
        return self.built


def _message(channel: str, latest: Operation, data: Any, *, is_partial: bool = False) -> Message:
    return Message(
        channel=channel,
        serial=latest.serial,
        name=latest.name,
        data=data,
        extras=latest.extras,
        tags=latest.tags,
        action=latest.action,
        history_serial=latest.history_serial,
        delivery_serial=latest.delivery_serial,
        version_serial=latest.version_serial,
        version_timestamp_ms=latest.timestamp_ms,
        client_id=latest.client_id,
        is_partial=is_partial,
    )


class ChannelView:
    """The messages of one channel and the position they stand at."""

    def __init__(
        self, channel: str, *, limit: int, is_full: bool = False, max_bytes: int = MAX_KEPT_BYTES
    ) -> None:
        """`is_full` if appends come with the whole text."""
        self.channel = channel
        self.position: Position | None = None
        """None before the first subscription, and on channels that cannot be resumed."""
        self.missed = 0
        """Changes a slow reader has not been shown: events beyond `MAX_PASSING`, and messages that
        were no longer kept when it came for them."""
        self._limit = limit
        self._is_full = is_full
        self._max_bytes = max_bytes
        self._kept: dict[str, _Kept] = {}
        self._order: list[tuple[int, str]] = []
        """History serials and serials of what is kept, ascending."""
        self._bytes = 0
        self._floor = 0
        """Messages up to this history serial were let go: changes to them are not shown."""
        self._news: dict[str | int, Message | None] = {}
        """Changed messages by serial; events that are not kept under a number of their own."""
        self._passed = 0
        self._passing = 0
        """How many of the news are events that are not kept."""
        self._rewound: list[Operation] | None = None
        """Frames of a rewind that goes on; which of them are history is known at its end."""
        self._unfinished: dict[int, None] = {}
        """Messages whose beginning is not known and may be asked for, by history serial."""

    # What is seen.

    @property
    def messages(self) -> Sequence[Message]:
        """What is kept, in the order of the channel."""
        return tuple(self._kept[serial].message(self.channel) for _, serial in self._order)

    def get(self, serial: str) -> Message | None:
        """One of the messages that are kept."""
        kept = self._kept.get(serial)
        return None if kept is None else kept.message(self.channel)

    @property
    def has_news(self) -> bool:
        """Whether `take` has something."""
        return bool(self._news)

    def take(self) -> Message | None:
        """The message whose change has waited longest, as it is now; None if there is none."""
        if not self._news:
            return None
        key = next(iter(self._news))
        passing = self._news.pop(key)
        if passing is None:
            return self._kept[str(key)].message(self.channel)
        self._passing -= 1
        return passing

    # What happens.

    def attached(self, stream_id: str | None, serial: int | None, *, rewinds: bool) -> Verdict:
        """The subscription begins, at a position if the server can resume it."""
        if stream_id is None or serial is None:
            self.position = None
        elif self.position is None:
            self.position = Position(stream_id, serial)
        elif self.position.stream_id != stream_id:
            return Verdict.OTHER_STREAM
        elif self.position.serial < serial:
            return Verdict.GAP
        self._rewound = [] if rewinds else None
        return Verdict.APPLIED

    def continues_as(self, stream_id: str | None) -> None:
        """The server resumes this position under another id: the log was restored after it."""
        if self.position is not None and stream_id is not None:
            self.position = msgspec.structs.replace(self.position, stream_id=stream_id)

    def detached(self) -> None:
        """The connection is gone; a rewind that had not ended begins anew."""
        if self._rewound is not None:
            self._rewound, self.position = None, None

    def reset(self) -> None:
        """Forget everything."""
        self.position = None
        self._kept, self._order, self._news, self._unfinished = {}, [], {}, {}
        self._bytes = self._floor = self._passing = 0
        self._rewound = None

    def has_passed(self, serial: int) -> bool:
        """Whether an operation of this delivery serial is from before the position."""
        return self.position is not None and serial <= self.position.serial

    def show(self, operation: Operation) -> None:
        """Give an event to the reader and keep nothing of it."""
        data = None if operation.data is UNSET else operation.data
        self._passed += 1
        self._news[self._passed] = _message(self.channel, operation, data)
        self._passing += 1
        if self._passing > MAX_PASSING:
            del self._news[next(key for key in self._news if isinstance(key, int))]
            self._passing -= 1
            self.missed += 1

    def receive(self, operation: Operation) -> Verdict:
        """An operation, live or replayed."""
        serial = operation.delivery_serial
        if serial is None:
            self.show(operation)
            return Verdict.APPLIED
        if self._rewound is not None:
            if len(self._rewound) >= MAX_REWOUND:
                raise BadFrame("a rewind without an end")
            self._rewound.append(operation)
            return Verdict.APPLIED
        position = self.position
        if position is not None:
            if operation.stream_id != position.stream_id:
                return Verdict.OTHER_STREAM
            if serial <= position.serial:
                return Verdict.APPLIED
            if serial > position.serial + 1:
                return Verdict.GAP
            self.position = Position(position.stream_id, serial, operation.message_id)
        self._fold(operation, is_whole=self._is_full)
        return Verdict.APPLIED

    def rewound(self, historical_count: int) -> None:
        """The rewind has ended: its first frames were states of messages, the others live.

        A state may be newer than live operations that are still to come. Those are recognised by
        the message's own serial, so the position is where the live ones have led, not the states.
        """
        frames, self._rewound = self._rewound or [], None
        for operation in frames[:historical_count]:
            self._fold(operation, is_whole=True)
        for operation in frames[historical_count:]:
            self._fold(operation, is_whole=self._is_full)
            serial = operation.delivery_serial or 0
            if self.position is not None and serial > self.position.serial:
                self.position = Position(self.position.stream_id, serial, operation.message_id)

    # Messages whose beginning is not known.

    @property
    def unfinished(self) -> int | None:
        """History serial of a message to be asked for."""
        return next(iter(self._unfinished), None)

    def was_asked(self, history_serial: int) -> None:
        """The history was read, or never will be."""
        self._unfinished.pop(history_serial, None)

    def fill(self, state: Operation) -> None:
        """The whole of a message as the history has it; what was added since stays added."""
        kept = self._kept.get(state.serial)
        if kept is None or not kept.is_partial:
            return
        latest, later = kept.latest, kept.parts
        self._bytes -= kept.size
        kept.replace(state)
        for serial, text in later:
            if serial > (state.delivery_serial or 0):
                added = msgspec.structs.replace(latest, data=text, delivery_serial=serial)
                kept.add(added)
        self._bytes += kept.size
        self._news.setdefault(state.serial, None)
        self._let_go()

    # Inside.

    def _fold(self, operation: Operation, *, is_whole: bool) -> None:
        key, history_serial = operation.serial, operation.history_serial or 0
        kept = self._kept.get(key)
        is_addition = operation.action == "append" and not is_whole
        if kept is None:
            if history_serial <= self._floor:
                return
            kept = self._kept[key] = _Kept(operation, is_partial=is_addition)
            insort(self._order, (history_serial, key))
            if is_addition and len(self._unfinished) < MAX_UNFINISHED:
                self._unfinished[history_serial] = None
        elif (operation.delivery_serial or 0) <= (kept.latest.delivery_serial or 0):
            return
        else:
            self._bytes -= kept.size
            if is_addition:
                kept.add(operation)
            else:
                kept.replace(operation)
                self._unfinished.pop(history_serial, None)
        self._bytes += kept.size
        self._news.setdefault(key, None)
        self._let_go()

    def _let_go(self) -> None:
        while len(self._order) > self._limit or (
            self._bytes > self._max_bytes and len(self._order) > 1
        ):
            self._floor, key = self._order.pop(0)
            self._bytes -= self._kept.pop(key).size
            self._unfinished.pop(self._floor, None)
            if self._news.pop(key, UNSET) is not UNSET:
                self.missed += 1
