"""Who may see the dashboard, and which requests only our own page can have made.

With an admin token: a login, then a cookie that no script reads and no other site sends. Under
`--dev` without one nobody logs in: the gate of development (`tidelog.web.development`) keeps other
sites out. Without either nothing is shown.
"""

import time
from collections.abc import Sequence
from enum import Enum
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlsplit

from tidelog.base.serving.surface import HttpRequest
from tidelog.config.settings import Settings
from tidelog.dashboard.sessions import (
    SESSION_SECONDS,
    Ended,
    EndedLogins,
    Sessions,
    Tries,
    is_same,
)

COOKIE = "tidelog_dashboard"
PATH = "/dashboard"

CHANGE_HEADER = b"x-tidelog-dashboard"
"""What a request that changes something must carry: a form of another site cannot set a header, and
a script of another site would have to be allowed to."""

MAX_LOGIN_BYTES = 4096
"""A form with one field; whatever is longer is not read."""

Headers = Sequence[tuple[bytes, bytes]]


class Mode(Enum):
    """How one gets in."""

    TOKEN = "token"  # noqa: S105 - the name of a mode
    OPEN = "open"
    """`--dev`, on this machine."""
    OFF = "off"


class Access:
    """The gate of one server."""

    def __init__(self, settings: Settings, log_id: str, ended: EndedLogins) -> None:
        """`log_id`: a login to one log opens no other that has the same token."""
        self.ended = ended
        self._token = settings.admin_token
        self._is_secure = bool(settings.tls_certificate)
        self._sessions = Sessions(self._token, log_id, ended)
        self._tries = Tries(time.monotonic)
        self.mode = Mode.TOKEN if self._token else Mode.OPEN if settings.dev else Mode.OFF

    def session(self, headers: Headers) -> str | None:
        """The session of a request; empty in development, None if there is none."""
        if self.mode is Mode.OPEN:
            return ""
        found = _cookie(headers)
        return found if self.mode is Mode.TOKEN and self.holds(found) else None

    def holds(self, session: str) -> bool:
        """Whether a session that was let in may stay."""
        return self.mode is Mode.OPEN or self._sessions.is_open(session)

    def log_in(self, request: HttpRequest) -> bytes | int | None:
        """Judge a login form: the cookie to set, the seconds to wait, or None for a wrong token.

        The right token is never told to wait here: behind a proxy that is not told apart from its
        clients, anybody could keep its owner out by wrong ones. Who has an address of their own is
        told to wait before, like everybody who has failed to prove something too often.
        """
        if self.mode is not Mode.TOKEN:
            return None
        if is_same(_given_token(request.body), self._token):
            return self._set_cookie(self._sessions.begin(), SESSION_SECONDS)
        if wait := self._tries.wait_seconds(request.peer):
            return wait
        self._tries.failed(request.peer)
        return None

    def log_out(self, headers: Headers) -> tuple[bytes, Ended | None]:
        """End the session of a request.

        Returns:
            The cookie that forgets it, and what the other nodes must be told.
        """
        return self._set_cookie("", 0), self._sessions.end(_cookie(headers))

    def _set_cookie(self, value: str, seconds: int) -> bytes:
        cookie = f"{COOKIE}={value}; Path={PATH}; Max-Age={seconds}; HttpOnly; SameSite=Strict"
        return (cookie + ("; Secure" if self._is_secure else "")).encode()


def is_from_elsewhere(headers: Headers) -> bool:
    """Whether a browser says that another site's page made this request."""
    site = _text(headers, b"sec-fetch-site")
    if site and site not in {"same-origin", "none"}:
        return True
    return bool(_text(headers, b"origin")) and not has_own_origin(headers)


def has_own_origin(headers: Headers) -> bool:
    """Whether `Origin` is there and names the host that was asked.

    Its scheme is not compared: before a server that ends TLS for us the page has another one.
    """
    origin = _text(headers, b"origin")
    try:
        return bool(origin) and urlsplit(origin).netloc == _text(headers, b"host")
    except ValueError:
        return False


def is_change(headers: Headers) -> bool:
    """Whether our page made a request that changes something."""
    return has_own_origin(headers) and _text(headers, CHANGE_HEADER) == "1"


def _given_token(body: bytes) -> str:
    if len(body) > MAX_LOGIN_BYTES:
        return ""
    fields = dict(parse_qsl(body.decode("utf-8", "replace")))
    return fields.get("token", "")


def _cookie(headers: Headers) -> str:
    jar: SimpleCookie = SimpleCookie()
    try:
        jar.load(_text(headers, b"cookie"))
    except CookieError:
        return ""
    return jar[COOKIE].value if COOKIE in jar else ""


def _text(headers: Headers, name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in headers if key == name), "")
