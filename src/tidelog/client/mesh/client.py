"""`MeshClient`: send and receive mesh messages through the daemon of this machine.

The daemon owns the key, the retries and the disk; a program that uses this client may be killed at
any moment. What it must keep is one thing: the idempotency key of a send it is not sure about. The
same key with the same content is the same message, however often it is sent.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self
from urllib.parse import quote, urlencode

from tidelog.base.errors import TidelogError
from tidelog.client.backoff import Backoff
from tidelog.client.mesh import daemon_directory
from tidelog.client.mesh.http import DaemonUnavailable, Endpoint, Event, Reply

Priority = Literal["now", "next", "low"]

BEGINNING = "LTEu"
"""The cursor before every message: `inbox` starts here unless told otherwise."""

_TRANSIENT = frozenset({429, 503})


_NEXT = {
    "topic_not_found": "Make it with `tidelog mesh topic create`; `topic list` shows them.",
    "queue_not_found": "Make it with `tidelog mesh queue create`; `queue list` shows them.",
    "outbox_row_not_found": "`tidelog mesh outbox list` shows the rows there are.",
    "not_subscribed": "Subscribe first: `tidelog daemon subscribe`.",
}
"""What to do next, by the error word of the contract."""


class MeshRefused(TidelogError):  # noqa: N818 - the failure is the noun
    """The daemon refused a request."""

    def __init__(self, reply: Reply) -> None:
        body = reply.body if isinstance(reply.body, dict) else {}
        self.status = reply.status
        self.error = str(body.get("error", "unknown"))
        """What is wrong, as an error word of the contract."""
        self.body: dict[str, Any] = body
        detail = body.get("detail") or body.get("conflict") or ""
        told = f"{reply.status} {self.error}" + (f": {detail}" if detail else "")
        super().__init__(f"{told}. {_NEXT[self.error]}" if self.error in _NEXT else told)


class Sent(NamedTuple):
    """A send that the daemon has on its disk."""

    client_message_id: str
    """Its idempotency key."""
    status: str
    """`queued`, `inflight` or `done`."""
    duplicate: bool
    """Whether the broker had it already."""
    broker_message_id: str | None
    history_id: int | None


class InboxMessage(NamedTuple):
    """One received message."""

    cursor: str
    """Give it to `MeshClient.inbox` to go on after this message."""
    client_message_id: str
    broker_message_id: str | None
    sender_pubkey: str
    sender_name: str
    topic: str | None
    """None for a direct message."""
    body: str
    body_encoding: str
    """`utf8`, or `base64` for a body that is not text."""
    meta: dict[str, Any] | None
    reply_to_id: str | None
    priority: str | None
    mention: bool
    received_at: str


class MeshClient:
    """Finds the daemon by itself; use it as `async with`, or just call it."""

    def __init__(
        self,
        data_dir: Path | str | None = None,
        *,
        mesh: str | None = None,
        port: int | None = None,
        patience_s: float = 10.0,
        backoff: Backoff = Backoff(first=0.1, most=5.0),  # noqa: B008 - frozen
    ) -> None:
        """Name a daemon, if there are several.

        Args:
            data_dir: the daemon's directory.
            mesh: its mesh, when it is in the usual directory.
            port: its loopback port, instead of the Unix socket.
            patience_s: how long a call is repeated while the daemon is away or busy. Sends are
                repeated under the same key, so that none becomes two.
            backoff: the waits between repetitions.
        """
        self._endpoint: Endpoint = daemon_directory.endpoint(
            daemon_directory.find(data_dir, mesh), port
        )
        self._patience_s = patience_s
        self._backoff = backoff

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing stays open."""

    # Sending.

    async def send(
        self,
        to: str,
        message: str,
        *,
        idempotency_key: str | None = None,
        priority: Priority | None = None,
        meta: dict[str, Any] | None = None,
        mentions: Sequence[str] | None = None,
        reply_to: str | None = None,
    ) -> Sent:
        """Hand a message to the daemon; when this returns it is on the disk.

        Args:
            to: `dm:<name or key>`, `topic:<name>`, `queue:<id>`, or a public key.
            message: the text.
            idempotency_key: names this send for ever. Take it from your own data (an order's
                number, a job's id), and a program that was killed can simply send again. Without
                one a fresh key is made, which protects this call only.
            priority: `now`, `next` or `low`.
            meta: a JSON object that travels with it.
            mentions: public keys of members to point out.
            reply_to: the `broker_message_id` being answered.

        Raises:
            MeshRefused: the send is wrong, its key is taken, or the outbox is full.
            DaemonUnavailable: no daemon answered in time. Sending again with the same key is safe.
        """
        given = {
            "to": to,
            "message": message,
            "priority": priority,
            "meta": meta,
            "mentions": None if mentions is None else list(mentions),
            "reply_to_id": reply_to,
        }
        body = {name: value for name, value in given.items() if value is not None}
        key = secrets.token_hex(16) if idempotency_key is None else idempotency_key
        reply = await self._patiently("POST", "/v1/send", body | {"client_message_id": key})
        answer = reply.body
        return Sent(
            answer["client_message_id"],
            answer["status"],
            bool(answer.get("duplicate")),
            answer.get("broker_message_id"),
            answer.get("history_id"),
        )

    async def outcome(self, client_message_id: str) -> dict[str, Any]:
        """The outbox row of a send: `status`, `broker_message_id`, `last_error` and the rest."""
        return await self.ask("GET", f"/v1/outbox/{quote(client_message_id, safe='')}")

    async def wait(self, client_message_id: str, *, poll_s: float = 0.2) -> dict[str, Any]:
        """Wait until the broker has a message, or never will; returns its outbox row."""
        while True:
            row = await self.outcome(client_message_id)
            if row["status"] not in ("pending", "inflight"):
                return row
            await asyncio.sleep(poll_s)

    # Receiving.

    async def inbox(
        self, after: str | None = None, *, topic: str | None = None
    ) -> AsyncGenerator[InboxMessage, None]:
        """Every message after a cursor, then every new one as it comes; ends when you leave.

        A connection that is lost is opened again after the last message you were given: nothing
        is missed and nothing comes twice. Keep the cursor of what you have dealt with.
        """
        async with aclosing(self.events(BEGINNING if after is None else after)) as events:
            async for event in events:
                if event.kind == "message" and (topic is None or event.data["topic"] == topic):
                    yield _message(event.data)

    async def events(self, after: str | None = None) -> AsyncGenerator[Event, None]:
        """Everything that happens in the daemon; messages after `after` are replayed."""
        failures = 0
        while True:
            try:
                async with aclosing(self._endpoint.events(after)) as events:
                    async for event in events:
                        after = event.cursor or after
                        failures = 0
                        yield event
            except DaemonUnavailable:
                if failures and self._backoff.delay(failures) * failures > self._patience_s:
                    raise
            await asyncio.sleep(self._backoff.delay(failures))
            failures += 1

    async def received(
        self,
        *,
        after: str | None = None,
        topic: str | None = None,
        sender: str | None = None,
        limit: int = 100,
    ) -> list[InboxMessage]:
        """One page of what is in the inbox now, oldest first; it does not wait."""
        given = {"cursor": after, "topic": topic, "from": sender, "limit": str(limit)}
        query = urlencode({name: value for name, value in given.items() if value is not None})
        page = await self.ask("GET", f"/v1/inbox?{query}")
        return [_message(item) for item in page["items"]]

    # Topics and the daemon itself.

    async def subscribe(self, topic: str) -> None:
        """Receive a topic from now on."""
        await self.ask("POST", "/v1/topic/subscribe", {"topic": topic})

    async def unsubscribe(self, topic: str) -> None:
        """Stop receiving a topic."""
        await self.ask("POST", "/v1/topic/unsubscribe", {"topic": topic})

    async def topics(self) -> list[Any]:
        """Which topics there are."""
        answer = await self.ask("GET", "/v1/topic/list")
        return list(answer.get("topics") or [])

    async def health(self) -> dict[str, Any]:
        """Whether the daemon is connected, and how much waits."""
        return await self.ask("GET", "/v1/health")

    async def ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """Any endpoint of the daemon; the JSON it returns."""
        answer: dict[str, Any] = (await self._patiently(method, path, body)).body
        return answer

    async def _patiently(self, method: str, path: str, body: object = None) -> Reply:
        """Repeat while the daemon is away or busy; everything asked here may be repeated."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience_s
        attempt = 0
        while True:
            try:
                reply = await self._endpoint.ask(method, path, body)
                if reply.status < 400:
                    return reply
                if reply.status not in _TRANSIENT:
                    raise MeshRefused(reply)
                wait = max(self._backoff.delay(attempt), _retry_after(reply))
                failure: TidelogError = MeshRefused(reply)
            except DaemonUnavailable as error:
                wait, failure = self._backoff.delay(attempt), error
            attempt += 1
            if loop.time() + wait > deadline:
                raise failure
            await asyncio.sleep(wait)


def _retry_after(reply: Reply) -> float:
    try:
        return float(reply.headers.get("retry-after", "0"))
    except ValueError:
        return 0.0


def _message(data: dict[str, Any]) -> InboxMessage:
    return InboxMessage._make(data.get(name) for name in InboxMessage._fields)
