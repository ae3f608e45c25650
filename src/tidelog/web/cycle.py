"""One HTTP request on its way in: its head is here, its body comes when somebody asks for it."""

import asyncio
from typing import Protocol

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Connection(Protocol):
    """Where a request comes from."""

    transport: asyncio.Transport
    peer: str
    """Address of the other end; empty if it has none."""
    local: tuple[str, int] | None
    """Address and port of this machine that it came in at."""

    def resume_reading(self) -> None:
        """Read on, if reading was paused."""

    def note_held(self) -> None:
        """What is held of requests that may be anybody's has changed."""


class Cycle:
    """A request and what is known of its answer, as the parser fills it."""

    __slots__ = (
        "_more",
        "began_at",
        "body",
        "connection",
        "head_bytes",
        "headers",
        "is_admitted",
        "is_answered",
        "is_lost",
        "keep_alive",
        "method",
        "more_body",
        "query_string",
        "raw_path",
    )

    def __init__(
        self,
        connection: Connection,
        method: str,
        raw_path: bytes,
        query_string: bytes,
        headers: list[tuple[bytes, bytes]],
        head_bytes: int,
        began_at: float,
        *,
        keep_alive: bool,
    ) -> None:
        self.connection = connection
        self.method = method
        self.raw_path = raw_path
        """Still percent-encoded."""
        self.query_string = query_string
        self.headers = headers
        """Names in lower case."""
        self.head_bytes = head_bytes
        self.began_at = began_at
        """Event-loop time of its first byte, or of its turn if it had to wait for others."""
        self.keep_alive = keep_alive
        """Whether the connection stays after the answer."""
        self.body: bytes | bytearray = b""
        """As far as it came; mostly one piece."""
        self.more_body = True
        self.is_admitted = False
        """Whether it is known who sends it."""
        self.is_answered = False
        self.is_lost = False
        """Whether nothing more comes of it: its peer is gone, or has sent what is no HTTP."""
        self._more: asyncio.Future[None] | None = None
        """Done when more of the body has come, or nothing will."""

    @property
    def unproven_bytes(self) -> int:
        """Held of this request while it is anybody's."""
        if self.is_admitted or self.is_answered:
            return 0
        return self.head_bytes + len(self.body)

    @property
    def declared_bytes(self) -> int:
        """Length of the body as the head tells it; 0 if it does not."""
        return int(self.header(b"content-length") or 0)

    def header(self, name: bytes) -> bytes | None:
        """The first header of that lower-case name."""
        for key, value in self.headers:
            if key == name:
                return value
        return None

    def admit(self) -> None:
        """It is known who sends it: from here on it is a caller's, not a stranger's."""
        self.is_admitted = True
        self.connection.note_held()

    def add(self, part: bytes) -> None:
        """More of the body."""
        if not self.body:
            self.body = part
        elif isinstance(self.body, bytearray):
            self.body += part
        else:
            self.body = bytearray(self.body) + part
        self.wake()

    def cut(self) -> None:
        """Nothing more will come of it."""
        self.is_lost = True
        self.wake()

    def wake(self) -> None:
        """Let whoever waits for the body look again."""
        if self._more is not None and not self._more.done():
            self._more.set_result(None)

    async def read(self, max_bytes: int) -> bytes | None:
        """The whole body; None if it is larger.

        Raises:
            ConnectionError: the rest of it will not come.
        """
        transport = self.connection.transport
        expects = (self.header(b"expect") or b"").lower()
        if self.more_body and expects == b"100-continue" and not transport.is_closing():
            transport.write(_CONTINUE)
        while self.more_body and len(self.body) <= max_bytes:
            self.connection.resume_reading()
            if not self.is_lost:
                self._more = asyncio.get_running_loop().create_future()
                await self._more
            if self.is_lost:
                raise ConnectionError("the request's body cannot be read to its end")
        return None if len(self.body) > max_bytes else bytes(self.body)
