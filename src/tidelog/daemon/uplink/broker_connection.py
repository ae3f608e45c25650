"""The daemon's connection to its broker: proven, negotiated, used, and opened again when lost.

A `BrokerConnection` lives as long as the daemon; a `_Conversation` as long as one WebSocket.
Nothing is sent before the broker has answered the negotiation (mesh 9.2), and what a conversation
still waits for when it ends is answered with "nobody knows", which the outbox retries under the
same id.
"""

import asyncio
import itertools
import logging
import random
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from socket import gaierror
from ssl import SSLError
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

import tidelog
from tidelog.base.errors import StoreError, StoreUntrustworthy, TidelogError
from tidelog.base.faultpoint import FaultPoint, reach
from tidelog.base.net.direct_socket import Redirected, connect
from tidelog.base.net.tls import context_for
from tidelog.base.terminal import printable
from tidelog.daemon.uplink.broker_address import socket_url
from tidelog.daemon.uplink.interface import BrokerUnreachable, Reply
from tidelog.mesh.protocol import negotiation, policy, wire
from tidelog.mesh.protocol.identity import CHALLENGE_BYTES, MemberKey, TokenRefused, from_base64url
from tidelog.mesh.protocol.negotiation import NegotiationFailed, Parameters

OPEN_TIMEOUT_S = 10.0
"""For the TCP and WebSocket handshakes, and again for hello and negotiation together."""

CLOSE_TIMEOUT_S = 2.0
PING_INTERVAL_S = 20.0
"""A broker that answers no ping for so long is gone, whatever TCP believes."""

MAX_FRAME_BYTES = 32 * 1024**2
"""What one frame of the broker may hold: a history page of `HISTORY_PAGE` large messages."""

HISTORY_PAGE = 50

LASTING_FAILURES = 16
"""A refusal that lasts counts as so many: the next try is as far away as tries ever are."""

DELIVERIES_AHEAD = 256
"""Deliveries read ahead of the inbox, and the most that share a transaction. When it is full the
daemon stops reading, and TCP tells the broker."""

_LASTING = {
    wire.UNAUTHENTICATED: "the broker did not accept this key's signature; "
    "check that the slug and the clock are right",
    wire.NOT_A_MEMBER: "this key is not a member, or was revoked; "
    "ask for an invite and run `tidelog mesh join`",
    wire.UNKNOWN_MESH: "the broker has no mesh of this name; "
    "check --mesh, or run `tidelog mesh create`",
    wire.MISDIRECTED: "the broker does not answer to the address that this daemon dialled. If that "
    "is the broker you meant, its operator adds the address to mesh.public_hosts in tidelog.toml; "
    "if not, another broker has passed on what this daemon signed: check `broker` in daemon.toml",
}
"""Refusals that trying again soon does not mend."""

_DISPLACED = {
    wire.REPLACED: "another daemon has connected with this member's key, and the mesh keeps the "
    "newest (4003 replaced_by_newer_connection). Run one daemon for each key, give the other one a "
    "key of its own with `tidelog mesh join`, or allow both with `tidelog mesh settings SLUG "
    "--clone-concurrency-policy allow_concurrent`",
    wire.ALREADY_CONNECTED: "another daemon is connected with this member's key, and the mesh "
    "keeps the oldest (4004 member_already_connected). Stop the other one first, or give this one "
    "a key of its own with `tidelog mesh join`",
}
"""Another daemon has this member's place: this one must not fight for it (mesh 9.6)."""

_log = logging.getLogger("tidelog.daemon.uplink.broker_connection")

Publish = Callable[[str, dict[str, Any]], None]
Receive = Callable[[Sequence[wire.Deliver]], Sequence[wire.Deliver]]
"""Stores deliveries and returns those that may be acknowledged."""


class Displaced(TidelogError):  # noqa: N818 - the fact is the noun
    """Another daemon with this member's key is connected instead; say so and exit."""

    def __init__(self, code: int) -> None:
        super().__init__(_DISPLACED[code])
        self.code = code


class SendReply(Struct, frozen=True, kw_only=True):
    """What became of one attempt to send a row."""

    code: int | None
    """None: no answer. The broker may have accepted the message or not."""
    error: str | None = None
    """Why it is not `done`, in one line for `last_error`."""
    broker_message_id: str | None = None
    history_id: int | None = None
    incarnation: str | None = None
    """The history of the broker's log that this is about; None if it has no name."""
    duplicate: bool = False
    history_available: bool = True
    retry_after_s: float | None = None


class BrokerConnection:
    """Keeps one negotiated connection to the broker, as far as the network lets it."""

    def __init__(
        self,
        broker_url: str,
        slug: str,
        key: MemberKey,
        *,
        receive: Receive,
        on_negotiated: Callable[[Parameters], None],
        publish: Publish,
        key_of: Callable[[str], Awaitable[str | None]],
        members: Callable[[], Awaitable[dict[str, str]]],
        signed_host: str | None,
        require: tuple[str, ...] = negotiation.REQUIRED,
        request_timeout_ms: int = policy.REQUEST_TIMEOUT_MS,
        jitter: Callable[[], float] = lambda: random.uniform(*policy.JITTER),  # noqa: S311 - spread
    ) -> None:
        """Prepare; nothing is opened before `run`.

        Args:
            broker_url: where the broker serves HTTP, as `https://host`.
            slug: name of the mesh.
            key: proves who this daemon is.
            receive: stores what arrives.
            on_negotiated: told the parameters before the first send; may refuse them by raising.
            publish: tells listeners on `/v1/events`.
            key_of: the key of the member of a name.
            members: name of each member by key, as the broker lists them.
            signed_host: `host:port` as dialled, for a hello of version 2; None for version 1.
            require: features without which the daemon must not run.
            request_timeout_ms: an attempt without a reply for so long has failed.
            jitter: factor on the wait before connecting again.
        """
        self._url = socket_url(broker_url, slug)
        self._slug = slug
        self._key = key
        self._receive = receive
        self._on_negotiated = on_negotiated
        self._publish = publish
        self._key_of = key_of
        self._members = members
        self._signed_host = signed_host
        self._require = require
        self._timeout_s = request_timeout_ms / 1000
        self._jitter = jitter
        self._instance = secrets.token_hex(16)
        self._conversation: _Conversation | None = None
        self._was_lost = False
        self.on_change: Callable[[], None] = lambda: None
        """Called when the connection became ready or was lost."""
        self.parameters: Parameters | None = None
        """What the newest connection of this process negotiated."""
        self.broker_version: str | None = None
        self.member_name: str | None = None
        """What the mesh calls this member, as the broker welcomed it."""
        self.known_incarnation: str | None = None
        """The history of the broker's log that was known last; the broker is asked what of it still
        holds."""
        self.on_history: Callable[[str, int], None] = lambda incarnation, began: None
        """Called at each connection, before anything is sent, with the history the log has now and
        the last `history_id` that it shares with the one known before."""
        self._incarnation: str | None = None
        """The history of the newest connection; None if its broker has no name for it."""
        self.trouble: str | None = None
        """Why there is no connection, for people; None while there is one, and before the first
        attempt has failed."""
        self.on_heard: Callable[[str, str], None] = lambda name, key: None
        """Called with the name and key of each member that has connected, this one included."""
        self.on_invalid: Callable[[], None] = lambda: None
        """Called for each frame of the broker that could not be understood."""

    @property
    def connected(self) -> bool:
        """Whether a send would go out now."""
        return self._conversation is not None

    @property
    def is_away(self) -> bool:
        """Whether the broker was tried and is not there."""
        return not self.connected and self.trouble is not None

    async def resolve(self, name: str) -> str | None:
        """The key of the one member of this name."""
        return await self._key_of(name)

    async def peers(self) -> dict[str, str]:
        """Name of each member by key."""
        return await self._members()

    # What the rest of the daemon asks of the broker.

    async def send(
        self, client_message_id: str, fingerprint: bytes, payload: bytes, supersedes: str | None
    ) -> SendReply:
        """One attempt to send a row; always returns, within the request timeout."""
        incarnation = self._incarnation

        def frame(ref: int) -> bytes:
            return wire.send_frame(ref, client_message_id, fingerprint, payload, supersedes)

        try:
            ack = await self._ask(frame, sent=lambda: reach(FaultPoint.DAEMON_SENT))
        except BrokerUnreachable as error:
            return SendReply(code=None, error=str(error))
        if not isinstance(ack, wire.Ack):
            return SendReply(code=None, error="the broker replied with a frame of another kind")
        if ack.code == 401 and self._conversation is not None:
            self._conversation.end("the broker asks to authenticate again")
        return _answer_of(ack, incarnation)

    async def subscribe(self, topic: str) -> Reply:
        """Receive a topic from now on."""
        return await self._acknowledged(
            lambda ref: wire.encode(wire.Subscribe(ref=ref, topic=topic))
        )

    async def unsubscribe(self, topic: str) -> Reply:
        """Stop receiving a topic."""
        return await self._acknowledged(
            lambda ref: wire.encode(wire.Unsubscribe(ref=ref, topic=topic))
        )

    async def topics(self) -> Reply:
        """Which topics there are."""
        return await self._acknowledged(lambda ref: wire.encode(wire.Topics(ref=ref)))

    async def history(self, after: int) -> wire.HistoryPage:
        """Messages this member may see, after a `history_id`."""
        page = await self._ask(
            lambda ref: wire.encode(wire.HistoryRequest(ref=ref, after=after, limit=HISTORY_PAGE))
        )
        if not isinstance(page, wire.HistoryPage):
            raise BrokerUnreachable(f"the broker refused the history: {page.error or page.code}")
        return page

    async def _acknowledged(self, frame: Callable[[int], bytes]) -> Reply:
        ack = await self._ask(frame)
        if not isinstance(ack, wire.Ack):
            raise BrokerUnreachable("the broker replied with a frame of another kind")
        body = msgspec.to_builtins(ack)
        for name in ("type", "ref", "code"):
            body.pop(name, None)
        return Reply(ack.code, body)

    async def _ask(
        self, frame: Callable[[int], bytes], sent: Callable[[], None] = lambda: None
    ) -> "wire.Ack | wire.HistoryPage":
        conversation = self._conversation
        if conversation is None:
            raise BrokerUnreachable("not connected")
        return await conversation.ask(frame, self._timeout_s, sent)

    # Connecting, again and again.

    async def run(self) -> None:
        """Stay connected until cancelled.

        Raises:
            NegotiationFailed: the broker cannot serve this daemon.
            Displaced: another daemon has this member's place.
        """
        failures = 0
        while True:
            was_ready = False
            try:
                async with self._connected() as conversation:
                    was_ready = True
                    failures = 0
                    await conversation.run()
            except ConnectionClosed as error:
                failures = self._note_close(error, failures)
            except _OtherHello as error:
                self._note_lasting(str(error))
                failures = LASTING_FAILURES
            except (OSError, WebSocketException, TimeoutError, _Unfit, wire.FrameInvalid) as error:
                self._note(_reason(error))
            except StoreUntrustworthy:
                raise
            except StoreError as error:  # what the broker said could not be stored
                self._note(_one_line(error))
            finally:
                if was_ready:
                    self._publish("daemon_disconnect", {"broker": self._url})
                    self._was_lost = True
            failures += 1
            await asyncio.sleep(policy.retry_delay_ms(failures, self._jitter()) / 1000)

    def _note_close(self, error: ConnectionClosed, failures: int) -> int:
        """Log how it ended; a refusal that lasts is not asked about again soon."""
        code = error.rcvd.code if error.rcvd is not None else None
        if code in _DISPLACED:
            raise Displaced(code) from error
        if code in _LASTING:
            reason = printable(error.rcvd.reason) if error.rcvd is not None else ""
            told = f"{code}, {reason}" if reason else str(code)
            self._note_lasting(f"the broker closed the connection ({told}): {_LASTING[code]}")
            return LASTING_FAILURES
        self._note(_closed(error))
        return failures

    def _note_lasting(self, trouble: str) -> None:
        self.trouble = trouble
        _log.error("broker %s: %s", self._url, trouble)

    def _note(self, trouble: str) -> None:
        self.trouble = trouble
        _log.warning("broker %s: %s", self._url, trouble)

    @asynccontextmanager
    async def _connected(self) -> "AsyncIterator[_Conversation]":
        async with connect(
            self._url,
            ssl=await context_for(self._url),
            open_timeout=OPEN_TIMEOUT_S,
            close_timeout=CLOSE_TIMEOUT_S,
            ping_interval=PING_INTERVAL_S,
            ping_timeout=PING_INTERVAL_S,
            max_size=MAX_FRAME_BYTES,
            compression=None,
        ) as socket:
            try:
                async with asyncio.timeout(OPEN_TIMEOUT_S):
                    await self._introduce(socket)
                    await self._negotiate(socket)
                conversation = _Conversation(socket, self)
                self._conversation = conversation
                self._announce_ready()
                try:
                    yield conversation
                finally:
                    self._conversation = None
                    conversation.abandon()
                    self.on_change()
            finally:
                # A farewell that is cancelled would leave the socket open.
                with suppress(asyncio.CancelledError):
                    await socket.close()
                socket.transport.abort()

    def _announce_ready(self) -> None:
        _log.info("connected to %s", self._url)
        self.trouble = None
        if self._was_lost:
            self._publish("daemon_reconnect", {"broker": self._url})
            self._was_lost = False
        self.on_change()

    async def _introduce(self, socket: ClientConnection) -> None:
        hello = await _expect(socket, wire.BrokerHello)
        try:
            challenge = from_base64url(hello.challenge)
        except TokenRefused:
            challenge = b""
        if len(challenge) != CHALLENGE_BYTES:
            raise _Unfit("the hello has no challenge of 32 bytes")
        self.broker_version = hello.broker_version
        host = self._signed_host
        version = 1 if host is None else 2
        if version not in hello.hello_versions:
            raise _OtherHello(version)
        answer = wire.DaemonHello(
            member_pubkey=self._key.public_hex,
            signature=self._key.sign_hello(self._slug, challenge, host),
            hello_version=version,
            host=host or "",
            daemon_version=tidelog.__version__,
            daemon_instance=self._instance,
            incarnation=self.known_incarnation or "",
        )
        await socket.send(wire.encode(answer), text=True)
        welcome = await _expect(socket, wire.Welcome)
        self.member_name = welcome.name
        self.on_heard(welcome.name, self._key.public_hex)
        self._incarnation = welcome.incarnation or None
        if self._incarnation is not None:
            self.on_history(self._incarnation, welcome.began)
            self.known_incarnation = self._incarnation

    async def _negotiate(self, socket: ClientConnection) -> None:
        request = wire.FeatureRequest(
            require=list(self._require), optional=list(negotiation.OPTIONAL)
        )
        await socket.send(wire.encode(request), text=True)
        response = await _expect(socket, wire.FeatureResponse)
        try:
            parameters, warnings = negotiation.judge(
                response.supported, response.missing_required, require=self._require
            )
        except NegotiationFailed as failure:
            await self._refuse(socket, response, failure)
            raise
        for warning in warnings:
            _log.warning("negotiation: %s", warning)
        self._on_negotiated(parameters)
        self.parameters = parameters

    async def _refuse(
        self, socket: ClientConnection, response: wire.FeatureResponse, failure: NegotiationFailed
    ) -> None:
        reason = wire.FeatureFailure(
            kind=failure.kind, feature=failure.feature, detail=failure.detail
        )
        offered = wire.encode(response)[:2000].decode("utf-8", "replace")
        _log.warning("negotiation failed: %s; the broker answered %s", failure, offered)
        self._publish(
            wire.NEGOTIATION_FAILED,
            {"kind": failure.kind, "feature": failure.feature, "detail": failure.detail},
        )
        with suppress(ConnectionClosed):
            await socket.send(wire.encode(reason), text=True)
            await socket.close(failure.close_code, failure.kind)

    # What arrives on its own.

    def take_deliveries(self, frames: Sequence[wire.Deliver]) -> Sequence[wire.Deliver]:
        """Store deliveries; returns those that may be acknowledged."""
        return self._receive(frames)

    def take_presence(self, frame: wire.PeerJoin | wire.PeerLeave) -> None:
        """Tell listeners who came or went."""
        joined = isinstance(frame, wire.PeerJoin)
        if joined:
            self.on_heard(frame.name, frame.member_pubkey)
        self._publish(
            "peer_join" if joined else "peer_leave",
            {"member_pubkey": frame.member_pubkey, "name": frame.name},
        )


class _Unfit(TidelogError):  # noqa: N818 - the failure is the noun
    """The other side does not speak this protocol."""


class _OtherHello(TidelogError):  # noqa: N818 - the fact is the noun
    """The broker takes no hello of the version that this daemon signs: nothing was signed."""

    def __init__(self, version: int) -> None:
        super().__init__(
            {
                1: "it does not accept a hello of version 1 (mesh.require_hello_2). Remove "
                "hello_version from [uplink] in daemon.toml, or give --hello-version 2",
                2: "it is older than this daemon and does not accept a hello of version 2. "
                "Upgrade the "
                "broker. Until then, and only if you trust it with whatever this member may do "
                "elsewhere, give --hello-version 1, or hello_version = 1 in [uplink] of "
                "daemon.toml",
            }[version]
        )


class _Conversation:
    """One negotiated connection: requests with replies, deliveries with acknowledgements."""

    def __init__(self, socket: ClientConnection, uplink: BrokerConnection) -> None:
        self._socket = socket
        self._uplink = uplink
        self._refs = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[wire.Ack | wire.HistoryPage]] = {}
        self._delivered: asyncio.Queue[wire.Deliver] = asyncio.Queue(DELIVERIES_AHEAD)

    async def ask(
        self, frame: Callable[[int], bytes], timeout_s: float, sent: Callable[[], None]
    ) -> "wire.Ack | wire.HistoryPage":
        """Send a frame and wait for the reply to its `ref`; one that comes later is dropped."""
        ref = next(self._refs)
        answered: asyncio.Future[wire.Ack | wire.HistoryPage] = (
            asyncio.get_running_loop().create_future()
        )
        self._waiting[ref] = answered
        try:
            async with asyncio.timeout(timeout_s):
                await self._socket.send(frame(ref), text=True)
                sent()
                return await answered
        except TimeoutError:
            raise BrokerUnreachable("no answer within the request timeout") from None
        except (ConnectionClosed, OSError):
            raise BrokerUnreachable("the connection was lost") from None
        finally:
            self._waiting.pop(ref, None)

    def end(self, why: str) -> None:
        """Give the connection up; the uplink opens another one."""
        _log.warning("leaving the connection: %s", why)
        self._socket.transport.abort()

    def abandon(self) -> None:
        """The connection is gone: whoever still waits learns that no reply will come."""
        for answered in self._waiting.values():
            if not answered.done():
                answered.set_exception(BrokerUnreachable("the connection was lost"))

    async def run(self) -> None:
        """Read and store until the connection ends; raises what ended it."""
        storing = asyncio.create_task(self._store())
        reading = asyncio.create_task(self._read())
        try:
            done, _ = await asyncio.wait((storing, reading), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (storing, reading):
                task.cancel()
            await asyncio.gather(storing, reading, return_exceptions=True)

    async def _read(self) -> None:
        while True:
            data = await self._socket.recv()
            try:
                frame = wire.read_broker_frame(data)
            except wire.FrameInvalid as error:
                self._uplink.on_invalid()
                _log.warning("a frame of the broker is invalid: %s", _one_line(error))
                continue
            match frame:
                case wire.Ack() | wire.HistoryPage():
                    answered = self._waiting.pop(frame.ref, None)
                    if answered is not None and not answered.done():
                        answered.set_result(frame)
                case wire.Deliver():
                    await self._delivered.put(frame)
                case wire.PeerJoin() | wire.PeerLeave():
                    self._uplink.take_presence(frame)
                case _:
                    _log.debug("a frame that has no meaning here was ignored")

    async def _store(self) -> None:
        while True:
            frames = [await self._delivered.get()]
            frames += [self._delivered.get_nowait() for _ in range(self._delivered.qsize())]
            for frame in self._uplink.take_deliveries(frames):
                acknowledgement = wire.ClientAck(
                    broker_message_id=frame.broker_message_id,
                    client_message_id=frame.client_message_id,
                    claim_id=frame.claim_id,
                )
                await self._socket.send(wire.encode(acknowledgement), text=True)


_Expected = TypeVar("_Expected", bound=Struct)


async def _expect(socket: ClientConnection, kind: type[_Expected]) -> _Expected:
    """The next frame that this program knows, which must be of this kind."""
    while True:
        frame = wire.read_broker_frame(await socket.recv())
        if isinstance(frame, kind):
            return frame
        if isinstance(frame, wire.PeerJoin | wire.PeerLeave) or frame is None:
            continue
        raise _Unfit(f"{kind.__name__} was due, {type(frame).__name__} came")


def _answer_of(ack: wire.Ack, incarnation: str | None) -> SendReply:
    error = None
    if ack.code not in (200, 201):
        error = " ".join(filter(None, (str(ack.code), ack.error, ack.conflict)))
    return SendReply(
        code=ack.code,
        error=error,
        broker_message_id=ack.broker_message_id,
        history_id=ack.history_id,
        incarnation=incarnation,
        duplicate=bool(ack.duplicate),
        history_available=ack.history_available is not False,
        retry_after_s=ack.retry_after,
    )


def _reason(error: Exception) -> str:
    """Why an attempt to connect failed, as an operator would say it."""
    match error:
        case TimeoutError():
            return f"the broker did not answer within {OPEN_TIMEOUT_S:g} s"
        case ConnectionRefusedError():
            return "nobody listens there; is the broker running?"
        case InvalidStatus() if error.response.status_code == 429:
            return (
                "the broker accepts no more from this address now: too many connections or failures"
            )
        case InvalidStatus():
            return f"there is no broker there: HTTP {error.response.status_code}"
        case Redirected():
            return str(error)
        case SSLError():
            return f"TLS failed: {_one_line(error)}"
        case gaierror():
            return f"the broker's name was not found: {error.strerror}"
        case _:
            return _one_line(error)


def _closed(error: ConnectionClosed) -> str:
    """How a connection ended."""
    if error.rcvd is None:
        return "the connection was lost"
    reason = f": {printable(error.rcvd.reason)}" if error.rcvd.reason else ""
    return f"the broker closed the connection ({error.rcvd.code}{reason})"


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
