"""WebSocket connections that are opened where they are dialled and nowhere else.

The first thing a client says on one proves who it is, and that is meant for whom it dialled.
"""

from websockets.asyncio import client
from websockets.exceptions import InvalidStatus, WebSocketException

from tidelog.base.net.direct import STATUSES, instead


class Redirected(WebSocketException):
    """The server wants the connection elsewhere; it was not followed."""


class connect(client.connect):  # noqa: N801, TID251 - it stands for the library's
    """As the library's; a redirection is an error."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        """Follow nothing."""
        if isinstance(exc, InvalidStatus) and exc.response.status_code in STATUSES:
            location = exc.response.headers.get("Location", "")
            return Redirected(f"HTTP {exc.response.status_code}. {instead(location)}")
        return exc
