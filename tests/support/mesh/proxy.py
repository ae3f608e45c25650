"""A WebSocket proxy between daemon and broker that loses and holds answers, and holds sends."""

import asyncio
import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed

Json = dict[str, Any]


class MeshProxy:
    """Passes everything on, except the answers to sends that it is told to lose or to hold."""

    def __init__(self, broker_url: str) -> None:
        self.lead_to(broker_url)
        self.admitted: int | None = None
        """How many sends may still pass, one after the answer of the other; None: all, at once."""
        self._held_sends: list[tuple[ClientConnection, str | bytes]] = []
        self._answered = asyncio.Event()
        self.sends: Counter[str] = Counter()
        """Attempts by `client_message_id`."""
        self.arrivals: dict[str, list[float]] = defaultdict(list)
        self.answers: dict[str, list[int]] = defaultdict(list)
        """Codes of every answer of the broker, lost ones included."""
        self.is_lost: Callable[[str], bool] = lambda message_id: False
        self.is_holding = False
        """Nothing of the broker passes while set; what came meanwhile passes later."""
        self.port = 0
        self._daemons: set[ServerConnection] = set()
        self._half_open: set[ServerConnection] = set()
        self._closing = asyncio.Event()
        self._held: list[tuple[ServerConnection, str | bytes]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: Server | None = None

    @property
    def url(self) -> str:
        """What a daemon is given as its broker."""
        return f"http://127.0.0.1:{self.port}"

    def lead_to(self, broker_url: str) -> None:
        """Connections from now on are passed on to this broker."""
        self._upstream = broker_url.replace("http://", "ws://")

    def call(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do something on the proxy's loop, from another thread."""
        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(work(), self._loop).result(60)

    async def let_go(self) -> None:
        """End holding; what was held passes now."""
        self.is_holding = False
        held, self._held = self._held, []
        for socket, data in held:
            await _passed(socket, data)

    async def lose(self) -> None:
        """End every daemon's connection; the broker keeps its end and hears nothing of it."""
        self._half_open |= self._daemons
        for daemon in self._daemons:
            daemon.transport.abort()

    async def admit(self, count: int | None) -> None:
        """Let so many of the held sends pass together, or all there are and will be."""
        passing = self._held_sends[:count]
        del self._held_sends[:count]
        if count is None:
            self.admitted = None
        for broker, data in passing:
            with suppress(ConnectionClosed):
                await broker.send(data)

    async def _sent(self, broker: ClientConnection, data: str | bytes) -> None:
        """Pass a send on, or hold it."""
        if self.admitted is None:
            await broker.send(data)
        elif self.admitted == 0:
            self._held_sends.append((broker, data))
        else:
            self.admitted -= 1
            self._answered.clear()
            await broker.send(data)
            await self._answered.wait()

    async def _open(self) -> None:
        self._server = await serve(self._accept, "127.0.0.1", 0, compression=None, close_timeout=0)
        self.port = next(iter(self._server.sockets)).getsockname()[1]

    async def _close(self) -> None:
        assert self._server is not None
        self._closing.set()
        self._server.close()
        await self._server.wait_closed()

    async def _accept(self, daemon: ServerConnection) -> None:
        assert daemon.request is not None
        refs: dict[int, str] = {}
        async with connect(self._upstream + daemon.request.path, compression=None) as broker:
            back = asyncio.create_task(self._answers(broker, daemon, refs))
            self._daemons.add(daemon)
            try:
                async for data in daemon:
                    frame = json.loads(data)
                    if frame["type"] == "send":
                        message_id = frame["client_message_id"]
                        refs[frame["ref"]] = message_id
                        self.sends[message_id] += 1
                        self.arrivals[message_id].append(time.monotonic())
                        await self._sent(broker, data)
                    else:
                        await broker.send(data)
            except ConnectionClosed:
                pass
            finally:
                self._daemons.discard(daemon)
                if daemon in self._half_open:
                    await self._closing.wait()
                back.cancel()
                await asyncio.gather(back, return_exceptions=True)

    async def _answers(
        self, broker: ClientConnection, daemon: ServerConnection, refs: dict[int, str]
    ) -> None:
        with suppress(ConnectionClosed):
            await self._pass_answers(broker, daemon, refs)
        daemon.transport.abort()  # a broker that died takes the daemon's connection with it
        self._answered.set()

    async def _pass_answers(
        self, broker: ClientConnection, daemon: ServerConnection, refs: dict[int, str]
    ) -> None:
        async for data in broker:
            frame: Json = json.loads(data)
            message_id = refs.get(frame.get("ref", 0)) if frame["type"] == "ack" else None
            if message_id is not None:
                self.answers[message_id].append(frame["code"])
                self._answered.set()
                if self.is_lost(message_id):
                    continue
            if self.is_holding:
                self._held.append((daemon, data))
            else:
                await _passed(daemon, data)


async def _passed(socket: ServerConnection, data: str | bytes) -> None:
    try:
        await socket.send(data)
    except ConnectionClosed:
        return


@contextmanager
def proxied(broker_url: str) -> Iterator[MeshProxy]:
    """A proxy on a loop in a thread."""
    proxy = MeshProxy(broker_url)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="mesh-proxy", daemon=True)
    thread.start()
    proxy._loop = loop
    proxy.call(proxy._open)
    try:
        yield proxy
    finally:
        proxy.call(proxy._close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
