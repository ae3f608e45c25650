"""The model version that clients are told: stored durably, the same on every node."""

import asyncio
import logging
from collections.abc import Callable

from tidelog.base.errors import StoreError
from tidelog.log.committer import Committer
from tidelog.log.decision import Failure, Names
from tidelog.log.request import submit_and_wait
from tidelog.store.engine import Store
from tidelog.sync.decide.administration import Setting

_log = logging.getLogger(__name__)

STORED = "model_version"
CONFIGURED = "configured_model_version"

RETRY_SECONDS = 1.0
"""Pause after the store could not be read."""


class StoredModelVersion:
    """The version in use, and how it changes."""

    def __init__(
        self, committer: Committer, store: Store, current: int, changed: Callable[[int, int], None]
    ) -> None:
        """`changed` takes the old version and the new one; it must not await."""
        self.current = current
        """Announced to clients; an administrator may have set another than the model's own."""
        self._committer = committer
        self._store = store
        self._changed = changed
        self._changes = 0
        """Changes made here: a read of the store that began before one must not undo it."""
        self._looking = asyncio.Lock()
        self._following: asyncio.Task[None] | None = None

    @staticmethod
    async def stored(committer: Committer, store: Store, configured: int) -> int:
        """The version to start with.

        Starting with another configured value changes it silently (sync D47). Both are stored
        in one transaction: with only the first one stored, the next start would see no change.
        """
        before = await store.rows("sync_setting", (CONFIGURED,))
        stored = await store.rows("sync_setting", (STORED,))
        if stored and before and before[0][0] == configured:
            version: int = stored[0][0]
            return version
        both = tuple(Setting(name, configured) for name in (CONFIGURED, STORED))
        for answer in await submit_and_wait(committer, Names(), 64, both):
            if isinstance(answer, Failure):
                raise answer.error
        return configured

    async def change(self, version: int) -> int:
        """Store a new version and use it; returns the old one."""
        setting = Setting(STORED, version)
        [answer] = await submit_and_wait(self._committer, setting.names(), 64, (setting,))
        if isinstance(answer, Failure):
            raise answer.error
        self._changes += 1
        return self._use(version)

    def follow(self) -> None:
        """Another node has changed it: use the stored one, which is that of the last writer."""
        self._following = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        async with self._looking:
            while True:
                changes = self._changes
                try:
                    [(version,)] = await self._store.rows("sync_setting", (STORED,))
                except StoreError as error:
                    _log.warning("could not read the model version: %s", error)
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                if changes == self._changes:
                    self._use(version)
                    return

    def _use(self, version: int) -> int:
        old, self.current = self.current, version
        if old != version:
            self._changed(old, version)
        return old
