"""The broker's end of one connection as a state machine: frames in, actions out; no I/O, no clock.

A connection greets, proves its key, negotiates, and only then sends and receives (mesh 9.1, 9.2).
"""

from enum import Enum, auto
from typing import Any, assert_never

import msgspec
from msgspec import Struct

from tidelog.base.net import authority
from tidelog.mesh.protocol import negotiation, wire
from tidelog.mesh.protocol.concurrent_connections import instance_in
from tidelog.mesh.protocol.identity import hello_message, is_signed, to_base64url
from tidelog.mesh.protocol.model import Member, Mesh
from tidelog.mesh.protocol.replies import Reply

_encode = msgspec.json.Encoder().encode


class Send(Struct, frozen=True):
    """Send this JSON text as a text frame."""

    frame: bytes


class Close(Struct, frozen=True):
    """Close the connection; what was sent before leaves first."""

    code: int
    reason: str = ""


class Authenticate(Struct, frozen=True):
    """A key was proved: find its member, then call `admitted` or `end`."""

    public_hex: str


class Ready(Struct, frozen=True):
    """Negotiation is done: the member is present and receives from now on.

    It comes before the reply, so that a connection that may not stay never takes itself for ready.
    """


class AcceptSend(Struct, frozen=True):
    """Accept a send and reply to it; those of one connection may run together."""

    frame: wire.SendRequest


class ChangeSubscription(Struct, frozen=True):
    """Subscribe or unsubscribe, then reply."""

    ref: int
    topic: str
    is_wanted: bool


class ListTopics(Struct, frozen=True):
    """Reply with the topics."""

    ref: int


class ReadHistory(Struct, frozen=True):
    """Reply with a page of history."""

    ref: int
    after: int
    limit: int


class Acknowledge(Struct, frozen=True):
    """A delivery has arrived."""

    frame: wire.ClientAck


class ReportFailure(Struct, frozen=True):
    """The daemon says why it will not work with this broker; it closes next."""

    frame: wire.FeatureFailure


Action = (
    Send
    | Close
    | Authenticate
    | Ready
    | AcceptSend
    | ChangeSubscription
    | ListTopics
    | ReadHistory
    | Acknowledge
    | ReportFailure
)


_Traffic = (
    wire.SendRequest
    | wire.ClientAck
    | wire.HistoryRequest
    | wire.Subscribe
    | wire.Unsubscribe
    | wire.Topics
)
"""What a connection that is ready sends."""


class _State(Enum):
    GREETED = auto()
    """The challenge is out."""
    PROVED = auto()
    """The signature was right; who it is, is being looked up."""
    NEGOTIATING = auto()
    READY = auto()
    CLOSED = auto()


def ack(ref: int, reply: Reply) -> bytes:
    """The reply to a frame that has a `ref`."""
    fields: dict[str, Any] = {"type": "ack", "ref": ref, "code": reply.status, **reply.body}
    if reply.retry_after_s is not None:
        fields["retry_after"] = reply.retry_after_s
    return _encode(fields)


class Session:
    """The state of one connection to a mesh that exists."""

    def __init__(
        self,
        mesh: Mesh,
        challenge: bytes,
        *,
        inline_bytes: int,
        public_hosts: frozenset[str] = frozenset(),
        requires_host: bool = False,
    ) -> None:
        """A connection that is to be greeted.

        Args:
            mesh: where it came to.
            challenge: what the daemon has to sign.
            inline_bytes: largest body of a send.
            public_hosts: what a daemon that came here may have dialled (mesh 9.7).
            requires_host: whether it must sign that.
        """
        self.mesh = mesh
        self.member: Member | None = None
        """Set when it was admitted."""
        self.misdirected: str | None = None
        """What the daemon dialled, if it signed an address that is not this broker's."""
        self._public_hosts = public_hosts
        self._requires_host = requires_host
        self.instance = ""
        """Which process it is, as its hello says; see `concurrent_connections`."""
        self.incarnation: str | None = None
        """The history that the daemon knew last, as its hello says."""
        self._challenge = challenge
        self._inline_bytes = inline_bytes
        self._max_frame_bytes = wire.max_frame_bytes(inline_bytes)
        self._state = _State.GREETED

    @property
    def is_closed(self) -> bool:
        """Whether nothing more is to be done."""
        return self._state is _State.CLOSED

    @property
    def is_ready(self) -> bool:
        """Whether it has negotiated."""
        return self._state is _State.READY

    def opening(self, server_time: str, broker_version: str) -> list[Action]:
        """The connection is open."""
        hello = wire.BrokerHello(
            challenge=to_base64url(self._challenge),
            server_time=server_time,
            broker_version=broker_version,
            hello_versions=[2] if self._requires_host else [1, 2],
        )
        return [Send(wire.encode(hello))]

    def receive(self, payload: bytes, *, is_text: bool) -> list[Action]:
        """A frame came."""
        if self.is_closed:
            return []
        if not is_text or len(payload) > self._max_frame_bytes:
            return self.end(wire.MALFORMED, "not a text frame, or too large")
        try:
            frame = wire.read_daemon_frame(payload)
        except wire.FrameInvalid as error:
            return self.end(wire.MALFORMED, str(error))
        if isinstance(frame, _Traffic) and self.is_ready:  # as most are
            return self._traffic(frame)
        if isinstance(frame, wire.DaemonHello):
            return self._hello(frame)
        if self.member is None:
            return self.end(wire.UNAUTHENTICATED, "hello comes first")
        if isinstance(frame, wire.FeatureRequest):
            return self._negotiate(frame)
        if isinstance(frame, wire.FeatureFailure):
            return [ReportFailure(frame)]
        return self.end(wire.MALFORMED, "feature negotiation comes before traffic")

    def admitted(
        self, member: Member, history_seq: int, incarnation: str, began: int
    ) -> list[Action]:
        """The key is a member's; `began` is what both know of the history it named (mesh 9.1)."""
        if self.is_closed:
            return []
        self.member = member
        self._state = _State.NEGOTIATING
        welcome = wire.Welcome(
            mesh_id=self.mesh.id,
            member_id=member.id,
            name=member.name,
            history_seq=history_seq,
            incarnation=incarnation,
            began=began,
        )
        return [Send(wire.encode(welcome))]

    def timed_out(self) -> list[Action]:
        """The time for a hello is over."""
        if self._state is not _State.GREETED:
            return []
        return self.end(wire.UNAUTHENTICATED, "no hello in time")

    def end(self, code: int, reason: str = "") -> list[Action]:
        """Close it."""
        if self.is_closed:
            return []
        self._state = _State.CLOSED
        return [Close(code, reason)]

    def closed(self) -> None:
        """It is gone."""
        self._state = _State.CLOSED

    def _hello(self, frame: wire.DaemonHello) -> list[Action]:
        """A challenge is answered once: right or wrong, it is worth nothing afterwards."""
        if self._state is not _State.GREETED:
            return self.end(wire.UNAUTHENTICATED, "the challenge was answered already")
        if frame.hello_version not in (1, 2):
            return self.end(wire.UNAUTHENTICATED, "hello_version is neither 1 nor 2")
        host = frame.host if frame.hello_version == 2 else None
        if host is None and self._requires_host:
            return self.end(wire.UNAUTHENTICATED, "mesh.require_hello_2: sign hello version 2")
        message = hello_message(self.mesh.slug, self._challenge, host)
        if not is_signed(frame.member_pubkey, message, frame.signature):
            return self.end(wire.UNAUTHENTICATED, "the signature is not right")
        if host is not None and not authority.is_same(host, self._public_hosts):
            self.misdirected = host
        self._state = _State.PROVED
        self.instance = instance_in(frame.daemon_instance)
        self.incarnation = frame.incarnation or None
        return [Authenticate(frame.member_pubkey)]

    def _negotiate(self, frame: wire.FeatureRequest) -> list[Action]:
        """Reply with what there is; a daemon that misses something closes by itself."""
        if len(frame.require) + len(frame.optional) > negotiation.MAX_FEATURES:
            return self.end(wire.MALFORMED, "too many features")
        mode: Any = self.mesh.dedupe_retention_mode
        offer = negotiation.offered(
            mode=mode,
            dedupe_retention_days=self.mesh.dedupe_retention_days,
            inline_bytes=self._inline_bytes,
            connection_policy=self.mesh.clone_concurrency_policy,
        )
        supported, missing = negotiation.response(frame.require, frame.optional, offer)
        response = wire.FeatureResponse(supported=supported, missing_required=missing)
        answered = Send(wire.encode(response))
        if missing or self._state is not _State.NEGOTIATING:
            return [answered]
        self._state = _State.READY
        return [Ready(), answered]

    def _traffic(self, frame: _Traffic) -> list[Action]:
        if not isinstance(frame, wire.ClientAck) and frame.ref < 1:
            return self.end(wire.MALFORMED, "ref is not a positive integer")
        match frame:
            case wire.SendRequest():
                return [AcceptSend(frame)]
            case wire.ClientAck():
                return [Acknowledge(frame)]
            case wire.HistoryRequest():
                limit = min(max(frame.limit, 1), wire.MAX_HISTORY_PAGE)
                return [ReadHistory(frame.ref, max(frame.after, 0), limit)]
            case wire.Subscribe():
                return [ChangeSubscription(frame.ref, frame.topic, is_wanted=True)]
            case wire.Unsubscribe():
                return [ChangeSubscription(frame.ref, frame.topic, is_wanted=False)]
            case wire.Topics():
                return [ListTopics(frame.ref)]
            case _:
                assert_never(frame)
