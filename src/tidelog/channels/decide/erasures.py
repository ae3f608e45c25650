"""Erasing messages, what an actor wrote, and the history of a channel: pure decisions.

First a message is noted as erased, and from that commit on nothing of it is served and nothing can
be appended to it. Then its versions are emptied, some at a time: content goes, positions stay (L8).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tidelog.channels.decide.state import ChannelState, StateCache
from tidelog.channels.protocol.query import MAX_INTEGER
from tidelog.channels.protocol.requests import Asked
from tidelog.channels.protocol.version import number_of
from tidelog.log.decision import Accept, Names, RowChange, StateChange, View
from tidelog.log.retention import PRUNE_ENTRIES, empty_bodies

ASKED, EMPTIED, ERASED = 0, 1, 2
"""How far an erasure has come: the last step is done when no file that the store can reach still
holds the content."""

MAX_REASON = 500
"""Characters kept of why, and of who asked."""


NEWEST_ENTRIES = 1000
"""Entries among which the last version of an erased message is looked for. Beyond them replay ends
at the oldest of these: a reader further back than that could hardly resume anyway."""


class Erasure(NamedTuple):
    """A row of `channels_erasure`."""

    stream: str
    """Of the channel; of an actor, what the streams of its app begin with."""
    actor: str
    """Empty unless what it wrote is erased."""
    message: int
    """0 unless it is a single message."""
    through: int
    """Last position that is looked at; of a channel its last message that is erased."""
    searched: int
    """How far the log was searched for what an actor wrote."""
    step: int


class Doomed(NamedTuple):
    """A version that is to be emptied; without a position if a message has none."""

    message: int
    stream: str
    committed_id: int | None
    serial: int | None


def add_erasure(
    stream: str, *, actor: str = "", message: int = 0, through: int, asked: Asked, view: View
) -> RowChange:
    """Note that something is erased."""
    by, why = (asked.requested_by or "")[:MAX_REASON], asked.reason[:MAX_REASON]
    return RowChange(
        "channels_add_erasure", (stream, actor, message, through, view.now_ms, by, why)
    )


class EraseMessages:
    """Note messages as erased; their versions follow."""

    def __init__(
        self,
        messages: Sequence[tuple[ChannelState, int]],
        states: StateCache,
        asked: Asked,
        *,
        search: Erasure | None = None,
    ) -> None:
        """`search` is the erasure of an actor that found them, searched up to there now."""
        self._messages = messages
        self._states = states
        self._asked = asked
        self._search = search

    def names(self) -> Names:
        """Where their last versions are."""
        return Names(rows=tuple(("channels_last_version", (m,)) for _, m in self._messages))

    def decide(self, view: View) -> Accept:
        """See `Item.decide`."""
        rows: list[RowChange] = []
        states: list[StateChange] = []
        for channel, message in self._messages:
            rows.append(
                add_erasure(
                    channel.stream, message=message, through=message, asked=self._asked, view=view
                )
            )
            rows.append(RowChange("channels_remove_message", (message,)))
            floor = max(
                [0, *(serial for (serial,) in view.rows("channels_last_version", (message,)))]
            )
            cached = self._states.peek(message)
            if cached is not None:  # this batch may have appended to it
                floor = max(floor, cached.latest.delivery_serial)
            rows.append(RowChange("channels_set_floors", (channel.stream, 0, 0, floor)))
            states.append(_MessageErased(self._states, channel, message, floor))
        # Statements of a kind together: an engine writes each run of them at once.
        rows.sort(key=lambda change: change.statement)
        if self._search is not None:
            stream, actor, _, _, searched, _ = self._search
            rows.append(RowChange("channels_note_searched", (stream, actor, searched)))
        return Accept(len(self._messages), rows=tuple(rows), states=tuple(states))


class _MessageErased:
    """A `StateChange`: a message is gone, and what led to it cannot be replayed."""

    __slots__ = ("_channel", "_floor", "_message", "_states")

    def __init__(self, states: StateCache, channel: ChannelState, message: int, floor: int) -> None:
        self._states = states
        self._channel = channel
        self._message = message
        self._floor = floor

    def apply(self) -> Callable[[], None]:
        """See `StateChange.apply`."""
        channel = self._channel
        floor = channel.replay_floor
        channel.replay_floor = max(floor, self._floor)
        undo = self._states.erase(self._channel.stream, self._message)

        def take_back() -> None:
            undo()
            channel.replay_floor = floor

        return take_back


class EraseActor:
    """Note that what an actor wrote is to be erased; it is searched for afterwards."""

    def __init__(self, prefix: str, actor: str, asked: Asked) -> None:
        self._prefix = prefix
        self._actor = actor
        self._asked = asked

    def names(self) -> Names:
        """Nothing: the log up to here."""
        return Names()

    def decide(self, view: View) -> Accept:
        """See `Item.decide`; the answer is the position up to which it is erased."""
        through = view.next_committed_id - 1
        row = add_erasure(
            self._prefix, actor=self._actor, through=through, asked=self._asked, view=view
        )
        return Accept(through, rows=(row,))


class EraseHistory:
    """Reset or purge the history of a channel: raise its floors, or begin a new epoch.

    What lies before a floor is erased, not only hidden: the decision notes that, and from then on
    nothing of it is served; `upkeep.erasing` removes it.
    """

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
        change = _HistoryErased(channel, epoch, floor, replay_floor, erased)
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


class _HistoryErased:
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


class EmptyVersions:
    """Empty versions of messages that are noted as erased, so that no more can come."""

    def __init__(self, versions: Sequence[Doomed], gone: Sequence[int]) -> None:
        """`gone` are the messages of which these are the last ones."""
        assert len(versions) <= PRUNE_ENTRIES, "empty in steps"  # noqa: S101 - see PRUNE_ENTRIES
        self._versions = versions
        self._gone = gone

    def names(self) -> Names:
        """Nothing: what is to be done does not depend on anything."""
        return Names()

    def decide(self, view: View) -> Accept:
        """See `Item.decide`."""
        del view
        last: dict[int, int] = {}
        emptied: list[RowChange] = []
        receipts: list[RowChange] = []
        for message, stream, committed_id, serial in self._versions:
            if committed_id is not None and serial is not None:
                last[message] = committed_id
                emptied.append(empty_bodies(stream, serial - 1, serial))
                receipts.append(RowChange("channels_remove_receipts", (committed_id,)))
        return Accept(
            len(emptied),
            rows=(
                *emptied,
                *receipts,
                *(RowChange("channels_remove_versions", each) for each in last.items()),
                *(RowChange("channels_remove_message", (message,)) for message in self._gone),
            ),
        )


class TakeStep:
    """Note how far erasures have come."""

    def __init__(self, erasures: Sequence[Erasure], step: int) -> None:
        self._erasures = erasures
        self._step = step

    def names(self) -> Names:
        """Nothing; one that was asked for again meanwhile stays where it is."""
        return Names()

    def decide(self, view: View) -> Accept:
        """See `Item.decide`."""
        del view
        return Accept(
            None,
            rows=tuple(
                RowChange("channels_note_step", (*erasure[:4], self._step))
                for erasure in self._erasures
            ),
        )
