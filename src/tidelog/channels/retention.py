"""Versions that are too old, keys that have expired and old revocations go (channels 5.11, D18).

Before the oldest versions of a message go, what they made of it is stored as the base that the
newer ones build on; a message whose every version goes is gone itself. Numbering goes on.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tidelog.base.channels_settings import VersionedMessages
from tidelog.base.clock import Clock
from tidelog.base.errors import QueueFull, ShuttingDown, StoreError
from tidelog.channels.revoking import Revoking
from tidelog.channels.states import ChannelState, MessageState, States, read_versions
from tidelog.channels.version import Version, decode_version, encode_version, fold
from tidelog.log.committer import Committer
from tidelog.log.decision import Accept, Names, Refuse, RowChange, View
from tidelog.log.request import submit_and_wait, without_failure
from tidelog.log.retention import PRUNE_ENTRIES, empty_bodies
from tidelog.store.engine import Store

_log = logging.getLogger(__name__)

EXPIRED_KEYS = 1000
"""Keys removed in one step."""


class _Expired(NamedTuple):
    committed_id: int
    stream: str
    serial: int
    message: int


class _Old(NamedTuple):
    """The old versions of one message."""

    message: int
    state: MessageState | None
    """None if it cannot change: an event of a plain history."""
    through: int
    """The last one of them."""
    base: bytes | None
    """What they made of the message."""
    size_bytes: int
    """Of its data then."""


class Purge:
    """One step of retention: a run of old versions, over all channels."""

    def __init__(
        self,
        channels: Sequence[tuple[ChannelState, int, int]],
        old: Sequence[_Old],
        ids: Sequence[int],
    ) -> None:
        self._channels = channels
        """Each with the first and the last delivery serial that goes."""
        self._old = old
        self._ids = ids

    def names(self) -> Names:
        """Nothing but the states it holds."""
        return Names()

    def decide(self, view: View) -> Accept:
        """See `Item.decide`; a message may have got a new version meanwhile, and then stays."""
        del view
        rows: list[RowChange] = []
        changes: list[_Purged] = []
        for channel, first, through in self._channels:
            floor = first - 1  # not the channel's: a reset raises that and empties nothing
            while floor < through:
                step = min(through, floor + PRUNE_ENTRIES)
                rows.append(empty_bodies(channel.stream, floor, step))
                floor = step
            rows.append(
                RowChange(
                    "channels_set_floors",
                    (
                        channel.stream,
                        channel.epoch,
                        channel.history_floor,
                        max(through, channel.replay_floor),
                    ),
                )
            )
            changes.append(_Purged(channel, through, self._closing(channel)))
        for message, state, through, base, size_bytes in self._old:
            rows.append(RowChange("channels_remove_versions", (message, through)))
            if state is None or state.latest.committed_id <= through:
                rows.append(RowChange("channels_remove_message", (message,)))
            else:
                values = (message, base, through, size_bytes)
                rows.append(RowChange("channels_set_base", values))
        rows.extend(RowChange("channels_remove_receipts", (each,)) for each in self._ids)
        return Accept(len(self._ids), rows=tuple(rows), states=tuple(changes))

    def _closing(self, channel: ChannelState) -> list[MessageState]:
        """The messages of a channel that go wholly."""
        return [
            old.state
            for old in self._old
            if old.state is not None
            and old.state.latest.committed_id <= old.through
            and old.state.stream == channel.stream
        ]


class _Purged:
    """A `StateChange`: the floor of a channel rises and messages are gone."""

    __slots__ = ("_channel", "_gone", "_through")

    def __init__(self, channel: ChannelState, through: int, gone: list[MessageState]) -> None:
        self._channel = channel
        self._through = through
        self._gone = gone

    def apply(self) -> Callable[[], None]:
        """See `StateChange.apply`."""
        channel = self._channel
        before = (channel.replay_floor, channel.open_streams)
        channel.replay_floor = max(channel.replay_floor, self._through)
        channel.open_streams -= sum(state.latest.is_open for state in self._gone)
        for state in self._gone:
            state.exists = False

        def take_back() -> None:
            channel.replay_floor, channel.open_streams = before
            for state in self._gone:
                state.exists = True

        return take_back


class Forget:
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


class Retention:
    """Looks for what is too old, every now and then."""

    def __init__(
        self,
        committer: Committer,
        store: Store,
        states: States,
        clock: Clock,
        settings: VersionedMessages,
        purged: Callable[[tuple[str, ...], tuple[int, ...]], object],
        revoking: Revoking,
    ) -> None:
        """`purged` takes streams whose floor has risen, and messages that are gone."""
        self._committer = committer
        self._store = store
        self._states = states
        self._clock = clock
        self._settings = settings
        self._purged = purged
        self._revoking = revoking
        self._position = 0
        """Everything up to here is emptied, or younger than it was when it was looked at."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look again after the configured interval, for as long as the server runs."""
        loop = asyncio.get_running_loop()
        loop.call_later(self._settings.purge_interval_seconds, self._begin)

    def _begin(self) -> None:
        self._task = asyncio.create_task(self._tick_safely())

    async def _tick_safely(self) -> None:
        try:
            await self.tick()
        except (QueueFull, StoreError) as error:
            _log.warning("retention was put off: %s", error)
        except ShuttingDown:
            return
        self.start()

    async def tick(self) -> int:
        """Remove what is too old now; answers how many versions that were."""
        await self._forget_keys()
        await self._revoking.sweep()
        purged = 0
        window = self._settings.retention_window_seconds
        if window:
            before = self._clock.now_ms() - int(window * 1000)
            while purged < self._settings.purge_tick_versions:
                step = await self._purge(before)
                purged += step
                if step < self._settings.purge_batch_size:
                    break
                await asyncio.sleep(0)
        return purged

    async def _forget_keys(self) -> None:
        while True:
            found = await self._store.rows("expired_keys", (self._clock.now_ms(), EXPIRED_KEYS))
            item = Forget(tuple((scope, key) for scope, key in found))
            if found:
                answers = await submit_and_wait(self._committer, item.names(), 4096, (item,))
                [ended] = without_failure(answers)
                if not ended:
                    return  # used again, or not yet over by the store's clock: the next tick looks
            if len(found) < EXPIRED_KEYS:
                return

    async def _purge(self, before: int) -> int:
        await self._committer.catch_up()
        rows = await self._store.rows(
            "channels_expired", (self._position, before, self._settings.purge_batch_size)
        )
        found = [
            _Expired(at, stream, serial, int(entity[-20:])) for at, stream, serial, entity in rows
        ]
        if not found:
            return 0
        channels: list[tuple[ChannelState, int, int]] = []
        old: list[_Old] = []
        try:
            by_stream = sorted(found, key=lambda each: (each.stream, each.serial))
            for stream, run in itertools.groupby(by_stream, key=lambda each: each.stream):
                channel = await self._states.load_channel(stream)
                serials = [each.serial for each in run]
                channels.append((channel, serials[0], serials[-1]))
            by_message = sorted(found, key=lambda each: (each.message, each.committed_id))
            for message, run in itertools.groupby(by_message, key=lambda each: each.message):
                last = tuple(run)[-1]
                state = await self._states.load_message(last.stream, message)
                base = await self._base(message, last.committed_id)
                encoded = None if base is None else encode_version(base)
                size_bytes = 0 if base is None else base.data_bytes
                old.append(_Old(message, state, last.committed_id, encoded, size_bytes))
            item = Purge(channels, old, [each.committed_id for each in found])
            answers = await submit_and_wait(
                self._committer, item.names(), 256 * len(found), (item,)
            )
            without_failure(answers)
            self._purged(
                tuple(channel.stream for channel, _, _ in channels),
                tuple(each.message for each in old if each.state and not each.state.exists),
            )
        finally:
            for channel, _, _ in channels:
                self._states.release(channel)
            for each in old:
                if each.state is not None:
                    self._states.release_message(each.state)
                    if not each.state.exists:
                        self._states.drop(each.message)
        self._position = found[-1].committed_id
        return len(found)

    async def _base(self, message: int, through: int) -> Version | None:
        """The message as its versions up to `through` made it."""
        rows = await self._store.rows("channels_base", (message,))
        stored = rows[0][0] if rows else None
        base = None if stored is None else decode_version(stored)
        after = 0 if base is None else base.committed_id
        return fold(base, await read_versions(self._store, message, after, through))
