"""`BlockingRun`: a run for programs without an event loop.

A run listens for cancels while it writes, so it lives on an event loop in a thread, one for all
runs of a publisher; every method here is that of `Run`, called there.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

from tidelog.client.channels.publisher import ChannelPublisher
from tidelog.client.channels.run import Reason, Run, ToolCall

T = TypeVar("T")


class RunLoop:
    """An event loop in a thread, with a publisher on it; begun by the first run."""

    def __init__(self, publisher: Callable[[], ChannelPublisher]) -> None:
        self._make = publisher
        self._lock = threading.Lock()
        self._process = 0
        self._loop: asyncio.AbstractEventLoop
        self._publisher: ChannelPublisher

    def publisher(self) -> ChannelPublisher:
        """The publisher on the loop, of this process."""
        with self._lock:
            if self._process != os.getpid():
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="tidelog-runs", daemon=True
                )
                self._thread.start()
                self._publisher = self.call(self._opened())
                self._process = os.getpid()
            return self._publisher

    async def _opened(self) -> ChannelPublisher:
        return await self._make().__aenter__()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something on the loop, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        """End the thread, if there is one; another run begins it again."""
        with self._lock:
            if self._process == os.getpid():
                self._process = 0
                self.call(self._publisher.__aexit__(None, None, None))
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join()
                self._loop.close()


class BlockingRun:
    """One run, for the length of a `with`; see `Run`, which this is for threads.

        with publisher.run("room-7", client_id="ana") as run:
            for token in run.watch(model):
                run.write(token)

    One thread at a time may use it.
    """

    def __init__(self, loop: RunLoop, make: Callable[[ChannelPublisher], Run]) -> None:
        publisher = loop.publisher()

        async def made() -> Run:
            return make(publisher)

        self._loop = loop
        self._run = loop.call(made())

    def __enter__(self) -> Self:
        """See `Run.__aenter__`."""
        self._loop.call(self._run.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        # Whoever presses Ctrl-C stops the run; nothing has failed.
        told = asyncio.CancelledError() if isinstance(error, KeyboardInterrupt) else error
        return self._loop.call(self._run.__aexit__(kind, told, trace))

    @property
    def run_id(self) -> str:
        """What it is called."""
        return self._run.run_id

    @property
    def channel(self) -> str:
        """Where it is told."""
        return self._run.channel

    @property
    def reason(self) -> Reason | None:
        """How it ended; None before that."""
        return self._run.reason

    @property
    def message_serial(self) -> str | None:
        """See `Run.message_serial`."""
        return self._run.message_serial

    @property
    def cancelled(self) -> bool:
        """Whether somebody cancelled it."""
        return self._run.cancelled

    def wait_cancelled(self, timeout: float | None = None) -> bool:
        """Wait until somebody cancels it; False if nobody did for `timeout` seconds."""

        async def wait() -> bool:
            try:
                async with asyncio.timeout(timeout):
                    await self._run.wait_cancelled()
            except TimeoutError:
                return False
            return True

        return self._loop.call(wait())

    def check(self) -> None:
        """Raise `RunCancelled` if somebody cancelled it."""
        self._run.check()

    def watch(self, items: Iterable[T]) -> Iterator[T]:
        """The items of a model, or of anything else, until somebody cancels the run.

        It looks before each item; one that is being waited for is waited for.

        Raises:
            RunCancelled: the run was cancelled.
        """
        iterator = iter(items)
        try:
            self.check()
            for item in iterator:
                self.check()
                yield item
                self.check()
        finally:
            close = getattr(iterator, "close", None)
            if close is not None:
                close()

    def write(self, token: str) -> None:
        """See `Run.write`."""
        self._loop.call(self._run.write(token))

    def write_all(self, tokens: Iterable[str]) -> None:
        """Write what a model says, to its end; see `watch`."""
        for token in self.watch(tokens):
            self.write(token)

    def new_message(self) -> None:
        """See `Run.new_message`."""
        self._loop.call(self._run.new_message())

    def status(self, text: str) -> None:
        """See `Run.status`."""
        self._loop.call(self._run.status(text))

    @contextmanager
    def tool(
        self, name: str, arguments: Any = None, *, call_id: str | None = None
    ) -> Iterator[ToolCall]:
        """A call of a tool, for the length of a `with`; see `Run.tool`."""
        inner = self._run.tool(name, arguments, call_id=call_id)
        call = self._loop.call(inner.__aenter__())
        try:
            yield call
        except BaseException as error:
            if not self._loop.call(inner.__aexit__(type(error), error, error.__traceback__)):
                raise
        else:
            self._loop.call(inner.__aexit__(None, None, None))

    def suspend(self) -> None:
        """See `Run.suspend`."""
        self._run.suspend()
