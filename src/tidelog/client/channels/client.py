"""`ChannelClient`: the channels an application follows, with their messages as they are now.

    async with ChannelClient("ws://127.0.0.1:8080", "app-key") as client:
        async with client.subscribe("room-7", rewind=10) as channel:
            async for message in channel:
                print(message.name, message.data)

Connections that are lost come back by themselves and go on where they were. It publishes what users
say to agents and cancels their runs; anything else needs the app's secret, which a subscriber
should not have: see `ChannelPublisher`.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Any, Self
from uuid import uuid4

from tidelog.base.errors import TidelogError
from tidelog.channels.protocol.runs import CANCEL, PREFIX
from tidelog.channels.protocol.tokens import MAX_ID_BYTES, is_id
from tidelog.channels.protocol.wire import ROLLUP_WINDOWS, AppendMode, RollupWindow
from tidelog.client.backoff import Backoff
from tidelog.client.channels.calls import cancel_data
from tidelog.client.channels.core import ChannelCore, ChannelOffline, Subscription
from tidelog.client.channels.link import Authorizer, ChannelLink, Token, socket_url
from tidelog.client.channels.message import Message, Reset

MAX_MESSAGES = 1000
"""Messages kept of one channel unless the caller sets another number."""

_log = logging.getLogger("tidelog.client.channels.client")


class Channel:
    """One channel for the length of an `async with`; its iterator gives changed messages.

    Iterating gives a message after each change, whole: with delta appends too. It gives states, not
    operations: a reader slower than the channel gets a message once, as it is then, however often
    it changed. So memory is bounded by `limit`, and what a reader draws is never older than needed.
    Events without a position in the channel (ephemeral ones, and all where the channel keeps no
    history) are given but not kept; of these at most 1000 wait, see `missed`.

    When continuity cannot be shown after an interruption (`resume_failed`, a gap, or a server that
    does not resume), everything kept is dropped, `resets` counts it, `on_reset` is told why, and
    the channel is subscribed to again with the same `rewind`: what that finds is given anew.

    An append to a message from before the subscription comes without the text before it. The
    message is given with `is_partial`, and once more when its beginning has been read from history;
    it stays partial if the history no longer has it. A `rewind` that reaches back far enough, or
    `append_mode="full"`, avoids this.
    """

    def __init__(
        self,
        client: "ChannelClient",
        name: str,
        rewind: int | dict[str, float] | None,
        limit: int,
        on_reset: Callable[[Reset], None] | None,
    ) -> None:
        self.name = name
        self.resets = 0
        """How often continuity was lost."""
        self._client = client
        self._rewind = rewind
        self._limit = limit
        self._on_reset = on_reset
        self._subscription: Subscription | None = None
        self._opened: asyncio.Future[None] | None = None
        self._news = asyncio.Event()
        self._error: TidelogError | None = None
        self._is_over = False

    async def __aenter__(self) -> Self:
        """Wait until the subscription stands and the rewind is complete.

        Raises:
            SubscriptionRefused: the server, or the application's `authorize`, says no.
            ChannelOffline: the server refuses the connection, or the client was closed.
        """
        if self._opened is not None:
            raise ValueError("a subscription is entered once; call `subscribe` again")
        self._opened = asyncio.get_running_loop().create_future()
        self._subscription = self._client.join(self, rewind=self._rewind, limit=self._limit)
        try:
            await self._opened
        except BaseException:
            self._leave()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave()

    def _leave(self) -> None:
        self._is_over = True
        self._news.set()
        if self._subscription is not None:
            self._client.leave(self, self._subscription)

    # What is known.

    @property
    def messages(self) -> Sequence[Message]:
        """The messages that are kept, in the order they were published; see `limit`."""
        return self._attached.view.messages

    def get(self, serial: str) -> Message | None:
        """The message of a serial, if it is kept."""
        return self._attached.view.get(serial)

    @property
    def members(self) -> Mapping[str, Any]:
        """Who is on a presence channel: user id to `user_info`."""
        return MappingProxyType(self._attached.members)

    @property
    def missed(self) -> int:
        """Changes this reader was too slow for: events not kept, and messages let go since."""
        return self._attached.view.missed

    async def trigger(self, event: str, data: Any) -> None:
        """Send a client event to the others on a private or presence channel.

        It is sent once or not at all, and nothing confirms that it arrived.

        Raises:
            ChannelOffline: there is no connection now.
        """
        if not event.startswith("client-"):
            raise ValueError("the name of a client event begins with client-")
        self._client.trigger(self._attached, event, data)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """The next changed message; ends with the `async with` of the channel or of the client.

        Raises:
            SubscriptionRefused: the subscription was not allowed any more after an interruption.
            ChannelOffline: the server refuses the connection for good.
        """
        view = self._attached.view
        while True:
            if self._error is not None:
                raise self._error
            if self._is_over:
                raise StopAsyncIteration
            message = view.take()
            if message is not None:
                return message
            self._news.clear()
            await self._news.wait()

    @property
    def _attached(self) -> Subscription:
        if self._subscription is None:
            raise ChannelOffline("not subscribed; use `async with`")
        return self._subscription

    # Listener.

    def opened(self) -> None:
        """See `Listener.opened`."""
        if self._opened is not None and not self._opened.done():
            self._opened.set_result(None)

    def changed(self) -> None:
        """See `Listener.changed`."""
        self._news.set()

    def was_reset(self, reset: Reset) -> None:
        """See `Listener.was_reset`."""
        _log.warning("channels: %s was reset: %s, %s", reset.channel, reset.code, reset.reason)
        self.resets += 1
        if self._on_reset is not None:
            asyncio.get_running_loop().call_soon(self._on_reset, reset)

    def failed(self, error: TidelogError) -> None:
        """See `Listener.failed`."""
        if self._opened is not None and not self._opened.done():
            self._opened.set_exception(error)
        else:
            self._error = error
        self._news.set()

    def closed(self) -> None:
        """The client was closed: iterating ends, and whoever waits for the subscription is told."""
        self._is_over = True
        self._news.set()
        if self._opened is not None and not self._opened.done():
            self._opened.set_exception(ChannelOffline("the client was closed"))


class ChannelClient:
    """One connection to an app, kept up while the `async with` lasts."""

    def __init__(
        self,
        url: str,
        app_key: str,
        *,
        authorize: Authorizer | None = None,
        token: Token | None = None,
        append_mode: AppendMode = "delta",
        append_rollup_window: RollupWindow = 0,
        backoff: Backoff | None = None,
    ) -> None:
        """Nothing is opened yet.

        Args:
            url: the server, such as `wss://host`.
            app_key: names the app.
            authorize: asked with a channel and a socket id before a private or presence channel is
                subscribed to, at every connection; returns an `Authorization`. Where it comes from
                is the application's own: `ChannelPublisher.authorization` makes one.
            token: a capability token, or an async callable that fetches one for each connection and
                when one expires.
            append_mode: `delta` is sent what an append added, `full` all of the text each time.
                The messages are the same.
            append_rollup_window: milliseconds, 0, 20, 40, 100 or 500, for which the server may hold
                appends to a message to send them together: fewer bytes for long streams of tokens.
            backoff: waits between connections that fail.
        """
        if append_rollup_window not in ROLLUP_WINDOWS:
            raise ValueError("append_rollup_window must be 0, 20, 40, 100 or 500")
        self._core = ChannelCore(append_mode, append_rollup_window)
        self._link = ChannelLink(
            self._core,
            socket_url(url, app_key),
            token=token,
            authorize=authorize,
            backoff=backoff or Backoff(),
        )
        self._task: asyncio.Task[None] | None = None
        self._channels: set[Channel] = set()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._link.run())
        self._task.add_done_callback(self._ended)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        for channel in tuple(self._channels):
            channel.closed()
        self._core.drop_publishing(ChannelOffline("the client was closed"))

    def subscribe(
        self,
        channel: str,
        *,
        rewind: int | dict[str, float] | None = None,
        limit: int = MAX_MESSAGES,
        on_reset: Callable[[Reset], None] | None = None,
    ) -> Channel:
        """A channel to be entered with `async with`; each at most once at a time.

        Args:
            channel: its name.
            rewind: how much of the past to begin with: a number of messages, or
                `{"seconds": n}`; the server gives at most a page, 100 unless it is set otherwise.
            limit: messages to keep; the oldest are let go, and changes to them not shown.
            on_reset: called when continuity was lost, before anything that comes after it.
        """
        if limit < 1:
            raise ValueError("limit must be at least 1")
        if isinstance(rewind, int) and rewind < 1:
            rewind = None
        return Channel(self, channel, rewind, limit, on_reset)

    async def publish(
        self,
        channel: str,
        event: str,
        data: Any,
        *,
        extras: Mapping[str, Any] | None = None,
        message_id: str | None = None,
    ) -> str:
        """Publish an event of a run, such as `ai-input`; returns when it is on the server's disk.

        It is sent again over the next connection until the server confirms it, and published once.

        Args:
            channel: where; this client need not be subscribed to it, if its token says `publish`.
            event: `ai-input`, `ai-cancel`, or what agents publish, with an agent's token.
            data: text, or a JSON value that subscribers get as text.
            extras: see runs 4.
            message_id: as with `ChannelPublisher.publish`; made up if it is not given.

        Returns:
            The `message_id`.

        Raises:
            EventRefused: the server says no, and why.
            ChannelOffline: the server refuses the connection, or the client was closed.
        """
        if not event.startswith(PREFIX):
            raise ValueError("a client publishes events of runs, whose names begin with ai-")
        key = str(uuid4()) if message_id is None else message_id
        if not is_id(key):
            raise ValueError(f"message_id must have 1 to {MAX_ID_BYTES} bytes")
        self._check_open()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def settled(error: TidelogError | None) -> None:
            if not done.done() and error is None:
                done.set_result(None)
            elif not done.done() and error is not None:
                done.set_exception(error)

        self._core.publish(channel, event, data, extras, key, settled)
        self._link.wake()
        try:
            await done
        finally:
            self._core.give_up(key)
        return key

    async def cancel(
        self,
        channel: str,
        run_id: str | None = None,
        *,
        own: bool = False,
        client_id: str | None = None,
        all_runs: bool = False,
    ) -> str:
        """Ask to stop a run, one's own runs, those of a client, or all of a channel: one of them.

        Raises:
            EventRefused: others' runs need the capability `run_cancel_any`.
            ChannelOffline: see `publish`.
        """
        data = cancel_data(run_id=run_id, client_id=client_id, own=own, all_runs=all_runs)
        return await self.publish(channel, CANCEL, data)

    @property
    def socket_id(self) -> str | None:
        """Of the present connection: what `authorize` signs; None while there is none."""
        return self._core.socket_id

    @property
    def connections(self) -> int:
        """Connections that were established so far."""
        return self._link.connections

    # For `Channel`.

    def join(
        self, channel: Channel, *, rewind: int | dict[str, float] | None, limit: int
    ) -> Subscription:
        """Begin a subscription."""
        self._check_open()
        joined = self._core.subscribe(channel.name, channel, rewind=rewind, limit=limit)
        self._channels.add(channel)
        self._link.wake()
        return joined

    def _check_open(self) -> None:
        if self._task is None:
            raise ChannelOffline("the client is not open; use `async with`")
        if self._task.done():
            raise ChannelOffline(self._link.halted or "the client has failed")

    def leave(self, channel: Channel, subscription: Subscription) -> None:
        """End a subscription."""
        self._channels.discard(channel)
        self._core.unsubscribe(subscription)
        self._link.wake()

    def trigger(self, subscription: Subscription, event: str, data: Any) -> None:
        """Send a client event."""
        self._core.trigger(subscription, event, data)
        self._link.wake()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """The connection task ends by being cancelled or refused; else it is a fault to show."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("channels: the client failed", exc_info=error)
            self._core.end(ChannelOffline(f"the client failed: {type(error).__name__}"))
