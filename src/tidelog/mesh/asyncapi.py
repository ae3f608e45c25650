"""What daemon and broker say to each other (mesh 17), from the types of `wire`."""

from typing import Annotated, Any, Literal, get_args

from msgspec import UNSET, Meta, Struct, UnsetType

from tidelog.base.asyncapi import Address, tagged
from tidelog.mesh import wire


class SendFrame(Struct, kw_only=True, tag="send"):
    """A message to be accepted; answered by `ack` with the code and the body of the HTTP route."""

    ref: Annotated[int, Meta(ge=1)]
    client_message_id: str
    request_fingerprint: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    envelope_version: int
    destination_kind: Literal["topic", "dm", "queue"]
    destination_ref: str
    body: str
    body_encoding: Literal["utf8", "base64"] | UnsetType = UNSET
    reply_to_id: str | UnsetType | None = UNSET
    priority: Literal["now", "next", "low"] | UnsetType | None = UNSET
    meta: Any = UNSET
    supersedes: str | UnsetType = UNSET


class DeliverFrame(wire.Deliver, frozen=True, kw_only=True, tag="deliver"):
    """A message for this member; it is delivered again until it is acknowledged."""

    meta: Any = None  # a default of raw bytes has no place in a schema


class AckFrame(wire.Ack, frozen=True, kw_only=True, tag="ack", omit_defaults=True):
    """The answer to a frame that has a `ref`; the members are those of the HTTP answer."""

    detail: str | None = None  # for people; the daemon reads none of these
    topic: str | None = None
    subscribed: bool | None = None


_SHOWN: dict[Any, Any] = {wire.Deliver: DeliverFrame, wire.Ack: AckFrame}

ADDRESS = Address(
    name="mesh",
    path="/mesh/{slug}/ws",
    title="Mesh",
    description="One member's connection to the broker: the client is its daemon.",
    parameters={"slug": "Name of the mesh."},
    messages=(
        *tagged("client", *get_args(wire.TypedDaemonFrame), SendFrame),
        *tagged("server", *(_SHOWN.get(kind, kind) for kind in get_args(wire.BrokerFrame))),
    ),
)
"""Everything that is said at `/mesh/{slug}/ws`."""
