"""Sends appends together to those who asked for a window (channels 5.13).

What is held is shared by all who asked for the same window of a channel, and so is its frame.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from tidelog.channels.protocol import wire
from tidelog.channels.protocol.rollup import Rollup
from tidelog.channels.protocol.version import Version

if TYPE_CHECKING:
    from tidelog.channels.front.sockets.connection import Connection
    from tidelog.channels.front.sockets.hub import Channel, Subscription

_log = logging.getLogger(__name__)

FAR = float("inf")

EARLY = 0.001
"""Seconds before its time at which a timer of the event loop may end."""

Receivers = Collection["tuple[Connection, Subscription]"]
Give = Callable[["Channel", Version, Receivers], None]


class Rolling:
    """Whatever is held on this node, with one timer for all of it."""

    def __init__(self, give: Give) -> None:
        """`give` sends a version to some subscribers of a channel."""
        self._give = give
        self._held: dict[int, dict[Rollup, Channel]] = {
            window: {} for window in wire.ROLLUP_WINDOWS if window
        }
        """By window, in the order in which they are due."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = FAR

    def make_way(self, channel: "Channel", version: Version) -> None:
        """Send what is held of a channel, unless a version that comes next goes on with it."""
        now = asyncio.get_running_loop().time()
        for window, rollup in channel.rollups.items():
            if rollup.is_broken_by(version):
                self._flush(channel, window, rollup, now)

    def receivers(self, channel: "Channel", version: Version) -> Receivers:
        """Who gets a version now; for the others it is held."""
        now = asyncio.get_running_loop().time()
        holding: dict[int, int] = {}
        over: list[int] = []
        for window, rollup in channel.rollups.items():
            if rollup.hold(version, now):
                holding[window] = rollup.number
                self._held[window].setdefault(rollup, channel)
                if rollup.is_over:
                    over.append(window)
        if not holding:
            return channel.subscriptions.items()
        now_ones = [
            (connection, subscription)
            for connection, subscription in channel.subscriptions.items()
            if subscription.held is not None
            or holding.get(connection.rollup_window, subscription.skipped) == subscription.skipped
        ]
        for window in over:
            self._flush(channel, window, channel.rollups[window], now)
        self._schedule()
        return now_ones

    def flush(self, channel: "Channel") -> None:
        """Send what is held of a channel."""
        now = asyncio.get_running_loop().time()
        for window, rollup in channel.rollups.items():
            if rollup.is_holding:
                self._flush(channel, window, rollup, now)

    def flush_all(self) -> None:
        """Send whatever is held."""
        for window, held in self._held.items():
            while held:
                rollup, channel = next(iter(held.items()))
                self._flush(channel, window, rollup, asyncio.get_running_loop().time())

    def give(self, subscription: "Subscription") -> None:
        """Send one subscriber what is held for it; it gets what the others wait for by itself."""
        connection, channel = subscription.connection, subscription.channel
        rollup = channel.rollups.get(connection.rollup_window)
        if (
            rollup is not None
            and rollup.is_holding
            and subscription.held is None
            and subscription.skipped != rollup.number
        ):
            subscription.skipped = rollup.number
            self._give(channel, rollup.held(), [(connection, subscription)])

    def before_frame_of(self, connection: "Connection") -> None:
        """A frame is about to be sent to a connection that asked for a window."""
        if self._held[connection.rollup_window]:
            for subscription in tuple(connection.subscriptions.values()):
                self.give(subscription)

    def _flush(self, channel: "Channel", window: int, rollup: Rollup, now: float) -> None:
        self._held[window].pop(rollup, None)
        version = rollup.take(now)
        receivers = [
            (connection, subscription)
            for connection, subscription in channel.subscriptions.items()
            if connection.rollup_window == window
            and subscription.held is None
            and subscription.skipped != rollup.number
        ]
        self._give(channel, version, receivers)

    def _schedule(self) -> None:
        """Let the timer end when the first of those that are held is due, or before."""
        due = min((next(iter(held)).due for held in self._held.values() if held), default=FAR)
        if due < self._timer_due:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_at(due, self._send_due)
            self._timer_due = due

    def _send_due(self) -> None:
        self._timer, self._timer_due = None, FAR
        now = asyncio.get_running_loop().time()
        for window, held in self._held.items():
            while held and (rollup := next(iter(held))).due <= now + EARLY:
                channel = held[rollup]
                try:
                    self._flush(channel, window, rollup, now)
                except Exception:  # noqa: BLE001 - a mistake of ours must not leave a silent gap
                    _log.exception("appends to %s could not be delivered", channel.name)
                    for connection in tuple(channel.subscriptions):
                        connection.end(wire.RECONNECT)
        self._schedule()
