"""Versions that are too old, keys that have expired and old revocations go (channels 5.11, D18).

Before the oldest versions of a message go, what they made of it is stored as the base that the
newer ones build on; a message whose every version goes is gone itself. Numbering goes on.

Retention walks along the log once. How far it has come is stored with what it removes, so a restart
goes on from there, and nodes that share a store share the work.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from functools import partial

from tidelog.base.clock import Clock
from tidelog.base.errors import QueueFull, ShuttingDown, StoreError
from tidelog.channels.decide.pruning import (
    NAME,
    ExpiredVersion,
    ForgetKeys,
    NotePassed,
    OldVersions,
    PruneVersions,
)
from tidelog.channels.protocol.version import EVENT, decode_version, encode_version, fold
from tidelog.channels.settings import VersionedMessages
from tidelog.channels.stored import VERSIONS_PER_READ, read_versions, versions_of
from tidelog.channels.upkeep.revoking import Revoking
from tidelog.channels.upkeep.state_loader import StateLoader
from tidelog.log.committer import Committer
from tidelog.log.request import submit_and_wait, without_failure
from tidelog.log.retention import come_through, through_name
from tidelog.log.retention_metrics import RetentionMetrics
from tidelog.store.engine import PAGE_BYTES, Store

_log = logging.getLogger(__name__)

EXPIRED_KEYS = 1000
"""Keys removed in one step."""

SCANNED_ENTRIES = 10_000
"""Entries of the log that one read looks through, of whatever surface."""

REST_SECONDS = 1.0
"""Pause after `purge_tick_versions`, if more are due."""


class Retention:
    """Looks for what is too old, every now and then."""

    def __init__(
        self,
        committer: Committer,
        store: Store,
        states: StateLoader,
        clock: Clock,
        settings: VersionedMessages,
        revoking: Revoking,
        *,
        purged: Callable[[tuple[str, ...], tuple[int, ...]], object],
        settled: Callable[[tuple[str, ...]], None],
    ) -> None:
        """`purged` takes streams whose floor has risen, and messages that are gone.

        `settled` takes the streams before anything later is delivered, also if it has not risen.
        """
        self._committer = committer
        self._store = store
        self._states = states
        self._clock = clock
        self._settings = settings
        self._purged = purged
        self._settled = settled
        self._revoking = revoking
        self._position = 0
        """Everything up to here is emptied, or of another surface."""
        self._stored = 0
        """What of that is stored."""
        self._next_at: int | None = None
        """When the entry after it was committed; None if the log ends there."""
        self._task: asyncio.Task[None] | None = None
        self._metrics = committer.metrics.part(RetentionMetrics)
        self._metrics.lag.labels(NAME).set_function(self._lag_seconds)

    async def open(self) -> None:
        """Find where to go on; then run at each interval until the server ends."""
        await self._find_start()
        self.start()

    def start(self, after_seconds: float | None = None) -> None:
        """Run after this many seconds, or after the configured interval."""
        if after_seconds is None:
            after_seconds = self._settings.purge_interval_seconds
        asyncio.get_running_loop().call_later(after_seconds, self._begin)

    def _begin(self) -> None:
        if not self._committer.is_stopping:  # a task that begins now would never end
            self._task = asyncio.create_task(self._tick_safely())

    async def _tick_safely(self) -> None:
        try:
            await self.tick()
        except (QueueFull, StoreError) as error:
            if self._committer.ended.is_set():
                return
            _log.warning("retention was put off: %s", error)
        except ShuttingDown:
            return
        else:
            if self._is_due():
                self.start(REST_SECONDS)
                return
        self.start()

    async def tick(self) -> int:
        """Remove what is too old now, up to `purge_tick_versions`; returns how many those were."""
        await self._forget_keys()
        await self._revoking.sweep()
        purged = 0
        await self._find_start()
        while self._is_due() and purged < self._settings.purge_tick_versions:
            purged += await self._step()
            await asyncio.sleep(0)
        if self._position > self._stored:
            item = NotePassed(self._stored, self._position)
            without_failure(await submit_and_wait(self._committer, item.names(), 256, (item,)))
        return purged

    def _before(self) -> int | None:
        """What was committed before this time is too old; None if nothing ever is."""
        window = self._settings.retention_window_seconds
        return self._clock.now_ms() - window * 1000 if window else None

    def _is_due(self) -> bool:
        before = self._before()
        return before is not None and self._next_at is not None and self._next_at < before

    def _lag_seconds(self) -> float:
        before = self._before()
        if before is None or self._next_at is None:
            return 0.0
        return max(0, before - self._next_at) / 1000

    async def _find_start(self) -> None:
        """Go on where this or another node has come to."""
        stored = come_through(await self._store.rows(*through_name(NAME)))
        self._position = self._stored = stored
        await self._look_ahead()

    async def _look_ahead(self) -> None:
        rows = await self._store.rows("committed_at", (self._position + 1,))
        self._next_at = rows[0][0] if rows else None

    async def _forget_keys(self) -> None:
        while True:
            key = (self._clock.now_ms(), EXPIRED_KEYS)
            found = await self._store.rows("channels_expired_keys", key)
            item = ForgetKeys(tuple((scope, key) for scope, key in found))
            if found:
                answers = await submit_and_wait(self._committer, item.names(), 4096, (item,))
                [ended] = without_failure(answers)
                if not ended:
                    return  # used again, or not yet over by the store's clock: the next tick looks
            if len(found) < EXPIRED_KEYS:
                return

    async def _step(self) -> int:
        """Remove some of what is due and go on after it; returns how many versions that were."""
        await self._committer.catch_up()
        before = self._before()
        assert before is not None  # noqa: S101 - something is due
        most = self._settings.purge_batch_size
        end = min(self._position + SCANNED_ENTRIES, self._committer.tail.position)
        rows = await self._store.rows("channels_too_old", (self._position, end, before, most))
        found = [
            ExpiredVersion(at, stream, serial, int(entity[-20:]), kind, size)
            for at, stream, serial, entity, kind, size in rows
        ]
        if found:
            purged = await self._purge(found)
            if not purged:
                await self._find_start()
            return purged
        # None of the entries up to there are of channels, or too old and still there.
        [(reached,)] = await self._store.rows("last_before", (self._position, end, before))
        self._position = max(self._position, reached or 0)
        await self._look_ahead()
        return 0

    async def _purge(self, found: Sequence[ExpiredVersion]) -> int:
        """Remove these, or the first of them; 0 if they have changed since they were found."""
        found, old = await self._weigh(found)
        item = PruneVersions(self._states, self._stored, found, old)
        size = 256 * len(found) + sum(len(each.base or b"") for each in old)
        streams = tuple({each.stream for each in found})
        settled = partial(self._settled, streams)
        answers = await submit_and_wait(
            self._committer, item.names(), size, (item,), at_once=settled
        )
        [purged] = without_failure(answers)
        if purged:
            self._position = self._stored = found[-1].committed_id
            self._purged(
                streams, tuple(each.message for each in old if each.is_versioned and not each.base)
            )
            self._metrics.removed.labels(NAME).inc(purged)
            for stream in item.unknown:  # it may have been read while this was being committed
                await self._states.refresh(stream)
                self._settled((stream,))
            await self._look_ahead()
        return int(purged)

    async def _weigh(
        self, found: Sequence[ExpiredVersion]
    ) -> tuple[Sequence[ExpiredVersion], Sequence[OldVersions]]:
        """Take as many as fit into memory with what they leave; what becomes of their messages."""
        size = 0
        for number, each in enumerate(found):
            size += each.size_bytes
            if size > PAGE_BYTES and number:
                found = found[:number]
                break
        while True:
            old = [
                OldVersions(message, run[0].stream, run[0].kind != EVENT, run[-1].committed_id)
                for message, run in _by_message(found)
            ]
            ends = await self._store.rows_of("channels_end", [(each.message,) for each in old])
            kept = {
                each.message: size_bytes
                for each, [(last, _, size_bytes)] in zip(old, ends, strict=True)
                if last is not None and last > each.through
            }
            if len(found) == 1 or sum(kept.values()) <= PAGE_BYTES:
                break
            found = found[: len(found) // 2]
        bases = await self._with_bases([each for each in old if each.message in kept])
        return found, [each for each in old if each.message not in kept] + bases

    async def _with_bases(self, old: Sequence[OldVersions]) -> list[OldVersions]:
        """The same, each with the message as its versions up to `through` made it."""
        stored = await self._store.rows_of("channels_base", [(each.message,) for each in old])
        bases = [
            None if not rows or rows[0][0] is None else decode_version(rows[0][0])
            for rows in stored
        ]
        keys = [
            (each.message, 0 if base is None else base.committed_id, each.through)
            for each, base in zip(old, bases, strict=True)
        ]
        pages = await self._store.rows_of(
            "channels_versions_after", [(*key, VERSIONS_PER_READ) for key in keys]
        )
        found = []
        for each, base, key, page in zip(old, bases, keys, pages, strict=True):
            versions = versions_of(page)
            if len(page) == VERSIONS_PER_READ:
                message, _, through = key
                after = versions[-1].committed_id
                versions += await read_versions(self._store, message, after, through)
            folded = fold(base, versions)
            if folded is not None:
                data_bytes = folded.data_bytes
                found.append(each._replace(base=encode_version(folded), size_bytes=data_bytes))
        return found


def _by_message(found: Sequence[ExpiredVersion]) -> list[tuple[int, list[ExpiredVersion]]]:
    ordered = sorted(found, key=lambda each: (each.message, each.committed_id))
    return [
        (message, list(run))
        for message, run in itertools.groupby(ordered, key=lambda each: each.message)
    ]
