"""Messages that are being streamed: which there are, and the end of those whose writer is gone.

Every node looks for them in the store, so none is forgotten by a restart. What it finds is only a
reason to ask: whether a stream ends is for `CloseStream` to decide, so two nodes that find the same
one end it once, and a writer that was only slow is left alone.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from tidelog.base.clock import Clock
from tidelog.base.errors import QueueFull, ShuttingDown, StoreError
from tidelog.channels.decide.closing import CloseStream, Reason, Unsure, run_of
from tidelog.channels.decide.rules import Terms
from tidelog.channels.metrics import ChannelsMetrics
from tidelog.channels.protocol import fault
from tidelog.channels.protocol.message_ids import MessageIds
from tidelog.channels.protocol.names import split_stream, stream_name
from tidelog.channels.protocol.version import position_of
from tidelog.channels.settings import AiTransport
from tidelog.channels.stored import (
    AFTER_ALL,
    PAGE_STREAMS,
    OpenStream,
    OpenStreamKey,
    open_streams,
    versions_of,
)
from tidelog.channels.upkeep.state_loader import StateLoader
from tidelog.log.committer import Committer
from tidelog.log.request import submit_and_wait, without_failure
from tidelog.store.engine import Store

SWEEP_SECONDS = 5.0
"""How often streams without a writer are looked for, at most."""

SWEEP_PAGES = 16
"""Pages read in one sweep; the next one goes on after them."""

CLOSED_AT_ONCE = 16
"""Streams that are ended at the same time: each holds all of its text meanwhile."""

CLOSE_TRIES = 4
"""How often a stream is decided on while the runs of its neighbours are looked up."""

MAX_RUNS = 10_000
"""Open messages whose run is remembered; a name of at most 256 bytes each."""

_log = logging.getLogger(__name__)


class Streams:
    """The open streams of one log, as one node sees them."""

    def __init__(
        self,
        committer: Committer,
        store: Store,
        states: StateLoader,
        clock: Clock,
        settings: AiTransport,
        *,
        terms: Terms,
        ids: MessageIds,
        is_limited: Callable[[str], bool],
    ) -> None:
        """`is_limited`: whether the limits of streamed content hold in a channel (channels D14)."""
        self._committer = committer
        self._store = store
        self._states = states
        self._clock = clock
        self._settings = settings
        self._terms = terms
        self._ids = ids
        self._is_limited = is_limited
        self._timeout_ms = int(settings.orphan_timeout_seconds * 1000)
        self._swept_through: OpenStreamKey = ("", 0)
        """Where the next sweep goes on."""
        self._able_since = clock.now_ms()
        """Since when writers could write here: silence before that says nothing of them."""
        self._runs: dict[int, str | None] = {}
        """Of open messages that were looked at: the run each was created in, for ever."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look for streams without a writer, for as long as the server runs."""
        self._task = asyncio.create_task(self._work(), name="tidelog-channels-streams")

    async def _work(self) -> None:
        pause = min(SWEEP_SECONDS, self._settings.orphan_timeout_seconds / 4)
        ended = self._committer.ended
        while not ended.is_set():
            try:
                await self.sweep()
            except (QueueFull, StoreError) as error:
                if ended.is_set():
                    return
                _log.warning("streams without a writer are ended later: %s", error)
                self._able_since = self._clock.now_ms()
            except ShuttingDown:
                return
            except Exception:  # noqa: BLE001 - a mistake of ours; the next sweep may do better
                _log.exception("the sweep of streams without a writer failed")
            try:
                async with asyncio.timeout(pause):
                    await ended.wait()
            except TimeoutError:
                pass

    async def sweep(self) -> int:
        """End the streams nobody has written to for too long; returns how many that were."""
        closed = 0
        for _ in range(SWEEP_PAGES):
            if self._committer.ended.is_set():
                break
            latest = self._clock.now_ms() - self._timeout_ms
            if latest < self._able_since:
                break
            page = await open_streams(
                self._store, self._swept_through, AFTER_ALL, latest, PAGE_STREAMS
            )
            is_last = len(page) < PAGE_STREAMS
            self._swept_through = ("", 0) if is_last else (page[-1].stream, page[-1].message)
            orphans = [
                each
                for each in page
                if each.written_at <= latest and self._is_limited(split_stream(each.stream)[1])
            ]
            closed += await self._close_all(orphans)
            if is_last:
                break
        return closed

    async def _close_all(self, orphans: Sequence[OpenStream]) -> int:
        closed = 0
        for start in range(0, len(orphans), CLOSED_AT_ONCE):
            results = await asyncio.gather(
                *(
                    self._close(each.stream, each.message, self._timeout_ms, "orphan_timeout")
                    for each in orphans[start : start + CLOSED_AT_ONCE]
                ),
                return_exceptions=True,
            )
            for result in results:
                if isinstance(result, BaseException):
                    raise result
                closed += result
        return closed

    async def close(self, app_id: str, channel: str, message_serial: str, silent_ms: int) -> bool:
        """End a stream for an operator, if nobody has written to it for `silent_ms`.

        Raises:
            Fault: There is no such message.
        """
        number = position_of(message_serial, self._terms.log_tag)
        stream = stream_name(app_id, channel)
        if (
            number is None
            or not await self._store.rows("channels_exists", (stream, number))
            or not await self._store.rows("channels_create", (stream, number, message_serial))
        ):
            raise fault.not_found(message_serial, channel)
        return await self._close(stream, number, silent_ms, "closed_by_operator")

    async def _close(self, stream: str, number: int, silent_ms: int, reason: Reason) -> bool:
        states = self._states
        message = states.message(stream, number) or await states.load_message(stream, number)
        if message is None:
            return False
        try:
            channel = states.channel(stream) or await states.load_channel(stream)
            try:
                ended: Any = Unsure(())
                for left in reversed(range(CLOSE_TRIES)):
                    item = CloseStream(
                        channel=channel,
                        message=message,
                        states=states,
                        runs=self._runs,
                        message_ids=(self._ids.message(), self._ids.message()),
                        terms=self._terms,
                        silent_ms=silent_ms,
                        reason=reason,
                        is_last_try=not left,
                    )
                    size = 1024 + message.bytes_to_write(0, is_other_status=True)
                    answers = await submit_and_wait(self._committer, item.names(), size, (item,))
                    [ended] = without_failure(answers)
                    if not isinstance(ended, Unsure):
                        break
                    await self._look_up_runs(ended.messages)
            finally:
                states.release(channel)
        finally:
            states.release_message(message)
        if ended is None or isinstance(ended, Unsure):
            return False
        self._committer.metrics.part(ChannelsMetrics).streams_closed.labels(reason).inc()
        _log.info("the stream of message %d in %s was ended: %s", number, stream, reason)
        return True

    async def _look_up_runs(self, messages: Sequence[int]) -> None:
        """Note to which run each message belongs: the one that it was created in."""
        if len(self._runs) + len(messages) > MAX_RUNS:
            self._runs.clear()
        for start in range(0, len(messages), CLOSED_AT_ONCE):
            some = messages[start : start + CLOSED_AT_ONCE]
            keys = [(number, number - 1, number, 1) for number in some]
            found = await self._store.rows_of("channels_versions_after", keys)
            for number, rows in zip(some, found, strict=True):
                is_kept = bool(rows) and rows[0][-1] is not None
                [created] = versions_of(rows) if is_kept else [None]
                self._runs[number] = None if created is None else run_of(created)
