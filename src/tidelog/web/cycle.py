"""One HTTP request on its way in: its head is here, its body comes when somebody asks for it."""

from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Cycle(RequestResponseCycle):
    """A request and its answer, as uvicorn's parser fills it."""

    def __init__(
        self, *, head_bytes: int, deadline: float, on_admitted: Callable[[], None], **options: Any
    ) -> None:
        super().__init__(**options)
        self.head_bytes = head_bytes
        self.deadline = deadline
        """Event-loop time at which a request of which nobody knows who sends it must be whole."""
        self.is_admitted = False
        """Whether it is known who sends it."""
        self._on_admitted = on_admitted

    @property
    def unproven_bytes(self) -> int:
        """Held of this request while it is anybody's."""
        if self.is_admitted or self.response_complete:
            return 0
        return self.head_bytes + len(self.body)

    @property
    def declared_bytes(self) -> int:
        """Length of the body as the head tells it; 0 if it does not."""
        for name, value in self.scope["headers"]:
            if name == b"content-length":
                return int(value)
        return 0

    def admit(self) -> None:
        """It is known who sends it: from here on it is a caller's, not a stranger's."""
        self.is_admitted = True
        self._on_admitted()

    async def read(self, max_bytes: int) -> bytes | None:
        """The whole body; None if it is larger.

        Raises:
            ConnectionError: the peer is gone.
        """
        if self.more_body and self.waiting_for_100_continue and not self.transport.is_closing():
            self.transport.write(_CONTINUE)
            self.waiting_for_100_continue = False
        while self.more_body and len(self.body) <= max_bytes:
            await self._more()
        return None if len(self.body) > max_bytes else bytes(self.body)

    async def _more(self) -> None:
        self.message_event.clear()
        self.flow.resume_reading()
        if not self.disconnected:
            await self.message_event.wait()
        if self.disconnected:
            raise ConnectionError("the connection ended before the body did")
