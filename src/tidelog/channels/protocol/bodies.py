"""Bodies of the HTTP API as they are sent; `requests` says what else must hold for them.

Application values stay raw. The OpenAPI document is made from these too.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from tidelog.channels.protocol.verbs import MUTATION_VERBS, MutationVerb, Verb

PurgeMode = Literal["all", "before_serial", "before_time_ms"]


class EventBody(Struct):
    """Body of `POST /apps/{app_id}/events`."""

    name: str
    data: Raw | UnsetType = UNSET
    channel: str | None = None
    channels: list[str] | None = None
    socket_id: str | None = None
    info: str | None = None
    idempotency_key: str | None = None
    message_id: str | None = None
    extras: dict[str, Raw] | None = None
    tags: dict[str, str] | None = None


class EventFrame(Struct):
    """What a socket publishes: the frame itself."""

    event: str
    channel: str
    data: Raw | UnsetType = UNSET
    extras: dict[str, Raw] | None = None
    message_id: str | None = None


class BatchBody(Struct):
    """Body of `POST /apps/{app_id}/batch_events`."""

    batch: list[Raw]


class AppendBody(Struct):
    """Body of an append."""

    data: Raw | UnsetType = UNSET
    extras: dict[str, Raw] | None = None
    client_id: str | None = None
    socket_id: str | None = None
    description: str | None = None
    metadata: Raw | UnsetType = UNSET
    op_id: str | None = None


class DeleteBody(AppendBody):
    """Body of a delete; a `name` in it means nothing (channels D17)."""

    clear_fields: list[str] | None = None


class UpdateBody(DeleteBody):
    """Body of an update."""

    name: str | None = None


class ResetBody(Struct):
    """Body of `POST .../history/reset`."""

    confirm_channel: str
    confirm_operation: str
    reason: str
    requested_by: str | None = None


class PurgeBody(ResetBody, kw_only=True):
    """Body of `POST .../history/purge`."""

    mode: PurgeMode
    before_serial: int | None = None
    before_time_ms: int | None = None


class ForgetBody(Struct):
    """Body of `POST /apps/{app_id}/forget`: a channel, a message of it, or an actor."""

    reason: str
    channel: str | None = None
    message_serial: str | None = None
    actor: str | None = None
    requested_by: str | None = None


class AdminForgetBody(ForgetBody, kw_only=True):
    """Body of `POST /channels/admin/forget`: the same, of any app."""

    app_id: str


class RevocationBody(Struct):
    """Body of `POST /apps/{app_id}/revocations`."""

    jti: str | None = None
    client_id: str | None = None


class CloseStreamBody(Struct):
    """`POST /channels/admin/streams/close`."""

    app_id: str
    channel: str
    message_serial: str
    silent_seconds: Annotated[float, Meta(ge=0, le=86_400)] = 0
    """The stream ends only if nothing was written for this long."""


class SocketBody(Struct):
    """Body of a request that says nothing but on whose behalf it is made."""

    socket_id: str | None = None


class ProxyParams(Struct):
    """What a client library asks the helper proxy to do with a message (channels 9.2)."""

    event: str | None = None
    message_id: str | None = None
    data: Raw | UnsetType = UNSET
    extras: Raw | UnsetType = UNSET
    reason: str | None = None


class ProxyBody(Struct):
    """Body of `POST /proxy/{app_id}/messages`."""

    channel: str
    action: Verb
    params: ProxyParams


class ProxyHistoryBody(Struct):
    """Body of `POST /proxy/{app_id}/history`."""

    channel: str
    params: dict[str, Any] = {}
    action: Literal["history"] = "history"


MUTATIONS: dict[MutationVerb, tuple[type[AppendBody], str]] = {
    "update": (UpdateBody, "Replace fields."),
    "delete": (DeleteBody, "Mark as deleted."),
    "append": (AppendBody, "Append to the data."),
}
"""By verb: the body of its route, and what it does, for the OpenAPI document."""

# A KeyError here names a verb of `verbs` that `MUTATIONS` lacks.
read_mutation = {verb: msgspec.json.Decoder(MUTATIONS[verb][0]).decode for verb in MUTATION_VERBS}
read_event = msgspec.json.Decoder(EventBody).decode
read_frame = msgspec.json.Decoder(EventFrame).decode
read_batch = msgspec.json.Decoder(BatchBody).decode
read_reset = msgspec.json.Decoder(ResetBody).decode
read_purge = msgspec.json.Decoder(PurgeBody).decode
read_admin_forget = msgspec.json.Decoder(AdminForgetBody).decode
read_forget = msgspec.json.Decoder(ForgetBody).decode
read_revocation = msgspec.json.Decoder(RevocationBody).decode
read_close_stream = msgspec.json.Decoder(CloseStreamBody).decode
read_socket = msgspec.json.Decoder(SocketBody).decode
read_proxy = msgspec.json.Decoder(ProxyBody).decode
read_proxy_history = msgspec.json.Decoder(ProxyHistoryBody).decode
