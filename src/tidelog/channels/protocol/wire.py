"""What channels says on the wire: the frames of both protocols, and the reading of inbound ones.

A frame is JSON text; whoever sends it wraps it with `base.net.frame.text_frame`. Application
JSON (`user_info`, data of client events, history pages) goes in as the bytes it came as. V2 frames
carry a `message_id` each, made here unless given; a frame that is sent to many sockets is built
once. Ping and pong carry none.
"""

import hmac
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw, Struct

from tidelog.base.data import strictjson
from tidelog.base.errors import InvalidJson

V1: Final = 1
V2: Final = 2
Version = Literal[1, 2]
"""1 is the Pusher-compatible protocol, 2 the native one."""

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
_ID_BYTES = 16
_HALF_BYTES = 8
_BLOCK_IDS = 256


class _Random:
    """Random bytes taken from the system in blocks: one call for each id costs more than it."""

    def __init__(self) -> None:
        self._block = b""
        self._at = 0

    def take(self) -> bytes:
        if self._at == len(self._block):
            self._block, self._at = os.urandom(_ID_BYTES * _BLOCK_IDS), 0
        taken = self._block[self._at : self._at + _ID_BYTES]
        self._at += _ID_BYTES
        return taken


_random = _Random()


def _uuid(given: bytes) -> str:
    # version 4 and variant 10 at their places (RFC 9562, section 5.4)
    raw = int.from_bytes(given, "big")
    raw = raw & ~(0xF000 << 64 | 0xC000 << 48) | 0x4000 << 64 | 0x8000 << 48
    text = f"{raw:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def new_message_id() -> str:
    """A new UUIDv4 as text. Not for other threads than the event loop's."""
    return _uuid(_random.take())


_SYSTEM_KEY = b"tidelog/channels/system frame"
"""No secret: who forges an id of a system frame misleads nobody but itself."""


def new_system_id() -> str:
    """The `message_id` of a system frame: a new UUIDv4 whose second half vouches for the first.

    Some clients send it back as the id of the last message, which it is not.
    """
    return _system_id(_random.take()[:_HALF_BYTES])


def is_system_id(message_id: str) -> bool:
    """Whether `new_system_id` made it, on any node and at any time."""
    try:
        first = bytes.fromhex(message_id.replace("-", ""))[:_HALF_BYTES]
    except ValueError:
        return False
    return len(first) == _HALF_BYTES and message_id == _system_id(first)


def _system_id(first: bytes) -> str:
    # Signed as it appears: the version's four bits are in the first half.
    first = bytes((*first[:6], first[6] & 0x0F | 0x40, first[7]))
    return _uuid(first + hmac.digest(_SYSTEM_KEY, first, "sha256")[:_HALF_BYTES])


def system_event(version: Version, name: str, *, is_internal: bool = False) -> str:
    """Name of a system event: `pusher:ping`, `sockudo_internal:member_added`."""
    return f"{_PREFIXES[version]}{'_internal' if is_internal else ''}:{name}"


def as_text(json: bytes) -> bytes:
    """JSON text as a JSON string that holds it: how string data is sent."""
    return encode(json.decode())


def event_frame(
    version: Version,
    event: str,
    *,
    channel: str | None = None,
    data: bytes | None = None,
    user_id: str | None = None,
    stream_id: str | None = None,
    serial: int | None = None,
    message_id: str | None = None,
) -> bytes:
    """A frame under a whole event name; what is None is left out.

    `data` is JSON text. V1 gets event, channel, data and `user_id` only.
    """
    parts = [b'{"event":', encode(event)]
    if channel is not None:
        parts += b',"channel":', encode(channel)
    if data is not None:
        parts += b',"data":', data
    if user_id is not None:
        parts += b',"user_id":', encode(user_id)
    if version == V2:
        if stream_id is not None:
            parts += b',"stream_id":', encode(stream_id)
        if serial is not None:
            parts.append(b',"serial":%d' % serial)
        parts += b',"message_id":', encode(message_id or new_system_id())
    parts.append(b"}")
    return b"".join(parts)


# Connection.

PONGS: dict[Version, bytes] = {V1: b'{"event":"pusher:pong"}', V2: b'{"event":"sockudo:pong"}'}
PUSHER_PING = b'{"event":"pusher:ping"}'
"""The server's ping to a V1 client; V2 clients are sent a WebSocket ping."""


def connection_established(version: Version, socket_id: str, activity_timeout: int) -> bytes:
    """The first frame."""
    data = encode({"socket_id": socket_id, "activity_timeout": activity_timeout})
    return event_frame(version, system_event(version, "connection_established"), data=as_text(data))


def error_frame(version: Version, code: int, message: str) -> bytes:
    """An error; closing, where its code demands it, is up to the caller."""
    data = encode({"code": code, "message": message})
    return event_frame(version, system_event(version, "error"), data=data)


def signin_success(version: Version, user_data: str) -> bytes:
    """The socket is signed in; `user_data` exactly as it was received."""
    data = encode({"user_data": user_data})
    return event_frame(version, system_event(version, "signin_success"), data=data)


def auth_success(client_id: str, jti: str, expires_at: int) -> bytes:
    """A new token was taken (V2)."""
    data = encode({"client_id": client_id, "jti": jti, "exp": expires_at})
    return event_frame(V2, "sockudo:auth_success", data=data)


def token_expired(code: int, reason: str) -> bytes:
    """The token of this socket ends (V2): `tokens.EXPIRED` or `tokens.REVOKED`."""
    data = encode({"code": code, "reason": reason})
    return event_frame(V2, "sockudo:token_expired", data=data)


# Subscriptions.


def subscription_succeeded(
    version: Version,
    channel: str,
    *,
    members: Mapping[str, bytes | None] | None = None,
    attach_serial: int | None = None,
    stream_id: str | None = None,
    serial: int | None = None,
) -> bytes:
    """A subscribe succeeded.

    Args:
        version: of the subscriber; V1 is told nothing but the members.
        channel: what was subscribed to.
        members: user id to `user_info` of a presence channel, in the order they joined; None on
            every other channel.
        attach_serial: newest history serial, 0 if there is none; None without a history.
        stream_id: of the channel; None without recovery.
        serial: newest delivery serial, 0 if there is none; None without recovery.
    """
    parts = []
    if members is not None:
        parts.append(b'"presence":' + presence(members))
    if attach_serial is not None and version == V2:
        parts.append(b'"attach_serial":%d' % attach_serial)
    return event_frame(
        version,
        system_event(version, "subscription_succeeded", is_internal=True),
        channel=channel,
        data=as_text(b"{%s}" % b",".join(parts)),
        stream_id=stream_id,
        serial=serial,
    )


def presence(members: Mapping[str, bytes | None]) -> bytes:
    """The snapshot of a presence channel: `{"ids":[...],"hash":{...},"count":n}`."""
    pairs = [b"%s:%s" % (encode(user_id), info or b"null") for user_id, info in members.items()]
    return b'{"ids":%s,"hash":{%s},"count":%d}' % (
        encode(list(members)),
        b",".join(pairs),
        len(members),
    )


def subscription_error(
    version: Version, channel: str, message: str, *, kind: str = "AuthError", status: int = 401
) -> bytes:
    """A subscribe failed; sent after the error frame."""
    data = encode({"type": kind, "error": message, "status": status})
    event = system_event(version, "subscription_error")
    return event_frame(version, event, channel=channel, data=data)


def cache_miss(version: Version, channel: str) -> bytes:
    """A cache channel holds no event."""
    event = system_event(version, "cache_miss")
    return event_frame(version, event, channel=channel, data=b'"{}"')


def member_added(version: Version, channel: str, user_id: str, user_info: bytes | None) -> bytes:
    """A user's first socket joined."""
    return _member_frame(version, "member_added", channel, _member(user_id, user_info))


def member_removed(version: Version, channel: str, user_id: str) -> bytes:
    """A user's last socket left."""
    return _member_frame(version, "member_removed", channel, encode({"user_id": user_id}))


def presence_update(channel: str, user_id: str, user_info: bytes) -> bytes:
    """A member changed its info (V2)."""
    return _member_frame(V2, "presence_update", channel, _member(user_id, user_info))


def _member(user_id: str, user_info: bytes | None) -> bytes:
    return b'{"user_id":%s,"user_info":%s}' % (encode(user_id), user_info or b"null")


def _member_frame(version: Version, name: str, channel: str, data: bytes) -> bytes:
    event = system_event(version, name, is_internal=True)
    return event_frame(version, event, channel=channel, data=as_text(data))


# History, rewind and recovery (V2).


def channel_history(channel: str, page: bytes) -> bytes:
    """The answer to `channel_history`; `page` is a JSON object."""
    return event_frame(V2, "sockudo:channel_history", channel=channel, data=page)


def rewind_complete(
    channel: str,
    *,
    historical_count: int,
    live_count: int,
    complete: bool,
    truncated_by_retention: bool,
    truncated_by_limit: bool,
) -> bytes:
    """Everything a rewind asked for was sent."""
    data = encode(
        {
            "historical_count": historical_count,
            "live_count": live_count,
            "complete": complete,
            "truncated_by_retention": truncated_by_retention,
            "truncated_by_limit": truncated_by_limit,
        }
    )
    return event_frame(V2, "sockudo:rewind_complete", channel=channel, data=data)


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


def resume_failed(failed: Failed) -> bytes:
    """One channel could not be resumed; its name stands outside and inside (channels D5)."""
    data = as_text(encode(failed))
    return event_frame(V2, "sockudo:resume_failed", channel=failed.channel, data=data)


def resume_success(recovered: Sequence[Recovered], failed: Sequence[Failed]) -> bytes:
    """The end of a resume, whatever became of its channels."""
    data = encode({"recovered": recovered, "failed": failed})
    return event_frame(V2, "sockudo:resume_success", data=as_text(data))


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

    def object_text(self) -> bytes:
        """The JSON text of `data`, whether it came as such or inside a string."""
        return self.data.encode() if isinstance(self.data, str) else self.raw_data

    def fields(self) -> dict[str, Any]:
        """`data` as an object, whether it came as one or inside a string.

        Raises:
            InvalidJson: it is no object.
        """
        value = strictjson.read(self.data) if isinstance(self.data, str) else self.data
        if not isinstance(value, dict):
            raise InvalidJson("data is not an object")
        return value


def parse(payload: bytes) -> Inbound:
    """An inbound message.

    Raises:
        InvalidJson: it is not JSON with one meaning, or no object with an `event`.
    """
    message = strictjson.read(payload)
    if not isinstance(message, dict):
        raise InvalidJson("a message is an object")
    event, channel = message.get("event"), message.get("channel")
    if not isinstance(event, str):
        raise InvalidJson("event is missing")
    raw = bytes(_decode_envelope(payload).data)
    return Inbound(event, channel if isinstance(channel, str) else None, message.get("data"), raw)


def system_name(event: str) -> str | None:
    """What a client's system event is called, under either prefix; None of any other event."""
    if event.startswith("pusher:"):
        return event[7:]
    if event.startswith("sockudo:"):
        return event[8:]
    return None
