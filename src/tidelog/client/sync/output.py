"""What the protocol core gives out: messages for the server, changes for the application."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from tidelog.client.sync.messages import Json
from tidelog.client.sync.store import Arrival
from tidelog.sync.protocol.wire import VERSION

EVENTS = (
    *(
        "connected",
        "sync_page",
        "committed",
        "rejected",
        "withdrawn",
        "broadcast",
        "version_changed",
    ),
    *("history_reset", "error", "status_changed"),
)


class Send(NamedTuple):
    """Send this message."""

    message: Json


class Close(NamedTuple):
    """Send what came before, then close the connection and tell the core by `disconnected`."""

    reason: str


Action = Send | Close


class Change(NamedTuple):
    """Something the application may want to know."""

    name: str
    """One of `EVENTS`."""
    partitions: tuple[str, ...]
    """Whose views may have changed."""
    data: Json


Listener = Callable[[Change], None]


class Output:
    """Actions until they are taken, changes until the listeners have been told."""

    def __init__(self, now: Callable[[], int], uuid: Callable[[], str]) -> None:
        self._now = now
        self._uuid = uuid
        self._actions: deque[Action] = deque()
        self._changes: deque[Change] = deque()
        self._listeners: dict[str, list[Listener]] = {name: [] for name in EVENTS}
        self._telling = False
        self.closing = False
        """Whether the connection is given up; nothing is sent or read any more."""

    def on(self, name: str, listener: Listener) -> Callable[[], None]:
        """Call `listener` for every change of that name; returns how to stop that."""
        listeners = self._listeners[name]
        listeners.append(listener)
        return lambda: listeners.remove(listener)

    def take(self) -> list[Action]:
        """The actions since the last call."""
        actions = list(self._actions)
        self._actions.clear()
        return actions

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
        self._actions.append(Send(message))
        return msg_id

    def close(self, reason: str) -> None:
        """Give the connection up."""
        if not self.closing:
            self.closing = True
            self._actions.append(Close(reason))

    def dropped(self) -> None:
        """The connection is gone: what was not sent never will be."""
        self._actions.clear()
        self.closing = False

    def emit(self, name: str, partitions: tuple[str, ...], data: Json) -> None:
        """Note a change; the listeners hear of it when everything it speaks of has happened."""
        self._changes.append(Change(name, partitions, data))

    def emit_commits(self, arrivals: Iterable[Arrival]) -> None:
        """Note which events of this client's own are committed now."""
        for arrival in arrivals:
            if arrival.was_local:
                data = {"id": arrival.id, "committed_id": arrival.committed_id}
                self.emit("committed", arrival.partitions, data)

    def fail(self, code: str, message: str, details: Json | None = None) -> None:
        """Note an error, the server's or our own."""
        self.emit("error", (), {"code": code, "message": message, "details": details or {}})

    def tell(self) -> None:
        """Call the listeners. One that makes further changes has them told after its own."""
        if self._telling:
            return
        self._telling = True
        try:
            while self._changes:
                change = self._changes.popleft()
                for listener in list(self._listeners[change.name]):
                    listener(change)
        finally:
            self._telling = False
