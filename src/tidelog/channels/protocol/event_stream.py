"""A channel as server-sent events: what is asked for, and what frames look like (channels 6.5).

Who listens speaks V2 without saying a word: the server says for it what a socket would have to say,
so that everything else is the session's and the subscription's own doing.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct

from tidelog.base.net.frame import PING, TEXT, payload_of
from tidelog.channels.protocol import fault
from tidelog.channels.protocol.capabilities import STREAM
from tidelog.channels.protocol.inbound import Refused
from tidelog.channels.protocol.names import ChannelKind, kind_of, needs_auth
from tidelog.channels.protocol.query import MAX_INTEGER
from tidelog.channels.protocol.rollup import parse_window
from tidelog.channels.protocol.signatures import channel_auth
from tidelog.channels.protocol.tokens import Claims
from tidelog.channels.protocol.wire import CHANNEL_ERROR, UNAUTHORIZED, AppendMode, RollupWindow
from tidelog.channels.settings import App

MAX_EVENT_ID_BYTES = 256

COMMENT = b":\n\n"

_APPEND_MODES: dict[str, AppendMode] = {"delta": "delta", "full": "full"}
_SHARED_EVENTS = 16
"""The last frames as events: many connections are sent the same ones, one after the other."""

_encode = msgspec.json.Encoder().encode


def _is_number(text: str) -> bool:
    is_short = text.isascii() and text.isdecimal() and len(text) < 20
    return is_short and int(text) <= MAX_INTEGER


class Position(Struct, frozen=True):
    """What an event id says: up to where its reader has seen the channel."""

    stream_id: str
    serial: int

    @classmethod
    def from_id(cls, event_id: str) -> "Position":
        """The position in a `Last-Event-ID`.

        Raises:
            Fault: it is no id of ours.
        """
        stream_id, colon, serial = event_id.rpartition(":")
        if not (colon and stream_id and _is_number(serial)):
            raise fault.invalid_input("Last-Event-ID must be stream_id:serial, as events have it")
        return cls(stream_id, int(serial))


class Wanted(Struct, frozen=True):
    """What somebody wants to be sent."""

    channel: str
    append_mode: AppendMode
    rollup_window: RollupWindow
    rewind: str | None
    """How many messages that are there already; None for none."""
    position: Position | None
    """Up to where it has seen the channel before."""
    user_id: str | None
    """As whom the app's own server joins a presence channel."""

    @classmethod
    def from_request(
        cls, channel: str, query: Mapping[str, str], last_event_id: bytes | None
    ) -> "Wanted":
        """Read the parameters of a request; the header counts before the query.

        Raises:
            Fault: one of them means nothing.
        """
        append_mode = _APPEND_MODES.get(query.get("append_mode") or "delta")
        if append_mode is None:
            raise fault.invalid_input("append_mode must be delta or full")
        rollup_window = parse_window(query.get("append_rollup_window") or "0")
        rewind = query.get("rewind") or None
        if rewind is not None and not _is_number(rewind):
            raise fault.invalid_input("rewind must be a number of messages")
        given = query.get("last_event_id", "")
        if last_event_id is not None:
            given = last_event_id.decode("latin-1")
        if len(given) > MAX_EVENT_ID_BYTES:
            raise fault.invalid_input(f"Last-Event-ID has more than {MAX_EVENT_ID_BYTES} bytes")
        return cls(
            channel,
            append_mode,
            rollup_window,
            rewind,
            Position.from_id(given) if given else None,
            query.get("user_id") or None,
        )

    def resume(self) -> bytes | None:
        """What a socket would send to go on; None if it has seen nothing yet."""
        if self.position is None:
            return None
        at = {"stream_id": self.position.stream_id, "serial": self.position.serial}
        return _encode(
            {"event": "sockudo:resume", "data": {"channel_positions": {self.channel: at}}}
        )

    def subscribe(self, credentials: Mapping[str, str], *, with_rewind: bool) -> bytes:
        """What a socket would send to subscribe."""
        return _encode(
            {"event": "sockudo:subscribe", "data": self.fields(credentials, with_rewind)}
        )

    def fields(self, credentials: Mapping[str, str], with_rewind: bool) -> dict[str, Any]:
        """The data of that."""
        rewind = {"rewind": self.rewind} if with_rewind and self.rewind is not None else {}
        return {"channel": self.channel, **credentials, **rewind}


def credentials_of(
    app: App, socket_id: str, wanted: Wanted, claims: Claims | None
) -> dict[str, str]:
    """What lets a listener into a channel: the app's own server, or the bearer of a token.

    A socket needs a signature for each private channel, token or not, so that many tokens say
    `subscribe` of more than their bearers are meant to read. Here nothing else could be signed:
    the token itself must say `stream` of the channel.

    Raises:
        Refused: it may not, or nothing says as whom.
    """
    channel, kind = wanted.channel, kind_of(wanted.channel)
    if not needs_auth(kind):
        return {}
    if claims is not None and not claims.capabilities.allows(STREAM, channel):
        raise Refused(UNAUTHORIZED, f"the token does not allow to stream channel '{channel}'")
    channel_data = None
    if kind is ChannelKind.PRESENCE:
        user_id = wanted.user_id if claims is None else claims.client_id
        if user_id is None:
            raise Refused(CHANNEL_ERROR, "a presence channel is joined as somebody: give user_id")
        channel_data = _encode({"user_id": user_id}).decode()
    auth = channel_auth(app, socket_id, channel, channel_data)
    return {"auth": auth} if channel_data is None else {"auth": auth, "channel_data": channel_data}


class _Said(Struct):
    """What of a frame matters here."""

    event: str = ""
    stream_id: str | None = None
    serial: int | None = None


class _Event(Struct, frozen=True):
    """A frame as an event."""

    text: bytes
    """Without an id."""
    with_id: bytes
    position: Position | None
    is_rewind_complete: bool


_decode = msgspec.json.Decoder(_Said).decode


@lru_cache(_SHARED_EVENTS)
def _event(frame: bytes) -> _Event:
    payload = payload_of(frame)
    if b"\n" in payload or b"\r" in payload:  # between the tokens of JSON: inside they are escaped
        payload = payload.replace(b"\r", b" ").replace(b"\n", b" ")
    text = b"data: %s\n\n" % payload
    said = _decode(payload)
    if said.stream_id is None or said.serial is None:
        is_complete = said.event == "sockudo:rewind_complete"
        return _Event(text, text, None, is_complete)
    position = Position(said.stream_id, said.serial)
    return _Event(text, _id(position) + text, position, is_rewind_complete=False)


def forget_events() -> None:
    """Keep none of the last frames: some content is erased."""
    _event.cache_clear()


def _id(position: Position) -> bytes:
    return f"id: {position.stream_id}:{position.serial}\n".encode()


class EventEncoding:
    """The frames of one connection as events, with ids that are safe to go on from.

    Messages of a rewind are states, whose serials say nothing of those that have not come yet. So
    until it is complete no event has an id: whoever is cut off before then begins anew. Nor has one
    that is out of order, as the last event of a cache channel is.
    """

    def __init__(self) -> None:
        self.is_rewinding = False
        self._last: Position | None = None

    def __call__(self, frame: bytes) -> bytes:
        """A frame as an event; empty if it is none."""
        kind = frame[0] & 0x0F
        if kind != TEXT:
            return COMMENT if kind == PING else b""
        event = _event(frame)
        at, last = event.position, self._last
        is_later = at is not None and (
            last is None or at.stream_id != last.stream_id or at.serial > last.serial
        )
        if is_later:
            self._last = at
        if not self.is_rewinding:
            return event.with_id if is_later else event.text
        if not event.is_rewind_complete:
            return event.text
        self.is_rewinding = False
        return event.text if last is None else _id(last) + event.text
