"""Whether a cancel means a run, and the one connection over which a publisher hears of them.

`means` is pure. A `CancelWatch` holds one subscription for each channel that has runs, however many
runs that are.
"""

import asyncio
import contextlib
import logging
from typing import Protocol

from msgspec import Struct

from tidelog.base.errors import TidelogError
from tidelog.channels.protocol.fault import Fault
from tidelog.channels.protocol.names import ChannelKind, kind_of
from tidelog.channels.protocol.runs import CANCEL, Cancel, read_cancel
from tidelog.client.channels.client import Channel, ChannelClient
from tidelog.client.channels.core import Authorization
from tidelog.client.channels.granting import Granting
from tidelog.client.channels.message import Message, Reset

MEMBER = "agent"
"""Who a publisher is on a presence channel."""

_log = logging.getLogger("tidelog.client.channels.client")


class HeardCancel(Struct, frozen=True):
    """A cancel, and where in the channel it stands."""

    cancel: Cancel
    sender: str | None
    """The client that sent it; None for the application's own server."""
    delivery_serial: int


class RunFacts(Struct, frozen=True):
    """What a cancel is compared with."""

    run_id: str
    client_id: str | None
    """The owner; None if nobody said."""
    started_at: int
    """Delivery serial of its start."""
    history_serial: int | None = None
    """Where the start is in the history; None on a channel without one."""


def read_heard(message: Message) -> HeardCancel | None:
    """The cancel that a message is, if it is one."""
    if message.name != CANCEL or not isinstance(message.data, str):
        return None
    ai = message.extras.get("ai")
    given = ai.get("transport") if isinstance(ai, dict) else None
    transport = given if isinstance(given, dict) else {}
    try:
        cancel = read_cancel(message.data, transport)
    except Fault:
        return None  # on a channel where the server does not look at them
    sender = transport.get("input-client-id")
    sender = sender if isinstance(sender, str) and sender else None
    return HeardCancel(cancel, sender, message.delivery_serial or 0)


def means(heard: HeardCancel, run: RunFacts) -> bool:
    """Whether a cancel ends a run (runs 5).

    The server knew whose the run was from its start on, and let nothing pass that was not allowed.
    Before that only the sender tells.
    """
    cancel = heard.cancel
    if heard.delivery_serial < run.started_at:
        is_allowed = heard.sender is None or heard.sender == run.client_id
        return cancel.run_id == run.run_id and is_allowed
    if cancel.is_own:
        return run.client_id is not None and heard.sender == run.client_id
    if cancel.client_id is not None:
        return cancel.client_id == run.client_id
    return cancel.is_all or cancel.run_id == run.run_id


class Listener(Protocol):
    """A run that listens."""

    def heard(self, cancel: HeardCancel) -> None:
        """A cancel was published in its channel."""

    def missed(self) -> None:
        """Some may have been missed: the history tells."""


class _Followed:
    """One channel with runs."""

    def __init__(self) -> None:
        self.listeners: set[Listener] = set()
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None] | None = None


class CancelWatch:
    """Follows the channels of a publisher's runs, over one connection that comes back."""

    def __init__(self, url: str, app_key: str, granting: Granting) -> None:
        self._granting = granting
        self._client = ChannelClient(url, app_key, authorize=self._authorize)
        self._is_open = False
        self._followed: dict[str, _Followed] = {}

    async def _authorize(self, channel: str, socket_id: str) -> Authorization:
        member = MEMBER if kind_of(channel) is ChannelKind.PRESENCE else None
        return self._granting.authorization(channel, socket_id, user_id=member)

    async def follow(self, channel: str, listener: Listener) -> None:
        """Tell a run of the cancels in a channel, of all that are published after this returns.

        Raises:
            SubscriptionRefused, ChannelOffline: the channel cannot be followed.
        """
        if not self._is_open:
            self._is_open = True
            await self._client.__aenter__()
        followed = self._followed.get(channel)
        if followed is None:
            followed = self._followed[channel] = _Followed()
            followed.task = asyncio.create_task(self._read(channel, followed))
        followed.listeners.add(listener)
        try:
            await asyncio.shield(followed.opened)
        except BaseException:
            await self.leave(channel, listener)
            raise

    async def leave(self, channel: str, listener: Listener) -> None:
        """A run needs to hear nothing any more."""
        followed = self._followed.get(channel)
        if followed is None or listener not in followed.listeners:
            return
        followed.listeners.discard(listener)
        if not followed.listeners:
            del self._followed[channel]
            await _ended(followed.task)

    async def close(self) -> None:
        """Follow nothing any more."""
        followed, self._followed = self._followed, {}
        for each in followed.values():
            await _ended(each.task)
        if self._is_open:
            self._is_open = False
            await self._client.__aexit__(None, None, None)

    async def _read(self, name: str, followed: _Followed) -> None:
        """Follow one channel for as long as it has runs."""

        def was_reset(reset: Reset) -> None:
            del reset
            for listener in tuple(followed.listeners):
                listener.missed()

        try:
            async with self._client.subscribe(name, on_reset=was_reset) as channel:
                followed.opened.set_result(None)
                await self._pass_on(channel, followed.listeners)
        except TidelogError as error:
            if followed.opened.done():
                _log.error("channels: cancels in %s are not heard any more: %s", name, error)
            else:
                followed.opened.set_exception(error)
                followed.opened.exception()  # whoever waited may have given up
            if self._followed.get(name) is followed:
                del self._followed[name]

    async def _pass_on(self, channel: Channel, listeners: set[Listener]) -> None:
        missed = channel.missed
        async for message in channel:
            if channel.missed != missed:
                missed = channel.missed
                for listener in tuple(listeners):
                    listener.missed()
            heard = read_heard(message)
            if heard is not None:
                for listener in tuple(listeners):
                    listener.heard(heard)


async def _ended(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(task, return_exceptions=True)
