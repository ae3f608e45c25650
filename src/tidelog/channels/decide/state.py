"""What decisions look at: the state of channels and of messages, derived from the log and cached.

A state is loaded (`upkeep.state_loader`) before the request that needs it is queued, follows the
tail from then on, and may be forgotten whenever nobody holds it: the store has everything. States
run ahead of the commit by the batch being decided, so nothing here is ever shown to a client but
what `delivered_*` say.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec
from msgspec import UNSET, Raw, UnsetType

from tidelog.channels.protocol.growing_text import FRAGMENT_BYTES, GrowingText
from tidelog.channels.protocol.verbs import APPEND, CREATE
from tidelog.channels.protocol.version import EVENT, Version, fold, origin_of
from tidelog.store.rows import Entry

MAX_IDLE_CHANNELS = 10_000
"""Channel states kept though nobody uses them; some hundred bytes each."""

MAX_IDLE_MESSAGES = 10_000

UNFOLDED_VERSIONS = 512
"""Versions after which a message is folded and written back: a page of a hundred messages never
reads more than fifty thousand rows."""

UNFOLDED_BYTES = 4096
"""A message is written back when more was appended than was folded, but not for less than this:
so every appended byte is written at most twice more, however long the message grows."""

ENDED_VERSIONS = 32
ENDED_SHARE = 8
"""A message that becomes a stream or ceases to be one is written back after this many versions, or
if one byte in this many is new: it is read more often from now on, and may soon change again."""


class ChannelState:
    """One channel: its counters, and how far this node has delivered it."""

    __slots__ = (
        "delivered_history",
        "delivered_serial",
        "epoch",
        "erased_through",
        "held",
        "history_floor",
        "history_serial",
        "is_loaded",
        "open_streams",
        "pins",
        "replay_floor",
        "serial",
        "stream",
    )

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self.serial = 0
        """The last delivery serial that is included here."""
        self.history_serial = 0
        self.history_floor = 0
        """History up to here was purged."""
        self.replay_floor = 0
        """Versions up to this delivery serial were emptied; what is after them can be replayed."""
        self.epoch = 0
        """How often the history was reset; the `stream_id` depends on it."""
        self.erased_through = 0
        """The last message up to which everything is erased."""
        self.open_streams = 0
        self.delivered_serial = 0
        """The last delivery serial that left this node's tail."""
        self.delivered_history = 0
        self.pins = 0
        self.is_loaded = False
        """Whether it says what the store does; until then it is only held."""
        self.held: list[Version] = []
        """Versions that left the tail while this was being loaded."""

    @property
    def floors(self) -> tuple[int, int, int, int]:
        """Epoch, history floor, replay floor and `erased_through`: all of them only rise."""
        return self.epoch, self.history_floor, self.replay_floor, self.erased_through

    @floors.setter
    def floors(self, floors: tuple[int, int, int, int]) -> None:
        self.epoch, self.history_floor, self.replay_floor, self.erased_through = floors

    def advance(self, version: Version) -> tuple[int, int, int]:
        """Include the next version; returns what `take_back` takes."""
        before = (self.serial, self.history_serial, self.open_streams)
        self.serial = version.delivery_serial
        if version.history_serial > self.history_serial:
            self.history_serial = version.history_serial
        self.open_streams += version.opens
        return before

    def take_back(self, before: tuple[int, int, int]) -> None:
        """The last version that was included is none."""
        self.serial, self.history_serial, self.open_streams = before

    def delivered(self, version: Version) -> None:
        """A version left the tail; what this node decided itself is already included."""
        if version.delivery_serial > self.serial:
            self.advance(version)
        if version.delivery_serial > self.delivered_serial:
            self.delivered_serial = version.delivery_serial
            self.delivered_history = max(self.delivered_history, version.history_serial)


class _Before(NamedTuple):
    """What a message was before a version, to be taken back."""

    latest: Version
    base: bytes | None
    base_id: int
    fragments: list[tuple[int, bytes]]
    length: int
    """Of the fragments then: an append adds to the same list."""
    folded_bytes: int
    unfolded: int
    unfolded_bytes: int


class MessageState(GrowingText):
    """One message: its latest version, and its data in a form that grows without being copied."""

    __slots__ = (
        "counted",
        "exists",
        "folded_bytes",
        "latest",
        "number",
        "pins",
        "stream",
        "unfolded",
        "unfolded_bytes",
    )

    def __init__(self, stream: str, number: int, latest: Version) -> None:
        self.stream = stream
        self.number = number
        """`committed_id` of its create."""
        self.latest = latest
        """Folded, but without data: that is here."""
        self.counted = 0
        """What it takes in the sum of the cache."""
        self.exists = True
        """False once it was purged, or if its create was never committed."""
        self.pins = 0
        self.folded_bytes = 0
        """Size of the state that is stored; 0 if none is."""
        self.unfolded = 1
        """Versions since."""
        self.unfolded_bytes = 0
        super().__init__(latest.data, latest.committed_id)
        self.latest = msgspec.structs.replace(latest, data=UNSET)

    @property
    def size(self) -> int:
        """About the bytes it holds."""
        return self.latest.data_bytes + 512 + FRAGMENT_BYTES * len(self._fragments)

    def knows(self, committed_id: int) -> bool:
        """Whether `data_at` can say what the data was then."""
        return self._base_id <= committed_id <= self.latest.committed_id

    def folded(self) -> Version:
        """The message as it is, with its data."""
        data = self.data_at(self.latest.committed_id)
        return msgspec.structs.replace(self.latest, data=UNSET if data is None else Raw(data))

    def after(self, version: Version) -> Version:
        """The message as `version` will leave it, with its data."""
        after = fold(self.folded(), (version,))
        assert after is not None  # noqa: S101 - there is at least `version`
        return after

    def is_fold_due(self, version: Version) -> bool:
        """Whether the state after `version` should be stored with it."""
        added = 0 if isinstance(version.data, UnsetType) else len(version.data)
        return self._is_fold_due(added, version.data_bytes, is_other_status=version.opens != 0)

    def _is_fold_due(self, added: int, data_bytes: int, *, is_other_status: bool) -> bool:
        unfolded, unfolded_bytes = self.unfolded + 1, self.unfolded_bytes + added
        if unfolded >= UNFOLDED_VERSIONS:
            return True
        if unfolded_bytes > UNFOLDED_BYTES and unfolded_bytes > self.folded_bytes:
            return True
        is_much = is_other_status and unfolded_bytes * ENDED_SHARE >= max(data_bytes, 1)
        return is_much or (is_other_status and unfolded >= ENDED_VERSIONS)

    def bytes_to_write(self, added: int, *, is_other_status: bool) -> int:
        """About how much data a change that adds `added` bytes makes the store write."""
        after = self.latest.data_bytes + added
        is_due = self._is_fold_due(added, after, is_other_status=is_other_status)
        return added + (after if is_due else 0)

    def advance(self, version: Version, *, is_folded: bool) -> _Before:
        """Include the next version; returns what `take_back` takes."""
        latest, fragments = self.latest, self._fragments
        before = _Before(
            latest,
            self._base,
            self._base_id,
            fragments,
            len(fragments),
            self.folded_bytes,
            self.unfolded,
            self.unfolded_bytes,
        )
        data = version.data
        added = 0 if isinstance(data, UnsetType) else len(data)
        if version.kind == APPEND:
            if not isinstance(data, UnsetType):
                self.append(bytes(data), version.committed_id)
        elif not version.keeps_data:
            self.say(data, version.committed_id)
        self.latest = msgspec.structs.replace(
            version,
            data=UNSET,
            data_of=0 if version.says_all else origin_of(version) or origin_of(latest),
            versions=latest.versions + 1,
            appends=latest.appends + (version.kind == APPEND),
            published_at=latest.published_at,
        )
        if is_folded:
            self.folded_bytes, self.unfolded, self.unfolded_bytes = self.latest.data_bytes, 0, 0
        else:
            self.unfolded += 1
            self.unfolded_bytes += added
        return before

    def take_back(self, before: _Before) -> None:
        """The last version that was included is none."""
        self.latest, self._base, self._base_id, self._fragments, length, *counts = before
        del self._fragments[length:]
        self.folded_bytes, self.unfolded, self.unfolded_bytes = counts


class Created:
    """A `StateChange`: a channel has a new message."""

    __slots__ = ("_before", "_channel", "_message", "_states", "_version")

    def __init__(self, states: "StateCache", channel: ChannelState, version: Version) -> None:
        self._states = states
        self._channel = channel
        self._version = version

    def apply(self) -> Callable[[], None]:
        """See `StateChange.apply`."""
        version = self._version
        self._before = self._channel.advance(version)
        self._message = MessageState(self._channel.stream, version.committed_id, version)
        self._message.latest.published_at = version.committed_at
        self._states.add(self._message)
        return self._take_back

    def _take_back(self) -> None:
        self._message.exists = False
        self._states.drop(self._message.number)
        self._channel.take_back(self._before)


class Changed:
    """A `StateChange`: a message has a new version."""

    __slots__ = ("_before", "_channel", "_channel_before", "_is_folded", "_message", "_version")

    def __init__(
        self, channel: ChannelState, message: MessageState, version: Version, *, is_folded: bool
    ) -> None:
        self._channel = channel
        self._message = message
        self._version = version
        self._is_folded = is_folded

    def apply(self) -> Callable[[], None]:
        """See `StateChange.apply`."""
        self._channel_before = self._channel.advance(self._version)
        self._before = self._message.advance(self._version, is_folded=self._is_folded)
        return self._take_back

    def _take_back(self) -> None:
        self._message.take_back(self._before)
        self._channel.take_back(self._channel_before)


class StateCache:
    """The states of channels and messages that are in memory, bounded."""

    def __init__(self, max_text_bytes: int) -> None:
        self._room = max_text_bytes
        self._channels: dict[str, ChannelState] = {}
        self._idle: OrderedDict[str, ChannelState] = OrderedDict()
        """Those of them that nobody holds, the least recently used first: what is subscribed to is
        never looked through for what may be forgotten."""
        self._messages: OrderedDict[int, MessageState] = OrderedDict()
        self._loading: dict[tuple[str, int], list[Version]] = {}
        """Messages being loaded, by stream and number, and what left the tail meanwhile. A number
        that a request names may be that of a message in another channel."""
        self._erased: set[tuple[str, int]] = set()
        """Messages being loaded that were erased meanwhile: what was read is not kept."""
        self._text_bytes = 0

    # Channels.

    def channel(self, stream: str) -> ChannelState | None:
        """The state of a channel if it is loaded; pins it, see `release`."""
        state = self._channels.get(stream)
        if state is None or not state.is_loaded:
            return None
        self._pin(state)
        return state

    def _pin(self, state: ChannelState) -> None:
        state.pins += 1
        if state.pins == 1:
            self._idle.pop(state.stream, None)

    def release(self, state: ChannelState) -> None:
        """The counterpart of `channel` and of loading it."""
        state.pins -= 1
        if state.pins == 0 and self._channels.get(state.stream) is state:
            self._idle[state.stream] = state
            if len(self._idle) > MAX_IDLE_CHANNELS:
                stream, _ = self._idle.popitem(last=False)
                del self._channels[stream]

    def streams(self) -> list[str]:
        """The channels whose state is kept."""
        return list(self._channels)

    # Messages.

    def message(self, stream: str, number: int) -> MessageState | None:
        """The state of a message if it is loaded; pins it, see `release_message`.

        None also if the message is another channel's: whoever may write here may not write there.
        """
        state = self._messages.get(number)
        if state is None or state.stream != stream:
            return None
        self._messages.move_to_end(number)
        state.pins += 1
        return state

    def peek(self, number: int) -> MessageState | None:
        """The state of a message if it is loaded, not pinned."""
        return self._messages.get(number)

    def add(self, state: MessageState) -> None:
        """Keep a state; forget the least recently used ones if there are too many."""
        self._pop(state.number)
        self._messages[state.number] = state
        self._count(state)

    def _pop(self, number: int) -> MessageState | None:
        """Take a state out, and out of the sum."""
        state = self._messages.pop(number, None)
        if state is not None:
            self._text_bytes -= state.counted
            state.counted = 0
        return state

    def _count(self, state: MessageState) -> None:
        """Take a state that is new or has grown into account."""
        size = state.size
        self._text_bytes += size - state.counted
        state.counted = size
        if self._text_bytes > self._room or len(self._messages) > MAX_IDLE_MESSAGES:
            self._shrink()

    def _shrink(self) -> None:
        """Forget a quarter at once: those that are held are not passed for each new one."""
        text_bytes, count = self._text_bytes, len(self._messages)
        forgotten = []
        for number, state in self._messages.items():
            if text_bytes <= self._room * 3 // 4 and count <= MAX_IDLE_MESSAGES * 3 // 4:
                break
            if state.pins == 0:
                text_bytes -= state.counted
                count -= 1
                forgotten.append(number)
        for number in forgotten:
            self._pop(number)

    def release_message(self, state: MessageState) -> None:
        """The counterpart of `message` and of loading it."""
        state.pins -= 1
        if self._messages.get(state.number) is state:
            self._count(state)

    def messages_of(self, stream: str, through: int) -> list[int]:
        """The messages of a channel up to one of them whose state is kept."""
        return [
            number
            for number, state in self._messages.items()
            if number <= through and state.stream == stream
        ]

    def forget_messages(self, numbers: Iterable[int]) -> None:
        """Messages are gone, whichever node saw to that."""
        for number in numbers:
            state = self._pop(number)
            if state is not None:
                state.exists = False

    def forget_idle_messages(self) -> None:
        """Other nodes may have purged some of them."""
        for number, state in tuple(self._messages.items()):
            if state.pins == 0:
                self._pop(number)

    def erase(self, stream: str, number: int) -> Callable[[], None]:
        """A message is erased: whoever holds it finds it gone; returns how to take that back."""
        state = self._pop(number)
        if state is not None:
            state.exists = False
        if (stream, number) in self._loading:
            self._erased.add((stream, number))

        def take_back() -> None:
            self._erased.discard((stream, number))
            if state is not None:
                state.exists = True
                self.add(state)

        return take_back

    def drop(self, number: int) -> None:
        """Forget a message that does not exist any more."""
        self._pop(number)

    # The tail.

    def has_included(self, entry: Entry, number: int) -> bool:
        """An entry left the tail; returns False if a state has yet to include it, see `follow`.

        What this node has decided itself, the usual case, needs not even be read for this.
        """
        channel = self._channels.get(entry.stream)
        if channel is not None and not (
            channel.is_loaded and entry.stream_serial <= channel.serial
        ):
            return False
        message = self._messages.get(number)
        if message is None:
            if (entry.stream, number) in self._loading:
                return False
        elif entry.committed_id > message.latest.committed_id:
            return False
        if channel is not None and entry.stream_serial > channel.delivered_serial:
            channel.delivered_serial = entry.stream_serial
            channel.delivered_history += entry.kind in (CREATE, EVENT)
        return True

    def follow(self, stream: str, version: Version, number: int | None) -> ChannelState | None:
        """A version left the tail: bring the states up to it; returns its channel's, if loaded."""
        channel = self._channels.get(stream)
        if channel is not None:
            if channel.is_loaded:
                channel.delivered(version)
            else:
                channel.held.append(version)
        if number is not None:
            message = self._messages.get(number)
            if message is not None:
                if version.committed_id > message.latest.committed_id:
                    message.advance(version, is_folded=False)
                    self._count(message)
            elif (held := self._loading.get((stream, number))) is not None:
                held.append(version)
        return channel
