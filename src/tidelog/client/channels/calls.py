"""What can be asked of the channels API: each function makes the call, and reads its result.

Nothing here sends anything. `ChannelPublisher` and `BlockingChannelPublisher` have a method for
each of these, with the same arguments.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar, get_args
from urllib.parse import quote
from uuid import uuid4

from msgspec import UNSET, Struct

from tidelog.channels.protocol.query import Direction
from tidelog.channels.protocol.runs import CANCEL
from tidelog.channels.protocol.verbs import MutationVerb
from tidelog.client.channels.exchange import Call
from tidelog.client.channels.message import Message, Operation, read_operation

T = TypeVar("T")

Field = Literal["name", "data", "extras"]
Info = Literal["subscription_count", "user_count"]


class Receipt(Struct, frozen=True, kw_only=True):
    """Where a publish or a change stands."""

    channel: str
    message_serial: str | None
    """Names the message in every later change; None if it cannot be changed."""
    version_serial: str | None
    history_serial: int | None
    delivery_serial: int | None
    key: str
    """The `message_id` or `op_id` it was sent under."""
    is_duplicate: bool = False
    """Whether the change had been made before under this key. A publish is not told apart."""


class StoredMessage(Message, frozen=True, kw_only=True):
    """A message of a history, as it is now."""

    published_at_ms: int
    """When it was created; `version_timestamp_ms` is of its latest version."""


class MessageVersion(Struct, frozen=True, kw_only=True):
    """One version of a message."""

    message_serial: str
    version_serial: str
    action: str
    """One of channels 5.1, such as `append`."""
    name: str | None
    data: Any
    """Of an append only what it added; else all of it. None if it was cleared."""
    extras: dict[str, Any]
    delivery_serial: int
    timestamp_ms: int
    client_id: str | None
    """Whom it is attributed to."""
    description: str | None
    metadata: Any


class ChannelInfo(Struct, frozen=True, kw_only=True):
    """Who is on a channel; None for what was not asked for."""

    is_occupied: bool
    subscription_count: int | None = None
    user_count: int | None = None


class Page(Struct, Generic[T], frozen=True):
    """Part of something longer."""

    items: list[T]
    next_cursor: str | None
    """Asks for the next page, with all other arguments the same; None on the last one."""


# Writing.


def publish(
    channel: str,
    event: str,
    data: Any,
    *,
    message_id: str | None = None,
    extras: Mapping[str, Any] | None = None,
    tags: Mapping[str, str] | None = None,
    socket_id: str | None = None,
) -> Call[Receipt]:
    """Publish an event; with versioned messages it can be changed later.

    Args:
        channel: where.
        event: its name.
        data: text, or a JSON value that subscribers get as text.
        message_id: 1 to 128 bytes that name this publish for ever in its channel: under the same
            one the same event is published once, another one is refused. Made up if it is not
            given.
        extras: see channels 3.
        tags: likewise.
        socket_id: a subscriber that does not get it and, if it is signed in, its creator.

    Raises:
        PublishRefused, PublishFailed: see there.
    """
    key = str(uuid4()) if message_id is None else message_id
    body = {"name": event, "channel": channel, "data": data, "message_id": key}
    body |= _given(extras=extras, tags=tags, socket_id=socket_id)
    return Call(
        path="/events",
        body=body,
        read=lambda answer: _receipt(channel, answer["channels"][channel], key),
    )


def append(
    channel: str,
    message_serial: str,
    text: str,
    *,
    extras: Mapping[str, Any] | None = None,
    description: str | None = None,
    op_id: str | None = None,
    socket_id: str | None = None,
) -> Call[Receipt]:
    """Add text to a message; `extras` replace those it has."""
    body = _given(data=text, extras=extras, description=description)
    return _change("append", channel, message_serial, body, op_id, socket_id)


def update(
    channel: str,
    message_serial: str,
    *,
    name: str | None = None,
    data: Any = None,
    extras: Mapping[str, Any] | None = None,
    clear: Sequence[Field] = (),
    description: str | None = None,
    metadata: Any = None,
    op_id: str | None = None,
    socket_id: str | None = None,
) -> Call[Receipt]:
    """Replace what is given, take away what `clear` names, keep the rest."""
    body = _given(name=name, data=data, extras=extras, metadata=metadata)
    body |= _given(clear_fields=list(clear) or None, description=description)
    return _change("update", channel, message_serial, body, op_id, socket_id)


def delete(
    channel: str,
    message_serial: str,
    *,
    clear: Sequence[Field] = (),
    description: str | None = None,
    metadata: Any = None,
    op_id: str | None = None,
    socket_id: str | None = None,
) -> Call[Receipt]:
    """Mark a message as deleted; its data stays unless `clear` names it."""
    body = _given(clear_fields=list(clear) or None, description=description, metadata=metadata)
    return _change("delete", channel, message_serial, body, op_id, socket_id)


def cancel(
    channel: str,
    run_id: str | None = None,
    *,
    client_id: str | None = None,
    all_runs: bool = False,
    message_id: str | None = None,
) -> Call[Receipt]:
    """Ask to stop a run, all runs of a client, or all of a channel: exactly one of them.

    Raises:
        PublishRefused, PublishFailed: see there.
    """
    data = cancel_data(run_id=run_id, client_id=client_id, all_runs=all_runs)
    return publish(channel, CANCEL, data, message_id=message_id)


def cancel_data(
    *,
    run_id: str | None = None,
    client_id: str | None = None,
    own: bool = False,
    all_runs: bool = False,
) -> dict[str, Any]:
    """What an `ai-cancel` says; `ValueError` unless it is exactly one thing."""
    forms = _given(runId=run_id, clientId=client_id, own=own or None, all=all_runs or None)
    if len(forms) != 1:
        raise ValueError("cancel takes exactly one of a run, a client, its own runs, and all")
    return forms


# Reading.


def message(channel: str, message_serial: str) -> Call[Message]:
    """A message as it is now, also when it is deleted."""
    return Call(
        path=_message_path(channel, message_serial),
        read=lambda answer: _message(channel, answer["item"]),
    )


def versions(
    channel: str,
    message_serial: str,
    *,
    limit: int | None = None,
    direction: Direction = "newest_first",
    cursor: str | None = None,
) -> Call[Page[MessageVersion]]:
    """A page of the versions of a message; oldest first they rebuild it."""
    return Call(
        path=f"{_message_path(channel, message_serial)}/versions",
        query=_query(limit=limit, direction=direction, cursor=cursor),
        read=lambda answer: _page(answer, _version),
    )


def history(
    channel: str,
    *,
    limit: int | None = None,
    direction: Direction = "newest_first",
    start_serial: int | None = None,
    end_serial: int | None = None,
    start_time_ms: int | None = None,
    end_time_ms: int | None = None,
    cursor: str | None = None,
) -> Call[Page[StoredMessage]]:
    """A page of the messages of a channel, each as it is now.

    Args:
        channel: whose.
        limit: the most on a page; the server has a limit of its own, 100 if it is not set.
        direction: `newest_first` or `oldest_first`.
        start_serial: the first `history_serial`, inclusive; `end_serial` the last.
        end_serial: see there.
        start_time_ms: of publication, inclusive; `end_time_ms` likewise.
        end_time_ms: see there.
        cursor: `next_cursor` of the page before.
    """
    return Call(
        path=f"/channels/{quote(channel, safe='')}/history",
        query=_query(
            limit=limit,
            direction=direction,
            start_serial=start_serial,
            end_serial=end_serial,
            start_time_ms=start_time_ms,
            end_time_ms=end_time_ms,
            cursor=cursor,
        ),
        read=lambda answer: _page(answer, lambda item: _stored(channel, item)),
    )


def channels(prefix: str = "", *, info: Iterable[Info] = ()) -> Call[dict[str, ChannelInfo]]:
    """The channels that have subscribers, by name; `user_count` needs a prefix `presence-`."""
    return Call(
        path="/channels",
        query=_query(filter_by_prefix=prefix or None, info=",".join(info) or None),
        read=lambda answer: {
            name: _info({"occupied": True, **found}) for name, found in answer["channels"].items()
        },
    )


def channel(name: str, *, info: Iterable[Info] = ("subscription_count",)) -> Call[ChannelInfo]:
    """Who is on one channel; `user_count` is known of presence channels only."""
    return Call(
        path=f"/channels/{quote(name, safe='')}",
        query=_query(info=",".join(info) or None),
        read=_info,
    )


def users(channel: str) -> Call[list[str]]:
    """The ids of the users on a presence channel."""
    return Call(
        path=f"/channels/{quote(channel, safe='')}/users",
        read=lambda answer: [str(user["id"]) for user in answer["users"]],
    )


# What the methods of publishers are made of.


def describe(method: Callable[..., Any], make: Callable[..., Any]) -> None:
    """Give a method that sends what `make` returns its name, words and arguments."""
    method.__name__ = make.__name__
    method.__doc__ = make.__doc__
    made = inspect.signature(make)
    [result] = get_args(made.return_annotation)
    this = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    method.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # as PEP 362 has it
        [this, *made.parameters.values()], return_annotation=result
    )


# How requests are written and results are read.


def _change(
    verb: MutationVerb,
    channel: str,
    message_serial: str,
    body: Mapping[str, Any],
    op_id: str | None,
    socket_id: str | None,
) -> Call[Receipt]:
    key = str(uuid4()) if op_id is None else op_id
    return Call(
        path=f"{_message_path(channel, message_serial)}/{verb}",
        body={**body, "op_id": key, **_given(socket_id=socket_id)},
        read=lambda answer: _receipt(channel, answer, key),
    )


def _message_path(channel: str, message_serial: str) -> str:
    return f"/channels/{quote(channel, safe='')}/messages/{quote(message_serial, safe='')}"


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _query(**values: str | int | None) -> dict[str, str]:
    return {name: str(value) for name, value in values.items() if value is not None}


def _receipt(channel: str, answer: Mapping[str, Any], key: str) -> Receipt:
    return Receipt(
        channel=channel,
        message_serial=answer.get("message_serial"),
        version_serial=answer.get("version_serial"),
        history_serial=answer.get("history_serial"),
        delivery_serial=answer.get("delivery_serial"),
        key=key,
        is_duplicate=answer.get("status") == "duplicate",
    )


def _page(answer: Mapping[str, Any], read: Callable[[dict[str, Any]], T]) -> Page[T]:
    cursor = answer.get("next_cursor")
    items = [read(item) for item in answer["items"]]
    return Page(items, cursor if isinstance(cursor, str) else None)


def _fields(channel: str, operation: Operation) -> dict[str, Any]:
    return {
        "channel": channel,
        "serial": operation.serial,
        "name": operation.name,
        "data": None if operation.data is UNSET else operation.data,
        "extras": operation.extras,
        "tags": operation.tags,
        "action": operation.action,
        "history_serial": operation.history_serial,
        "delivery_serial": operation.delivery_serial,
        "version_serial": operation.version_serial,
        "version_timestamp_ms": operation.timestamp_ms,
        "client_id": operation.client_id,
    }


def _message(channel: str, item: dict[str, Any]) -> Message:
    return Message(**_fields(channel, read_operation(item)))


def _stored(channel: str, row: dict[str, Any]) -> StoredMessage:
    return StoredMessage(
        **_fields(channel, read_operation(row["message"])),
        published_at_ms=row["published_at_ms"],
    )


def _version(item: dict[str, Any]) -> MessageVersion:
    operation, version = read_operation(item), item["version"]
    return MessageVersion(
        message_serial=operation.serial,
        version_serial=version["serial"],
        action=operation.action,
        name=operation.name,
        data=None if operation.data is UNSET else operation.data,
        extras=operation.extras,
        delivery_serial=item["delivery_serial"],
        timestamp_ms=version["timestamp_ms"],
        client_id=version.get("client_id"),
        description=version.get("description"),
        metadata=version.get("metadata"),
    )


def _info(answer: Mapping[str, Any]) -> ChannelInfo:
    return ChannelInfo(
        is_occupied=bool(answer["occupied"]),
        subscription_count=answer.get("subscription_count"),
        user_count=answer.get("user_count"),
    )
