"""`ChannelPublisher`: what an application's server writes into channels, and reads from them.

    async with ChannelPublisher("http://127.0.0.1:8080", "app-id", "app-key", "app-secret") as app:
        receipt = await app.publish("room-7", "chat.message", {"text": "hi"})
        async with app.stream("room-7", "answer") as answer:
            async for token in model:
                await answer.write(token)

It is apart from `ChannelClient` because it holds the app's secret: who has it may do everything,
and subscribers should not. Every request carries a key of its own (`message_id`, `op_id`) and is
repeated under it when the network or the server fails, so nothing is done twice.

`BlockingChannelPublisher` is the same for programs without an event loop.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from tidelog.channels.protocol.query import Direction
from tidelog.client.backoff import Backoff
from tidelog.client.channels import calls
from tidelog.client.channels.calls import StoredMessage
from tidelog.client.channels.cancels import CancelWatch
from tidelog.client.channels.exchange import Call, Retry, Server
from tidelog.client.channels.granting import Granting
from tidelog.client.channels.http import ChannelApi
from tidelog.client.channels.run import Run
from tidelog.client.channels.stream import MessageStream
from tidelog.client.channels.token_buffer import MAX_BUFFERED

P = ParamSpec("P")
T = TypeVar("T")

ATTEMPTS = 8
"""Attempts of one request: with `RETRY` about seven seconds, the time a server takes to restart."""

RETRY = Backoff(first=0.1, most=2.0)

TIMEOUT_S = 10.0


def _asks(
    make: Callable[P, Call[T]],
) -> Callable[Concatenate["ChannelPublisher", P], Coroutine[Any, Any, T]]:
    """The method that sends what a function of `calls` makes."""

    async def ask(self: "ChannelPublisher", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.api.ask(make(*args, **kwargs))

    calls.describe(ask, make)
    return ask


class ChannelPublisher(Granting):
    """Publishes for one app; use it as `async with`."""

    def __init__(
        self,
        url: str,
        app_id: str,
        app_key: str,
        app_secret: str,
        *,
        attempts: int = ATTEMPTS,
        timeout_s: float = TIMEOUT_S,
        backoff: Backoff = RETRY,
    ) -> None:
        """Nothing is opened yet.

        Args:
            url: the server, `http://host:port` or `https://host`.
            app_id: in the paths.
            app_key: names the app in signatures.
            app_secret: signs.
            attempts: how often a request is sent before `PublishFailed`.
            timeout_s: of one attempt.
            backoff: waits between attempts.
        """
        super().__init__(app_key, app_secret)
        self.api = ChannelApi(
            Server(url, app_id, app_key, app_secret), Retry(attempts, timeout_s, backoff)
        )
        self._cancels = CancelWatch(url, app_key, self)

    async def __aenter__(self) -> Self:
        await self.api.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._cancels.close()
        await self.api.__aexit__(kind, error, trace)

    publish = _asks(calls.publish)
    append = _asks(calls.append)
    update = _asks(calls.update)
    delete = _asks(calls.delete)
    cancel = _asks(calls.cancel)

    message = _asks(calls.message)
    versions = _asks(calls.versions)
    history = _asks(calls.history)
    channels = _asks(calls.channels)
    channel = _asks(calls.channel)
    users = _asks(calls.users)

    async def messages(
        self,
        channel: str,
        *,
        direction: Direction = "newest_first",
        start_time_ms: int | None = None,
        end_time_ms: int | None = None,
    ) -> AsyncIterator[StoredMessage]:
        """Every message of the history of a channel, read page by page."""
        cursor: str | None = None
        while True:
            page = await self.history(
                channel,
                direction=direction,
                start_time_ms=start_time_ms,
                end_time_ms=end_time_ms,
                cursor=cursor,
            )
            for message in page.items:
                yield message
            cursor = page.next_cursor
            if cursor is None:
                return

    def stream(
        self,
        channel: str,
        event: str,
        *,
        extras: Mapping[str, Any] | None = None,
        message_id: str | None = None,
        max_buffered: int = MAX_BUFFERED,
    ) -> MessageStream:
        """A message that grows while an `async with` lasts; see `MessageStream`."""
        return MessageStream(
            self,
            channel,
            event,
            extras=extras,
            message_id=message_id,
            max_buffered=max_buffered,
        )

    def run(
        self,
        channel: str,
        *,
        client_id: str | None = None,
        run_id: str | None = None,
        resume: bool = False,
        transport: Mapping[str, str] | None = None,
        max_buffered: int = MAX_BUFFERED,
    ) -> Run:
        """A piece of work for somebody, for the length of an `async with`; see `Run`.

        Args:
            channel: where it is told.
            client_id: for whom: who may cancel it without `run_cancel_any`.
            run_id: what it is called, 1 to 256 bytes; made up if it is not given. Whoever asks for
                the work may choose it, and so cancel it before it has begun.
            resume: go on with a run that was suspended: `ai-run-resume` instead of `ai-run-start`.
            transport: further transport headers of all its events, such as `{"model": "..."}`.
            max_buffered: see `MessageStream`.
        """
        return Run(
            self,
            self._cancels,
            channel,
            client_id=client_id,
            run_id=run_id,
            resume=resume,
            transport=transport or {},
            max_buffered=max_buffered,
        )
