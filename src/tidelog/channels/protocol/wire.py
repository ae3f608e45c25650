"""What both protocols have on the wire: codes, names of events, and the reading of inbound frames.

What the server sends is built in `frames`.
"""

from typing import Any, Final, Literal, get_args

import msgspec
from msgspec import Raw, Struct

from tidelog.base.data import strictjson
from tidelog.base.errors import InvalidJson

V1: Final = 1
V2: Final = 2
ProtocolVersion = Literal[1, 2]
"""1 is the Pusher-compatible protocol, 2 the native one."""

AppendMode = Literal["delta", "full"]
"""Whether appends are sent as what they add, or as the whole data."""

RollupWindow = Literal[0, 20, 40, 100, 500]
"""Milliseconds for which appends may be held to leave together; 0 is each by itself."""

ROLLUP_WINDOWS: tuple[RollupWindow, ...] = get_args(RollupWindow)

# Codes of error frames; those from 4000 to 4299 are also close codes (channels 1.5).
MALFORMED = 4000
APP_UNKNOWN = 4001
APP_DISABLED = 4003
OVER_QUOTA = 4004
UNAUTHORIZED = 4009
OVER_CAPACITY = 4100
RECONNECT = 4200
PONG_MISSING = 4201
CHANNEL_ERROR = 4300
CLIENT_EVENT_REJECTED = 4301
NO_POSITIONS = 4302

encode = msgspec.json.Encoder().encode

_PREFIXES = {V1: "pusher", V2: "sockudo"}


def system_event(version: ProtocolVersion, name: str, *, is_internal: bool = False) -> str:
    """Name of a system event: `pusher:ping`, `sockudo_internal:member_added`."""
    return f"{_PREFIXES[version]}{'_internal' if is_internal else ''}:{name}"


def as_text(json: bytes) -> bytes:
    """JSON text as a JSON string that holds it: how string data is sent."""
    return encode(json.decode())


# Heartbeats.

PONGS: dict[ProtocolVersion, bytes] = {
    V1: b'{"event":"pusher:pong"}',
    V2: b'{"event":"sockudo:pong"}',
}
PUSHER_PING = b'{"event":"pusher:ping"}'
"""The server's ping to a V1 client; V2 clients are sent a WebSocket ping."""


# Recovery (V2).

Source = Literal["hot", "cold"]
"""Whether a replay came from memory or from the log."""

FailureCode = Literal[
    "stream_reset", "position_expired", "continuity_unverifiable", "persistence_unavailable"
]


class ResumedAt(Struct, frozen=True):
    """Up to where a channel was replayed."""

    stream_id: str
    serial: int
    last_message_id: str | None


class Recovered(Struct, frozen=True):
    """A channel that was resumed."""

    channel: str
    source: Source
    replayed: int
    position: ResumedAt | None
    """None when nothing was replayed."""


class Failed(Struct, frozen=True, kw_only=True):
    """A channel that could not be resumed."""

    channel: str
    code: FailureCode
    reason: str
    expected_stream_id: str | None = None
    """What the client said."""
    current_stream_id: str | None = None
    """Told to subscribers only (channels D20)."""
    oldest_available_serial: int | None = None
    newest_available_serial: int | None = None


# Inbound.


class _Envelope(Struct):
    data: Raw = Raw(b"")


_decode_envelope = msgspec.json.Decoder(_Envelope).decode


class Inbound(Struct, frozen=True):
    """A message of a client."""

    event: str
    channel: str | None
    """Of the envelope; None if it is absent or no text."""
    data: Any
    """The value of `data`; None if it is absent."""
    raw_data: bytes
    """`data` as it was received; empty if it is absent."""
    payload: bytes = b""
    """The whole message, which is JSON with one meaning."""
    message_id: Any = None
    """Of the envelope, whatever it is."""
    max_values: int = strictjson.MAX_VALUES
    """How many JSON values a text in `data` may have."""

    def object_text(self) -> bytes:
        """The JSON text of `data`, whether it came as such or inside a string."""
        return self.data.encode() if isinstance(self.data, str) else self.raw_data

    def fields(self) -> dict[str, Any]:
        """`data` as an object, whether it came as one or inside a string.

        Raises:
            InvalidJson: it is no object.
        """
        value = self.data
        if isinstance(value, str):
            value = strictjson.read(value, max_values=self.max_values)
        if not isinstance(value, dict):
            raise InvalidJson("data must be an object")
        return value


def parse(payload: bytes, max_values: int = strictjson.MAX_VALUES) -> Inbound:
    """An inbound message.

    Raises:
        InvalidJson: it is not JSON with one meaning, has too many values, or is no object with an
            `event`.
    """
    message = strictjson.read(payload, max_values=max_values)
    if not isinstance(message, dict):
        raise InvalidJson("a message must be an object")
    event, channel = message.get("event"), message.get("channel")
    if not isinstance(event, str):
        raise InvalidJson("event is missing")
    raw = bytes(_decode_envelope(payload).data)
    return Inbound(
        event,
        channel if isinstance(channel, str) else None,
        message.get("data"),
        raw,
        payload,
        message.get("message_id"),
        max_values,
    )


def system_name(event: str) -> str | None:
    """What a client's system event is called, under either prefix; None of any other event."""
    if event.startswith("pusher:"):
        return event[7:]
    if event.startswith("sockudo:"):
        return event[8:]
    return None
