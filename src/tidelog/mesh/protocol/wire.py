"""The frames between daemon and broker (mesh 9.1): typed messages and nothing else.

A frame is a JSON object whose member `type` names it; unknown members are ignored. A daemon's
`send` is kept as the object it came as: what is wrong with it must be answered, not closed.
"""

from typing import Any, Final

import msgspec
from msgspec import Raw, Struct, field

from tidelog.base.data import strictjson
from tidelog.base.errors import TidelogError
from tidelog.mesh.protocol.fingerprint import (
    MAX_ENVELOPE_VALUES,
    RequestRefused,
    lenient_object,
    read_object,
)

ENVELOPE_ALLOWANCE_BYTES = 16 * 1024
"""A frame or body may be larger than the largest message by this, for everything around it."""

MAX_HISTORY_PAGE = 500

NEGOTIATION_FAILED: Final = "feature_negotiation_failed"

# Close codes.
REPLACED = 4003
"""Another daemon has connected with this key, and the newest stays."""
ALREADY_CONNECTED = 4004
"""Another daemon is connected with this key, and the oldest stays."""
MALFORMED = 4400
UNAUTHENTICATED = 4401
NOT_A_MEMBER = 4403
UNKNOWN_MESH = 4404
MISDIRECTED = 4421
"""The daemon dialled an address that is not this broker's."""
TRY_AGAIN_LATER = 1013
"""A slow consumer, as WebSocket has it."""


class FrameInvalid(TidelogError):  # noqa: N818 - the failure is the noun
    """Not a frame of this protocol: close with `MALFORMED`."""


def max_frame_bytes(inline_bytes: int) -> int:
    r"""Largest frame where bodies may have `inline_bytes`.

    JSON writes a byte of a body as up to six (`\u0000`), so that much room is left for it.
    """
    return inline_bytes * 6 + ENVELOPE_ALLOWANCE_BYTES


# Frames of the broker.


class BrokerHello(Struct, frozen=True, kw_only=True, tag="hello"):
    """The first frame of a connection."""

    challenge: str
    """32 random bytes in base64url; valid for this connection only."""
    server_time: str
    broker_version: str
    hello_versions: list[int] = field(default_factory=lambda: [1])
    """Versions of the daemon's hello that this broker takes; one that does not say takes 1."""


class Welcome(Struct, frozen=True, kw_only=True, tag="welcome"):
    """The daemon has proved who it is."""

    mesh_id: str
    member_id: str
    name: str
    history_seq: int
    """The newest `history_id` of the mesh."""
    incarnation: str = ""
    """Names the history of the broker's log; empty from a broker that has no name for it."""
    began: int = 0
    """The last `history_id` that this history shares with the one that the daemon named."""


class FeatureResponse(Struct, frozen=True, kw_only=True, tag="feature_negotiation_response"):
    """What the broker has of what was asked for."""

    supported: dict[str, Any]
    missing_required: list[str] = field(default_factory=list)


class Topic(Struct, frozen=True):
    """A topic of the mesh."""

    name: str
    subscribed: bool = False
    """Whether this member gets it."""


class Ack(Struct, frozen=True, kw_only=True, tag="ack", omit_defaults=True):
    """The answer to a frame that has a `ref`; the members are those of the HTTP answer."""

    ref: int
    code: int
    broker_message_id: str | None = None
    client_message_id: str | None = None
    history_id: int | None = None
    duplicate: bool | None = None
    history_available: bool | None = None
    first_seen_at: str | None = None
    destination_kind: str | None = None
    destination_ref: str | None = None
    error: str | None = None
    detail: str | None = None
    """Of a refusal, for people."""
    conflict: str | None = None
    broker_fingerprint_prefix: str | None = None
    retry_after: float | None = None
    """Seconds; what the header `Retry-After` is on HTTP."""
    topics: list[Topic] | None = None
    """The reply to `topics`."""
    topic: str | None = None
    """With `subscribed` the reply to `subscribe` and `unsubscribe`."""
    subscribed: bool | None = None


class ReceivedEnvelope(Struct, frozen=True, kw_only=True):
    """A message as its readers get it (mesh 7.2)."""

    broker_message_id: str
    history_id: int
    mesh: str
    sender_pubkey: str
    sender_name: str
    priority: str
    body: str
    created_at: str
    client_message_id: str | None = None
    topic: str | None = None
    reply_to_id: str | None = None
    meta: Raw = Raw(b"null")
    """As canonical JSON; kept as it came."""
    body_encoding: str = "utf8"
    mention: bool = False
    """Whether the message mentions this member."""


class Deliver(ReceivedEnvelope, frozen=True, kw_only=True, tag="deliver"):
    """A message for this member; it is delivered again until it is acknowledged."""

    claim_id: str
    """Repeated in the acknowledgement: an older claim's acknowledgement changes nothing."""


class HistoryPage(Struct, frozen=True, kw_only=True, tag="history_page"):
    """Messages after a `history_id`, oldest first."""

    ref: int
    items: list[Raw]
    """Each an `ReceivedEnvelope`; one that cannot be read must not take the others with it."""
    next_after: int
    has_more: bool


class PeerJoin(Struct, frozen=True, kw_only=True, tag="peer_join"):
    """A member has connected."""

    member_pubkey: str
    name: str


class PeerLeave(Struct, frozen=True, kw_only=True, tag="peer_leave"):
    """A member is gone."""

    member_pubkey: str
    name: str


# Frames of the daemon.


class DaemonHello(Struct, frozen=True, kw_only=True, tag="hello"):
    """Proof of the member's key."""

    member_pubkey: str
    signature: str
    """Hex, over `tidelog.mesh.protocol.identity.hello_message`."""
    hello_version: int = 1
    host: str = ""
    """`host:port` as it was dialled; signed from version 2 on."""
    daemon_version: str = ""
    daemon_instance: str = ""
    """Random text of this process: its next connection is known by it as the same daemon's."""
    incarnation: str = ""
    """The history that the daemon knew last, as a `welcome` named it; empty for none."""


class FeatureRequest(Struct, frozen=True, kw_only=True, tag="feature_negotiation_request"):
    """What the daemon needs and what it would use."""

    require: list[str]
    optional: list[str] = field(default_factory=list)


class FeatureFailure(Struct, frozen=True, kw_only=True, tag=NEGOTIATION_FAILED):
    """Why the daemon closes next; a close reason is too short for it."""

    kind: str
    feature: str
    detail: str


class SendRequest(Struct, frozen=True, kw_only=True):
    """A send, not yet checked; `fingerprint.read_envelope` reads its envelope."""

    ref: int
    fields: dict[str, Any]
    """Every member of the frame; without `meta` when that is at fault."""
    fault: RequestRefused | None = None
    """Set when the text of `meta` is not JSON of one meaning: refuse it in B1."""


class ClientAck(Struct, frozen=True, kw_only=True, tag="client_ack"):
    """The message is on the receiver's disk."""

    broker_message_id: str
    client_message_id: str | None = None
    claim_id: str = ""


class HistoryRequest(Struct, frozen=True, kw_only=True, tag="history"):
    """Ask for messages after a `history_id`."""

    ref: int
    after: int = 0
    limit: int = MAX_HISTORY_PAGE


class Subscribe(Struct, frozen=True, kw_only=True, tag="subscribe"):
    """Receive a topic from now on."""

    ref: int
    topic: str


class Unsubscribe(Struct, frozen=True, kw_only=True, tag="unsubscribe"):
    """Stop receiving a topic."""

    ref: int
    topic: str


class Topics(Struct, frozen=True, kw_only=True, tag="topics"):
    """Ask which topics there are."""

    ref: int


BrokerFrame = (
    BrokerHello | Welcome | FeatureResponse | Ack | Deliver | HistoryPage | PeerJoin | PeerLeave
)
TypedDaemonFrame = (
    DaemonHello
    | FeatureRequest
    | FeatureFailure
    | ClientAck
    | HistoryRequest
    | Subscribe
    | Unsubscribe
    | Topics
)
DaemonFrame = TypedDaemonFrame | SendRequest

encode = msgspec.json.Encoder().encode
"""Any frame but `SendRequest`; see `send_frame`."""

_broker_frame: msgspec.json.Decoder[BrokerFrame] = msgspec.json.Decoder(BrokerFrame)


def read_broker_frame(data: bytes | str) -> BrokerFrame | None:
    """A frame of the broker; None for one of a kind that this program does not know."""
    try:
        return _broker_frame.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if _has_unknown_type(data):
            return None
        raise FrameInvalid(str(error)) from None


def read_daemon_frame(data: bytes) -> DaemonFrame:
    """A frame of a daemon."""
    if strictjson.has_more_values(data, MAX_ENVELOPE_VALUES):  # or it is read twice, to say why
        raise FrameInvalid(f"more than {MAX_ENVELOPE_VALUES} JSON values")
    fault = None
    try:
        fields = read_object(data)
    except RequestRefused as error:
        readable, _ = lenient_object(data)
        if readable is None or readable.get("type") != "send":
            raise FrameInvalid(str(error)) from None
        fields, fault = readable, error
    if fields.get("type") == "send":
        ref = fields.get("ref")
        if type(ref) is not int or ref < 1:
            raise FrameInvalid("a send has no positive integer ref")
        return SendRequest(ref=ref, fields=fields, fault=fault)
    try:
        frame: TypedDaemonFrame = msgspec.convert(fields, TypedDaemonFrame)
    except msgspec.ValidationError as error:
        raise FrameInvalid(str(error)) from None
    return frame


def send_frame(
    ref: int,
    client_message_id: str,
    fingerprint: bytes,
    payload: bytes,
    supersedes: str | None = None,
) -> bytes:
    """A `send` around the payload of an outbox row, whose bytes go out as they are."""
    head = {
        "type": "send",
        "ref": ref,
        "client_message_id": client_message_id,
        "request_fingerprint": fingerprint.hex(),
    }
    if supersedes is not None:
        head["supersedes"] = supersedes
    return encode(head)[:-1] + b"," + payload[1:]


_BROKER_TYPES: Final = frozenset(
    {
        "hello",
        "welcome",
        "feature_negotiation_response",
        "ack",
        "deliver",
        "history_page",
        "peer_join",
        "peer_leave",
    }
)


class _Typed(Struct):
    type: str


def _has_unknown_type(data: bytes | str) -> bool:
    try:
        return msgspec.json.decode(data, type=_Typed).type not in _BROKER_TYPES
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
