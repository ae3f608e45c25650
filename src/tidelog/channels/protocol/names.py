"""Channel names: what they may look like, and what their beginning means (channels 2.1, 2.4)."""

import re
from enum import Enum

from tidelog.channels.settings import set_by

CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-=@,.;:#")
"""What a name may be made of. There is no `/`, so that a name can end a stream's name, and no `*`,
so that a pattern is never a name."""

USER_PREFIX = "#server-to-user-"
STREAM_PREFIX = "channels/"

_CACHE_PREFIXES = ("cache-", "private-cache-", "presence-cache-", "private-encrypted-cache-")
_MAX_SOCKET_PART = 10**10

SOCKET_ID = re.compile(r"([0-9]{1,11})\.([0-9]{1,11})")
"""Form of a socket id; its parts are at most 10^10, see `is_socket_id`."""


class ChannelKind(Enum):
    """What a channel asks of its subscribers."""

    PUBLIC = "public"
    PRIVATE = "private"
    PRESENCE = "presence"
    ENCRYPTED = "encrypted"
    """Authorised like a private one; its payloads are opaque."""
    USER = "user"
    """All sockets signed in as one user."""


def kind_of(channel: str) -> ChannelKind:
    """The kind of a channel, which its beginning decides."""
    if channel.startswith("private-"):
        if channel.startswith("private-encrypted-"):
            return ChannelKind.ENCRYPTED
        return ChannelKind.PRIVATE
    if channel.startswith("presence-"):
        return ChannelKind.PRESENCE
    if channel.startswith(USER_PREFIX):
        return ChannelKind.USER
    return ChannelKind.PUBLIC


def needs_auth(kind: ChannelKind) -> bool:
    """Whether a subscribe must carry an auth string; a user's channel looks at the sign-in."""
    return kind in (ChannelKind.PRIVATE, ChannelKind.PRESENCE, ChannelKind.ENCRYPTED)


def takes_client_events(kind: ChannelKind) -> bool:
    """Whether clients may send events to it; what an encrypted channel carries is not theirs."""
    return kind in (ChannelKind.PRIVATE, ChannelKind.PRESENCE)


def is_cache(channel: str) -> bool:
    """Whether a new subscriber is given the last event."""
    return channel.startswith(_CACHE_PREFIXES)


def name_fault(channel: str, max_bytes: int) -> str | None:
    """What is wrong with a name, or None. The text does not repeat it."""
    if not channel:
        return "a channel name must not be empty"
    if not CHARACTERS.issuperset(channel):
        return "a channel name holds ASCII letters, digits and _-=@,.;:# only"
    if len(channel) > max_bytes:
        setting = set_by("channels.max_channel_name_bytes")
        return f"a channel name has at most {max_bytes} bytes{setting}"
    return None


def user_of(channel: str) -> str | None:
    """Whose channel it is: `ana` for `#server-to-user-ana`; None if it is nobody's."""
    return channel[len(USER_PREFIX) :] or None if channel.startswith(USER_PREFIX) else None


def stream_name(app_id: str, channel: str) -> str:
    """The stream of the log that holds a channel."""
    return f"{STREAM_PREFIX}{app_id}/{channel}"


def split_stream(stream: str) -> tuple[str, str]:
    """Application and channel of a stream; `ValueError` if it holds no channel."""
    prefix, app_id, channel = stream.split("/")
    if f"{prefix}/" != STREAM_PREFIX:
        raise ValueError("not the stream of a channel")
    return app_id, channel


def is_socket_id(text: str) -> bool:
    """Whether it has the form of a socket id: two numbers of 0 to 10^10."""
    found = SOCKET_ID.fullmatch(text)
    return found is not None and all(int(part) <= _MAX_SOCKET_PART for part in found.groups())
