"""What the web room and a surface know of each other.

The web room owns sockets, limits and the fan-out; a surface owns meaning. They meet here, so that a
surface needs neither ASGI nor a WebSocket library, and can be driven in a test without a socket.
"""

import hmac
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from tidelog.base.serving.address_quota import NO_QUOTA, AddressQuota
from tidelog.base.serving.openapi import Operation
from tidelog.base.told import Told


class HttpRequest(Struct, frozen=True):
    """One HTTP request, its body already read within the limit; for `Route.admit` perhaps not."""

    method: str
    raw_path: bytes
    """The path as received, still percent-encoded: signatures are computed over it."""
    query_string: bytes
    headers: Sequence[tuple[bytes, bytes]]
    """Names in lower case, in the order received."""
    body: bytes
    peer: str
    params: Mapping[str, str] = {}
    """Path parameters of the matched route, percent-decoded once."""
    local: tuple[str, int] | None = None
    """Address and port of this machine that the connection came in at."""
    quota: AddressQuota = NO_QUOTA
    """Who `peer` counts as where limits are each address's."""

    def header(self, name: bytes) -> bytes | None:
        """The first header of that lower-case name."""
        for key, value in self.headers:
            if key == name:
                return value
        return None


class HttpResponse(Struct, frozen=True):
    """What a surface returns for an HTTP request."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: tuple[tuple[bytes, bytes], ...] = ()


def is_bearer(request: HttpRequest, token: str) -> bool:
    """Whether a request carries this bearer token; an empty token opens nothing."""
    given = request.header(b"authorization") or b""
    return bool(token) and hmac.compare_digest(given, b"Bearer " + token.encode())


Handle = Callable[[HttpRequest], Awaitable[HttpResponse]]

Admit = Callable[[HttpRequest], Awaitable[Handle | HttpResponse]]
"""Judges who asks: what then handles the request, or the refusal."""

Answer = Callable[[HttpRequest, Told[HttpResponse]], None]
"""Judges and handles a request that is here as a whole, without a task, and tells the response or
the failure. A stranger is told before it returns, others when there is something to tell."""


class Route(Struct, frozen=True):
    """An HTTP route: a method and a template such as `/probe/streams/{stream}`."""

    method: str
    path: str
    handle: Handle
    operation: Operation | None = None
    """What `/openapi.json` tells of it."""
    admit: Admit | None = None
    """Asked first, with the head alone: nobody's body is read before it is known who asks. None
    where anybody may ask; a body is then a stranger's, and bounded as such."""
    max_body_bytes: int | None = None
    """Largest body, if that is less than what the server takes."""
    too_large: HttpResponse | None = None
    """How the surface refuses a larger one; None for the server's own words."""
    is_for_pages: bool = False
    """Whether pages of other origins may read the response, as they may read a socket."""
    too_many: Callable[[int], HttpResponse] | None = None
    """How it refuses to judge who asks for so many seconds, because the address has failed too
    often; None for the server's own words."""
    answer: Answer | None = None
    """As `admit` and `handle` together, for what is asked so often that a task for each request
    would be much of its cost."""


def guarded(
    method: str,
    path: str,
    admit: Admit,
    operation: Operation | None = None,
    *,
    is_for_pages: bool = False,
    answer: Answer | None = None,
) -> Route:
    """A route whose callers are judged by the head of their requests."""

    async def handle(request: HttpRequest) -> HttpResponse:
        admitted = await admit(request)
        return admitted if isinstance(admitted, HttpResponse) else await admitted(request)

    return Route(method, path, handle, operation, admit, is_for_pages=is_for_pages, answer=answer)


class Outlet(Protocol):
    """One WebSocket connection, as a surface sees it.

    Nothing here awaits or raises: a connection that is gone swallows what it is given and has told,
    or is about to tell, its `Conversation` by `closed`.
    """

    peer: str
    heard_at: float
    """Event-loop time of the last frame of any kind from the peer; for heartbeat rules."""

    def push(self, frame: bytes) -> None:
        """Queue an encoded frame (`tidelog.base.net.frame`); it leaves with the next flush."""

    def push_all(self, frames: Sequence[bytes]) -> None:
        """As `push` of each, one or more, at the cost of one."""

    def answer(self, frame: bytes) -> None:
        """Push a large frame that the peer has asked for; it never makes it a slow consumer."""

    def close(self, code: int, reason: str = "") -> None:
        """Send what was pushed, then a close frame; later pushes are dropped."""

    async def drained(self) -> None:
        """Return when the socket has taken what was pushed, or the connection is gone.

        For whoever has much to send at once, such as stored pages: without it a healthy peer would
        be taken for a slow one.
        """

    def admit(self) -> None:
        """It is known who is there: messages may be as large as the endpoint takes them."""

    def pause_reading(self) -> None:
        """Stop reading from the socket until `resume_reading`: backpressure for a full inbox."""

    def resume_reading(self) -> None:
        """Read again."""


class Conversation(Protocol):
    """A surface's end of one WebSocket connection. All calls come from the event loop, in order."""

    def opened(self, outlet: Outlet) -> None:
        """The handshake is done; `outlet` lives until `closed`."""

    def received(self, payload: bytes, *, is_text: bool) -> None:
        """One whole message; text is valid UTF-8."""

    def closed(self, code: int) -> None:
        """The connection ended, whoever ended it; 1006 without a close frame. Called once."""


class Upgrade(Struct, frozen=True):
    """A WebSocket upgrade request."""

    raw_path: bytes
    query_string: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    peer: str
    params: Mapping[str, str] = {}
    local: tuple[str, int] | None = None
    """Address and port of this machine that the connection came in at."""
    quota: AddressQuota = NO_QUOTA
    """Who `peer` counts as where limits are each address's."""


class Endpoint(Struct, frozen=True):
    """A WebSocket path: who accepts it and how large a message may be."""

    path: str
    accept: Callable[[Upgrade], Conversation | HttpResponse]
    """Answer a conversation, or an HTTP response that refuses the upgrade."""
    max_message_bytes: int
    """Beyond it the connection is closed with 1009; a peer could make us hold any amount."""
    heartbeat: bool = True
    """Whether the web room pings an idle peer and drops a silent one; else the surface does."""
    slow_consumer_code: int = 1013
    """What `Conversation.closed` is told when the peer did not read fast enough and was dropped."""
    shutdown_code: int = 1001
    """What its connections are closed with when the server stops in good order."""
    unauthenticated_codes: frozenset[int] = frozenset()
    """What a peer that could not prove who it is is closed with, where every peer has to. Until
    `Outlet.admit` its messages are a stranger's, and bounded as such."""
    surface: str = ""
    """Name of the surface that mounted it, by which its connections are counted; the server knows
    it."""


class Streamed(HttpResponse, frozen=True, kw_only=True):
    """A response that does not end: server-sent events, out of what a conversation pushes."""

    conversation: Conversation
    encode: Callable[[bytes], bytes]
    """What a pushed frame looks like as events; empty for nothing."""
    quota: AddressQuota
    """Who is counted for the connection."""
    slow_consumer_code: int
    shutdown_code: int
    """Both as of an `Endpoint`."""
    path: str
    """Template of the route, for the log."""
    surface: str
    """Name of the surface it belongs to."""


class Surface(Protocol):
    """What `tidelog serve` mounts."""

    name: str

    def routes(self) -> Sequence[Route]:
        """HTTP routes of this surface."""

    def endpoints(self) -> Sequence[Endpoint]:
        """WebSocket endpoints of this surface."""
