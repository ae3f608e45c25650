"""Ending the subscriptions of connections that are gone, a little in each turn of the event loop.

A socket may have a thousand subscriptions, each with members who are told that its user has left,
and a cut network ends many sockets at once. Nobody else waits for that. Until its turn comes, a
subscription is one that nothing can be sent to: a user who is back meanwhile has never left.
"""

import asyncio
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidelog.channels.front.sockets.connection import Connection

STEPS_PER_TURN = 500
"""Channels left in one turn, and members told of it: some milliseconds. A channel is left whole."""


class Leaving:
    """The connections whose subscriptions are still to be ended, first come first served."""

    def __init__(self, unsubscribe: "Callable[[Connection, str], None]") -> None:
        self._unsubscribe = unsubscribe
        self._connections: deque[Connection] = deque()

    def add(self, connection: "Connection") -> None:
        """A connection is gone."""
        if connection.subscriptions:
            self._connections.append(connection)
            if len(self._connections) == 1:
                asyncio.get_running_loop().call_soon(self._take_turn)

    def _take_turn(self) -> None:
        steps = 0
        try:
            while self._connections and steps < STEPS_PER_TURN:
                connection = self._connections[0]
                for name, subscription in connection.subscriptions.items():
                    channel = subscription.channel
                    steps += 1 + len(channel.subscriptions) * channel.is_presence
                    self._unsubscribe(connection, name)
                    break
                else:
                    self._connections.popleft()
        finally:  # a mistake of ours with one channel must not keep the others
            if self._connections:
                asyncio.get_running_loop().call_soon(self._take_turn)
