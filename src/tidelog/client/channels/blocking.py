"""`BlockingChannelPublisher`: a publisher for Flask, Django and scripts, which have no event loop.

    app = BlockingChannelPublisher("http://127.0.0.1:8080", "app-id", "app-key", "app-secret")
    receipt = app.publish("room-7", "chat.message", {"text": "hi"})
    with app.stream("room-7", "answer") as answer:
        for token in model:
            answer.write(token)

Its requests are those of `ChannelPublisher`, made and understood by the same code.
"""

from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from tidelog.channels.protocol.query import Direction
from tidelog.client.backoff import Backoff
from tidelog.client.channels import calls
from tidelog.client.channels.blocking_http import BlockingChannelApi
from tidelog.client.channels.blocking_run import BlockingRun, RunLoop
from tidelog.client.channels.blocking_stream import BlockingMessageStream
from tidelog.client.channels.calls import StoredMessage
from tidelog.client.channels.exchange import Call, Retry, Server
from tidelog.client.channels.granting import Granting
from tidelog.client.channels.publisher import ATTEMPTS, RETRY, TIMEOUT_S, ChannelPublisher
from tidelog.client.channels.token_buffer import MAX_BUFFERED

P = ParamSpec("P")
T = TypeVar("T")


def _asks(
    make: Callable[P, Call[T]],
) -> Callable[Concatenate["BlockingChannelPublisher", P], T]:
    """The method that sends what a function of `calls` makes, and waits for the result."""

    def ask(self: "BlockingChannelPublisher", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.api.ask(make(*args, **kwargs))

    calls.describe(ask, make)
    return ask


class BlockingChannelPublisher(Granting):
    """Publishes for one app, and waits; takes what `ChannelPublisher` takes.

    One is enough for a program: any number of threads may use it at the same time, and so may the
    processes that a server such as gunicorn forks. `with` or `close` closes its connections; a
    program that ends need not.
    """

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
        """Nothing is opened yet; see `ChannelPublisher`."""
        super().__init__(app_key, app_secret)
        self.api = BlockingChannelApi(
            Server(url, app_id, app_key, app_secret), Retry(attempts, timeout_s, backoff)
        )
        self._runs = RunLoop(
            lambda: ChannelPublisher(
                url,
                app_id,
                app_key,
                app_secret,
                attempts=attempts,
                timeout_s=timeout_s,
                backoff=backoff,
            )
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections that are kept; another request opens one again."""
        self._runs.close()
        self.api.close()

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

    def messages(
        self,
        channel: str,
        *,
        direction: Direction = "newest_first",
        start_time_ms: int | None = None,
        end_time_ms: int | None = None,
    ) -> Iterator[StoredMessage]:
        """Every message of the history of a channel, read page by page."""
        cursor: str | None = None
        while True:
            page = self.history(
                channel,
                direction=direction,
                start_time_ms=start_time_ms,
                end_time_ms=end_time_ms,
                cursor=cursor,
            )
            yield from page.items
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
    ) -> BlockingMessageStream:
        """A message that grows while a `with` lasts; see `MessageStream`."""
        return BlockingMessageStream(
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
    ) -> BlockingRun:
        """A piece of work for somebody, for the length of a `with`; see `ChannelPublisher.run`."""
        return BlockingRun(
            self._runs,
            lambda publisher: publisher.run(
                channel,
                client_id=client_id,
                run_id=run_id,
                resume=resume,
                transport=transport,
                max_buffered=max_buffered,
            ),
        )
