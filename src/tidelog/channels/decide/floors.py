"""Resetting and purging the history of a channel: how far back it goes, and in which epoch.

What lies before a floor is erased, not only hidden: the decision notes that, and from then on
nothing of it is served; `erasing` removes it.
"""

from collections.abc import Callable

from tidelog.channels.decide.erasures import add_erasure
from tidelog.channels.decide.state import ChannelState
from tidelog.channels.protocol.query import MAX_INTEGER
from tidelog.channels.protocol.requests import Asked
from tidelog.channels.protocol.version import number_of
from tidelog.log.decision import Accept, Names, RowChange, View

NEWEST_ENTRIES = 1000
"""Entries among which the last version of an erased message is looked for. Beyond them replay ends
at the oldest of these: a reader that is further back would hardly be let resume anyway."""


class Floors:
    """Raise the floors of a channel, or begin a new epoch: reset and purge of its history."""

    def __init__(
        self, channel: ChannelState, *, history_floor: int, is_reset: bool, asked: Asked
    ) -> None:
        self._channel = channel
        self._history_floor = min(history_floor, MAX_INTEGER)
        self._is_reset = is_reset
        self._asked = asked
        stream = channel.stream
        self._stored = ("channels_channel", (stream, MAX_INTEGER))
        self._last = ("channels_message_before", (stream, self._history_floor))
        self._newest = ("channels_newest", (stream, NEWEST_ENTRIES))

    def names(self) -> Names:
        """Also what is stored: another node may have raised them a moment ago."""
        return Names(streams=(self._channel.stream,), rows=(self._stored, self._last, self._newest))

    def decide(self, view: View) -> Accept:
        """See `Item.decide`; the answer: old and new epoch, last erased message."""
        channel = self._channel
        [(epoch, _, old_floor, replay_floor, *_)] = view.rows(*self._stored)
        old_epoch = epoch = max(epoch, channel.epoch)
        old_floor = max(old_floor, channel.history_floor)
        replay_floor = max(replay_floor, channel.replay_floor)
        is_all = self._is_reset or self._history_floor >= channel.history_serial
        if is_all:
            floor = channel.history_serial
            through = view.next_committed_id - 1
            replay_floor = view.serial(channel.stream)
        else:
            floor = max(old_floor, self._history_floor)
            through = view.rows(*self._last)[0][0] or 0
            replay_floor = max(replay_floor, self._last_serial(view, through))
        if self._is_reset:
            epoch += 1
        rows = [RowChange("channels_set_floors", (channel.stream, epoch, floor, replay_floor))]
        if is_all or through:
            rows.append(add_erasure(channel.stream, through=through, asked=self._asked, view=view))
        erased = max(channel.erased_through, through)
        change = _Floored(channel, epoch, floor, replay_floor, erased)
        return Accept((old_epoch, epoch, through), rows=tuple(rows), states=(change,))

    def _last_serial(self, view: View, through: int) -> int:
        """Where the last version of the messages up to `through` is, or not far after it."""
        if not through:
            return 0
        newest = view.rows(*self._newest)
        last = view.serial(self._channel.stream)
        if not newest or newest[0][0] < last:
            return last  # this batch appends to the channel, perhaps to one of them
        found = (serial for serial, entity in newest if number_of(entity) <= through)
        return next(found, newest[-1][0] - 1 if len(newest) == NEWEST_ENTRIES else 0)


class _Floored:
    """A `StateChange`: the floors of a channel."""

    __slots__ = ("_after", "_channel")

    def __init__(
        self, channel: ChannelState, epoch: int, history_floor: int, replay_floor: int, erased: int
    ) -> None:
        self._channel = channel
        self._after = (epoch, history_floor, replay_floor, erased)

    def apply(self) -> Callable[[], None]:
        """See `StateChange.apply`."""
        channel = self._channel
        before = channel.floors
        channel.floors = self._after

        def take_back() -> None:
            channel.floors = before

        return take_back
