"""A server that writes down everything that is said over its WebSockets, both ways."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from tidelog.base.serving.surface import (
    Conversation,
    Endpoint,
    HttpResponse,
    Outlet,
    Route,
    Surface,
    Upgrade,
)
from tidelog.serve.server import Mount, Node

if TYPE_CHECKING:
    from support.web.wire_schema import Sender

TEXT_FRAME = 0x81


class Overheard:
    """What was said, by surface and sender, in order."""

    def __init__(self) -> None:
        self.said: list[tuple[str, Sender, dict[str, Any]]] = []

    def mounts(self, mounts: Sequence[Mount]) -> list[Mount]:
        """The same surfaces, listened to."""
        return [self._listened(mount) for mount in mounts]

    def _listened(self, mount: Mount) -> Mount:
        async def mounted(node: Node) -> Surface:
            return _Listened(await mount(node), self)

        return mounted


class _Listened:
    def __init__(self, inner: Surface, overheard: Overheard) -> None:
        self.name = inner.name
        self._inner = inner
        self._overheard = overheard

    def routes(self) -> Sequence[Route]:
        return self._inner.routes()

    def endpoints(self) -> Sequence[Endpoint]:
        return [self._wrapped(endpoint) for endpoint in self._inner.endpoints()]

    def _wrapped(self, endpoint: Endpoint) -> Endpoint:
        def accept(upgrade: Upgrade) -> Conversation | HttpResponse:
            answer = endpoint.accept(upgrade)
            if isinstance(answer, HttpResponse):
                return answer
            return _Conversation(answer, self.name, self._overheard)

        return replace(endpoint, accept=accept)


class _Conversation:
    def __init__(self, inner: Conversation, surface: str, overheard: Overheard) -> None:
        self._inner = inner
        self._surface = surface
        self._said = overheard.said

    def opened(self, outlet: Outlet) -> None:
        self._inner.opened(_Outlet(outlet, self._surface, self._said))

    def received(self, payload: bytes, *, is_text: bool) -> None:
        self._said.append((self._surface, "client", json.loads(payload)))
        self._inner.received(payload, is_text=is_text)

    def closed(self, code: int) -> None:
        self._inner.closed(code)


class _Outlet:
    """The outlet, but for what is pushed."""

    def __init__(self, inner: Outlet, surface: str, said: list[Any]) -> None:
        self._inner = inner
        self._surface = surface
        self._said = said

    def push(self, frame: bytes) -> None:
        self._hear(frame)
        self._inner.push(frame)

    def push_all(self, frames: Sequence[bytes]) -> None:
        for frame in frames:
            self._hear(frame)
        self._inner.push_all(frames)

    def answer(self, frame: bytes) -> None:
        self._hear(frame)
        self._inner.answer(frame)

    def _hear(self, frame: bytes) -> None:
        if frame[0] == TEXT_FRAME:
            length = frame[1]
            start = {126: 4, 127: 10}.get(length, 2)
            self._said.append((self._surface, "server", json.loads(frame[start:])))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
