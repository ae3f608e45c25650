"""What the HTTP API is asked: bodies and queries as typed requests, checked without any state.

Everything here is pure. A body of texts alone, as most are, is read once (`_texts`). Any other is
read twice: strictly, so that it has one meaning (`strictjson`), then into a Struct whose
application values stay raw. Application JSON is carried as text, compacted outside its strings and
otherwise as it came: no number passes through a double.
"""

import enum
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from tidelog.base.data import strictjson
from tidelog.base.errors import InvalidJson
from tidelog.channels.protocol import bodies, fault, runs
from tidelog.channels.protocol.bodies import PurgeMode
from tidelog.channels.protocol.extras import MAX_KEY_BYTES, TRANSPORT_STATUSES, compact, read_extras
from tidelog.channels.protocol.fault import Fault
from tidelog.channels.protocol.names import is_socket_id, name_fault
from tidelog.channels.protocol.query import Direction, HistoryQuery
from tidelog.channels.protocol.verbs import MutationVerb
from tidelog.channels.settings import Channels, set_by

OK = b'{"ok":true}'
"""The response where there is nothing else to say."""

MAX_OP_ID_BYTES = 64

MAX_SERIAL_BYTES = 128

_MAX_DIGITS = 18
"""Of a limit in a query; what is longer is larger than every page."""

T = TypeVar("T")
V = TypeVar("V", str, bytes)

_DIRECTIONS: dict[str, Direction] = {
    "newest_first": "newest_first",
    "oldest_first": "oldest_first",
}
"""Of versions; history knows more spellings."""

_NULL = b"null"

_EVENT_TEXTS = frozenset(
    {"name", "data", "channel", "socket_id", "info", "idempotency_key", "message_id"}
)
_MUTATION_TEXTS = frozenset({"data", "client_id", "socket_id", "description", "op_id"})
"""Members whose values are texts, or may be."""

_encode = msgspec.json.Encoder().encode
_decode_text = msgspec.json.Decoder(str).decode
_read_texts = msgspec.json.Decoder(dict[str, str]).decode


Mode = Literal["versioned", "history", "live"]
"""What becomes of a publish: a message that can change, an event that history keeps, or frames."""


class Change(enum.Enum):
    """What a mutation does to a field it gives no value for."""

    KEEP = 0
    CLEAR = 1
    # Numbers, so that they differ from the values of fields when they cross a link.


class Patch(Struct, frozen=True, array_like=True):
    """Update and delete per field: kept, cleared, or replaced by a value (channels 5.4)."""

    name: Change | str = Change.KEEP
    data: Change | bytes = Change.KEEP
    """JSON text; a string is spelled as msgspec spells it, anything else as it came, compacted."""
    extras: Change | bytes = Change.KEEP
    """JSON text of an object."""


class Publication(Struct, frozen=True, kw_only=True, array_like=True):
    """One event for one or more channels."""

    name: str
    data: bytes
    """JSON text of the string that is delivered: `b'"{\\\\"a\\\\":1}"'`."""
    data_bytes: int
    """Length of that string in UTF-8."""
    channels: tuple[str, ...]
    """Each once, in the order given; at least one."""
    socket_id: str | None = None
    info: frozenset[str] = frozenset()
    """What the response should include; it may hold names that this server does not know."""
    idempotency_key: str | None = None
    """Of the body, else of the header (which a batch does not share with its items)."""
    message_id: str | None = None
    extras: bytes | None = None
    """JSON text of an object, without the idempotency key it may have had."""
    extras_key: str | None = None
    """The idempotency key that stood in `extras`."""
    tags: bytes | None = None
    """JSON text of an object of strings."""
    transport: Mapping[str, str] = {}
    """`extras.ai.transport`."""
    starts: runs.RunStart | None = None
    """The run that this begins."""
    cancels: runs.Cancel | None = None
    """What this asks to cancel."""
    is_ephemeral: bool = False

    @property
    def transport_status(self) -> str | None:
        """`extras.ai.transport.status`."""
        return self.transport.get("status")

    @property
    def is_keyed(self) -> bool:
        """Whether it is published once, however often it comes (channels 4.5)."""
        return (self.message_id or self.extras_key or self.idempotency_key) is not None

    @property
    def is_answered_in_detail(self) -> bool:
        """Whether the response has an entry per channel (channels 4.2)."""
        return bool(self.info) or self.message_id is not None or self.name.startswith("ai-")


class Mutation(Struct, frozen=True, kw_only=True, array_like=True):
    """One change of one message."""

    verb: MutationVerb
    channel: str
    message_serial: str
    patch: Patch
    """Of an append: `data` is the fragment, always a string."""
    data_bytes: int = 0
    """Size of `patch.data`: of a string its UTF-8, of anything else its compact JSON."""
    client_id: str | None = None
    socket_id: str | None = None
    description: str | None = None
    metadata: bytes | None = None
    """JSON text of any value."""
    op_id: str | None = None
    transport: Mapping[str, str] = {}
    codec: Mapping[str, str] = {}
    """`ai.transport` and `ai.codec` of the extras given; empty also when none were."""
    ends_stream: bool = False
    """The extras given say complete or cancelled, for transport or codec."""

    @property
    def transport_status(self) -> str | None:
        """`ai.transport.status` of the extras given."""
        return self.transport.get("status")


class VersionsQuery(Struct, frozen=True):
    """Which versions of a message."""

    limit: int
    """Within the largest page."""
    direction: Direction
    cursor: str | None


class HistoryReset(Struct, frozen=True):
    """Confirmed: begin a new history."""

    reason: str
    requested_by: str | None


class HistoryPurge(Struct, frozen=True):
    """Confirmed: forget the history before a bound."""

    mode: PurgeMode
    bound: int | None
    """Serial or time, as `mode` says; None for all."""
    reason: str
    requested_by: str | None


class ForgetTarget(Struct, frozen=True):
    """What is to be forgotten: a channel, a message of it, or what an actor wrote."""

    channel: str | None = None
    message_serial: str | None = None
    actor: str | None = None


class Asked(Struct, frozen=True):
    """Why something is erased, and for whom."""

    reason: str
    requested_by: str | None = None


class RevocationRequest(Struct, frozen=True):
    """Tokens that are no longer good: one by its `jti`, or all of a client."""

    jti: str | None = None
    client_id: str | None = None


class Published(Struct, frozen=True):
    """The service's response to a publish, rendered: a repeated publish gets the same bytes."""

    body: bytes


class MutationResult(Struct, frozen=True, array_like=True):
    """The version a mutation made, or had made before."""

    version_serial: str
    history_serial: int
    delivery_serial: int
    is_duplicate: bool = False


def parse_publication(body: bytes, header_key: str | None, limits: Channels) -> Publication:
    """The event of `POST /events`.

    Raises:
        Fault: The body is not such an event.
    """
    texts = _texts(body, _EVENT_TEXTS, limits.max_message_values)
    if texts is not None and "name" in texts:
        data = texts.pop("data", None)
        given = None if data is None else (_encode(data), _utf8_length(data))
        return _publication(msgspec.convert(texts, bodies.EventBody), header_key, limits, given)
    _strict(body, limits.max_message_values)
    return _publication(_typed(bodies.read_event, body), header_key, limits)


def parse_frame(payload: bytes, limits: Channels) -> Publication:
    """The event that a socket publishes; the payload was read strictly before.

    Raises:
        Fault: It is not such an event.
    """
    given = _typed(bodies.read_frame, payload)
    event = bodies.EventBody(
        name=given.event,
        data=given.data,
        channel=given.channel,
        extras=given.extras,
        message_id=given.message_id,
    )
    return _publication(event, None, limits)


def parse_batch(body: bytes, limits: Channels) -> tuple[Publication, ...]:
    """The events of `POST /batch_events`; a fault names the index of the event to blame.

    Raises:
        Fault: The body is no such batch.
    """
    items = read_strictly(bodies.read_batch, body, limits.max_message_values).batch
    if len(items) > limits.max_batch_events:
        raise fault.limit_exceeded(
            f"batch holds {len(items)} events; at most {limits.max_batch_events} are allowed"
            + set_by("channels.max_batch_events")
        )
    publications = []
    for index, item in enumerate(items):
        try:
            publications.append(_publication(_typed(bodies.read_event, item), None, limits))
        except Fault as refused:
            raise refused.at(index) from None
    return tuple(publications)


def parse_mutation(
    verb: MutationVerb,
    channel: str,
    message_serial: str,
    body: bytes,
    max_values: int = strictjson.MAX_VALUES,
) -> Mutation:
    """The mutation in a body; channel and serial are looked at later (channels 5.7).

    Raises:
        Fault: The body is not such a mutation.
    """
    texts = _texts(body, _MUTATION_TEXTS, max_values)
    if texts is not None and verb == "append":
        return _append_of_texts(channel, message_serial, texts)
    if texts is not None:
        text = texts.pop("data", None)
        given = msgspec.convert(texts, bodies.MUTATIONS[verb][0])
        data, data_bytes = (None, 0) if text is None else (_encode(text), _utf8_length(text))
    else:
        _strict(body, max_values)
        given = _typed(bodies.read_mutation[verb], body)
        data, data_bytes = _given_data(given.data)
    name = given.name if isinstance(given, bodies.UpdateBody) else None
    cleared = (given.clear_fields or []) if isinstance(given, bodies.DeleteBody) else []
    extras = read_extras(given.extras)
    ends_stream = extras.ends_stream
    if verb == "append":
        _check_fragment(data, may_be_empty=ends_stream)
    if cleared:
        _check_cleared(verb, cleared, name=name, data=data, extras=extras.text)
    metadata = _given(given.metadata)
    if verb == "update" and not cleared:
        said = (name, data, extras.text, given.client_id, given.description, metadata, given.op_id)
        if all(value is None for value in said):
            raise fault.invalid_input(
                "update request must include at least one patch field or operation metadata"
            )
    _check_op_id(given.op_id)
    _check_socket_id(given.socket_id)
    return Mutation(
        verb=verb,
        channel=channel,
        message_serial=message_serial,
        patch=Patch(
            _change("name", name, cleared),
            _change("data", data, cleared),
            _change("extras", extras.text, cleared),
        ),
        data_bytes=data_bytes,
        client_id=given.client_id,
        socket_id=given.socket_id,
        description=given.description,
        metadata=metadata,
        op_id=given.op_id,
        transport=extras.transport,
        codec=extras.codec,
        ends_stream=ends_stream,
    )


def parse_versions(query: Mapping[str, str], max_page_size: int) -> VersionsQuery:
    """The query of `GET .../versions`.

    Raises:
        Fault: A parameter is not what it must be.
    """
    cursor = query.get("cursor")
    if cursor is not None:
        check_serial("cursor", cursor)
    direction = _DIRECTIONS.get(query.get("direction", "newest_first"))
    if direction is None:
        raise fault.invalid_input("direction must be newest_first or oldest_first")
    limit = _whole(query.get("limit", str(max_page_size)))
    if not limit:
        raise fault.invalid_input("versions limit must be greater than 0")
    return VersionsQuery(min(limit, max_page_size), direction, cursor)


def parse_history(query: Mapping[str, str], max_page_size: int) -> HistoryQuery:
    """The query of `GET .../history`.

    Raises:
        Fault: A parameter is not what it must be.
    """
    try:
        return HistoryQuery.from_parameters(query, max_page_size)
    except ValueError as error:
        raise fault.invalid_input(str(error)) from None


def parse_info(query: Mapping[str, str]) -> frozenset[str]:
    """The names in `info`."""
    return _info(query.get("info"))


def parse_reset(body: bytes, channel: str) -> HistoryReset:
    """The body of `POST .../history/reset`.

    Raises:
        Fault: The reset is not confirmed as it must be.
    """
    given = read_strictly(bodies.read_reset, body)
    _check_confirmed(given, channel, "reset")
    return HistoryReset(given.reason, given.requested_by)


def parse_purge(body: bytes, channel: str) -> HistoryPurge:
    """The body of `POST .../history/purge`.

    Raises:
        Fault: The purge is not confirmed as it must be, or its bound is not the one of its mode.
    """
    given = read_strictly(bodies.read_purge, body)
    _check_confirmed(given, channel, "purge")
    bounds = {"before_serial": given.before_serial, "before_time_ms": given.before_time_ms}
    bound = bounds.pop(given.mode, None)
    if (given.mode != "all" and bound is None) or any(
        other is not None for other in bounds.values()
    ):
        needed = "no bound" if given.mode == "all" else f"{given.mode} and no other bound"
        raise fault.invalid_input(f"mode {given.mode} takes {needed}")
    if bound is not None and not 0 <= bound < 2**63:
        raise fault.invalid_input(f"{given.mode} must be a whole number from 0")
    return HistoryPurge(given.mode, bound, given.reason, given.requested_by)


def parse_forget(body: bytes, max_channel_name_bytes: int) -> tuple[ForgetTarget, Asked]:
    """The body of `POST /forget`.

    Raises:
        Fault: It names nothing that can be forgotten, or no reason.
    """
    return order_of(read_strictly(bodies.read_forget, body), max_channel_name_bytes)


def order_of(given: bodies.ForgetBody, max_channel_name_bytes: int) -> tuple[ForgetTarget, Asked]:
    """What a body wants forgotten.

    Raises:
        Fault: It names nothing that can be forgotten, or no reason.
    """
    if not given.reason.strip():
        raise fault.invalid_input("reason must not be blank")
    target = ForgetTarget(given.channel, given.message_serial, given.actor)
    check_target(target, max_channel_name_bytes)
    return target, Asked(given.reason, given.requested_by)


def parse_forgotten(query: Mapping[str, str], max_channel_name_bytes: int) -> ForgetTarget:
    """The query of `GET /forget`.

    Raises:
        Fault: It names nothing that can be forgotten.
    """
    target = ForgetTarget(query.get("channel"), query.get("message_serial"), query.get("actor"))
    check_target(target, max_channel_name_bytes)
    return target


def check_target(target: ForgetTarget, max_channel_name_bytes: int) -> None:
    """Refuse what can be no channel, no message and no actor.

    Raises:
        Fault: 400.
    """
    if (target.channel is None) == (target.actor is None):
        raise fault.invalid_input("name either a channel or an actor")
    if target.actor is not None:
        if target.message_serial is not None:
            raise fault.invalid_input("message_serial needs a channel, not an actor")
        _check_key("actor", target.actor)
    if target.channel is not None:
        check_channel(target.channel, max_channel_name_bytes)
    if target.message_serial is not None:
        check_serial("message_serial", target.message_serial)


def parse_revocation(body: bytes) -> RevocationRequest:
    """The body of `POST /revocations`.

    Raises:
        Fault: It names neither a token nor a client.
    """
    given = read_strictly(bodies.read_revocation, body)
    if given.jti is None and given.client_id is None:
        raise fault.invalid_input("jti or client_id is required")
    for name, value in (("jti", given.jti), ("client_id", given.client_id)):
        if value is not None:
            _check_key(name, value)
    return RevocationRequest(given.jti, given.client_id)


def parse_socket(body: bytes) -> str | None:
    """The socket on whose behalf a request with an optional body is made.

    Raises:
        Fault: The body is neither empty nor an object, or the socket id is malformed.
    """
    if not body:
        return None
    socket_id = read_strictly(bodies.read_socket, body).socket_id
    _check_socket_id(socket_id)
    return socket_id


def parse_header_key(value: bytes | None) -> str | None:
    """`X-Idempotency-Key`.

    Raises:
        Fault: It is empty, too long or not UTF-8.
    """
    if value is None:
        return None
    try:
        key = value.decode()
    except UnicodeDecodeError:
        raise fault.invalid_input("X-Idempotency-Key must be UTF-8") from None
    _check_key("X-Idempotency-Key", key)
    return key


def check_serial(what: str, serial: str) -> None:
    """Refuse what cannot be a serial.

    Raises:
        Fault: Says what is wrong with it.
    """
    if not serial:
        raise fault.invalid_input(f"{what} must not be empty")
    if len(serial.encode()) > MAX_SERIAL_BYTES:
        raise fault.invalid_input(f"{what} must be at most {MAX_SERIAL_BYTES} bytes")
    if serial.split() != [serial]:
        raise fault.invalid_input(f"{what} must not contain whitespace")


def check_channel(channel: str, max_bytes: int) -> None:
    """Refuse what cannot be a channel's name.

    Raises:
        Fault: Says what is wrong with it.
    """
    wrong = name_fault(channel, max_bytes)
    if wrong is not None:
        raise fault.invalid_input(wrong)


def read_strictly(
    decode: Callable[[bytes | Raw], T], body: bytes, max_values: int = strictjson.MAX_VALUES
) -> T:
    """A body as `decode` reads it, if every JSON reader reads it the same way.

    Raises:
        Fault: It is no JSON object, or not of that type, or has too many values.
    """
    _strict(body, max_values)
    return _typed(decode, body)


def _strict(body: bytes, max_values: int) -> None:
    """Refuse what is not a JSON object that every reader reads the same way."""
    if strictjson.has_more_values(body, max_values):
        raise fault.payload_too_large(
            f"the body has more than {max_values} JSON values"
            + set_by("channels.max_message_values")
        )
    try:
        value = strictjson.read(body)
    except InvalidJson as error:
        raise fault.invalid_input(f"invalid JSON body: {error}") from None
    if type(value) is not dict:
        raise fault.invalid_input("the body must be a JSON object")


def _typed(decode: Callable[[bytes | Raw], T], body: bytes | Raw) -> T:
    try:
        return decode(body)
    except msgspec.DecodeError as error:
        raise fault.invalid_input(f"invalid body: {error}") from None


def _texts(body: bytes, known: frozenset[str], max_values: int) -> dict[str, str] | None:
    """The members of an object that has texts and nothing else, all of them known.

    None if it may be anything else, or nothing that every reader reads the same way. A member is
    two strings, and so four quotation marks: if there are more, a key was given twice.
    """
    try:
        texts = _read_texts(body)
    except ValueError:  # also of bytes that are no UTF-8
        return None
    marks = body.count(b'"')
    if b"\\" in body:
        marks -= body.replace(b"\\\\", b"").count(b'\\"')
    if marks != 4 * len(texts) or len(texts) >= max_values or not texts.keys() <= known:
        return None
    return texts


def _append_of_texts(channel: str, message_serial: str, texts: Mapping[str, str]) -> Mutation:
    """An append that gives texts and nothing else, as a token does: half of the time it takes.

    Raises:
        Fault: It gives no text to append, or a name that is none.
    """
    given = texts.get
    text, op_id, socket_id = given("data"), given("op_id"), given("socket_id")
    data = None if text is None else _encode(text)
    _check_fragment(data, may_be_empty=False)
    _check_op_id(op_id)
    _check_socket_id(socket_id)
    return Mutation(
        verb="append",
        channel=channel,
        message_serial=message_serial,
        patch=Patch(Change.KEEP, data or Change.KEEP),
        data_bytes=_utf8_length(text or ""),
        client_id=given("client_id"),
        socket_id=socket_id,
        description=given("description"),
        op_id=op_id,
    )


def _publication(
    given: bodies.EventBody,
    header_key: str | None,
    limits: Channels,
    data_read: tuple[bytes, int] | None = None,
) -> Publication:
    """`data_read` is what `_text_data` would return, if that is known."""
    if not given.name:
        raise fault.invalid_input("name must not be empty")
    if len(given.name.encode()) > limits.max_event_name_bytes:
        raise fault.limit_exceeded(
            f"event name must be at most {limits.max_event_name_bytes} bytes"
            + set_by("channels.max_event_name_bytes")
        )
    channels = _channels(given, limits)
    key = given.idempotency_key if given.idempotency_key is not None else header_key
    if key is not None:
        _check_key("idempotency_key", key)
    if given.message_id is not None:
        _check_key("message_id", given.message_id)
    _check_socket_id(given.socket_id)
    is_run = runs.applies(given.name, channels, limits.ai_transport.channels)
    extras = read_extras(given.extras, is_run=is_run)
    if is_run:
        runs.check_metadata(extras.transport, extras.codec)
    status = extras.transport_status
    if status is not None and status not in TRANSPORT_STATUSES:
        raise fault.invalid_transport_header(
            "extras.ai.transport.status must be streaming, complete or cancelled"
        )
    data, data_bytes = data_read or _text_data(given.data)
    if data_bytes > limits.max_event_payload_bytes:
        raise fault.payload_too_large(
            f"event data exceeds {limits.max_event_payload_bytes} bytes"
            + set_by("channels.max_event_payload_bytes")
        )
    starts = cancels = None
    if is_run:
        starts = runs.read_start(given.name, extras.transport)
        if given.name == runs.CANCEL:
            cancels = runs.read_cancel(_decode_text(data), extras.transport)
    return Publication(
        name=given.name,
        data=data,
        data_bytes=data_bytes,
        channels=channels,
        socket_id=given.socket_id,
        info=_info(given.info),
        idempotency_key=key,
        message_id=given.message_id,
        extras=extras.text,
        extras_key=extras.idempotency_key,
        tags=None if given.tags is None else _encode(given.tags),
        transport=extras.transport,
        starts=starts,
        cancels=cancels,
        is_ephemeral=extras.is_ephemeral,
    )


def _channels(given: bodies.EventBody, limits: Channels) -> tuple[str, ...]:
    """`channels` if it is there, else `channel`."""
    if given.channels is None:
        if given.channel is None:
            raise fault.missing_channel_info()
        check_channel(given.channel, limits.max_channel_name_bytes)
        return (given.channel,)
    if not given.channels:
        raise fault.missing_channel_info()
    if len(given.channels) > limits.max_channels_per_event:
        raise fault.limit_exceeded(
            f"an event goes to at most {limits.max_channels_per_event} channels"
            + set_by("channels.max_channels_per_event")
        )
    for channel in given.channels:
        check_channel(channel, limits.max_channel_name_bytes)
    return tuple(dict.fromkeys(given.channels))


def _info(names: str | None) -> frozenset[str]:
    if not names:
        return frozenset()
    return frozenset(name.strip() for name in names.split(",") if name.strip())


def _text_data(raw: Raw | UnsetType) -> tuple[bytes, int]:
    """The string a published value is delivered as, in JSON, and its size (channels 1.3)."""
    value = _NULL if raw is UNSET else bytes(raw)
    text = _decode_text(value) if value.startswith(b'"') else compact(value).decode()
    return _encode(text), _utf8_length(text)


def _given_data(raw: Raw | UnsetType) -> tuple[bytes | None, int]:
    """The JSON of a value and its size; None if it is absent or null."""
    value = _NULL if raw is UNSET else bytes(raw)
    if value.startswith(b'"'):
        text = _decode_text(value)
        return _encode(text), _utf8_length(text)
    if value == _NULL:
        return None, 0
    value = compact(value)
    return value, len(value)


def _given(raw: Raw | UnsetType) -> bytes | None:
    value = _NULL if raw is UNSET else bytes(raw)
    return None if value == _NULL else compact(value)


def _utf8_length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _change(field: str, value: V | None, cleared: Sequence[str]) -> Change | V:
    if value is not None:
        return value
    return Change.CLEAR if field in cleared else Change.KEEP


def _check_fragment(data: bytes | None, *, may_be_empty: bool) -> None:
    if data is None or not data.startswith(b'"'):
        raise fault.invalid_input("append request data must be a string")
    if data == b'""' and not may_be_empty:
        raise fault.invalid_input("append request data must not be empty")


def _check_cleared(verb: MutationVerb, cleared: Sequence[str], **given: object) -> None:
    for field in cleared:
        if field not in given:
            raise fault.invalid_input("clear_fields must only contain name, data or extras")
    if len(set(cleared)) != len(cleared):
        raise fault.invalid_input("clear_fields must not contain duplicates")
    if any(given[field] is not None for field in cleared):
        raise fault.invalid_input(f"{verb} request cannot both replace and clear the same field")


def _check_confirmed(given: bodies.ResetBody, channel: str, operation: str) -> None:
    if given.confirm_channel != channel:
        raise fault.invalid_input("confirm_channel must be the channel of the path")
    if given.confirm_operation != operation:
        raise fault.invalid_input(f"confirm_operation must be {operation}")
    if not given.reason.strip():
        raise fault.invalid_input("reason must not be blank")


def _check_key(what: str, key: str) -> None:
    if not 1 <= len(key.encode()) <= MAX_KEY_BYTES:
        raise fault.invalid_input(f"{what} must be 1..={MAX_KEY_BYTES} bytes")


def _check_op_id(op_id: str | None) -> None:
    if op_id is not None and not 1 <= len(op_id.encode()) <= MAX_OP_ID_BYTES:
        raise fault.invalid_input(f"op_id must be 1..={MAX_OP_ID_BYTES} bytes")


def _check_socket_id(socket_id: str | None) -> None:
    if socket_id is not None and not is_socket_id(socket_id):
        raise fault.invalid_input("socket_id must have the form <int>.<int>")


def _whole(digits: str) -> int:
    """A whole number from a query; 0 if it is not one, capped at the largest size."""
    if not (digits.isascii() and digits.isdigit()):
        return 0
    return int(digits) if len(digits) <= _MAX_DIGITS else sys.maxsize
