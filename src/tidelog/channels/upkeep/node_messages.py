"""What a node tells the others of who is there, and how that is written."""

import msgspec
from msgspec import Struct

from tidelog.channels.decide.registry import Part, Presence
from tidelog.channels.messages import SocketFacts


class Alive(Struct, tag=True, frozen=True):
    """Nothing has happened."""


class TellAll(Struct, tag=True, frozen=True):
    """The sender wants all facts of a node; of every node if none is named."""

    node: str | None = None


class Joined(Struct, tag=True, frozen=True):
    """A user's first socket on that node joined a channel."""

    user: Presence


class Left(Struct, tag=True, frozen=True):
    """A user's last socket on that node left a channel."""

    stream: str
    user_id: str


class Updated(Struct, tag=True, frozen=True):
    """A user changed its info."""

    stream: str
    user_id: str
    user_info: bytes


class Counted(Struct, tag=True, frozen=True):
    """Channels and their subscriptions on that node."""

    counts: tuple[tuple[str, int], ...]


class EndUser(Struct, tag=True, frozen=True):
    """A user's connections are to be closed."""

    app_id: str
    user_id: str
    code: int


class WhoIs(Struct, tag=True, frozen=True):
    """The sender wants to know who a socket is."""

    question: int
    app_id: str
    socket_id: str


class ThisIs(Struct, tag=True, frozen=True):
    """The reply to `WhoIs`; no socket if it is not connected there."""

    asker: str
    question: int
    socket: SocketFacts | None


NodeMessage = Alive | TellAll | Part | Joined | Left | Updated | Counted | EndUser | WhoIs | ThisIs


class Told(Struct, frozen=True):
    """What a node tells, numbered: whoever misses one notices."""

    node: str
    number: int
    message: NodeMessage


encode_told = msgspec.json.Encoder().encode
decode_told = msgspec.json.Decoder(Told).decode
