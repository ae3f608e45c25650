"""Who may come in over the IPC, decided from a request's head (mesh 3.1)."""

import logging
from collections.abc import Callable
from urllib.parse import unquote_plus

from tidelog.daemon.ipc.http import Request, Response, refuse
from tidelog.daemon.ipc.token_file import TokenFile
from tidelog.daemon.settings import IpcSettings

_log = logging.getLogger(__name__)

_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]", ""})
_HEALTH = "/v1/health"


class Gate:
    """The checks that come before a request's body is read."""

    def __init__(
        self, settings: IpcSettings, token: TokenFile | None, monotonic_ms: Callable[[], float]
    ) -> None:
        """`token` may be None where there is no TCP port."""
        self._settings = settings
        self._token = token
        self._buckets = {
            "unix": _Bucket(settings, monotonic_ms),
            "tcp": _Bucket(settings, monotonic_ms),
        }

    def check(self, head: Request) -> Response | None:
        """The refusal, or None to let it in."""
        return (
            self._check_host(head)
            or self._check_origin(head)
            or _check_query(head)
            or self._check_token(head)
            or self._check_rate(head)
        )

    def _check_host(self, head: Request) -> Response | None:
        """A page whose name was made to point here (DNS rebinding) sends its own name."""
        hosts = head.values("host")
        if len(hosts) > 1 or (hosts and _without_port(hosts[0]) not in _HOSTS):
            return refuse(403, "host_forbidden", "the Host is not this machine's")
        return None

    def _check_origin(self, head: Request) -> Response | None:
        if head.method == "OPTIONS":
            return refuse(403, "origin_forbidden", "there is no CORS here")
        if any(origin not in self._settings.allowed_origins for origin in head.values("origin")):
            return refuse(403, "origin_forbidden", "the Origin is not allowed")
        return None

    def _check_token(self, head: Request) -> Response | None:
        if head.transport == "unix":
            return None
        if head.path == _HEALTH and head.method == "GET" and self._settings.public_health_check:
            return None
        given = head.values("authorization")
        scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        if (
            scheme.lower() == "bearer"
            and self._token is not None
            and self._token.accepts(token.strip().encode(errors="replace"))
        ):
            return None
        return refuse(
            401,
            "unauthenticated",
            "send the token of the daemon's token file as Authorization: Bearer",
            ("www-authenticate", "Bearer"),
        )

    def _check_rate(self, head: Request) -> Response | None:
        wait_s = self._buckets[head.transport].take()
        if wait_s is None:
            return None
        return refuse(
            429, "daemon_busy", "too many requests per second", ("retry-after", str(wait_s))
        )


def _check_query(head: Request) -> Response | None:
    for part in head.query_string.split("&"):
        if unquote_plus(part.partition("=")[0]).lower() == "token":
            _log.warning("security: a token was sent in a URL and refused; replace that token")
            return refuse(400, "token_in_url", "a token in a URL ends up in logs; use the header")
    return None


def _without_port(host: str) -> str:
    if host.startswith("["):
        address, bracket, port = host.partition("]")
        return address + bracket if not port or port.startswith(":") else host
    return host.partition(":")[0].lower()


class _Bucket:
    """So many requests at once, then so many per second."""

    def __init__(self, settings: IpcSettings, monotonic_ms: Callable[[], float]) -> None:
        self._per_ms = settings.rate_per_second / 1000
        self._size = settings.rate_burst
        self._monotonic_ms = monotonic_ms
        self._left = float(self._size)
        self._at_ms = monotonic_ms()

    def take(self) -> int | None:
        """None when there was one left, otherwise the whole seconds until there is."""
        now = self._monotonic_ms()
        self._left = min(self._size, self._left + (now - self._at_ms) * self._per_ms)
        self._at_ms = now
        if self._left >= 1:
            self._left -= 1
            return None
        return max(1, round((1 - self._left) / self._per_ms / 1000))
