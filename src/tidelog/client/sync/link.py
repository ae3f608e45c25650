"""The sync client's connection: opened, kept alive, and opened again when it is lost."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import cast

import orjson
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, ConnectionClosedError, WebSocketException

from tidelog.base.data.strictjson import read
from tidelog.base.errors import InvalidJson, StoreDamaged, StoreError
from tidelog.base.net.direct_socket import connect
from tidelog.base.net.tls import context_for
from tidelog.client.backoff import Backoff
from tidelog.client.sync.actions import Close
from tidelog.client.sync.core import SyncCore
from tidelog.client.sync.messages import BadMessage, Json
from tidelog.sync.protocol.wire import SUPERSEDED

OPEN_TIMEOUT_S = 10
CLOSE_TIMEOUT_S = 2

MAX_FRAME_BYTES = 64 * 1024**2
"""What one frame may hold: a page of a mebibyte, or 50 events of that size from a server that does
not know `max_bytes`."""

_log = logging.getLogger("tidelog.client.sync.client")

TOLD_EVERY = 3
"""After so many connections in a row that another one with the same client id ended, the
application is told. One of them may be this client's own, from before its network changed."""

INBOX_MESSAGES = 256
"""Messages read ahead of the store, and the most that share a transaction."""

INBOX_BYTES = 4 * 1024**2
"""The same by the size of their frames, but for a single one."""

Token = str | Callable[[], Awaitable[str]]
"""A token, or where to get a fresh one before every connection."""


class _Socket(ClientConnection):
    """A connection that knows when bytes last came: part of a large message is a sign of life."""

    heard_at = 0.0

    def data_received(self, data: bytes) -> None:
        """Bytes came, whatever they are part of."""
        self.heard_at = self.loop.time()
        super().data_received(data)


class Inbox:
    """Messages that were read from the socket and wait for the store."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Json, int]] = []
        self._bytes = 0
        self._taken = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    async def put(self, message: Json, size: int) -> None:
        """Add a message of that size, once there is room for it."""
        while self._waiting and (
            len(self._waiting) >= INBOX_MESSAGES or self._bytes + size > INBOX_BYTES
        ):
            self._taken.clear()
            await self._taken.wait()
        self._waiting.append((message, size))
        self._bytes += size

    def take(self) -> list[tuple[Json, int]]:
        """All waiting messages."""
        taken, self._waiting, self._bytes = self._waiting, [], 0
        self._taken.set()
        return taken


class Link:
    """Drives a `SyncCore` over WebSocket connections until it is cancelled."""

    def __init__(
        self, core: SyncCore, url: str, token: Token, now: Callable[[], int], backoff: Backoff
    ) -> None:
        self._core = core
        self._url = url
        self._token = token
        self._now = now
        self._backoff = backoff
        self._wake = asyncio.Event()
        self._resumed = asyncio.Event()
        self._was_active = False
        self._superseded = False
        self.halted: str | None = None
        """The error after which this waits for `resume`."""
        self.on_halt: Callable[[str], None] = lambda code: None
        """Told that error."""

    def wake(self) -> None:
        """The core may have something to send."""
        self._wake.set()

    def resume(self) -> None:
        """Connect now: after an error that only the application could mend, or during a wait."""
        self.halted = None
        if self._core.state != "active":
            self._resumed.set()

    async def run(self) -> None:
        """Connect, and connect again, with a wait between failures."""
        attempt = refusals = displaced = 0
        refused: str | None = None
        while True:
            token = await self._fresh_token()
            # A refused token may only have expired, so one fresh token is tried. The same one, or
            # a second refusal, would go on for ever: that is for the application to mend.
            if refused is not None and (token == refused or refusals > 1):
                await self._halt("auth_failed")
                refused, refusals = None, 0
                continue
            self._was_active = self._superseded = False
            if token is not None:
                await self._connection(token)
            halted = self._core.halted
            if self._was_active:
                refused, refusals = None, 0
                # Two clients that supersede each other must slow down, so this is no success.
                attempt = attempt if self._superseded else 0
                displaced = displaced + 1 if self._superseded else 0
            if displaced and displaced % TOLD_EVERY == 0:
                self._core.report_rival(displaced)
            if halted == "auth_failed":
                refused, refusals = token, refusals + 1
            elif halted is not None:
                await self._halt(halted)
            else:
                attempt = 0 if await self._is_resumed(self._backoff.delay(attempt)) else attempt + 1

    async def _is_resumed(self, seconds: float) -> bool:
        """Wait before the next attempt; returns whether the application cut the wait short."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._resumed.wait()
        resumed = self._resumed.is_set()
        self._resumed.clear()
        return resumed

    async def _halt(self, code: str) -> None:
        self.halted = code
        self._resumed.clear()
        self.on_halt(code)
        await self._resumed.wait()

    async def _fresh_token(self) -> str | None:
        if isinstance(self._token, str):
            return self._token
        try:
            return await self._token()
        except Exception as error:  # noqa: BLE001 - whatever the application's token source raises
            self._core.report("token_unavailable", type(error).__name__)
            return None

    async def _connection(self, token: str) -> None:
        socket: _Socket | None = None
        damage: StoreDamaged | None = None
        try:
            async with connect(
                self._url,
                ssl=await context_for(self._url),
                open_timeout=OPEN_TIMEOUT_S,
                close_timeout=CLOSE_TIMEOUT_S,
                max_size=MAX_FRAME_BYTES,
                ping_interval=None,  # heartbeats show both ends that the other is alive
                compression=None,
                create_connection=_Socket,
            ) as opened:
                socket = cast("_Socket", opened)
                await self._converse(socket, token)
        except ConnectionClosedError as error:
            self._superseded = error.rcvd is not None and error.rcvd.code == SUPERSEDED
        except StoreDamaged as error:
            damage = error
        except (OSError, WebSocketException, InvalidJson, BadMessage, StoreError) as error:
            self._core.report("connection_failed", f"{type(error).__name__}: {error}")
        except Exception as error:  # noqa: BLE001 - a mistake of ours must not end the client
            _log.exception("the sync client made a mistake; it connects again")
            self._core.report("client_failed", f"{type(error).__name__}: {error}")
        finally:
            if socket is not None:
                socket.transport.abort()  # a closing handshake that is cancelled leaves it open
            self._core.disconnected()
        if damage is not None:
            self._core.mend(damage)

    async def _converse(self, socket: _Socket, token: str) -> None:
        core, time = self._core, asyncio.get_running_loop().time
        inbox = Inbox()
        core.connect(token)
        reader = asyncio.create_task(self._read(socket, inbox))
        heard = beaten = time()
        try:
            while True:
                self._wake.clear()
                messages = inbox.take()
                if messages:
                    heard = time()
                elif socket.heard_at > heard:
                    heard = socket.heard_at
                    core.progressed()
                core.receive_all(messages)
                self._was_active = self._was_active or core.state == "active"
                timeout = core.limits.heartbeat_timeout_ms / 1000
                if time() >= beaten + timeout / 3:
                    core.heartbeat()
                    beaten = time()
                core.tick()
                if await self._perform(socket) or time() > heard + timeout:
                    return
                if not inbox and reader.done():
                    reader.result()
                    return
                if not inbox:
                    await self._rest(min(beaten + timeout / 3, heard + timeout) - time())
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _read(self, socket: ClientConnection, inbox: Inbox) -> None:
        try:
            async for frame in socket:
                message = read(frame)
                if not isinstance(message, dict):
                    raise BadMessage("a message that is not an object")
                await inbox.put(message, len(frame))
                self._wake.set()
        finally:
            self._wake.set()

    async def _perform(self, socket: ClientConnection) -> bool:
        """Do what the core asks for; returns whether the connection is over.

        A lost connection is noticed by the reader, after all that the server said before.
        """
        for action in self._core.actions():
            if isinstance(action, Close):
                return True
            try:
                await socket.send(orjson.dumps(action.message), text=True)
            except ConnectionClosed:
                return False
        return False

    async def _rest(self, seconds: float) -> None:
        """Sleep until something arrives, is to be sent, or is due.

        Not by `asyncio.wait_for`: in Python 3.11 that forgets a cancellation which comes together
        with the wake-up, and the link would go on for ever.
        """
        wake_at = self._core.wake_at
        if wake_at is not None:
            seconds = min(seconds, (wake_at - self._now()) / 1000)
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.001, seconds)):
                await self._wake.wait()
