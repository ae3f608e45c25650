"""States of channels that something beside the log has changed: they are read again."""

import asyncio
import logging
from collections.abc import Callable, Iterable

from tidelog.base.errors import StoreError
from tidelog.channels.upkeep.state_loader import StateLoader

RETRY_SECONDS = 1.0
"""Pause after the store could not be read."""

_log = logging.getLogger(__name__)


class StaleStates:
    """Reads them again, one after the other."""

    def __init__(
        self,
        states: StateLoader,
        ended: asyncio.Event,
        settled: Callable[[tuple[str, ...]], None],
    ) -> None:
        """`ended` says that the store is about to be closed; `settled` takes what was read."""
        self._states = states
        self._ended = ended
        self._settled = settled
        self._streams: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def add(self, streams: Iterable[str]) -> None:
        """Epoch or floors of these may be others."""
        self._streams.update(streams)
        if self._task is None and self._streams:
            self._task = asyncio.create_task(self._refresh())

    async def _refresh(self) -> None:
        try:
            while self._streams and not self._ended.is_set():
                stream = self._streams.pop()
                try:
                    await self._states.refresh(stream)
                    self._settled((stream,))
                except StoreError as error:
                    _log.warning("the state of %s could not be read again: %s", stream, error)
                    self._streams.add(stream)
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            self._task = None
