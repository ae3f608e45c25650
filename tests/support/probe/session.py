"""One probe connection as a state machine: messages in, actions out; no sockets, no sleeping."""

from collections import deque

from msgspec import DecodeError, Struct, ValidationError

from support.probe.rules import PutItem, prepare_put
from support.probe.wire import Error, Subscribe, decode_message, encode
from tidelog.base.errors import InvalidJson, NotCanonicalizable

INBOX_MESSAGES = 32
"""Messages held while one is being worked on; then reading from the socket pauses, so a peer that
sends faster than the disk writes waits in its own send buffer, not in our memory."""


class Reply(Struct, frozen=True):
    """Send this."""

    payload: bytes


class Ask(Struct, frozen=True):
    """Submit this; call `Session.done` when it is answered."""

    item: PutItem


class Attach(Struct, frozen=True):
    """Subscribe to this; call `Session.done` when the stored entries are sent."""

    stream: str
    after: int


Action = Reply | Ask | Attach


class Session:
    """Works on one message at a time, in the order they came."""

    def __init__(self) -> None:
        self._busy = False
        self._inbox: deque[bytes] = deque()

    @property
    def is_full(self) -> bool:
        """Whether the peer should be made to wait."""
        return len(self._inbox) >= INBOX_MESSAGES

    def receive(self, payload: bytes) -> list[Action]:
        """A message came: what to do now."""
        self._inbox.append(payload)
        return [] if self._busy else self._next()

    def done(self) -> list[Action]:
        """What was asked for is finished: what to do next."""
        self._busy = False
        return self._next()

    def _next(self) -> list[Action]:
        actions: list[Action] = []
        while self._inbox and not self._busy:
            action = self._understand(self._inbox.popleft())
            self._busy = not isinstance(action, Reply)
            actions.append(action)
        return actions

    def _understand(self, payload: bytes) -> Action:
        try:
            message = decode_message(payload)
            if isinstance(message, Subscribe):
                return Attach(message.stream, message.after)
            return Ask(prepare_put(message))
        except (
            DecodeError,
            ValidationError,
            InvalidJson,
            NotCanonicalizable,
            RecursionError,
        ) as error:
            return Reply(encode(Error("bad_request", str(error)[:200])))
