"""What daemon and broker say to each other (mesh 9.1), from the types of `wire`."""

from typing import Annotated, Any, Literal, get_args

from msgspec import UNSET, Meta, Struct, UnsetType

from tidelog.base.serving.asyncapi import Address, tagged
from tidelog.mesh.protocol import negotiation, policy, wire


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


class HistoryEnvelope(wire.ReceivedEnvelope, frozen=True, kw_only=True):
    """A message that this member may see."""

    meta: Any = None


class HistoryPageFrame(wire.HistoryPage, frozen=True, kw_only=True, tag="history_page"):
    """Messages after a `history_id`, oldest first."""

    items: list[HistoryEnvelope]  # type: ignore[assignment]  # there they are read one by one


class DedupeParams(Struct, kw_only=True):
    """How long ids are remembered."""

    version: int
    mode: policy.Mode
    request_fingerprint: bool
    dedupe_retention_days: int | UnsetType = UNSET


class PayloadParams(Struct):
    """How much a message may hold."""

    version: int
    inline_bytes: int
    blob_bytes: int


class ConnectionParams(Struct):
    """What becomes of two daemons with one key."""

    version: int
    default_policy: negotiation.ConnectionPolicy


class DedupeFeature(Struct):
    """Ids are recognised."""

    params: DedupeParams


class PayloadFeature(Struct):
    """Bodies have a bound."""

    params: PayloadParams


class ConnectionFeature(Struct):
    """Rivals are noticed."""

    params: ConnectionParams


class SupportedFeatures(Struct, kw_only=True):
    """Those that were asked for and are there."""

    client_message_id_dedupe: DedupeFeature | UnsetType = UNSET
    max_payload: PayloadFeature | UnsetType = UNSET
    concurrent_connection_policy: ConnectionFeature | UnsetType = UNSET


class FeatureResponseFrame(
    wire.FeatureResponse, frozen=True, kw_only=True, tag="feature_negotiation_response"
):
    """What the broker has of what was asked for."""

    supported: SupportedFeatures  # type: ignore[assignment]  # a daemon judges it member by member


_SHOWN: dict[Any, Any] = {
    wire.Deliver: DeliverFrame,
    wire.HistoryPage: HistoryPageFrame,
    wire.FeatureResponse: FeatureResponseFrame,
}
"""Frames whose structs read leniently what the document describes exactly."""

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
