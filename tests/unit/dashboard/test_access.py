"""Which requests the gate lets through."""

import pytest

from tidelog.base.serving.surface import HttpRequest
from tidelog.config.settings import Settings
from tidelog.dashboard.access import (
    COOKIE,
    Access,
    Headers,
    Mode,
    has_own_origin,
    is_change,
    is_from_elsewhere,
)
from tidelog.dashboard.sessions import EndedLogins

HOST = (b"host", b"log.example:8080")


def login(token: str, peer: str = "10.0.0.1") -> HttpRequest:
    """A login form."""
    return HttpRequest("POST", b"/dashboard/login", b"", (HOST,), f"token={token}".encode(), peer)


def with_cookie(cookie: bytes) -> Headers:
    """The headers of a request after a `Set-Cookie`."""
    return (HOST, (b"cookie", cookie.split(b";")[0]))


def test_without_a_token_everything_is_off() -> None:
    """A server without a token and without --dev lets nobody in, whatever they send."""
    access = Access(Settings(), "log", EndedLogins())
    assert access.mode is Mode.OFF
    assert access.log_in(login("")) is None
    assert access.session(with_cookie(b"tidelog_dashboard=")) is None


def test_the_token_opens_a_session() -> None:
    """The right token gives a cookie that opens, and only until it is logged out."""
    access = Access(Settings(admin_token="secret"), "log", EndedLogins())
    cookie = access.log_in(login("secret"))
    assert isinstance(cookie, bytes)
    assert access.session(with_cookie(cookie)) is not None
    assert access.session((HOST,)) is None
    access.log_out(with_cookie(cookie))
    assert access.session(with_cookie(cookie)) is None


def test_the_cookie_is_out_of_reach() -> None:
    """No script reads the cookie and no other site sends it; under TLS it never travels without."""
    plain = Access(Settings(admin_token="secret"), "log", EndedLogins()).log_in(login("secret"))
    tls = Settings(admin_token="secret", tls_certificate="c", tls_key="k")
    secure = Access(tls, "log", EndedLogins()).log_in(login("secret"))
    assert isinstance(plain, bytes)
    assert isinstance(secure, bytes)
    for part in (b"HttpOnly", b"SameSite=Strict", b"Path=/dashboard", COOKIE.encode()):
        assert part in plain
    assert b"Secure" not in plain
    assert b"Secure" in secure


def test_guessing_is_limited() -> None:
    """After five wrong tokens the next one is told to wait, but not the right one."""
    access = Access(Settings(admin_token="secret"), "log", EndedLogins())
    for _ in range(5):
        assert access.log_in(login("guess")) is None
    assert access.log_in(login("guess")) == 10
    assert isinstance(access.log_in(login("secret")), bytes)
    assert access.log_in(login("guess")) == 10
    assert access.log_in(login("guess", peer="10.0.0.2")) is None


@pytest.mark.parametrize("body", [b"", b"token", b"\xff\xfe", b"token=" + b"x" * 5000, b"secret"])
def test_a_broken_form_is_a_wrong_token(body: bytes) -> None:
    """Whatever is posted, only the token logs in."""
    access = Access(Settings(admin_token="secret"), "log", EndedLogins())
    request = HttpRequest("POST", b"/dashboard/login", b"", (HOST,), body, "")
    assert access.log_in(request) is None


def test_development_is_open_unless_a_token_is_set() -> None:
    """Under --dev nobody logs in, but whoever sets a token wants it asked for."""
    assert Access(Settings(dev=True), "log", EndedLogins()).session((HOST,)) == ""
    assert (
        Access(Settings(dev=True, admin_token="secret"), "log", EndedLogins()).session((HOST,))
        is None
    )


@pytest.mark.parametrize(
    "cookie", [b"a;;=;", b"\xff", b'tidelog_dashboard="\\777"', b"=", b"x" * 9000]
)
def test_a_broken_cookie_is_none(cookie: bytes) -> None:
    """A cookie that cannot be read is no session, and no failure."""
    access = Access(Settings(admin_token="secret"), "log", EndedLogins())
    assert access.session((HOST, (b"cookie", cookie))) is None


@pytest.mark.parametrize(
    ("origin", "verdict"),
    [
        (b"http://log.example:8080", True),
        (b"https://log.example:8080", True),
        (b"http://log.example", False),
        (b"http://evil.example", False),
        (b"null", False),
        (b"http://[", False),
        (b"", False),
    ],
)
def test_origin_is_the_host_that_was_asked(origin: bytes, verdict: bool) -> None:
    """Only a page of the host that was asked has our origin."""
    assert has_own_origin((HOST, (b"origin", origin))) is verdict


def test_requests_of_other_sites_are_told_apart() -> None:
    """A browser says which site's page asks; who is no browser says nothing."""
    own = (b"origin", b"http://log.example:8080")
    assert not is_from_elsewhere((HOST,))
    assert not is_from_elsewhere((HOST, own, (b"sec-fetch-site", b"same-origin")))
    assert is_from_elsewhere((HOST, (b"sec-fetch-site", b"cross-site")))
    assert is_from_elsewhere((HOST, (b"sec-fetch-site", b"same-site")))
    assert is_from_elsewhere((HOST, (b"origin", b"http://evil.example")))


def test_a_change_needs_origin_and_header() -> None:
    """A form of another site has neither, one of ours would lack the header."""
    own = (b"origin", b"http://log.example:8080")
    mark = (b"x-tidelog-dashboard", b"1")
    assert is_change((HOST, own, mark))
    assert not is_change((HOST, own))
    assert not is_change((HOST, mark))
    assert not is_change((HOST, (b"origin", b"http://evil.example"), mark))
