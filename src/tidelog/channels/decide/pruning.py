"""Removing what is too old: pure decisions of retention (channels 5.11, D18)."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tidelog.channels.decide.state import StateCache
from tidelog.log.decision import Accept, Names, Refuse, RowChange, View
from tidelog.log.retention import PRUNE_ENTRIES, come_through, empty_bodies, through_name

if TYPE_CHECKING:
    from tidelog.channels.decide.state import ChannelState

NAME = "channels"
"""Of this walk among those that are stored."""


class ExpiredVersion(NamedTuple):
    """A version that is too old, and still there."""

    committed_id: int
    stream: str
    serial: int
    message: int
    kind: str
    size_bytes: int


class OldVersions(NamedTuple):
    """The old versions of one message."""

    message: int
    stream: str
    is_versioned: bool
    through: int
    """The last one of them."""
    base: bytes | None = None
    """What they made of the message; None if it has no others and goes with them."""
    size_bytes: int = 0
    """Of its data then."""


class PruneVersions:
    """One step of retention: a run of old versions, over all channels."""

    def __init__(
        self,
        states: StateCache,
        start: int,
        found: Sequence[ExpiredVersion],
        old: Sequence[OldVersions],
    ) -> None:
        """`found` are all that is old after the position `start`, up to the last of them."""
        self._states = states
        self._start = start
        self._ids = [each.committed_id for each in found]
        self._serials: dict[str, list[int]] = {}
        """The delivery serials that go, ascending, by stream."""
        for each in found:
            self._serials.setdefault(each.stream, []).append(each.serial)
        self._kept = [each for each in old if each.base is not None]
        self._gone = [each for each in old if each.base is None]
        self.unknown: list[str] = []
        """Streams whose state was not in memory when it was decided."""

    def names(self) -> Names:
        """How far retention has come, and where the messages end that are to go."""
        ends = (("channels_end", (each.message,)) for each in self._gone)
        return Names(rows=(through_name(NAME), *ends))

    def decide(self, view: View) -> Accept | Refuse:
        """See `Item.decide`; the answer is 0 if what was found has changed since."""
        if come_through(view.rows(*through_name(NAME))) != self._start:
            return Refuse(0)  # another node was here
        opened: dict[str, int] = {}
        for each in self._gone:
            last, is_open, _ = view.rows("channels_end", (each.message,))[0]
            cached = self._states.peek(each.message)
            if cached is not None:  # this batch may have changed it
                last, is_open = cached.latest.committed_id, cached.latest.is_open
            if last is not None and last > each.through:
                return Refuse(0)  # it got a new version, and stays
            opened[each.stream] = opened.get(each.stream, 0) + int(is_open)
        # Statements of a kind together: an engine writes each run of them at once.
        rows = [
            *self._emptied(),
            *(
                RowChange("channels_set_floors", (stream, 0, 0, serials[-1]))
                for stream, serials in self._serials.items()
            ),
            *(
                RowChange("channels_remove_versions", (each.message, each.through))
                for each in (*self._kept, *self._gone)
            ),
            *(RowChange("channels_remove_message", (each.message,)) for each in self._gone),
            *(
                RowChange("channels_set_base", (old.message, old.base, old.through, old.size_bytes))
                for old in self._kept
            ),
            *(RowChange("channels_remove_receipts", (each,)) for each in self._ids),
            RowChange("note_retention", (NAME, self._ids[-1])),
        ]
        change = _VersionsPruned(self, opened)
        return Accept(len(self._ids), rows=tuple(rows), states=(change,))

    def _emptied(self) -> list[RowChange]:
        rows = []
        for stream, serials in self._serials.items():
            for floor in range(serials[0] - 1, serials[-1], PRUNE_ENTRIES):
                through = min(serials[-1], floor + PRUNE_ENTRIES)
                rows.append(empty_bodies(stream, floor, through))
        return rows

    def rise(self, opened: Mapping[str, int]) -> Callable[[], None]:
        """Bring what is in memory up to this; returns how to take it back."""
        self.unknown = []
        before: list[tuple[ChannelState, int, int]] = []
        for stream, serials in self._serials.items():
            state = self._states.channel(stream)
            if state is None:
                self.unknown.append(stream)
                continue
            self._states.release(state)
            before.append((state, state.replay_floor, state.open_streams))
            state.replay_floor = max(state.replay_floor, serials[-1])
            state.open_streams -= opened.get(stream, 0)
        undo = [
            self._states.erase(each.stream, each.message)
            for each in self._gone
            if each.is_versioned
        ]

        def take_back() -> None:
            for restore in undo:
                restore()
            for state, replay_floor, open_streams in before:
                state.replay_floor, state.open_streams = replay_floor, open_streams

        return take_back


class _VersionsPruned:
    """A `StateChange`: floors of channels rise and messages are gone."""

    __slots__ = ("_opened", "_pruning")

    def __init__(self, pruning: PruneVersions, opened: Mapping[str, int]) -> None:
        """`opened` is how many streams go that are open, by channel."""
        self._pruning = pruning
        self._opened = opened

    def apply(self) -> Callable[[], None]:
        """See `StateChange.apply`."""
        return self._pruning.rise(self._opened)


class ForgetKeys:
    """Remove keys whose time is over."""

    def __init__(self, keys: tuple[tuple[str, str], ...]) -> None:
        self._keys = keys

    def names(self) -> Names:
        """The keys themselves: one may have been used again since it was found."""
        return Names(dedupe=self._keys)

    def decide(self, view: View) -> Accept | Refuse:
        """See `Item.decide`."""
        ended = tuple(
            key
            for key in self._keys
            if (row := view.dedupe(*key)) is not None
            and row.expires_at is not None
            and row.expires_at <= view.now_ms
        )
        return Accept(len(ended), forget=ended) if ended else Refuse(0)


class NotePassed:
    """Note that there is nothing to remove up to a position."""

    def __init__(self, start: int, through: int) -> None:
        self._start = start
        self._through = through

    def names(self) -> Names:
        """How far retention has come."""
        return Names(rows=(through_name(NAME),))

    def decide(self, view: View) -> Accept | Refuse:
        """See `Item.decide`."""
        if come_through(view.rows(*through_name(NAME))) != self._start:
            return Refuse(False)
        return Accept(True, rows=(RowChange("note_retention", (NAME, self._through)),))
