"""The gate of `--dev`: its secrets are public, so only this machine's own pages may ask.

A browser says in `Host` which name it asked for and in `Origin` whose page asks. A name that
somebody else points here (DNS rebinding) and a page of another site are refused; a page that is
served or opened on this machine is what development is. Programs send no `Origin` and are let in.
"""

import logging
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

import msgspec

from tidelog.base.net.loopback import is_loopback
from tidelog.base.serving.surface import (
    Conversation,
    Endpoint,
    Handle,
    HttpRequest,
    HttpResponse,
    Route,
    Upgrade,
)
from tidelog.base.terminal import printable
from tidelog.web.addresses import Headers
from tidelog.web.handshake import refuse

_log = logging.getLogger(__name__)

_READING = ("GET", "HEAD")

_SHOWN = 200
"""Characters of a stranger's header that a line shows."""

LOG_SECONDS = 1.0
"""Pause between two log lines about refusals: a page that retries must not flood the terminal."""

_REFUSAL = refuse(
    403,
    "development mode serves only this machine: use 127.0.0.1 or localhost, also for the page. "
    "To serve others, leave out --dev and set secrets",
    code="forbidden",
)


def is_ours(headers: Headers, *, is_reading: bool) -> bool:
    """Whether a request may have been made by a program or a page of this machine.

    A page without an address, such as a file, says `null`, as a framed page of a stranger can too:
    it may read, for which a stranger would need an answer that browsers keep from him.
    """
    host, origin = _text(headers, b"host"), _text(headers, b"origin")
    if host and not _names_this_machine(f"//{host}"):
        return False
    return not origin or (origin == "null" and is_reading) or _names_this_machine(origin)


class Gate:
    """What stands before the routes and endpoints of one server."""

    def __init__(self) -> None:
        self._explained_at = -LOG_SECONDS

    def routes(self, routes: Sequence[Route]) -> list[Route]:
        """The same routes behind the gate."""
        return [self._guarded_route(route) for route in routes]

    def endpoints(self, endpoints: Sequence[Endpoint]) -> list[Endpoint]:
        """The same WebSocket paths behind the gate."""
        return [self._guarded_endpoint(endpoint) for endpoint in endpoints]

    def _guarded_route(self, route: Route) -> Route:
        def is_allowed(request: HttpRequest) -> bool:
            is_reading = request.method in _READING and not route.is_for_pages
            return is_ours(request.headers, is_reading=is_reading)

        async def handle(request: HttpRequest) -> HttpResponse:
            if is_allowed(request):
                return await route.handle(request)
            self._explain(request.headers)
            return _REFUSAL

        judge = route.admit
        if judge is None:
            return msgspec.structs.replace(route, handle=handle, answer=None)

        async def admit(request: HttpRequest) -> Handle | HttpResponse:
            if is_allowed(request):
                return await judge(request)
            self._explain(request.headers)
            return _REFUSAL

        return msgspec.structs.replace(route, handle=handle, admit=admit, answer=None)

    def _guarded_endpoint(self, endpoint: Endpoint) -> Endpoint:
        def accept(upgrade: Upgrade) -> Conversation | HttpResponse:
            if is_ours(upgrade.headers, is_reading=False):
                return endpoint.accept(upgrade)
            self._explain(upgrade.headers)
            return _REFUSAL

        return msgspec.structs.replace(endpoint, accept=accept)

    def _explain(self, headers: Headers) -> None:
        """Whoever develops a page sees only a failed connection in the browser."""
        now = time.monotonic()
        if now - self._explained_at < LOG_SECONDS:
            return
        self._explained_at = now
        host, origin = _text(headers, b"host"), _text(headers, b"origin")
        _log.warning(
            "refused %s, which asked for %s: development mode serves only pages of this machine "
            "(http://localhost:PORT, http://127.0.0.1:PORT) that ask for it by such a name. Open "
            "the page there, or leave out --dev and set secrets",
            f"a page of {printable(origin[:_SHOWN])}" if origin else "a program",
            printable(host[:_SHOWN]),
        )


def _names_this_machine(url: str) -> bool:
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False


def _text(headers: Headers, name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in headers if key == name), "")
