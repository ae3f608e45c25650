"""What channels clients hand out, and the frames of a channel as values (channels 3 and 5.9)."""

from typing import Any

from msgspec import UNSET, Struct, UnsetType, structs

from tidelog.base.data import strictjson
from tidelog.base.errors import TidelogError

RUNTIME_PREFIX = "sockudo_"
"""Headers of this beginning are the server's; they are attributes of a message, not its extras."""

EVENT = "event"
"""Action of what cannot change: the channel keeps no versions, or the publisher wanted none."""


class BadFrame(TidelogError):  # noqa: N818 - the failure is the noun
    """The server sent what the protocol does not allow; the connection is given up."""


class Message(Struct, frozen=True, kw_only=True):
    """One message as it is after its latest known version. Do not change what its fields hold."""

    channel: str
    serial: str
    """What the message is called forever; the `message_serial` a publisher was given. Of an event
    that cannot change, its `message_id`."""
    name: str | None
    """The event name it was published under."""
    data: Any
    """All of it, also where the server sends only what was added. Text unless an update made it
    another JSON value; None if there is none."""
    extras: dict[str, Any]
    """The publisher's, without the server's own headers."""
    tags: Any
    action: str
    """What made it so: one of channels 5.1, such as `append`; `event` if it cannot change."""
    history_serial: int | None
    """Its position among the messages of the channel; None for an event that is not kept."""
    delivery_serial: int | None
    """Position of its latest version among all operations of the channel."""
    version_serial: str | None
    version_timestamp_ms: int | None
    client_id: str | None
    """Whom the latest version is attributed to."""
    is_partial: bool = False
    """Whether text from before the subscription is missing; see `Channel`."""

    @property
    def is_deleted(self) -> bool:
        """Whether the latest version is a delete; its data may still be there."""
        return self.action == "delete"

    @property
    def status(self) -> str | None:
        """`extras.ai.transport.status`: streaming, complete or cancelled; None without a stream."""
        try:
            status = self.extras["ai"]["transport"]["status"]
        except (KeyError, TypeError):
            return None
        return status if isinstance(status, str) else None

    @property
    def is_complete(self) -> bool:
        """Whether it is complete: not a stream, or one that ended as it was meant to."""
        return self.status in (None, "complete")

    def json(self) -> Any:
        """The value that was published, where `data` is the text of a JSON value."""
        return strictjson.read(self.data) if isinstance(self.data, str) else self.data


class Reset(Struct, frozen=True):
    """Continuity was lost: what was kept is gone, and what a rewind finds comes again."""

    channel: str
    code: str
    """One of the protocol's (`stream_reset`, `position_expired`, `continuity_unverifiable`,
    `persistence_unavailable`)."""
    reason: str


class Position(Struct, frozen=True):
    """Up to where a channel is known here."""

    stream_id: str
    serial: int
    last_message_id: str | None = None


class Operation(Struct, frozen=True, kw_only=True):
    """What one frame says about a message."""

    serial: str
    action: str
    name: str | None
    data: Any | UnsetType
    extras: dict[str, Any]
    tags: Any
    client_id: str | None
    message_id: str | None
    stream_id: str | None
    delivery_serial: int | None
    history_serial: int | None
    version_serial: str | None
    timestamp_ms: int | None


def is_versioned(frame: dict[str, Any]) -> bool:
    """Whether a frame is one of a message that can change, whatever its event is called."""
    try:
        return isinstance(frame["extras"]["headers"]["sockudo_action"], str)
    except (KeyError, TypeError):
        return False


def read_operation(frame: dict[str, Any]) -> Operation:
    """The operation in a frame of a channel, or in an item of its history.

    Raises:
        BadFrame: It is neither a version nor an event.
    """
    extras = dict(_dict(frame.get("extras")))
    headers = _dict(extras.pop("headers", None))
    own = {name: value for name, value in headers.items() if not name.startswith(RUNTIME_PREFIX)}
    if own:
        extras["headers"] = own
    message_id, delivery_serial = frame.get("message_id"), frame.get("serial")
    if is_versioned(frame):
        action = headers["sockudo_action"].removeprefix("message.")
        serial = headers.get("sockudo_message_serial")
        history_serial = headers.get("sockudo_history_serial")
        if not isinstance(history_serial, int) or not isinstance(delivery_serial, int):
            raise BadFrame("a version without its serials")
        name = frame.get("name", frame.get("event") if action == "create" else None)
    else:
        action, serial, history_serial = EVENT, message_id, delivery_serial
        name = frame.get("event")
    if not isinstance(serial, str):
        raise BadFrame("an event without an identity")
    return Operation(
        serial=serial,
        action=action,
        name=name if isinstance(name, str) else None,
        data=frame.get("data", UNSET),
        extras=extras,
        tags=frame.get("tags"),
        client_id=_text(frame.get("user_id"))
        or _text(_dict(frame.get("version")).get("client_id")),
        message_id=_text(message_id),
        stream_id=_text(frame.get("stream_id")),
        delivery_serial=delivery_serial if isinstance(delivery_serial, int) else None,
        history_serial=history_serial if isinstance(history_serial, int) else None,
        version_serial=_text(headers.get("sockudo_version_serial")),
        timestamp_ms=headers.get("sockudo_version_timestamp_ms"),
    )


def read_operations(frame: dict[str, Any], *, is_full: bool) -> list[Operation]:
    """The operations in a frame of a message that can change: several if appends were rolled up.

    Taken apart, so that what is known of them already does not count twice. In full mode each says
    all of the data.

    Raises:
        BadFrame: It is not a version, or not what its appends added.
    """
    last = read_operation(frame)
    lengths = frame.get("rolled")
    if lengths is None:
        return [last]
    serial, text = last.delivery_serial or 0, last.data
    if not (
        last.action == "append"
        and isinstance(text, str)
        and isinstance(lengths, list)
        and 0 < len(lengths) <= serial
        and all(isinstance(length, int) and length >= 0 for length in lengths)
        and (is_full or sum(lengths) == len(text))
    ):
        raise BadFrame("rolled up appends that do not add up")
    operations, start = [], 0
    for at, length in enumerate(lengths, serial - len(lengths) + 1):
        added = text if is_full else text[start : start + length]
        operations.append(structs.replace(last, delivery_serial=at, data=added))
        start += length
    return operations


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
