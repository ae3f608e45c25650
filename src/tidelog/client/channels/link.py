"""The channels client's connection: opened, kept alive, and opened again when it is lost."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import (
    ConnectionClosed,
    ConnectionClosedError,
    InvalidStatus,
    WebSocketException,
)

from tidelog.base.errors import TidelogError
from tidelog.base.net.direct_socket import connect
from tidelog.base.net.tls import context_for
from tidelog.channels.protocol.wire import CHANNEL_ERROR, OVER_CAPACITY, RECONNECT, UNAUTHORIZED
from tidelog.client.backoff import Backoff
from tidelog.client.channels.core import (
    Action,
    Authorization,
    Authorize,
    ChannelCore,
    ChannelOffline,
    Reconnect,
    RenewToken,
    Send,
)
from tidelog.client.channels.message import BadFrame

OPEN_TIMEOUT_S = 10
CLOSE_TIMEOUT_S = 2

PING_INTERVAL_S = 20
"""A connection that does not respond to a ping for this long is lost."""

REPLY_TIMEOUT_S = 30
"""A server that owes a reply and is silent for this long is given up."""

MAX_FRAME_BYTES = 16 * 1024**2
"""What one frame may hold: the largest message, escaped in the worst way, with its extras."""

MESSAGE_TOO_BIG = 1009

PRIVATE_CODES = range(4000, 5000)
"""Close codes with a meaning of the protocol's own (channels 1.5)."""

Token = str | Callable[[], Awaitable[str]]
"""A capability token, or where to get a fresh one before every connection."""

Authorizer = Callable[[str, str], Awaitable[Authorization]]
"""Asked with a channel and a socket id before every private or presence subscription."""

_log = logging.getLogger("tidelog.client.channels.client")


def socket_url(url: str, app_key: str) -> str:
    """Where sockets of an app connect; `url` is the server's, `http` or `ws`."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https", "ws", "wss") or not parts.netloc:
        raise ValueError("url must begin with ws://, wss://, http:// or https:// and name a host")
    scheme = parts.scheme.replace("http", "ws")
    return f"{scheme}://{parts.netloc}{parts.path.rstrip('/')}/app/{quote(app_key, safe='')}"


class Halted(Exception):  # noqa: N818 - the failure is the noun
    """Connecting again would end the same way."""


class ChannelLink:
    """Drives a `ChannelCore` over WebSocket connections until it is cancelled or refused."""

    def __init__(
        self,
        core: ChannelCore,
        url: str,
        *,
        token: Token | None,
        authorize: Authorizer | None,
        backoff: Backoff,
    ) -> None:
        self._core = core
        self._url = url
        self._token = token
        self._authorize = authorize
        self._backoff = backoff
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._was_established = False
        self._was_settled = False
        """Whether everything was subscribed to once; until then a failing server is given time."""
        self._heard_at = 0.0
        self.halted: str | None = None
        """Why there will be no further connection."""
        self.connections = 0
        """Connections that were established so far."""

    def wake(self) -> None:
        """The core may have something to send."""
        self._wake.set()

    async def run(self) -> None:
        """Connect, and connect again, with a wait between failures; ends when it is refused."""
        attempt = 0
        was_hurried = False
        try:
            while True:
                self._was_established = self._was_settled = False
                is_hurried = await self._connection() and not was_hurried
                attempt = 0 if self._was_settled else attempt
                if not is_hurried:
                    await asyncio.sleep(self._backoff.delay(attempt))
                    attempt += 1
                was_hurried = is_hurried
        except Halted as error:
            self.halted = str(error)
            self._core.end(ChannelOffline(self.halted))

    async def _connection(self) -> bool:
        """One connection, to its end; whether the server wants the client back at once."""
        try:
            query = {
                "protocol": "2",
                "client": "tidelog-python",
                "append_mode": self._core.append_mode,
            }
            if self._core.rollup_window:
                query["append_rollup_window"] = str(self._core.rollup_window)
            if self._token is not None:
                query["token"] = await self._fresh_token()
            async with connect(
                f"{self._url}?{urlencode(query)}",
                ssl=await context_for(self._url),
                open_timeout=OPEN_TIMEOUT_S,
                close_timeout=CLOSE_TIMEOUT_S,
                max_size=MAX_FRAME_BYTES,
                ping_interval=PING_INTERVAL_S,
                ping_timeout=PING_INTERVAL_S,
                compression=None,
            ) as socket:
                await self._converse(socket)
        except ConnectionClosedError as error:
            return self._judge(error.rcvd.code if error.rcvd is not None else 0)
        except InvalidStatus as error:
            status = error.response.status_code
            if status in range(400, 500) and status not in (408, 429):
                raise Halted(f"the server returned {status} to the connection") from None
            _log.warning("channels: the server returned %d to the connection", status)
        except (OSError, WebSocketException, TidelogError) as error:
            at = urlsplit(self._url).netloc
            _log.warning("channels: no connection to %s, trying again: %s", at, _reason(error))
        finally:
            self._core.disconnected()
            for task in self._tasks:
                task.cancel()
        return False

    def _judge(self, code: int) -> bool:
        """What a close code means for the next connection (channels 1.5)."""
        _log.info("channels: connection closed with %d (%s)", code, self._core.last_error)
        if code == MESSAGE_TOO_BIG:
            self._core.was_too_large()
        if code == UNAUTHORIZED and self._was_established and callable(self._token):
            return False  # its time was over; there is a new one to be had
        is_final = code in PRIVATE_CODES and (code < OVER_CAPACITY or code >= CHANNEL_ERROR)
        if is_final:
            raise Halted(f"the server closed the connection with {code} ({self._core.last_error})")
        return RECONNECT <= code < CHANNEL_ERROR

    async def _converse(self, socket: ClientConnection) -> None:
        self._wake.set()
        parts: list[Coroutine[Any, Any, None]] = [
            self._read(socket),
            self._write(socket),
            self._watch(),
        ]
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            reader = tasks[0]
            if not reader.done():  # the writer noticed first; the reader knows the close code
                next(task for task in tasks if task.done()).result()
                await reader
            reader.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, socket: ClientConnection) -> None:
        while True:
            self._core.receive(await socket.recv())
            self._heard_at = asyncio.get_running_loop().time()
            if self._core.socket_id is not None and not self._was_established:
                self._was_established = True
                self.connections += 1
            self._was_settled = self._was_settled or not self._core.is_waiting
            self._wake.set()

    async def _write(self, socket: ClientConnection) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            for action in self._core.actions():
                try:
                    await self._perform(socket, action)
                except ConnectionClosed:
                    return

    async def _perform(self, socket: ClientConnection, action: Action) -> None:
        match action:
            case Send(frame):
                await socket.send(frame, text=True)
            case Authorize():
                self._start(self._ask(action))
            case RenewToken():
                self._start(self._renew())
            case Reconnect(reason):
                raise BadFrame(reason)

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        self._heard_at = loop.time()
        while True:
            await asyncio.sleep(REPLY_TIMEOUT_S / 10)
            if self._core.is_waiting and loop.time() > self._heard_at + REPLY_TIMEOUT_S:
                raise BadFrame("the server did not reply in time")

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask(self, asked: Authorize) -> None:
        try:
            if self._authorize is None:
                raise ChannelOffline("the client was made without `authorize`")
            self._core.authorized(asked, await self._authorize(asked.channel, asked.socket_id))
        except Exception as error:  # noqa: BLE001 - whatever the application raises
            self._core.denied(asked, error)
        self._wake.set()

    async def _renew(self) -> None:
        if callable(self._token):
            try:
                self._core.renew(await self._fresh_token())
            except TidelogError as error:
                _log.warning("channels: %s", error)
            self._wake.set()

    async def _fresh_token(self) -> str:
        if not callable(self._token):
            return self._token or ""
        try:
            return await self._token()
        except Exception as error:
            raise ChannelOffline(f"no token: {type(error).__name__}: {error}") from error


def _reason(error: Exception) -> str:
    """Why a connection failed, as whoever reads the log can act on it."""
    if isinstance(error, ConnectionRefusedError):
        return "nobody listens there; is the server running?"
    return f"{type(error).__name__}: {error}"
