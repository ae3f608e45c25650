"""`BlockingSyncClient`: the sync client for scripts without an event loop of their own.

It runs a `SyncClient` on a loop in a thread; every method here is that one's, called there.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from tidelog.client.sync.changes import Change
from tidelog.client.sync.client import SyncClient
from tidelog.client.sync.messages import Json
from tidelog.client.sync.rows import StoredEvent
from tidelog.sync.protocol.profiles import ROOT
from tidelog.sync.protocol.tree import TreeNode

T = TypeVar("T")


class BlockingSyncClient:
    """Takes what `SyncClient` takes; use it as `with`. One thread at a time may call it."""

    def __init__(self, url: str | None, **settings: Any) -> None:
        self._url = url
        self._settings = settings
        self._opened: SyncClient | None = None

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="tidelog-sync-client", daemon=True
        )
        self._thread.start()
        try:
            self._opened = self._run(self._open())
        except BaseException:
            self._end_thread()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._run(self._client.__aexit__(kind, error, trace))
        finally:
            self._opened = None
            self._end_thread()

    def submit(
        self,
        *,
        partitions: Sequence[str],
        event: Json,
        id: str | None = None,  # noqa: A002 - the protocol's own name for it
    ) -> StoredEvent:
        """See `SyncClient.submit`."""
        return self._run(self._client.submit(partitions=partitions, event=event, id=id))

    def wait(self, id: str, timeout: float | None = None) -> StoredEvent:  # noqa: A002
        """See `SyncClient.wait`; `TimeoutError` after `timeout` seconds."""
        return self._run(asyncio.wait_for(self._client.wait(id), timeout))

    def sync(self, partitions: Sequence[str] | None = None, timeout: float | None = None) -> None:
        """See `SyncClient.sync`; `TimeoutError` after `timeout` seconds."""
        self._run(asyncio.wait_for(self._client.sync(partitions), timeout))

    def view(self, partition: str) -> Json:
        """See `SyncClient.view`."""
        client = self._client
        return self._run(_called(lambda: client.view(partition)))

    def item(self, partition: str, target: str, id: str) -> Json | None:  # noqa: A002 - as in the tree
        """See `SyncClient.item`."""
        client = self._client
        return self._run(_called(lambda: client.item(partition, target, id)))

    def children(self, partition: str, target: str, id: str = ROOT, **range_: Any) -> list[str]:  # noqa: A002
        """See `SyncClient.children`."""
        client = self._client
        return self._run(_called(lambda: client.children(partition, target, id, **range_)))

    def nodes(self, partition: str, target: str, **range_: Any) -> list[TreeNode]:
        """See `SyncClient.nodes`."""
        client = self._client
        return self._run(_called(lambda: client.nodes(partition, target, **range_)))

    def value(self, partition: str, path: str) -> Any:
        """See `SyncClient.value`."""
        client = self._client
        return self._run(_called(lambda: client.value(partition, path)))

    def pending(self) -> list[StoredEvent]:
        """See `SyncClient.pending`."""
        return self._run(_called(self._client.pending))

    def rejected(self) -> list[StoredEvent]:
        """See `SyncClient.rejected`."""
        return self._run(_called(self._client.rejected))

    def withdraw(self, id: str) -> bool:  # noqa: A002 - the protocol's own name for it
        """See `SyncClient.withdraw`."""
        client = self._client
        return self._run(_called(lambda: client.withdraw(id)))

    def reconnect(self) -> None:
        """See `SyncClient.reconnect`."""
        self._run(_called(self._client.reconnect))

    def wipe(self, partition: str) -> int:
        """See `SyncClient.wipe`."""
        return self._run(self._client.wipe(partition))

    def changes(self, timeout: float | None = None) -> Iterator[Change]:
        """See `SyncClient.changes`; ends when nothing happens for `timeout` seconds."""
        changes = self._run(_called(self._client.changes))
        while True:
            try:
                yield self._run(asyncio.wait_for(anext(changes), timeout))
            except (TimeoutError, StopAsyncIteration):
                return

    @property
    def _client(self) -> SyncClient:
        if self._opened is None:
            raise RuntimeError("the client is not open; use `with`")
        return self._opened

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _end_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _open(self) -> SyncClient:
        return await SyncClient(self._url, **self._settings).__aenter__()


async def _called(function: Callable[[], T]) -> T:
    """Call on the loop what must not run beside it."""
    return function()
