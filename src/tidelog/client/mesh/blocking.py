"""`BlockingMeshClient`: the mesh client for scripts without an event loop of their own."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from tidelog.client.mesh.client import InboxMessage, MeshClient, Priority, Sent

T = TypeVar("T")


class BlockingMeshClient:
    """Takes what `MeshClient` takes; use it as `with`. One thread at a time may call it."""

    def __init__(self, data_dir: Path | str | None = None, **settings: Any) -> None:
        self._client = MeshClient(data_dir, **settings)
        self._loop: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="tidelog-mesh-client", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._loop = None

    def send(
        self,
        to: str,
        message: str,
        *,
        idempotency_key: str | None = None,
        priority: Priority | None = None,
        meta: dict[str, Any] | None = None,
        mentions: Sequence[str] | None = None,
        reply_to: str | None = None,
    ) -> Sent:
        """See `MeshClient.send`."""
        return self._run(
            self._client.send(
                to,
                message,
                idempotency_key=idempotency_key,
                priority=priority,
                meta=meta,
                mentions=mentions,
                reply_to=reply_to,
            )
        )

    def wait(self, client_message_id: str, timeout: float | None = None) -> dict[str, Any]:
        """See `MeshClient.wait`; `TimeoutError` after `timeout` seconds."""
        return self._run(asyncio.wait_for(self._client.wait(client_message_id), timeout))

    def outcome(self, client_message_id: str) -> dict[str, Any]:
        """See `MeshClient.outcome`."""
        return self._run(self._client.outcome(client_message_id))

    def inbox(
        self, after: str | None = None, *, topic: str | None = None, timeout: float | None = None
    ) -> Iterator[InboxMessage]:
        """See `MeshClient.inbox`; ends when nothing comes for `timeout` seconds."""
        messages = self._client.inbox(after, topic=topic)
        try:
            while True:
                try:
                    yield self._run(_next(messages, timeout))
                except (TimeoutError, StopAsyncIteration):
                    return
        finally:
            self._run(messages.aclose())

    def received(self, **wanted: Any) -> list[InboxMessage]:
        """See `MeshClient.received`."""
        return self._run(self._client.received(**wanted))

    def subscribe(self, topic: str) -> None:
        """See `MeshClient.subscribe`."""
        self._run(self._client.subscribe(topic))

    def unsubscribe(self, topic: str) -> None:
        """See `MeshClient.unsubscribe`."""
        self._run(self._client.unsubscribe(topic))

    def topics(self) -> list[Any]:
        """See `MeshClient.topics`."""
        return self._run(self._client.topics())

    def health(self) -> dict[str, Any]:
        """See `MeshClient.health`."""
        return self._run(self._client.health())

    def ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """See `MeshClient.ask`."""
        return self._run(self._client.ask(method, path, body))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            work.close()
            raise RuntimeError("the client is not open; use `with`")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


async def _next(
    messages: AsyncGenerator[InboxMessage, None], timeout_s: float | None
) -> InboxMessage:
    async with asyncio.timeout(timeout_s):
        return await anext(messages)
