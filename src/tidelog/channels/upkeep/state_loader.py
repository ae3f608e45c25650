"""Loading the states that decisions look at: the half of their cache that reads the store.

Whatever leaves the tail while a state is being read is held and included afterwards, so a state
that was handed out misses nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable

from tidelog.channels.decide.state import ChannelState, MessageState, StateCache
from tidelog.channels.stored import read_message
from tidelog.log.tail import Tail
from tidelog.store.engine import Store

REFRESH_TRIES = 10
REFRESH_SECONDS = 0.02
"""How often a refresh is tried, and the pause between tries, until nothing is decided meanwhile."""


class _Load:
    """A message that is being loaded, and how many wait for it."""

    __slots__ = ("state", "task", "waiting")

    def __init__(self) -> None:
        self.task: asyncio.Task[MessageState | None]
        self.state: MessageState | None = None
        """Set when it is there, and pinned for each that waits."""
        self.waiting = 0


class StateLoader(StateCache):
    """The cache of states, which reads what it does not hold."""

    def __init__(
        self,
        store: Store,
        tail: Tail,
        max_text_bytes: int,
        catch_up: Callable[[], Awaitable[None]],
    ) -> None:
        """`catch_up` brings the tail to where the log ends."""
        super().__init__(max_text_bytes)
        self._store = store
        self._tail = tail
        self._catch_up = catch_up
        self._reading: dict[str, asyncio.Future[None]] = {}
        """Channels that are being read: whoever else wants one waits for that."""
        self._loads: dict[tuple[str, int], _Load] = {}
        """As of `_loading`."""

    # Channels.

    async def load_channel(self, stream: str) -> ChannelState:
        """The state of a channel, pinned; see `release`."""
        state = self._channels.get(stream)
        if state is None:
            state = self._channels[stream] = ChannelState(stream)
            self._pin(state)
            await self._read_channel(state)
        else:
            self._pin(state)
            try:
                if not state.is_loaded:
                    await asyncio.shield(self._reading[stream])
            except BaseException:
                self.release(state)
                raise
        return state

    async def _read_channel(self, state: ChannelState) -> None:
        ready = self._reading[state.stream] = asyncio.get_running_loop().create_future()
        try:
            position = self._tail.position
            [row] = await self._store.rows("channels_channel", (state.stream, position))
            (
                state.epoch,
                state.history_serial,
                state.history_floor,
                state.replay_floor,
                state.open_streams,
                state.serial,
                state.delivered_serial,
                undelivered,
                state.erased_through,
            ) = row
            state.delivered_history = state.history_serial - undelivered
            for version in state.held:
                state.delivered(version)
            state.held.clear()
            state.is_loaded = True
            ready.set_result(None)
        except BaseException as error:
            self._channels.pop(state.stream, None)
            ready.set_exception(error)
            ready.exception()  # nobody else may be waiting
            raise
        finally:
            del self._reading[state.stream]

    async def refresh(self, stream: str) -> None:
        """What the log does not tell has changed: epoch, floors, streams that are gone.

        A state that nobody holds is forgotten. Epoch and floors only rise, so they are right
        whenever they are read; the open streams are those of a serial, and are taken over only when
        nothing was decided meanwhile.
        """
        for _ in range(REFRESH_TRIES):
            state = self._channels.get(stream)
            if state is not None and not state.is_loaded:
                await asyncio.wait([self._reading[stream]])
            if state is None or self._channels.get(stream) is not state:
                return  # whoever loads it from now on reads what there is now
            if state.pins == 0:
                del self._channels[stream]
                self._idle.pop(stream, None)
                return
            [row] = await self._store.rows("channels_channel", (stream, self._tail.position))
            epoch, _, history_floor, replay_floor, open_streams, serial, *_, erased_through = row
            state.epoch = max(state.epoch, epoch)
            state.history_floor = max(state.history_floor, history_floor)
            state.replay_floor = max(state.replay_floor, replay_floor)
            state.erased_through = max(state.erased_through, erased_through)
            if state.serial == serial:
                state.open_streams = open_streams
                return
            await asyncio.sleep(REFRESH_SECONDS)

    # Messages.

    def message(self, stream: str, number: int) -> MessageState | None:
        """See `StateCache.message`; None for what the tail has not passed.

        Another node may have that message, and this one have decided about another of its own in
        its place, which is taken back as soon as it is known.
        """
        return super().message(stream, number) if number <= self._tail.position else None

    async def load_message(self, stream: str, number: int) -> MessageState | None:
        """The state of a message, pinned; None if there is no such message in that channel."""
        if number > self._tail.position:
            await self._catch_up()
            if number > self._tail.position:
                return None
        state = self.message(stream, number)
        if state is not None:
            return state
        load = self._loads.get((stream, number))
        if load is None:
            load = self._loads[stream, number] = _Load()
            load.task = asyncio.create_task(self._read(stream, number, load))
        load.waiting += 1
        try:
            return await asyncio.shield(load.task)
        except asyncio.CancelledError:
            load.waiting -= 1
            if load.state is not None:
                self.release_message(load.state)
            raise

    async def _read(self, stream: str, number: int, load: "_Load") -> MessageState | None:
        name = (stream, number)
        try:
            held = self._loading[name] = []
            found = await read_message(self._store, stream, number)
            if found is None or not found[0].is_versioned or name in self._erased:
                return None
            latest, unfolded, unfolded_bytes = found
            state = MessageState(stream, number, latest)
            state.folded_bytes = max(0, latest.data_bytes - unfolded_bytes)
            state.unfolded, state.unfolded_bytes = unfolded, unfolded_bytes
            for version in held:
                if version.committed_id > state.latest.committed_id:
                    state.advance(version, is_folded=False)
            # Before it can be forgotten: whoever came next would be given another state.
            state.pins = load.waiting
            load.state = state
            self.add(state)
            return state
        finally:
            self._erased.discard(name)
            self._loading.pop(name, None)
            self._loads.pop(name, None)
