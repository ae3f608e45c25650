"""Resetting and purging the history of a channel: how far back it goes, and in which epoch."""

from collections.abc import Callable

from tidelog.channels.query import MAX_INTEGER
from tidelog.channels.states import ChannelState
from tidelog.log.decision import Accept, Names, RowChange, View


class Floors:
    """Raise the floors of a channel, or begin a new epoch: reset and purge of its history."""

    def __init__(self, channel: ChannelState, *, history_floor: int, is_reset: bool) -> None:
        self._channel = channel
        self._history_floor = history_floor
        self._is_reset = is_reset
        self._stored = ("channels_channel", (channel.stream, MAX_INTEGER))

    def names(self) -> Names:
        """Also what is stored: another node may have raised them a moment ago."""
        return Names(streams=(self._channel.stream,), rows=(self._stored,))

    def decide(self, view: View) -> Accept:
        """See `Item.decide`; the answer is the epoch before and the one now."""
        channel = self._channel
        [(epoch, _, old_floor, replay_floor, *_)] = view.rows(*self._stored)
        old_epoch = epoch = max(epoch, channel.epoch)
        old_floor = max(old_floor, channel.history_floor)
        replay_floor = max(replay_floor, channel.replay_floor)
        floor = channel.history_serial if self._is_reset else self._history_floor
        floor = max(old_floor, min(floor, channel.history_serial))
        if self._is_reset:
            epoch, replay_floor = epoch + 1, view.serial(channel.stream)
        change = RowChange("channels_set_floors", (channel.stream, epoch, floor, replay_floor))
        return Accept(
            (old_epoch, epoch),
            rows=(change,),
            states=(_Floored(channel, epoch, floor, replay_floor),),
        )


class _Floored:
    """A `StateChange`: the floors of a channel."""

    __slots__ = ("_after", "_channel")

    def __init__(
        self, channel: ChannelState, epoch: int, history_floor: int, replay_floor: int
    ) -> None:
        self._channel = channel
        self._after = (epoch, history_floor, replay_floor)

    def apply(self) -> Callable[[], None]:
        """See `StateChange.apply`."""
        channel = self._channel
        before = (channel.epoch, channel.history_floor, channel.replay_floor)
        channel.epoch, channel.history_floor, channel.replay_floor = self._after

        def take_back() -> None:
            channel.epoch, channel.history_floor, channel.replay_floor = before

        return take_back
