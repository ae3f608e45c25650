"""Who is let in under `--dev`, by what a browser says of itself."""

import pytest

from tidelog.web.development import is_ours

HOST = (b"host", b"127.0.0.1:8080")


@pytest.mark.parametrize("host", [b"127.0.0.1:8080", b"localhost", b"localhost:1", b"[::1]:8080"])
def test_a_name_of_this_machine_is_ours(host: bytes) -> None:
    """Every way to say where the server is."""
    assert is_ours(((b"host", host),), is_reading=False)


@pytest.mark.parametrize(
    "host", [b"evil.example", b"127.0.0.1.evil.example", b"10.0.0.1", b"[", b"localhost.evil:80"]
)
def test_another_name_is_not(host: bytes) -> None:
    """One that somebody points at this machine (DNS rebinding) reads nothing."""
    assert not is_ours(((b"host", host),), is_reading=True)


@pytest.mark.parametrize(
    "origin", [b"http://localhost:3000", b"http://127.0.0.1", b"https://[::1]"]
)
def test_a_page_of_this_machine_is_ours(origin: bytes) -> None:
    """Whatever port it is served on."""
    assert is_ours((HOST, (b"origin", origin)), is_reading=False)


@pytest.mark.parametrize(
    "origin",
    [b"https://evil.example", b"http://localhost.evil.example", b"http://[", b"x", b"file:"],
)
def test_a_page_of_another_site_is_not(origin: bytes) -> None:
    """Not even to read."""
    assert not is_ours((HOST, (b"origin", origin)), is_reading=True)


def test_a_page_without_an_address_may_only_read() -> None:
    """A framed page of a stranger is one, and cannot see what it is answered."""
    assert is_ours((HOST, (b"origin", b"null")), is_reading=True)
    assert not is_ours((HOST, (b"origin", b"null")), is_reading=False)


def test_a_program_is_ours() -> None:
    """It sends no origin, and before HTTP/1.1 no host."""
    assert is_ours((HOST,), is_reading=False)
    assert is_ours((), is_reading=False)
