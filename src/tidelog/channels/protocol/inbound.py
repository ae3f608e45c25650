"""What stands inside the messages of a client, or why it is refused."""

from typing import Any

import msgspec
from msgspec import Raw, Struct

from tidelog.base.data import strictjson
from tidelog.base.errors import InvalidJson
from tidelog.channels.protocol.actions import Member, Position, Rewind
from tidelog.channels.protocol.capabilities import Capabilities
from tidelog.channels.protocol.query import MAX_INTEGER
from tidelog.channels.protocol.tokens import MAX_ID_BYTES, is_id
from tidelog.channels.protocol.wire import CHANNEL_ERROR, NO_POSITIONS, UNAUTHORIZED
from tidelog.channels.settings import set_by


class Refused(Exception):  # noqa: N818 - the failure is the noun
    """Sent as an error frame; a fatal one also closes the connection."""

    def __init__(self, code: int, message: str, *, is_fatal: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.is_fatal = is_fatal


class _WithInfo(Struct):
    user_info: Raw = Raw(b"")


_decode_info = msgspec.json.Decoder(_WithInfo).decode


def raw_user_info(text: str | bytes) -> bytes:
    """The `user_info` of a JSON object, byte for byte; empty if it is absent."""
    return bytes(_decode_info(text).user_info)


def read_member(channel_data: str, max_info_bytes: int) -> Member:
    """Who subscribes to a presence channel."""
    try:
        value = strictjson.read(channel_data)
    except InvalidJson as error:
        raise Refused(CHANNEL_ERROR, f"channel_data: {error}") from None
    if not isinstance(value, dict) or not is_id(value.get("user_id")):
        raise Refused(CHANNEL_ERROR, f"channel_data has no user_id of 1 to {MAX_ID_BYTES} bytes")
    info = raw_user_info(channel_data)
    if len(info) > max_info_bytes:
        setting = set_by("channels.max_presence_user_info_bytes")
        raise Refused(CHANNEL_ERROR, f"user_info has more than {max_info_bytes} bytes{setting}")
    return Member(value["user_id"], info or None)


def read_user(user_data: str) -> tuple[str, Capabilities]:
    """Who signs in, and what it may do."""
    try:
        value = strictjson.read(user_data)
        if not isinstance(value, dict) or not is_id(value.get("id")):
            raise Refused(UNAUTHORIZED, f"user_data has no id of 1 to {MAX_ID_BYTES} bytes")
        granted = value.get("capabilities")
        return value["id"], Capabilities.from_signin({} if granted is None else granted)
    except (InvalidJson, ValueError) as error:
        raise Refused(UNAUTHORIZED, f"user_data: {error}") from None


def read_rewind(wish: Any) -> Rewind | None:
    """What a subscribe's `rewind` asks for; zero and unknown shapes ask for nothing."""
    if isinstance(wish, dict):
        for name in ("seconds", "duration_seconds"):
            seconds = wish.get(name)
            if isinstance(seconds, int | float) and not isinstance(seconds, bool) and seconds > 0:
                return Rewind(None, float(min(seconds, MAX_INTEGER)))
        wish = wish.get("count")
    if isinstance(wish, str) and wish.isascii() and wish.isdecimal() and len(wish) < 20:
        wish = int(wish)
    if isinstance(wish, bool) or not isinstance(wish, int) or wish < 1:
        return None
    return Rewind(min(wish, MAX_INTEGER), None)


def read_positions(fields: dict[str, Any], max_positions: int) -> list[Position]:
    """The positions of a resume, each channel once; a full one wins over a legacy serial."""
    found: dict[str, Position] = {}
    for name in ("channel_serials", "channel_positions"):
        given = fields.get(name)
        if given is None:
            continue
        if not isinstance(given, dict):
            raise Refused(NO_POSITIONS, f"{name} is not an object")
        for channel, value in given.items():
            is_full = name == "channel_positions"
            found[channel] = _position(channel, value if is_full else {"serial": value})
    if not found:
        raise Refused(NO_POSITIONS, "Resume without channel positions")
    if len(found) > max_positions:
        raise Refused(NO_POSITIONS, f"Resume with more than {max_positions} channels")
    return list(found.values())


def _position(channel: str, value: Any) -> Position:
    if isinstance(value, dict):
        serial, stream_id = value.get("serial"), value.get("stream_id")
        message_id = value.get("last_message_id")
        if (
            isinstance(serial, int)
            and not isinstance(serial, bool)
            and 0 <= serial <= MAX_INTEGER
            and (stream_id is None or isinstance(stream_id, str))
            and (message_id is None or is_id(message_id))
        ):
            return Position(channel, serial, stream_id, message_id)
    raise Refused(NO_POSITIONS, "Resume with a malformed position")
