"""What the protocol core wants done on its connection, in order."""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from tidelog.client.sync.messages import Json
from tidelog.sync.protocol.wire import VERSION


class Send(NamedTuple):
    """Send this message."""

    message: Json


class Close(NamedTuple):
    """Send what came before, then close the connection and tell the core by `disconnected`."""

    reason: str


Action = Send | Close


class Actions:
    """Actions until they are taken."""

    def __init__(self, now: Callable[[], int], uuid: Callable[[], str]) -> None:
        self._now = now
        self._uuid = uuid
        self._waiting: deque[Action] = deque()
        self.closing = False
        """Whether the connection is given up; nothing is sent or read any more."""

    def take(self) -> list[Action]:
        """The actions since the last call."""
        taken = list(self._waiting)
        self._waiting.clear()
        return taken

    def send(self, kind: str, payload: Json) -> str:
        """Queue a message; returns its `msg_id`."""
        msg_id = self._uuid()
        message = {
            "type": kind,
            "msg_id": msg_id,
            "timestamp": self._now(),
            "payload": payload,
            "protocol_version": VERSION,
        }
        self._waiting.append(Send(message))
        return msg_id

    def close(self, reason: str) -> None:
        """Give the connection up."""
        if not self.closing:
            self.closing = True
            self._waiting.append(Close(reason))

    def dropped(self) -> None:
        """The connection is gone: what was not sent never will be."""
        self._waiting.clear()
        self.closing = False
