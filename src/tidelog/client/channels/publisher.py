"""`ChannelPublisher`: what an application's server writes into channels.

    async with ChannelPublisher("http://127.0.0.1:8080", "app-id", "app-key", "app-secret") as app:
        receipt = await app.publish("room-7", "chat.message", {"text": "hi"})
        async with app.stream("room-7", "answer") as answer:
            async for token in model:
                await answer.write(token)

It is apart from `ChannelClient` because it holds the app's secret: who has it may do everything,
and subscribers should not. Every request carries a key of its own (`message_id`, `op_id`) and is
repeated under it when the network or the server fails, so nothing is done twice.
"""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import quote
from uuid import uuid4

import msgspec
from msgspec import Struct

from tidelog.channels.protocol.signatures import sign
from tidelog.channels.protocol.verbs import MutationVerb
from tidelog.client.backoff import Backoff
from tidelog.client.channels.core import Authorization
from tidelog.client.channels.http import ChannelApi, PublishFailed
from tidelog.client.channels.stream import MAX_BUFFERED, MessageStream

ATTEMPTS = 8
"""Attempts of one request: with `RETRY` about seven seconds, the time a server takes to restart."""

RETRY = Backoff(first=0.1, most=2.0)

TIMEOUT_S = 10.0

_encode = msgspec.json.Encoder().encode


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


class ChannelPublisher:
    """Publishes for one app; use it as `async with`."""

    def __init__(
        self,
        url: str,
        app_id: str,
        app_key: str,
        app_secret: str,
        *,
        attempts: int = ATTEMPTS,
        timeout_s: float = TIMEOUT_S,
        backoff: Backoff = RETRY,
    ) -> None:
        """Nothing is opened yet.

        Args:
            url: the server, `http://host:port` or `https://host`.
            app_id: in the paths.
            app_key: names the app in signatures.
            app_secret: signs.
            attempts: how often a request is sent before `PublishFailed`.
            timeout_s: of one attempt.
            backoff: waits between attempts.
        """
        if attempts < 1:
            raise ValueError("attempts must be at least 1")
        self._key = app_key
        self._secret = app_secret
        self._api = ChannelApi(
            url,
            app_id,
            app_key,
            app_secret,
            attempts=attempts,
            timeout_s=timeout_s,
            backoff=backoff,
        )

    async def __aenter__(self) -> Self:
        await self._api.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._api.__aexit__(kind, error, trace)

    async def publish(
        self,
        channel: str,
        event: str,
        data: Any,
        *,
        message_id: str | None = None,
        extras: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
        socket_id: str | None = None,
    ) -> Receipt:
        """Publish an event; with versioned messages it can be changed later.

        Args:
            channel: where.
            event: its name.
            data: text, or a JSON value that subscribers get as text.
            message_id: 1 to 128 bytes that name this publish for ever in its channel: under the
                same one the same event is published once, another one is refused. Made up if it is
                not given.
            extras: see channels 3.
            tags: likewise.
            socket_id: a subscriber that does not get it and, if it is signed in, its creator.

        Raises:
            PublishRefused, PublishFailed: see there.
        """
        key = str(uuid4()) if message_id is None else message_id
        body = {"name": event, "channel": channel, "data": data, "message_id": key}
        optional = {"extras": extras, "tags": tags, "socket_id": socket_id}
        body |= {name: value for name, value in optional.items() if value is not None}
        answer = await self._api.post("/events", body)
        try:
            receipt = answer["channels"][channel]
        except (KeyError, TypeError):
            raise PublishFailed("the server's response is not that of a publish") from None
        return _receipt(channel, receipt, key)

    async def append(
        self,
        channel: str,
        message_serial: str,
        text: str,
        *,
        extras: Mapping[str, Any] | None = None,
        description: str | None = None,
        op_id: str | None = None,
        socket_id: str | None = None,
    ) -> Receipt:
        """Add text to a message; `extras` replace those it has."""
        body = {"data": text, "extras": extras, "description": description}
        return await self._change("append", channel, message_serial, body, op_id, socket_id)

    async def update(
        self,
        channel: str,
        message_serial: str,
        *,
        name: str | None = None,
        data: Any = None,
        extras: Mapping[str, Any] | None = None,
        clear: Sequence[Literal["name", "data", "extras"]] = (),
        description: str | None = None,
        metadata: Any = None,
        op_id: str | None = None,
        socket_id: str | None = None,
    ) -> Receipt:
        """Replace what is given, take away what `clear` names, keep the rest."""
        body = {"name": name, "data": data, "extras": extras, "metadata": metadata}
        body |= {"clear_fields": list(clear) or None, "description": description}
        return await self._change("update", channel, message_serial, body, op_id, socket_id)

    async def delete(
        self,
        channel: str,
        message_serial: str,
        *,
        clear: Sequence[Literal["name", "data", "extras"]] = (),
        description: str | None = None,
        metadata: Any = None,
        op_id: str | None = None,
        socket_id: str | None = None,
    ) -> Receipt:
        """Mark a message as deleted; its data stays unless `clear` names it."""
        body = {"clear_fields": list(clear) or None, "description": description}
        body |= {"metadata": metadata}
        return await self._change("delete", channel, message_serial, body, op_id, socket_id)

    def stream(
        self,
        channel: str,
        event: str,
        *,
        extras: Mapping[str, Any] | None = None,
        message_id: str | None = None,
        max_buffered: int = MAX_BUFFERED,
    ) -> MessageStream:
        """A message that grows while an `async with` lasts; see `MessageStream`."""
        return MessageStream(
            self,
            channel,
            event,
            extras=extras,
            message_id=message_id,
            max_buffered=max_buffered,
        )

    def authorization(
        self,
        channel: str,
        socket_id: str,
        *,
        user_id: str | None = None,
        user_info: Any = None,
    ) -> Authorization:
        """What lets a socket subscribe to a private channel, or as a user to a presence channel.

        For the application's own endpoint, which knows who may do so.
        """
        signed, channel_data = f"{socket_id}:{channel}", None
        if user_id is not None:
            member = {"user_id": user_id}
            member |= {} if user_info is None else {"user_info": user_info}
            channel_data = _encode(member).decode()
            signed += f":{channel_data}"
        return Authorization(f"{self._key}:{sign(self._secret, signed)}", channel_data)

    async def _change(
        self,
        verb: MutationVerb,
        channel: str,
        message_serial: str,
        body: Mapping[str, Any],
        op_id: str | None,
        socket_id: str | None,
    ) -> Receipt:
        key = str(uuid4()) if op_id is None else op_id
        given = {name: value for name, value in body.items() if value is not None}
        given["op_id"] = key
        if socket_id is not None:
            given["socket_id"] = socket_id
        message = f"{quote(channel, safe='')}/messages/{quote(message_serial, safe='')}"
        answer = await self._api.post(f"/channels/{message}/{verb}", given)
        return _receipt(channel, answer, key)


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
